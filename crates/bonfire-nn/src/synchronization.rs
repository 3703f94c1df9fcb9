//! Which ranks a batch normalisation shares its batches with, and how a model's layers learn it.

use bonfire_comm::{CommError, ProcessGroup};
use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::Device;
use std::cell::RefCell;

/// Makes every batch normalisation of a model share its batches with the ranks of a group.
///
/// That is every [`Norm::Batch`](crate::Norm::Batch) and [`SyncBatchNorm`](crate::SyncBatchNorm),
/// wherever it stands in the model; a field of type `burn::nn::BatchNorm` stays as it is. All layers
/// get one duplicate of the group, with an order of its own beside that of gradients and of
/// whatever else the ranks do; the caller may go on using its group.
///
/// # Collective
/// All ranks of `group`, with the same model, before it goes into `DataParallel`; a model without
/// such layers does not communicate.
///
/// # Errors
/// The failures of [`ProcessGroup::duplicate`].
///
/// # Reference
/// `torch.nn.SyncBatchNorm.convert_sync_batchnorm`.
pub fn convert_sync_batchnorm<M: Module>(model: M, group: &ProcessGroup) -> Result<M, CommError> {
    Pass::new(Some(group), true).over(model).0
}

/// Gives a group to those batch normalisations of a model that wait for one.
///
/// They are those that were made by [`NormKind::SyncBatch`](crate::NormKind::SyncBatch) or
/// [`SyncBatchNormConfig`](crate::SyncBatchNormConfig). The `Trainer` does this to the model that it
/// is given.
///
/// # Collective
/// As [`convert_sync_batchnorm`].
///
/// # Errors
/// The failures of [`ProcessGroup::duplicate`].
pub fn connect_sync_batchnorm<M: Module>(model: M, group: &ProcessGroup) -> Result<M, CommError> {
    Pass::new(Some(group), false).over(model).0
}

/// Whether a layer of the model shares its batches with other ranks, so that every rank has to run
/// every forward and backward pass.
pub fn is_synchronized<M: Module>(model: &M) -> bool {
    Pass::new(None, false).over(model.clone()).1.synchronized
}

/// Whether the model has layers that share their batches with other ranks, or will when they are
/// given a group.
pub fn has_sync_batchnorm<M: Module>(model: &M) -> bool {
    Pass::new(None, false).over(model.clone()).1.wants
}

/// With whom a layer shares its batches.
#[derive(Debug, Clone)]
pub(crate) enum Synchronization {
    /// With nobody.
    Off,
    /// With the ranks of a group that it has not been given yet: so far with nobody.
    Wanted,
    /// With the ranks of a group.
    Over(ProcessGroup),
}

/// One walk over the layers of a model.
struct Pass {
    group: Option<ProcessGroup>,
    /// Whether it means layers that want no group, or have one, too.
    all: bool,
    /// The layers' own group, made when the first of them is met.
    duplicate: Option<ProcessGroup>,
    failure: Option<CommError>,
    found: Found,
}

/// What a walk has met.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    /// A layer that shares its batches with other ranks.
    synchronized: bool,
    /// A layer that does, or wants to.
    wants: bool,
}

thread_local! {
    /// The walk that this thread is on.
    ///
    /// Burn's mappers are shown parameters, never modules, so a layer looks here when it is mapped.
    static PASS: RefCell<Option<Pass>> = const { RefCell::new(None) };
}

impl Pass {
    fn new(group: Option<&ProcessGroup>, all: bool) -> Self {
        let group = group.cloned();
        Self { group, all, duplicate: None, failure: None, found: Found::default() }
    }

    /// Walks over a model, and says what is in it thereafter.
    fn over<M: Module>(self, model: M) -> (Result<M, CommError>, Found) {
        /// Ends the walk of this thread, also when a module of the user's panics.
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                PASS.take();
            }
        }
        let end = End;
        PASS.set(Some(self));
        let model = model.map(&mut Unchanged);
        let pass = PASS.take();
        drop(end);
        let (failure, found) = pass.map(|pass| (pass.failure, pass.found)).unwrap_or_default();
        (failure.map_or(Ok(model), Err), found)
    }

    fn meet(&mut self, layer: Synchronization) -> Synchronization {
        let meant = self.all || matches!(layer, Synchronization::Wanted);
        let group = if meant { self.own_group() } else { None };
        let layer = group.map_or(layer, Synchronization::Over);
        self.found.wants |= !matches!(layer, Synchronization::Off);
        self.found.synchronized |= layer.group().is_some_and(|group| group.world_size() > 1);
        layer
    }

    fn own_group(&mut self) -> Option<ProcessGroup> {
        let group = self.group.as_ref()?;
        if self.duplicate.is_none() && self.failure.is_none() {
            let made = group.duplicate("sync_batch_norm");
            // Now, and not in the order in which the ranks come to their first layers.
            let made = made.and_then(|own| own.prepare_devices().map(|()| own));
            match made {
                Ok(duplicate) => self.duplicate = Some(duplicate),
                Err(error) => self.failure = Some(error),
            }
        }
        self.duplicate.clone()
    }
}

/// Leaves parameters as they are.
struct Unchanged;

impl ModuleMapper for Unchanged {}

impl Synchronization {
    pub(crate) fn group(&self) -> Option<&ProcessGroup> {
        match self {
            Self::Over(group) => Some(group),
            Self::Off | Self::Wanted => None,
        }
    }
}

impl Module for Synchronization {
    fn map<M: ModuleMapper>(self, _mapper: &mut M) -> Self {
        PASS.with_borrow_mut(|pass| match pass {
            Some(pass) => pass.meet(self),
            None => self,
        })
    }

    fn visit<V: ModuleVisitor>(&self, _visitor: &mut V) {}

    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn train(self) -> Self {
        self
    }

    fn materialize(self) -> Self {
        self
    }
}

impl core::fmt::Display for Synchronization {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Wanted => f.write_str("waits for a group"),
            Self::Over(group) => write!(f, "{} ranks", group.world_size()),
        }
    }
}

impl ModuleDisplayDefault for Synchronization {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&self.to_string()).optional()
    }
}

impl ModuleDisplay for Synchronization {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Norm, NormConfig, NormKind, SyncBatchNorm, SyncBatchNormConfig};
    use bonfire_comm::local;
    use burn::nn::{BatchNorm, BatchNormConfig};

    /// Norms in all the places that a module can have them.
    #[derive(Module, Debug)]
    struct Model {
        plain: Norm,
        waiting: Norm,
        list: Vec<Norm>,
        option: Option<(Norm, SyncBatchNorm)>,
        burns_own: BatchNorm,
    }

    impl Model {
        fn new() -> Self {
            let device = Device::flex().autodiff();
            let norm = |kind| NormConfig::new(kind).with_num_groups(1).init(2, &device).unwrap();
            let sync = SyncBatchNormConfig::new(2).init(&device);
            Self {
                plain: norm(NormKind::Batch),
                waiting: norm(NormKind::SyncBatch),
                list: vec![norm(NormKind::Group), norm(NormKind::Batch), norm(NormKind::None)],
                option: Some((norm(NormKind::SyncBatch), sync)),
                burns_own: BatchNormConfig::new(2).init(&device),
            }
        }

        fn kinds(&self) -> Vec<NormKind> {
            let optional = self.option.iter().map(|(norm, _)| norm);
            [&self.plain, &self.waiting]
                .into_iter()
                .chain(&self.list)
                .chain(optional)
                .map(Norm::kind)
                .collect()
        }

        /// Names of the groups of all layers that have one.
        fn groups(&self) -> Vec<String> {
            let (norms, sync): (Vec<_>, Vec<_>) =
                self.option.iter().map(|(norm, sync)| (norm, sync)).unzip();
            let layers = [&self.plain, &self.waiting].into_iter().chain(&self.list).chain(norms);
            let layers = layers.filter_map(layer).chain(sync);
            layers.filter_map(SyncBatchNorm::group).map(|group| group.name().to_string()).collect()
        }
    }

    fn layer(norm: &Norm) -> Option<&SyncBatchNorm> {
        match norm {
            Norm::Batch(layer) => Some(layer),
            _ => None,
        }
    }

    #[test]
    fn conversion_reaches_every_layer_and_connection_those_that_wait() {
        use NormKind::{Batch, Group, None, SyncBatch};
        local::spawn(2, |group| {
            let model = Model::new();
            assert!(!is_synchronized(&model) && model.groups().is_empty());
            let connected = connect_sync_batchnorm(model.clone(), &group).unwrap();
            assert_eq!(connected.kinds(), [Batch, SyncBatch, Group, Batch, None, SyncBatch]);
            assert_eq!(connected.groups(), ["sync_batch_norm"; 3]);
            assert!(is_synchronized(&connected) && is_synchronized(&connected.valid()));

            let converted = convert_sync_batchnorm(model, &group).unwrap();
            assert_eq!(
                converted.kinds(),
                [SyncBatch, SyncBatch, Group, SyncBatch, None, SyncBatch]
            );
            assert_eq!(converted.groups(), ["sync_batch_norm"; 5]);
        });
    }

    #[test]
    fn a_model_without_such_layers_makes_no_group() {
        let ranks = local::spawn(2, |group| {
            let norm = NormConfig::new(NormKind::Batch).init(2, &Device::flex()).unwrap();
            if group.rank() == 0 {
                // Would wait for the other rank if it made a duplicate.
                connect_sync_batchnorm(norm, &group).map(drop)
            } else {
                Ok(())
            }
        });
        assert!(ranks.into_iter().all(|result| result.is_ok()));
    }

    #[test]
    fn a_failed_group_is_an_error_and_ends_the_walk() {
        let group = ProcessGroup::single();
        group.abort("for the test");
        let error = convert_sync_batchnorm(Model::new(), &group).unwrap_err();
        assert!(error.to_string().contains("for the test"), "{error}");
        let model = Model::new();
        assert_eq!(model.clone().map(&mut Unchanged).kinds(), model.kinds());
    }
}
