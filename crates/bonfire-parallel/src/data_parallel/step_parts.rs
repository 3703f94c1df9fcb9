//! A step of which every rank takes its part.

use super::DataParallel;
use super::guard::Guarded;
use crate::bucket::Segment;
use crate::exchange::copy_of;
use crate::optimizer::{FlatOptimizer, FlatUpdate};
use crate::reducer::Reduced;
use crate::shard::Sharding;
use crate::{ParallelError, ZeroStage};
use bonfire_comm::{Buffer, HostBuffer, Operation, Work};
use bonfire_tensor::host::{flat_from_host, to_host};
use bonfire_tensor::lend::{self, Lent};
use bonfire_tensor::parameters::hide_trainable;
use burn::module::Module;
use burn::tensor::Tensor;

/// This rank's part of a bucket, before its update.
struct Part {
    bucket: usize,
    parameters: Tensor<1>,
    gradients: Tensor<1>,
    segments: Vec<Segment>,
    rates: Vec<Option<f64>>,
}

impl<M: Module> DataParallel<M> {
    /// Updates this rank's part of every bucket and collects the others' parts, while the next
    /// bucket is updated.
    ///
    /// The parameters are updated in the memory they have: for as long as it lasts the model has
    /// none. Its clones keep the old values, at the cost of a copy.
    /// A failure ends all ranks, and leaves a model without parameters.
    pub(super) fn step_parts(
        &mut self,
        sharding: Sharding,
        optimizer: &mut dyn FlatOptimizer,
        guarded: &Guarded,
        rates: &[Option<f64>],
    ) -> Result<(), ParallelError> {
        let result = self.update_parts(sharding, optimizer, guarded, rates);
        if let Err(error) = &result {
            self.flat = Vec::new();
            self.control.abort(&error.to_string());
        }
        result
    }

    fn update_parts(
        &mut self,
        sharding: Sharding,
        optimizer: &mut dyn FlatOptimizer,
        guarded: &Guarded,
        rates: &[Option<f64>],
    ) -> Result<(), ParallelError> {
        self.model = hide_trainable(self.model.clone());
        if self.apart {
            return self.update_parts_apart(sharding, optimizer, guarded, rates);
        }
        let mut works: Vec<Work> = Vec::with_capacity(self.flat.len());
        for (bucket, flat) in std::mem::take(&mut self.flat).into_iter().enumerate() {
            // Moves the memory out of the tensor if nobody else holds it.
            let mut memory = to_host(flat)?;
            let own = sharding.range(memory.len());
            let gradients = flat_from_host(self.own_gradients(bucket, sharding)?, &self.device);
            let parameters = flat_from_host(copy_of(&memory, own.clone()), &self.device);
            let (segments, rates) = self.pieces(bucket, sharding, memory.len(), rates);
            let part = Part { bucket, parameters, gradients, segments, rates };
            let new = to_host(self.update_part(part, optimizer, guarded)?)?;
            let size = memory.dtype().size_bytes();
            memory.as_bytes_mut()[own.start * size..own.end * size].copy_from_slice(new.as_bytes());
            works.push(self.reducer.group().start_all_gather(Buffer::Host(memory))?);
        }
        for work in works {
            self.flat.push(flat_from_host(work.wait()?.into_host()?, &self.device));
        }
        self.show_flat();
        Ok(())
    }

    /// The new parameters of a part.
    fn update_part(
        &self,
        part: Part,
        optimizer: &mut dyn FlatOptimizer,
        guarded: &Guarded,
    ) -> Result<Tensor<1>, ParallelError> {
        let Part { bucket, parameters, gradients, segments, rates } = part;
        let (gradients, gradient_scale) = guarded.apply(gradients);
        let update = FlatUpdate {
            parameters: &parameters,
            gradients,
            gradient_scale,
            segments: &segments,
            rates: &rates,
            decays: &self.decays(&segments),
            only_if: guarded.only_if(),
        };
        optimizer.step(bucket, update)
    }

    /// What of a bucket's segments lies in this rank's part, and their learning rates.
    fn pieces(
        &self,
        bucket: usize,
        sharding: Sharding,
        padded: usize,
        rates: &[Option<f64>],
    ) -> (Vec<Segment>, Vec<Option<f64>>) {
        let segments = &self.reducer.layout().buckets()[bucket].segments;
        sharding
            .pieces(segments, padded)
            .map(|piece| {
                let Segment { path, parameter, .. } = piece.segment.clone();
                let shape = vec![piece.range.len()];
                (Segment { path, shape, range: piece.range, parameter }, rates[parameter])
            })
            .unzip()
    }

    /// The same on a device, for which no host waits: a bucket's parts are collected by work of the
    /// device, in memory of their own.
    fn update_parts_apart(
        &mut self,
        sharding: Sharding,
        optimizer: &mut dyn FlatOptimizer,
        guarded: &Guarded,
        rates: &[Option<f64>],
    ) -> Result<(), ParallelError> {
        let mut lent: Vec<Lent> = Vec::with_capacity(self.flat.len());
        for (bucket, flat) in std::mem::take(&mut self.flat).into_iter().enumerate() {
            let padded = flat.dims()[0];
            let own = sharding.range(padded);
            let gradients = match self.reducer.take(bucket)? {
                Reduced::FlatPart(part) => *part,
                whole => whole.into_flat(&self.device).slice(own.clone()),
            };
            self.reducer.recycle(bucket, None);
            let parameters = flat.clone().slice(own.clone());
            let (segments, rates) = self.pieces(bucket, sharding, padded, rates);
            let part = Part { bucket, parameters, gradients, segments, rates };
            let new = self.update_part(part, optimizer, guarded)?;
            // What the other ranks fill need not be copied, but the memory has to be fresh.
            let whole = flat.zeros_like().slice_assign(own, new);
            drop(flat);
            lent.push(lend::start(self.reducer.group(), Operation::AllGather, whole)?);
        }
        for part in lent {
            self.flat.push(part.finish()?);
        }
        self.show_flat();
        Ok(())
    }

    /// This rank's part of a bucket's reduced gradients. Ends the bucket's window.
    fn own_gradients(
        &self,
        bucket: usize,
        sharding: Sharding,
    ) -> Result<HostBuffer, ParallelError> {
        let whole = match self.reducer.take(bucket)? {
            Reduced::Part(part) => {
                self.reducer.recycle(bucket, None);
                return Ok(part);
            }
            Reduced::Host(memory) => memory,
            Reduced::Adopted(flat) | Reduced::FlatPart(flat) => to_host(*flat)?,
        };
        let part = copy_of(&whole, sharding.range(whole.len()));
        let keeps = self.config.zero_stage == ZeroStage::Optimizer;
        self.reducer.recycle(bucket, keeps.then_some(whole));
        Ok(part)
    }
}
