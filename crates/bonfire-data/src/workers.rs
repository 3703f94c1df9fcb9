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
//! - A batch that does not come in time is an error, and its worker may be in a read that never
//!   returns. So after one nothing is joined: the threads end after their sample, if ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::builder::{BatchBuilder, BuildResult};
use crate::{Collate, DataError, Dataset, LoaderConfig, ShardBatches};

/// Threads building the batches of one epoch.
pub(crate) struct WorkerPool<B> {
    receivers: Vec<Receiver<BuildResult<B>>>,
    handles: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    epoch: u64,
    timeout: Duration,
    /// Whether a batch did not come in time.
    overdue: bool,
}

impl<B: Send + 'static> WorkerPool<B> {
    /// Starts `workers` threads, at least 1, each with up to `config.prefetch_factor` batches in flight.
    pub(crate) fn start<D, C>(
        builder: BatchBuilder<D, C>,
        plan: &ShardBatches,
        workers: usize,
        config: &LoaderConfig,
    ) -> Result<Self, DataError>
    where
        D: Dataset + ?Sized + 'static,
        C: Collate<D::Item, Batch = B> + ?Sized + 'static,
    {
        let builder = Arc::new(builder);
        // A channel allocates its capacity at once; more than there are batches is never used.
        let capacity = config.prefetch_factor.min(plan.len()).saturating_sub(1);
        let (stop, epoch) = (Arc::clone(&builder.stop), builder.epoch);
        // Made first and filled one by one, so that an early return joins those already started.
        let (receivers, handles) = (Vec::new(), Vec::new());
        let mut pool =
            Self { receivers, handles, stop, epoch, timeout: config.timeout, overdue: false };
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
    pub(crate) fn receive(&mut self, batch: usize) -> BuildResult<B> {
        let worker = batch % self.receivers.len();
        let (epoch, seconds) = (self.epoch, self.timeout.as_secs_f64());
        match self.receivers[worker].recv_timeout(self.timeout) {
            Ok(built) => built,
            Err(RecvTimeoutError::Disconnected) => Err(DataError::WorkerLost { batch, epoch }),
            Err(RecvTimeoutError::Timeout) => {
                self.overdue = true;
                Err(DataError::BatchOverdue { batch, epoch, worker, seconds })
            }
        }
    }
}

impl<B> Drop for WorkerPool<B> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.receivers.clear();
        if self.overdue {
            return;
        }
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
