mod apart;
mod backward;
mod buffers;
mod foreign;
mod gradients;
mod guard;
mod join;
mod local;
mod memory;
mod rebuild;
mod replicas;
mod state;
mod step;
mod step_parts;

pub use gradients::GradientPart;
pub use guard::StepOptions;
pub use memory::MemoryUse;
pub use step::{StepInProgress, StepReport};

use crate::agreement::check_models_agree;
use crate::average::ModelValues;
use crate::bucket::{BucketLayout, Grain};
use crate::config::{Join, ZeroStage};
use crate::exchange::{Exchange, HookRunner};
use crate::local_sgd::OuterState;
use crate::optimizer::ParameterSettings;
use crate::reducer::{Reducer, Totals};
use crate::shard::Sharding;
use crate::{DataParallelConfig, ParallelError};
use bonfire_comm::{HostBuffer, ProcessGroup};
use bonfire_tensor::TensorError;
use bonfire_tensor::cast::Casting;
use bonfire_tensor::hook::Anchors;
use bonfire_tensor::host::flat_from_host;
use bonfire_tensor::lend;
use bonfire_tensor::parameters::{self, ParameterSpec, Role, hide_trainable};
use bonfire_tensor::state::State;
use bonfire_tensor::trace::Trace;
use buffers::broadcast_state;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// A model whose gradients are reduced over the ranks of a group while the backward pass runs.
///
/// ```ignore
/// let mut parallel = DataParallel::new(model, group, DataParallelConfig::default())?;
/// let mut optimizer = SgdConfig::new(0.1).with_momentum(0.9).init()?;
/// for (input, target) in batches {
///     let loss = cross_entropy(parallel.replica()?.forward(input), target);
///     parallel.backward(loss)?;
///     parallel.step(&mut optimizer, 0.1)?;
/// }
/// ```
///
/// The parameters live in flat buckets ([`BucketLayout`]) and the model's tensors are views of
/// them. A replica is a clone of the model with a hook behind every trainable parameter; a hook
/// copies the gradient into its bucket, and a full bucket is reduced by the group's engine while
/// the backward pass goes on. The first window finds out in which order the model uses its
/// parameters, and the buckets are rebuilt by it.
///
/// # Collective
/// `new`, and `replica`, `backward`, `step` as a whole, are collective: every rank calls them
/// equally often, in the same order. A rank without samples calls
/// [`backward_without_samples`](Self::backward_without_samples); one that has run out of batches
/// for good, [`join`](Self::join).
///
/// # Reference
/// Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020,
/// arXiv:2006.15704.
pub struct DataParallel<M> {
    model: M,
    replica: Option<M>,
    device: Device,
    /// Carries buffers and checks; gradients have a group of their own, in the reducer, since the
    /// relative order may differ between ranks.
    control: ProcessGroup,
    config: DataParallelConfig,
    specs: Vec<ParameterSpec>,
    has_buffers: bool,
    anchors: Anchors,
    /// Whether parameters lie where host memory is out of reach.
    apart: bool,
    /// What replicas see in 16 bits, in mixed precision.
    casting: Option<Casting>,
    reducer: Arc<Reducer>,
    /// Flat parameters of each bucket, without autodiff.
    flat: Vec<Tensor<1>>,
    /// How buckets are cut, if ranks share anything.
    sharding: Option<Sharding>,
    /// Trainable parameters in the order in which their gradients arrive, once it was found.
    arrival: Option<Vec<usize>>,
    /// Finds the order of use, until the buckets are rebuilt by it.
    trace: Option<Arc<Trace>>,
    synchronizing: bool,
    /// Whether the window has had a forward pass.
    window_begun: bool,
    /// Of a window whose gradients are back: its totals, and the trainable parameters that take part
    /// in the step, by index.
    totals: Option<(Totals, Vec<bool>)>,
    /// Learning rate of the last step.
    last_rate: Option<f64>,
    /// Parameters that any rank used in the first window, with `static_graph`; by index.
    static_used: Option<Vec<bool>>,
    /// Ranks that had batches at the last roll call.
    active: Vec<usize>,
    outer: OuterState,
    /// Learning rate and weight decay of each trainable parameter, relative to the optimizer's.
    settings: Vec<ParameterSettings>,
    /// Optimizer steps taken, over all resumes.
    steps: u64,
    comm_wait: Duration,
}

impl<M: Module> DataParallel<M> {
    /// Checks that all ranks hold the same model, gives all of them rank 0's parameters and
    /// buffers, and lays the parameters out in buckets.
    ///
    /// # Collective
    /// All ranks of `group`. The model keeps two duplicates of the group, so the caller may go on
    /// using its own.
    ///
    /// # Errors
    /// [`ParallelError::ModelsDiffer`] on every rank; [`ParallelError::NothingToTrain`];
    /// [`ParallelError::Setting`]; [`ParallelError::Amp`] when the model or its device cannot run in
    /// mixed precision; failures of the group.
    pub fn new(
        model: M,
        group: &ProcessGroup,
        config: DataParallelConfig,
    ) -> Result<Self, ParallelError> {
        config.validate()?;
        let gradients = group.duplicate("gradients")?;
        let control = group.duplicate("buffers")?;
        drop(model.valid());
        let specs = parameters::inspect(&model)?;
        check_models_agree(&control, &specs)?;
        let trainable = parameters::trainable(&specs);
        let device = model.devices().into_iter().next().ok_or(ParallelError::NothingToTrain)?;
        if trainable.is_empty() {
            return Err(ParallelError::NothingToTrain);
        }
        if let Some(mixed_precision) = &config.mixed_precision {
            mixed_precision.check(&model, &device)?;
        }
        let settings = config.parameter_groups.settings(&trainable)?;
        let alone = group.world_size() == 1;
        let shares = config.zero_stage != ZeroStage::Off && !alone;
        let apart = lend::is_apart(&device);
        if apart && !alone {
            // Now, and not in the order in which the ranks come to their first operations.
            gradients.prepare_devices()?;
        }
        let grain = if apart { Grain::Device } else { Grain::Host };
        let sharding = shares.then(|| Sharding::of(group, grain));
        let hook = match config.compression.build()? {
            Some(hook) if !alone => {
                Some(Arc::new(HookRunner::new(hook, gradients.clone(), trainable.len())?))
            }
            _ => None,
        };
        let visited_last_first: Vec<usize> = (0..trainable.len()).rev().collect();
        let layout = layout(&trainable, &visited_last_first, &config, alone, grain);
        let always_local = config.local_sgd.is_some_and(|policy| policy.is_local(0));
        let mut parallel = Self {
            model,
            replica: None,
            device: device.clone().inner(),
            active: (0..control.world_size()).collect(),
            control,
            has_buffers: specs.iter().any(|spec| spec.role == Role::Buffer),
            casting: config.mixed_precision.as_ref().map(|mixed| mixed.casting(&specs)),
            anchors: Anchors::new(trainable.len(), &device),
            reducer: Arc::new(Reducer::new(
                layout,
                gradients,
                sharding,
                hook,
                apart.then(|| device.clone().inner()),
            )),
            apart,
            specs,
            flat: Vec::new(),
            sharding,
            arrival: None,
            trace: (!alone && !always_local).then(Arc::default),
            synchronizing: true,
            window_begun: false,
            totals: None,
            last_rate: None,
            static_used: None,
            outer: OuterState::default(),
            settings,
            steps: 0,
            comm_wait: Duration::ZERO,
            config,
        };
        let state = parameters::read(&parallel.model, |_| true)?;
        let state = broadcast_state(&parallel.control, state, 0)?;
        parallel.adopt(state)?;
        Ok(parallel)
    }

    /// The model with the current parameters. Cheap to clone; do not train through it.
    ///
    /// Between two averages of [`LocalSgd`](crate::LocalSgd) these are this rank's own; see
    /// [`consensus`](Self::consensus).
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The tensors of the model.
    pub fn specs(&self) -> &[ParameterSpec] {
        &self.specs
    }

    /// Where each parameter lies. Changes once, in the first step over several ranks.
    pub fn layout(&self) -> &BucketLayout {
        self.reducer.layout()
    }

    /// The values of the model, whatever its type.
    pub fn values(&self) -> ModelValues<'_> {
        ModelValues {
            flat: &self.flat,
            layout: self.reducer.layout(),
            buffers: Box::new(|| match self.has_buffers {
                true => parameters::read(&self.model, |spec| spec.role == Role::Buffer),
                false => Ok(State::default()),
            }),
        }
    }

    /// Optimizer steps taken, over all resumes.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Time spent waiting for reductions that the backward pass did not hide.
    pub fn comm_wait(&self) -> Duration {
        self.comm_wait
    }

    /// Payload bytes that this rank has sent for gradients and parameters.
    pub fn bytes_sent(&self) -> u64 {
        self.reducer.group().bytes_sent()
    }

    /// What the window at hand does with its full buckets.
    fn exchange(&self) -> Exchange {
        let local = |policy: &crate::LocalSgd| policy.is_local(self.steps);
        if self.control.world_size() == 1 || self.config.local_sgd.as_ref().is_some_and(local) {
            return Exchange::None;
        }
        // The first window finds the order of use; its gradients are needed whole to rebuild.
        if self.trace.is_some() {
            return Exchange::AllReduce;
        }
        let start = self.reducer.hook().map(HookRunner::start_step);
        match (start, self.config.zero_stage) {
            (Some(start), _) if self.steps >= start => Exchange::Hook,
            (None, ZeroStage::Gradients) => Exchange::ReduceScatter,
            _ => Exchange::AllReduce,
        }
    }

    fn grain(&self) -> Grain {
        if self.apart { Grain::Device } else { Grain::Host }
    }

    fn joins(&self) -> bool {
        self.config.join != Join::Off && self.control.world_size() > 1
    }

    /// Makes the model's parameters views of fresh buckets that hold `state`'s values, and gives its
    /// other tensors the values that `state` has for them.
    ///
    /// The old parameters go first, so that no more than two copies of them exist at once.
    fn adopt(&mut self, mut state: State) -> Result<(), TensorError> {
        self.replica = None;
        let mut values = Vec::new();
        for spec in parameters::trainable(&self.specs) {
            values.push(Some(state.take_tensor(&spec.path, &spec.shape, spec.dtype)?));
        }
        self.model = parameters::write(hide_trainable(self.model.clone()), state)?;
        self.flat = Vec::new();
        let mut flat = Vec::with_capacity(self.reducer.layout().buckets().len());
        for (index, bucket) in self.reducer.layout().buckets().iter().enumerate() {
            let mut memory = HostBuffer::zeros(bucket.dtype, self.reducer.memory_len(index));
            let size = bucket.dtype.size_bytes();
            for segment in &bucket.segments {
                if let Some(tensor) = values[segment.parameter].take() {
                    memory.as_bytes_mut()[segment.range.start * size..segment.range.end * size]
                        .copy_from_slice(tensor.as_bytes());
                }
            }
            flat.push(flat_from_host(memory, &self.device));
        }
        self.flat = flat;
        self.show_flat();
        Ok(())
    }

    /// Makes the model's parameters views of the flat tensors.
    fn show_flat(&mut self) {
        self.replica = None;
        let layout = self.reducer.layout();
        let flat = &self.flat;
        self.model = parameters::set_trainable(self.model.clone(), |parameter| {
            let (bucket, segment) = layout.place(parameter)?;
            Some((flat[bucket].clone(), layout.buckets()[bucket].segments[segment].range.clone()))
        });
    }
}

/// Buckets for gradients that arrive in a given order.
fn layout(
    trainable: &[ParameterSpec],
    arrival: &[usize],
    config: &DataParallelConfig,
    alone: bool,
    grain: Grain,
) -> BucketLayout {
    // A rank alone has nothing to send: a bucket for each parameter saves copying gradients. On a
    // device a kernel for each of them would cost more.
    let (first, cap) = match (alone, grain) {
        (true, Grain::Host) => (0.0, 0.0),
        (true, Grain::Device) => (config.bucket_cap_mb, config.bucket_cap_mb),
        (false, _) => (config.first_bucket_mb, config.bucket_cap_mb),
    };
    BucketLayout::with_grain(trainable, arrival, first, cap, grain)
}
