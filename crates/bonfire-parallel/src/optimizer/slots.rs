//! Optimizer state by module path: independent of buckets, so that a checkpoint fits any layout.

use super::FlatOptimizer;
use crate::ParallelError;
use crate::bucket::BucketLayout;
use bonfire_comm::HostBuffer;
use bonfire_tensor::host::{flat_from_host, to_host};
use bonfire_tensor::state::{HostTensor, State, StateError};
use burn::tensor::Device;
use std::collections::{BTreeMap, BTreeSet};

/// Separates a slot's name from the path of its parameter.
const SEPARATOR: char = '/';

pub(crate) fn state_by_path(
    optimizer: &dyn FlatOptimizer,
    layout: &BucketLayout,
) -> Result<State, ParallelError> {
    let mut state = State::default();
    for (index, bucket) in layout.buckets().iter().enumerate() {
        for slot in optimizer.slots(index) {
            let Some(flat) = optimizer.slot(index, &slot) else { continue };
            for segment in &bucket.segments {
                let data = to_host(flat.clone().slice(segment.range.clone()))?;
                let name = format!("{slot}{SEPARATOR}{}", segment.path);
                state.tensors.insert(name, HostTensor { shape: segment.shape.clone(), data });
            }
        }
    }
    state.scalars.extend(optimizer.scalars());
    Ok(state)
}

pub(crate) fn load_by_path(
    optimizer: &mut dyn FlatOptimizer,
    layout: &BucketLayout,
    lens: &[usize],
    device: &Device,
    mut state: State,
) -> Result<(), ParallelError> {
    let slots: BTreeSet<String> = state
        .tensors
        .keys()
        .filter_map(|name| name.split_once(SEPARATOR).map(|(slot, _)| slot.to_string()))
        .collect();
    for slot in &slots {
        for (index, bucket) in layout.buckets().iter().enumerate() {
            let mut flat = HostBuffer::zeros(bucket.dtype, lens[index]);
            let size = bucket.dtype.size_bytes();
            for segment in &bucket.segments {
                let name = format!("{slot}{SEPARATOR}{}", segment.path);
                let part = state.take_tensor(&name, &segment.shape, bucket.dtype)?;
                flat.as_bytes_mut()[segment.range.start * size..segment.range.end * size]
                    .copy_from_slice(part.as_bytes());
            }
            optimizer.set_slot(index, slot, flat_from_host(flat, device));
        }
    }
    let scalars: BTreeMap<_, _> = std::mem::take(&mut state.scalars);
    for (name, value) in scalars {
        optimizer.set_scalar(&name, value)?;
    }
    state.finish().map_err(|error: StateError| error.into())
}
