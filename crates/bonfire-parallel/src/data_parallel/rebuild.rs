//! Buckets in the order in which gradients really arrive.

use super::{DataParallel, layout};
use crate::ParallelError;
use crate::bucket::BucketLayout;
use crate::exchange::Exchange;
use crate::optimizer::FlatOptimizer;
use crate::reducer::{Reduced, Reducer};
use bonfire_comm::HostBuffer;
use bonfire_tensor::host::{flat_from_host, to_host};
use bonfire_tensor::parameters;
use bonfire_tensor::state::{State, Stateful};
use burn::module::Module;
use std::sync::Arc;

impl<M: Module> DataParallel<M> {
    /// In the first window whose gradients were exchanged, rebuilds the buckets by the order of
    /// use that rank 0 has found. Between two passes, so that nothing is on its way: reduced
    /// gradients, parameters and optimizer state move to their new places.
    ///
    /// # Collective
    /// All ranks.
    pub(super) fn rebuild_once(
        &mut self,
        optimizer: Option<&mut dyn FlatOptimizer>,
    ) -> Result<(), ParallelError> {
        let Some(trace) = &self.trace else { return Ok(()) };
        if self.exchange() == Exchange::None {
            return Ok(());
        }
        let own: Vec<u8> =
            trace.order().iter().flat_map(|index| (*index as u64).to_le_bytes()).collect();
        let bytes = self.control.broadcast_bytes(own, 0)?;
        let used: Vec<usize> = bytes
            .chunks_exact(8)
            .filter_map(|chunk| Some(u64::from_le_bytes(chunk.try_into().ok()?) as usize))
            .collect();
        if used.is_empty() {
            // Rank 0 had no samples: the next window will tell.
            return Ok(());
        }
        self.trace = None;
        let arrival = arrival(&used, self.reducer.layout().segments().count());
        let Some(reducer) = self.follow(&arrival) else { return Ok(()) };
        let old = std::mem::replace(&mut self.reducer, Arc::new(reducer));
        let gradients = (0..self.flat.len())
            .map(|bucket| match old.take(bucket)? {
                Reduced::Host(memory) | Reduced::Part(memory) => Ok(memory),
                Reduced::Adopted(flat) | Reduced::FlatPart(flat) => Ok(to_host(*flat)?),
            })
            .collect::<Result<Vec<_>, ParallelError>>()?;
        for (bucket, memory) in self.moved(old.layout(), gradients).into_iter().enumerate() {
            let reduced = match self.apart {
                true => Reduced::Adopted(Box::new(flat_from_host(memory, &self.device))),
                false => Reduced::Host(memory),
            };
            self.reducer.put(bucket, reduced);
        }
        self.move_parameters(old.layout())?;
        match optimizer {
            Some(optimizer) => self.move_optimizer(&old, optimizer),
            None => Ok(()),
        }
    }

    /// Takes over an order of arrival. Returns a reducer for other buckets, if they are others.
    pub(super) fn follow(&mut self, arrival: &[usize]) -> Option<Reducer> {
        let forward: Vec<usize> = arrival.iter().rev().copied().collect();
        self.anchors.follow(&forward);
        self.arrival = Some(arrival.to_vec());
        let trainable = parameters::trainable(&self.specs);
        let alone = self.control.world_size() == 1;
        let layout = layout(&trainable, arrival, &self.config, alone, self.grain());
        (layout != *self.reducer.layout()).then(|| self.reducer.with_layout(layout))
    }

    /// Moves the parameters from the places of `old` to those of the layout at hand.
    pub(super) fn move_parameters(&mut self, old: &BucketLayout) -> Result<(), ParallelError> {
        let flat = std::mem::take(&mut self.flat);
        let buffers = flat.into_iter().map(to_host).collect::<Result<Vec<_>, _>>()?;
        let moved = self.moved(old, buffers);
        self.flat = moved.into_iter().map(|data| flat_from_host(data, &self.device)).collect();
        self.show_flat();
        Ok(())
    }

    /// The segments of `buffers`, laid out by `old`, in buckets of the layout at hand.
    fn moved(&self, old: &BucketLayout, buffers: Vec<HostBuffer>) -> Vec<HostBuffer> {
        let layout = self.reducer.layout();
        let mut moved: Vec<HostBuffer> = layout
            .buckets()
            .iter()
            .enumerate()
            .map(|(index, bucket)| HostBuffer::zeros(bucket.dtype, self.reducer.memory_len(index)))
            .collect();
        for (bucket, segment) in old.segments() {
            let Some((to, place)) = layout.place(segment.parameter) else { continue };
            let target = &layout.buckets()[to].segments[place].range;
            let size = moved[to].dtype().size_bytes();
            let from =
                &buffers[bucket].as_bytes()[segment.range.start * size..segment.range.end * size];
            moved[to].as_bytes_mut()[target.start * size..target.end * size].copy_from_slice(from);
        }
        moved
    }

    /// Moves what an optimizer brought along from an earlier run to the new buckets.
    fn move_optimizer(
        &self,
        old: &Reducer,
        optimizer: &mut dyn FlatOptimizer,
    ) -> Result<(), ParallelError> {
        if old.layout().buckets().iter().enumerate().all(|(k, _)| optimizer.slots(k).is_empty()) {
            return Ok(());
        }
        let state = self.optimizer_state_of(old, optimizer).state()?;
        let state = match self.sharding {
            // Rank 0 has all parts.
            Some(_) => {
                let bytes = self.control.broadcast_bytes(state.to_bytes(), 0)?;
                State::from_bytes(&bytes)?
            }
            None => state,
        };
        optimizer.reset();
        Ok(self.optimizer_state(optimizer).load_state(state)?)
    }
}

/// The order in which gradients arrive, when the forward pass uses parameters in order `used`:
/// the reverse, and then those that it did not use.
fn arrival(used: &[usize], count: usize) -> Vec<usize> {
    let mut seen = vec![false; count];
    let mut arrival = Vec::with_capacity(count);
    let unused = 0..count;
    for index in used.iter().rev().copied().chain(unused.rev()) {
        if index < count && !std::mem::replace(&mut seen[index], true) {
            arrival.push(index);
        }
    }
    arrival
}

#[cfg(test)]
mod tests {
    use super::arrival;

    #[test]
    fn what_was_used_last_comes_first_and_what_was_not_used_comes_last() {
        assert_eq!(arrival(&[2, 0, 4], 6), [4, 0, 2, 5, 3, 1]);
        assert_eq!(arrival(&[], 3), [2, 1, 0]);
    }
}
