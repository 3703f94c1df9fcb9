//! Optimizer state by module path: independent of buckets, so that a checkpoint fits any layout.

use super::FlatOptimizer;
use crate::ParallelError;
use crate::bucket::{BucketLayout, Segment};
use crate::exchange::copy_of;
use crate::shard::{Piece, Sharding};
use bonfire_comm::{HostBuffer, ProcessGroup};
use bonfire_tensor::TensorError;
use bonfire_tensor::host::{flat_from_host, to_host};
use bonfire_tensor::state::{HostTensor, State, StateError, Stateful, gather_states};
use burn::tensor::Device;
use std::collections::BTreeSet;
use std::ops::Range;

/// Separates a slot's name from the path of its parameter.
const SEPARATOR: char = '/';

/// An optimizer's slots cut up by the parameters they belong to, named `slot/path`.
pub struct OptimizerState<'a> {
    optimizer: &'a mut dyn FlatOptimizer,
    layout: BucketLayout,
    /// Elements of each bucket, padding included.
    lens: Vec<usize>,
    device: Device,
    /// How buckets are cut, and the ranks that have the parts.
    parts: Option<(Sharding, ProcessGroup)>,
}

impl<'a> OptimizerState<'a> {
    pub(crate) fn new(
        optimizer: &'a mut dyn FlatOptimizer,
        layout: BucketLayout,
        lens: Vec<usize>,
        device: Device,
        parts: Option<(Sharding, ProcessGroup)>,
    ) -> Self {
        Self { optimizer, layout, lens, device, parts }
    }

    /// What this rank has: whole slots, or pieces of them.
    fn own(&self) -> Result<State, TensorError> {
        let mut state = State::default();
        for (index, bucket) in self.layout.buckets().iter().enumerate() {
            for slot in self.optimizer.slots(index) {
                let Some(flat) = self.optimizer.slot(index, &slot) else { continue };
                let mut add = |segment: &Segment, range: Range<usize>, shape: Vec<usize>| {
                    let data = to_host(flat.clone().slice(range))?;
                    let name = format!("{slot}{SEPARATOR}{}", segment.path);
                    state.tensors.insert(name, HostTensor { shape, data });
                    Ok::<(), TensorError>(())
                };
                match &self.parts {
                    None => bucket.segments.iter().try_for_each(|segment| {
                        add(segment, segment.range.clone(), segment.shape.clone())
                    })?,
                    Some((sharding, _)) => {
                        for piece in sharding.pieces(&bucket.segments, self.lens[index]) {
                            let len = piece.range.len();
                            add(piece.segment, piece.range, vec![len])?;
                        }
                    }
                }
            }
        }
        state.scalars.extend(self.optimizer.scalars());
        Ok(state)
    }

    /// The whole slots of the pieces of all ranks.
    fn joined(&self, sharding: Sharding, ranks: &[State]) -> State {
        let mut state = State::default();
        for (rank, own) in ranks.iter().enumerate() {
            let sharding = sharding.of_rank(rank);
            for (index, bucket) in self.layout.buckets().iter().enumerate() {
                for piece in sharding.pieces(&bucket.segments, self.lens[index]) {
                    take_piece(&mut state, own, &piece);
                }
            }
        }
        state
    }
}

/// Puts one rank's piece of a parameter's slots into the whole, and its scalars.
fn take_piece(state: &mut State, own: &State, piece: &Piece<'_>) {
    let belongs =
        |name: &str| name.split_once(SEPARATOR).is_some_and(|(_, path)| path == piece.segment.path);
    for (name, tensor) in own.tensors.iter().filter(|(name, _)| belongs(name)) {
        let whole = state.tensors.entry(name.clone()).or_insert_with(|| HostTensor {
            shape: piece.segment.shape.clone(),
            data: HostBuffer::zeros(tensor.data.dtype(), piece.segment.range.len()),
        });
        let size = tensor.data.dtype().size_bytes();
        let start = piece.skipped * size;
        whole.data.as_bytes_mut()[start..start + tensor.data.as_bytes().len()]
            .copy_from_slice(tensor.data.as_bytes());
    }
    let scalars = own.scalars.iter().filter(|(name, _)| belongs(name));
    state.scalars.extend(scalars.map(|(name, value)| (name.clone(), value.clone())));
}

impl Stateful for OptimizerState<'_> {
    fn state(&self) -> Result<State, TensorError> {
        let own = self.own()?;
        let Some((sharding, group)) = &self.parts else { return Ok(own) };
        let ranks = gather_states(group, own)?;
        Ok(self.joined(*sharding, &ranks))
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
                if let Some((sharding, _)) = &self.parts {
                    flat = copy_of(&flat, sharding.range(flat.len()));
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
