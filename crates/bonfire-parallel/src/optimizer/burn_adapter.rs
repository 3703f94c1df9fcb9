use super::{FlatOptimizer, FlatUpdate};
use crate::ParallelError;
use crate::bucket::Segment;
use crate::joined::joined;
use bonfire_tensor::state::{Scalar, StateError};
use burn::optim::{Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Tensor, TensorData};
use std::collections::BTreeMap;

/// Any optimizer of `burn::optim` over flat buckets, a state for each parameter.
///
/// Element-wise optimizers (SGD, Adam, AdamW, RMSprop, AdaGrad, Lion) give the same result as over
/// the module. Optimizers that use a parameter's shape (Muon, Adafactor) do not: they see every
/// parameter as a vector.
///
/// Learning rates of parameter groups hold; a weight decay or a momentum that a step sets is an
/// error, since Burn's optimizers keep theirs to themselves.
pub struct BurnOptimizer<O: Optimizer> {
    optimizer: O,
    /// By bucket and segment.
    states: BTreeMap<(usize, usize), O::State<1>>,
    /// Segments of the buckets seen so far.
    segments: BTreeMap<usize, Vec<Segment>>,
    /// Slots of a checkpoint, cut up when a parameter's state is next needed.
    restored: BTreeMap<usize, BTreeMap<String, Tensor<1>>>,
    /// Scalars of a checkpoint, by path of the parameter.
    restored_scalars: BTreeMap<String, BTreeMap<String, burn_pack::Scalar>>,
}

impl<O: Optimizer> BurnOptimizer<O> {
    /// Wraps the optimizer that a Burn configuration's `build` makes.
    pub fn new(optimizer: O) -> Self {
        Self {
            optimizer,
            states: BTreeMap::new(),
            segments: BTreeMap::new(),
            restored: BTreeMap::new(),
            restored_scalars: BTreeMap::new(),
        }
    }

    /// The state that a checkpoint holds for a parameter; none if it had none.
    fn restore(
        &self,
        bucket: usize,
        segment: &Segment,
    ) -> Result<Option<O::State<1>>, ParallelError> {
        let Some(slots) = self.restored.get(&bucket) else { return Ok(None) };
        let Some(scalars) = self.restored_scalars.get(&segment.path) else { return Ok(None) };
        let Some(device) = slots.values().next().map(Tensor::device) else { return Ok(None) };
        let mut source = StateSource::new(scalars.clone().into_iter().collect());
        for (name, slot) in slots {
            let part = slot.clone().slice(segment.range.clone()).into_data();
            source.insert_tensor(name.clone(), part);
        }
        match O::State::<1>::state_unflatten("", &mut source, &device) {
            Some(state) => Ok(Some(state)),
            None => {
                let name = format!("optimizer state of {}", segment.path);
                Err(StateError::Missing { kind: "entry", name }.into())
            }
        }
    }

    fn flattened(&self, key: (usize, usize)) -> Option<StateSink> {
        let mut sink = StateSink::default();
        self.states.get(&key)?.state_flatten("", &mut sink);
        // Whether a parameter has a state at all is told by its scalars.
        sink.scalars.push((PRESENT.to_string(), true.into()));
        Some(sink)
    }

    fn keys_of(&self, bucket: usize) -> impl Iterator<Item = (usize, usize)> {
        self.states.range((bucket, 0)..(bucket + 1, 0)).map(|(key, _)| *key)
    }
}

/// Scalar of every parameter with a state.
const PRESENT: &str = "present";
/// What messages call the optimizers behind the adapter.
const BURNS: &str = "an optimizer of Burn";
/// Separates a scalar's name from its parameter's path.
const SEPARATOR: char = '/';

impl<O: Optimizer> FlatOptimizer for BurnOptimizer<O> {
    fn step(&mut self, bucket: usize, update: FlatUpdate<'_>) -> Result<Tensor<1>, ParallelError> {
        if let Some(index) = update.decays.iter().position(Option::is_some) {
            let path = update.segments.get(index).map_or("", |segment| segment.path.as_str());
            return Err(ParallelError::OptimizerLacks {
                optimizer: BURNS,
                what: format!("weight decay by parameter group (\"{path}\" has one)"),
                remedy: "use SgdConfig, AdamConfig or AdamWConfig of Bonfire, or groups that set \
                         no weight decay",
            });
        }
        self.segments.entry(bucket).or_insert_with(|| update.segments.to_vec());
        let mut parts = Vec::with_capacity(update.segments.len() + 1);
        for (index, segment) in update.segments.iter().enumerate() {
            let parameters = update.parameters.clone().slice(segment.range.clone());
            let key = (bucket, index);
            if let Some(state) = self.restore(bucket, segment)? {
                self.states.insert(key, state);
                self.restored_scalars.remove(&segment.path);
            }
            let Some(Some(rate)) = update.rates.get(index) else {
                parts.push(Some(parameters));
                continue;
            };
            let state = self.states.remove(&key);
            let gradients = update
                .gradients
                .clone()
                .slice(segment.range.clone())
                .mul_scalar(update.gradient_scale);
            let (parameters, state) = self.optimizer.step(*rate, parameters, gradients, state);
            if let Some(state) = state {
                self.states.insert(key, state);
            }
            parts.push(Some(parameters));
        }
        self.restored.remove(&bucket);
        let len = update.parameters.dims()[0];
        let options = (&update.parameters.device(), update.parameters.dtype());
        Ok(joined(update.segments, parts, len, options))
    }

    fn set_momentum(&mut self, _momentum: f64) -> Result<(), ParallelError> {
        Err(ParallelError::OptimizerLacks {
            optimizer: BURNS,
            what: "momentum that can be changed".to_string(),
            remedy: "use SgdConfig, AdamConfig or AdamWConfig of Bonfire, or a schedule that \
                     leaves momentum alone",
        })
    }

    fn reset(&mut self) {
        self.states.clear();
        self.segments.clear();
        self.restored.clear();
        self.restored_scalars.clear();
    }

    fn slots(&self, bucket: usize) -> Vec<String> {
        if let Some(restored) = self.restored.get(&bucket) {
            return restored.keys().cloned().collect();
        }
        let first = self.keys_of(bucket).find_map(|key| self.flattened(key));
        let tensors = first.map(|sink| sink.tensors).unwrap_or_default();
        tensors.into_iter().map(|(name, _)| name).collect()
    }

    fn slot(&self, bucket: usize, name: &str) -> Option<Tensor<1>> {
        if let Some(restored) = self.restored.get(&bucket) {
            return restored.get(name).cloned();
        }
        let device = burn::tensor::Device::flex();
        let segments = self.segments.get(&bucket)?;
        let mut parts = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let sink = self.flattened((bucket, index));
            let found =
                sink.and_then(|sink| sink.tensors.into_iter().find(|(slot, _)| slot == name));
            parts.push(match found {
                Some((_, data)) => on_default_device(data),
                // A parameter that was never used has no state.
                None => Tensor::zeros([segment.range.len()], &device),
            });
        }
        let dtype = parts.iter().map(Tensor::dtype).find(|dtype| *dtype != parts[0].dtype());
        let dtype = dtype.unwrap_or_else(|| parts[0].dtype());
        let parts = parts.into_iter().map(|part| Some(part.cast(dtype)));
        let len = segments.last().map_or(0, |segment| segment.range.end);
        Some(joined(segments, parts, len, (&device, dtype)))
    }

    fn set_slot(&mut self, bucket: usize, name: &str, values: Tensor<1>) {
        self.restored.entry(bucket).or_default().insert(name.to_string(), values);
    }

    fn scalars(&self) -> Vec<(String, Scalar)> {
        let mut scalars = Vec::new();
        for (bucket, segments) in &self.segments {
            for (index, segment) in segments.iter().enumerate() {
                let sink = self.flattened((*bucket, index)).unwrap_or_default();
                scalars.extend(sink.scalars.into_iter().map(|(name, value)| {
                    (format!("{name}{SEPARATOR}{}", segment.path), from_burn(value))
                }));
            }
        }
        for (path, values) in &self.restored_scalars {
            scalars.extend(
                values
                    .iter()
                    .map(|(name, value)| (format!("{name}{SEPARATOR}{path}"), from_burn(*value))),
            );
        }
        scalars
    }

    fn set_scalar(&mut self, name: &str, value: Scalar) -> Result<(), ParallelError> {
        let unexpected = || StateError::Unexpected { name: name.to_string() };
        let (scalar, path) = name.split_once(SEPARATOR).ok_or_else(unexpected)?;
        let value = match value {
            Scalar::Bool(value) => value.into(),
            Scalar::Uint(value) => value.into(),
            Scalar::Int(value) => value.into(),
            Scalar::Float(value) => value.into(),
            Scalar::Text(_) => return Err(unexpected().into()),
        };
        self.restored_scalars
            .entry(path.to_string())
            .or_default()
            .insert(scalar.to_string(), value);
        Ok(())
    }
}

fn on_default_device(data: TensorData) -> Tensor<1> {
    let dtype = data.dtype();
    Tensor::from_data(data, (&burn::tensor::Device::flex(), dtype))
}

fn from_burn(value: burn_pack::Scalar) -> Scalar {
    match value {
        burn_pack::Scalar::Bool(value) => Scalar::Bool(value),
        burn_pack::Scalar::Int(value) => Scalar::Int(value),
        burn_pack::Scalar::UInt(value) => Scalar::Uint(value),
        burn_pack::Scalar::Float(value) => Scalar::Float(value),
    }
}
