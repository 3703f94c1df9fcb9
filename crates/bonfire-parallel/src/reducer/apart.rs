//! Buckets on a device.

use super::{Memory, Reduced, Reducer, Window};
use crate::ParallelError;
use crate::bucket::Grain;
use crate::exchange::{self, Exchange, Pending};
use crate::joined::joined;
use bonfire_tensor::hook::Gradient;
use bonfire_tensor::host::{burn_type, to_host, wire_type};
use burn::tensor::Tensor;

/// Elements of a bucket's memory: never those of its parameters alone, so that one gradient is no
/// bucket. What is reduced in place must be nobody else's.
pub(super) fn padded(len: usize) -> usize {
    (len + 1).next_multiple_of(Grain::Device.elements())
}

impl Reducer {
    /// Keeps a gradient, or adds it to those of earlier micro-batches.
    pub(super) fn collect(
        &self,
        window: &mut Window,
        (bucket, segment): (usize, usize),
        gradient: Gradient,
    ) -> Result<(), ParallelError> {
        let expected = self.layout.buckets()[bucket].dtype;
        let flat = gradient.into_flat();
        let got = wire_type(flat.dtype(), "a gradient")?;
        if got != expected {
            let path = self.layout.buckets()[bucket].segments[segment].path.clone();
            return Err(ParallelError::GradientType { path, expected, got });
        }
        let Memory::Collecting(parts) = &mut window.slots[bucket].memory else {
            // The bucket has left: this is a pass through a replica of an earlier micro-batch.
            return Err(ParallelError::WindowOver { rank: self.group.rank() });
        };
        parts[segment] = Some(match parts[segment].take() {
            Some(sum) => sum + flat,
            None => flat,
        });
        Ok(())
    }

    /// Sends a bucket off.
    pub(super) fn launch_apart(
        &self,
        window: &mut Window,
        bucket: usize,
        parts: Vec<Option<Tensor<1>>>,
    ) -> Result<(), ParallelError> {
        let Some(device) = &self.apart else { return Ok(()) };
        window.reclaim_parts(self.sharding)?;
        let layout = &self.layout.buckets()[bucket];
        let options = (device, burn_type(layout.dtype));
        let flat = joined(&layout.segments, parts, self.lens[bucket], options);
        let half = self.hook.as_ref().and_then(|hook| hook.half());
        window.slots[bucket].memory = match (window.exchange, &self.hook, half) {
            (Exchange::None, ..) => Memory::Reduced(Reduced::Adopted(Box::new(flat))),
            (Exchange::Hook, _, Some(half)) if flat.dtype().size() > 2 => {
                Memory::in_flight(exchange::start_half(&self.group, half, flat)?)
            }
            // What is narrow already is reduced as it is; all other hooks work in host memory.
            (Exchange::Hook, Some(hook), None) => {
                let pending = hook.start(&self.layout, bucket, to_host(flat)?)?;
                Memory::in_flight(pending)
            }
            (exchange, ..) => {
                let pending: Pending = exchange::start_apart(&self.group, exchange, flat)?;
                Memory::in_flight(pending)
            }
        };
        Ok(())
    }
}
