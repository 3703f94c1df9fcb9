//! Optimizer state by module path: independent of buckets, so that a checkpoint fits any layout.

use super::FlatOptimizer;
use crate::ParallelError;
use crate::bucket::BucketLayout;
use bonfire_comm::HostBuffer;
use bonfire_tensor::TensorError;
use bonfire_tensor::host::{flat_from_host, to_host};
use bonfire_tensor::state::{HostTensor, State, StateError, Stateful};
use burn::tensor::Device;
use std::collections::BTreeSet;

/// Separates a slot's name from the path of its parameter.
const SEPARATOR: char = '/';

/// An optimizer's slots cut up by the parameters they belong to, named `slot/path`.
pub struct OptimizerState<'a> {
    optimizer: &'a mut dyn FlatOptimizer,
    layout: BucketLayout,
    /// Elements of each bucket, padding included.
    lens: Vec<usize>,
    device: Device,
}

impl<'a> OptimizerState<'a> {
    pub(crate) fn new(
        optimizer: &'a mut dyn FlatOptimizer,
        layout: BucketLayout,
        lens: Vec<usize>,
        device: Device,
    ) -> Self {
        Self { optimizer, layout, lens, device }
    }
}

impl Stateful for OptimizerState<'_> {
    fn state(&self) -> Result<State, TensorError> {
        let mut state = State::default();
        for (index, bucket) in self.layout.buckets().iter().enumerate() {
            for slot in self.optimizer.slots(index) {
                let Some(flat) = self.optimizer.slot(index, &slot) else { continue };
                for segment in &bucket.segments {
                    let data = to_host(flat.clone().slice(segment.range.clone()))?;
                    let name = format!("{slot}{SEPARATOR}{}", segment.path);
                    let shape = segment.shape.clone();
                    state.tensors.insert(name, HostTensor { shape, data });
                }
            }
        }
        state.scalars.extend(self.optimizer.scalars());
        Ok(state)
    }

    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        let slots: BTreeSet<String> = state
            .tensors
            .keys()
            .filter_map(|name| name.split_once(SEPARATOR).map(|(slot, _)| slot.to_string()))
            .collect();
        for slot in &slots {
            for (index, bucket) in self.layout.buckets().iter().enumerate() {
                let mut flat = HostBuffer::zeros(bucket.dtype, self.lens[index]);
                let size = bucket.dtype.size_bytes();
                for segment in &bucket.segments {
                    let name = format!("{slot}{SEPARATOR}{}", segment.path);
                    let part = state.take_tensor(&name, &segment.shape, bucket.dtype)?;
                    flat.as_bytes_mut()[segment.range.start * size..segment.range.end * size]
                        .copy_from_slice(part.as_bytes());
                }
                self.optimizer.set_slot(index, slot, flat_from_host(flat, &self.device));
            }
        }
        for (name, value) in std::mem::take(&mut state.scalars) {
            self.optimizer.set_scalar(&name, value).map_err(|error| match error {
                ParallelError::Tensor(error) => error,
                _ => StateError::Unexpected { name: name.clone() }.into(),
            })?;
        }
        Ok(state.finish()?)
    }
}
