//! The threads that build batches ahead of time.
//!
//! # Protocol
//!
//! Worker `w` of `W` builds batches `w`, `w + W`, `w + 2W`, ... and sends them through a channel of
//! its own; the consumer takes batch `k` from channel `k mod W`. So batches arrive in order without a
//! buffer that reorders, and who builds what never depends on timing.
//!
//! - A channel holds `prefetch_factor - 1` batches and a worker has one more in hand, which it builds
//!   or waits to send: at most `W * prefetch_factor` batches are in flight.
//! - A worker ends after its last batch, after an error (which it sends in place of the batch), or
//!   when its receiver is gone.
//! - Dropping the pool sets `stop`, drops the receivers, which wakes the workers that wait to send,
//!   and joins. A worker looks at `stop` before each sample, so that takes as long as one sample, or
//!   one collate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::builder::{BatchBuilder, BuildResult};
use crate::{Collate, DataError, Dataset, ShardBatches};

/// Threads building the batches of one epoch.
pub(crate) struct WorkerPool<B> {
    receivers: Vec<Receiver<BuildResult<B>>>,
    handles: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    epoch: u64,
}

impl<B: Send + 'static> WorkerPool<B> {
    /// Starts `workers` threads, at least 1, each with up to `prefetch_factor` batches in flight.
    pub(crate) fn start<D, C>(
        builder: BatchBuilder<D, C>,
        plan: &ShardBatches,
        workers: usize,
        prefetch_factor: usize,
    ) -> Result<Self, DataError>
    where
        D: Dataset + ?Sized + 'static,
        C: Collate<D::Item, Batch = B> + ?Sized + 'static,
    {
        let builder = Arc::new(builder);
        // A channel allocates its capacity at once; more than there are batches is never used.
        let capacity = prefetch_factor.min(plan.len()).saturating_sub(1);
        let (stop, epoch) = (Arc::clone(&builder.stop), builder.epoch);
        // Made first and filled one by one, so that an early return joins those already started.
        let mut pool = Self { receivers: Vec::new(), handles: Vec::new(), stop, epoch };
        for worker in 0..workers {
            let (sender, receiver) = bounded(capacity);
            let (builder, plan) = (Arc::clone(&builder), plan.clone());
            let handle = thread::Builder::new()
                .name(format!("bonfire-data-{worker}"))
                .spawn(move || work(&builder, plan, worker, workers, &sender))
                .map_err(|source| DataError::WorkerSpawn { worker, workers, source })?;
            pool.receivers.push(receiver);
            pool.handles.push(handle);
        }
        Ok(pool)
    }
}

impl<B> WorkerPool<B> {
    /// Waits for batch `number`; they must be asked for in order.
    pub(crate) fn receive(&self, number: usize) -> BuildResult<B> {
        let receiver = &self.receivers[number % self.receivers.len()];
        let lost = DataError::WorkerLost { batch: number, epoch: self.epoch };
        receiver.recv().unwrap_or(Err(lost))
    }
}

impl<B> Drop for WorkerPool<B> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.receivers.clear();
        for handle in self.handles.drain(..) {
            // A panic of the user's code is caught where it happens; one in the destructor of a
            // batch nobody wants any more concerns nobody.
            let _ = handle.join();
        }
    }
}

fn work<D, C>(
    builder: &BatchBuilder<D, C>,
    plan: ShardBatches,
    worker: usize,
    workers: usize,
    sender: &Sender<BuildResult<C::Batch>>,
) where
    D: Dataset + ?Sized,
    C: Collate<D::Item> + ?Sized,
{
    for (number, batch) in plan.enumerate().skip(worker).step_by(workers) {
        let Some(result) = builder.build(number, batch) else { return };
        let failed = result.is_err();
        if sender.send(result).is_err() || failed {
            return;
        }
    }
}
