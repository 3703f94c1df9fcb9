//! What a gradient hook does.

use super::{Memory, Reduced, Reducer, Window};
use crate::ParallelError;
use crate::exchange::Exchange;
use bonfire_comm::HostBuffer;
use bonfire_tensor::hook::{Gradient, GradientSink};
use bonfire_tensor::host::burn_type;
use std::sync::MutexGuard;

impl GradientSink for Reducer {
    // A hook cannot return an error through the backward pass: it is kept for `finish`.
    fn gradient(&self, index: usize, gradient: Gradient) {
        if let Err(error) = self.receive(index, gradient) {
            self.lock().error.get_or_insert(error);
        }
    }
}

impl Reducer {
    fn receive(&self, index: usize, gradient: Gradient) -> Result<(), ParallelError> {
        let mut window = self.lock();
        let Some((bucket, segment)) = self.layout.place(index) else { return Ok(()) };
        let segments = &self.layout.buckets()[bucket].segments;
        if window.expected.as_ref().is_some_and(|expected| !expected[index]) {
            let path = segments[segment].path.clone();
            return Err(ParallelError::GraphChanged { rank: self.group.rank(), path });
        }
        if self.apart.is_some() {
            self.collect(&mut window, (bucket, segment), gradient)?;
            return self.received(window, bucket, segment);
        }
        let range = segments[segment].range.clone();
        let (dtype, whole) = (self.layout.buckets()[bucket].dtype, segments.len() == 1);
        let accumulate = window.slots[bucket].used[segment];
        let memory = match &mut window.slots[bucket].memory {
            Memory::Gathering(memory) => memory.take(),
            // The bucket has left: this is a pass through a replica of an earlier micro-batch.
            _ => return Err(ParallelError::WindowOver { rank: self.group.rank() }),
        };
        if whole && !accumulate {
            // The bucket may take the gradient's own memory.
            if adopts(&window)
                && let Some(flat) = gradient.as_flat()
                && flat.dtype() == burn_type(dtype)
                && flat.dims() == [range.len()]
            {
                window.slots[bucket].memory = Memory::Reduced(Reduced::Adopted(Box::new(flat)));
                return self.received(window, bucket, segment);
            }
            if gradient.owns_memory() && self.lens[bucket] == range.len() {
                window.reclaim_parts(self.sharding)?;
                let memory = gradient.into_buffer()?;
                if memory.dtype() == dtype && memory.len() == range.len() {
                    let slot = &mut window.slots[bucket];
                    slot.memory = Memory::Gathering(Some(memory));
                    slot.brings_memory = true;
                    return self.received(window, bucket, segment);
                }
                let path = segments[segment].path.clone();
                return Err(ParallelError::GradientType {
                    path,
                    expected: dtype,
                    got: memory.dtype(),
                });
            }
        }
        let mut memory = match memory {
            Some(memory) => memory,
            None => self.fresh(&mut window, bucket)?,
        };
        let written = match &mut memory {
            HostBuffer::F32(values) => gradient.write_to(&mut values[range], accumulate),
            HostBuffer::F64(values) => gradient.write_to(&mut values[range], accumulate),
            HostBuffer::F16(values) => gradient.write_to(&mut values[range], accumulate),
            HostBuffer::BF16(values) => gradient.write_to(&mut values[range], accumulate),
            _ => Ok(()),
        };
        window.slots[bucket].memory = Memory::Gathering(Some(memory));
        written?;
        self.received(window, bucket, segment)
    }

    fn received(
        &self,
        mut window: MutexGuard<'_, Window>,
        bucket: usize,
        segment: usize,
    ) -> Result<(), ParallelError> {
        let slot = &mut window.slots[bucket];
        slot.used[segment] = true;
        slot.missing = slot.missing.saturating_sub(1);
        if window.communicates { self.launch_ready(&mut window) } else { Ok(()) }
    }

    /// Paths of the parameters that no micro-batch of the window used, of those that should be, in
    /// visiting order.
    pub(super) fn missing_gradients(&self, window: &Window) -> Vec<String> {
        let slots = window.slots.iter().zip(self.layout.buckets());
        let unused = slots.flat_map(|(slot, bucket)| {
            bucket.segments.iter().zip(&slot.used).filter(|(_, used)| !**used)
        });
        let expected =
            |parameter: usize| window.expected.as_ref().is_none_or(|expected| expected[parameter]);
        let mut missing: Vec<_> = unused
            .filter(|(segment, _)| expected(segment.parameter))
            .map(|(segment, _)| (segment.parameter, segment.path.clone()))
            .collect();
        missing.sort_unstable();
        missing.into_iter().map(|(_, path)| path).collect()
    }

    /// Zeroes what no micro-batch of the window wrote.
    pub(super) fn zero_unused(&self, window: &Window, index: usize, memory: &mut HostBuffer) {
        let bucket = &self.layout.buckets()[index];
        let size = bucket.dtype.size_bytes();
        for (segment, used) in bucket.segments.iter().zip(&window.slots[index].used) {
            if !used {
                memory.as_bytes_mut()[segment.range.start * size..segment.range.end * size].fill(0);
            }
        }
    }
}

/// Whether a gradient that is a whole bucket may stay where it is: with nobody to exchange it with,
/// and no micro-batch of the window behind this one.
fn adopts(window: &Window) -> bool {
    window.communicates && window.exchange == Exchange::None
}
