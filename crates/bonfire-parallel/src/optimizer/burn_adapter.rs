use super::{FlatOptimizer, FlatUpdate};
use crate::ParallelError;
use bonfire_tensor::state::{Scalar, StateError};
use burn::optim::{Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Tensor, TensorData};
use std::collections::BTreeMap;

/// Any optimizer of `burn::optim` over flat buckets, a state for each parameter.
///
/// Element-wise optimizers (SGD, Adam, AdamW, RMSprop, AdaGrad, Lion) give the same result as over
/// the module. Optimizers that use a parameter's shape (Muon, Adafactor) do not: they see every
/// parameter as a vector.
pub struct BurnOptimizer<O: Optimizer> {
    optimizer: O,
    /// By bucket and segment.
    states: BTreeMap<(usize, usize), O::State<1>>,
    /// Slots of a checkpoint, cut up when a bucket's states are next needed.
    restored: BTreeMap<usize, BTreeMap<String, Tensor<1>>>,
    scalars: BTreeMap<String, burn_pack::Scalar>,
}

impl<O: Optimizer> BurnOptimizer<O> {
    /// Wraps the optimizer that a Burn configuration's `build` makes.
    pub fn new(optimizer: O) -> Self {
        Self {
            optimizer,
            states: BTreeMap::new(),
            restored: BTreeMap::new(),
            scalars: BTreeMap::new(),
        }
    }

    fn restore(&self, bucket: usize, range: &std::ops::Range<usize>) -> Option<O::State<1>> {
        let slots = self.restored.get(&bucket)?;
        let device = slots.values().next()?.device();
        let mut source = StateSource::new(self.scalars.clone().into_iter().collect());
        for (name, slot) in slots {
            source.insert_tensor(name.clone(), slot.clone().slice(range.clone()).into_data());
        }
        O::State::<1>::state_unflatten("", &mut source, &device)
    }

    fn flattened(&self, key: (usize, usize)) -> StateSink {
        let mut sink = StateSink::default();
        if let Some(state) = self.states.get(&key) {
            state.state_flatten("", &mut sink);
        }
        sink
    }

    fn segments_of(&self, bucket: usize) -> impl Iterator<Item = (usize, usize)> {
        self.states.range((bucket, 0)..(bucket + 1, 0)).map(|(key, _)| *key)
    }
}

impl<O: Optimizer> FlatOptimizer for BurnOptimizer<O> {
    fn step(&mut self, bucket: usize, update: FlatUpdate<'_>) -> Result<Tensor<1>, ParallelError> {
        let mut parts = Vec::with_capacity(update.segments.len() + 1);
        for (index, segment) in update.segments.iter().enumerate() {
            let parameters = update.parameters.clone().slice(segment.range.clone());
            let Some(Some(rate)) = update.rates.get(index) else {
                parts.push(parameters);
                continue;
            };
            let key = (bucket, index);
            let state = self.states.remove(&key).or_else(|| self.restore(bucket, &segment.range));
            let gradients = update
                .gradients
                .clone()
                .slice(segment.range.clone())
                .mul_scalar(update.gradient_scale);
            let (parameters, state) = self.optimizer.step(*rate, parameters, gradients, state);
            if let Some(state) = state {
                self.states.insert(key, state);
            }
            parts.push(parameters);
        }
        self.restored.remove(&bucket);
        let end = update.segments.last().map_or(0, |segment| segment.range.end);
        let len = update.parameters.dims()[0];
        if end < len {
            parts.push(update.parameters.clone().slice(end..len));
        }
        Ok(Tensor::cat(parts, 0))
    }

    fn slots(&self, bucket: usize) -> Vec<String> {
        let first = self.segments_of(bucket).next();
        let tensors = first.map(|key| self.flattened(key).tensors).unwrap_or_default();
        tensors.into_iter().map(|(name, _)| name).collect()
    }

    fn slot(&self, bucket: usize, name: &str) -> Option<Tensor<1>> {
        let mut parts = Vec::new();
        for key in self.segments_of(bucket) {
            let tensors = self.flattened(key).tensors;
            let (_, data) = tensors.into_iter().find(|(slot, _)| slot == name)?;
            parts.push(on_default_device(data));
        }
        if parts.is_empty() { None } else { Some(Tensor::cat(parts, 0)) }
    }

    fn set_slot(&mut self, bucket: usize, name: &str, values: Tensor<1>) {
        self.restored.entry(bucket).or_default().insert(name.to_string(), values);
    }

    fn scalars(&self) -> Vec<(String, Scalar)> {
        let Some(key) = self.states.keys().next() else { return Vec::new() };
        let scalars = self.flattened(*key).scalars;
        scalars.into_iter().map(|(name, value)| (name, from_burn(value))).collect()
    }

    fn set_scalar(&mut self, name: &str, value: Scalar) -> Result<(), ParallelError> {
        let value = match value {
            Scalar::Bool(value) => value.into(),
            Scalar::Uint(value) => value.into(),
            Scalar::Int(value) => value.into(),
            Scalar::Float(value) => value.into(),
            Scalar::Text(_) => return Err(StateError::Unexpected { name: name.into() }.into()),
        };
        self.scalars.insert(name.to_string(), value);
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
