//! How a full bucket becomes the mean over ranks.

use crate::ParallelError;
use crate::bucket::BucketLayout;
use crate::hooks::{CommHook, HookBucket};
use crate::shard::Sharding;
use bonfire_amp::HalfType;
use bonfire_comm::{Buffer, CommError, HostBuffer, Operation, ProcessGroup, ReduceOp, Work};
use bonfire_tensor::lend::{self, Lent};
use burn::tensor::{DType, Tensor};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a window does with its full buckets. The same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// Nothing: gradients stay as this rank has them.
    None,
    /// Every rank gets the mean.
    AllReduce,
    /// Every rank gets its part of the mean.
    ReduceScatter,
    /// The communication hook's way.
    Hook,
}

/// A bucket on its way.
pub(crate) enum Pending {
    /// With the engine; every rank gets all of it.
    Whole(Work),
    /// With the engine; a rank gets its part.
    Part(Work),
    /// With the hook's thread.
    Hooked(Receiver<Result<HostBuffer, ParallelError>>),
    /// On a device; every rank gets all of it.
    Lent(Lent),
    /// On a device; a rank gets its part.
    LentPart(Lent),
    /// On a device, in 16 bits; every rank gets all of it.
    LentHalf(Lent, DType),
}

/// What came back.
pub(crate) enum Arrived {
    /// The mean of all elements.
    Whole(HostBuffer),
    /// The mean of this rank's part, and the bucket's memory, now free.
    Part { part: HostBuffer, memory: HostBuffer },
    /// The mean of all elements, on a device.
    Flat(Tensor<1>),
    /// The mean of this rank's part, on a device.
    FlatPart(Tensor<1>),
}

impl Pending {
    pub(crate) fn is_done(&self) -> bool {
        match self {
            Self::Whole(work) | Self::Part(work) => work.is_done(),
            Self::Hooked(done) => !done.is_empty(),
            Self::Lent(lent) | Self::LentPart(lent) | Self::LentHalf(lent, _) => lent.is_done(),
        }
    }

    /// Waits for the bucket.
    pub(crate) fn wait(self, sharding: Option<Sharding>) -> Result<Arrived, ParallelError> {
        match (self, sharding) {
            (Self::Part(work), Some(sharding)) => {
                let memory = work.wait()?.into_host()?;
                let part = copy_of(&memory, sharding.range(memory.len()));
                Ok(Arrived::Part { part, memory })
            }
            (Self::Whole(work) | Self::Part(work), _) => {
                Ok(Arrived::Whole(work.wait()?.into_host()?))
            }
            (Self::LentPart(lent), Some(sharding)) => {
                let flat = lent.finish()?;
                let own = sharding.range(flat.dims()[0]);
                // In memory of its own: a view would keep the whole bucket.
                let options = (&flat.device(), flat.dtype());
                let part = Tensor::<1>::zeros([own.len()], options);
                Ok(Arrived::FlatPart(part.slice_assign(0..own.len(), flat.slice(own))))
            }
            (Self::Lent(lent) | Self::LentPart(lent), _) => Ok(Arrived::Flat(lent.finish()?)),
            (Self::LentHalf(lent, dtype), _) => Ok(Arrived::Flat(lent.finish()?.cast(dtype))),
            (Self::Hooked(done), _) => match done.recv() {
                Ok(result) => Ok(Arrived::Whole(result?)),
                Err(_) => Err(hook_ended()),
            },
        }
    }
}

/// Starts the exchange of a bucket.
pub(crate) fn start(
    group: &ProcessGroup,
    exchange: Exchange,
    memory: HostBuffer,
) -> Result<Pending, ParallelError> {
    let buffer = Buffer::Host(memory);
    Ok(match exchange {
        Exchange::ReduceScatter => {
            Pending::Part(group.start_reduce_scatter(buffer, ReduceOp::Mean)?)
        }
        _ => Pending::Whole(group.start_all_reduce(buffer, ReduceOp::Mean)?),
    })
}

/// Starts the exchange of a bucket that lies on a device, in memory that nobody else holds.
pub(crate) fn start_apart(
    group: &ProcessGroup,
    exchange: Exchange,
    flat: Tensor<1>,
) -> Result<Pending, ParallelError> {
    Ok(match exchange {
        Exchange::ReduceScatter => {
            let operation = Operation::ReduceScatter(ReduceOp::Mean);
            Pending::LentPart(lend::start(group, operation, flat)?)
        }
        _ => Pending::Lent(lend::start(group, Operation::AllReduce(ReduceOp::Mean), flat)?),
    })
}

/// Starts the exchange of a bucket on a device in 16 bits: divided by the world size, cast, summed.
pub(crate) fn start_half(
    group: &ProcessGroup,
    half: HalfType,
    flat: Tensor<1>,
) -> Result<Pending, ParallelError> {
    let dtype = flat.dtype();
    let halves = flat.div_scalar(group.world_size() as f64).cast(half.dtype());
    let lent = lend::start(group, Operation::AllReduce(ReduceOp::Sum), halves)?;
    Ok(Pending::LentHalf(lent, dtype))
}

/// Reduces a bucket on the calling thread.
pub(crate) fn all_reduce_here(
    group: &ProcessGroup,
    memory: &mut HostBuffer,
) -> Result<(), ParallelError> {
    match memory {
        HostBuffer::F32(values) => group.all_reduce(values, ReduceOp::Mean)?,
        HostBuffer::F64(values) => group.all_reduce(values, ReduceOp::Mean)?,
        HostBuffer::F16(values) => group.all_reduce(values, ReduceOp::Mean)?,
        HostBuffer::BF16(values) => group.all_reduce(values, ReduceOp::Mean)?,
        HostBuffer::I32(values) => group.all_reduce(values, ReduceOp::Mean)?,
        HostBuffer::I64(values) => group.all_reduce(values, ReduceOp::Mean)?,
        HostBuffer::U8(values) => group.all_reduce(values, ReduceOp::Mean)?,
    }
    Ok(())
}

/// Elements `range` of a buffer in memory of their own.
pub(crate) fn copy_of(buffer: &HostBuffer, range: std::ops::Range<usize>) -> HostBuffer {
    let size = buffer.dtype().size_bytes();
    let mut part = HostBuffer::zeros(buffer.dtype(), range.len());
    part.as_bytes_mut().copy_from_slice(&buffer.as_bytes()[range.start * size..range.end * size]);
    part
}

/// A communication hook and the thread on which it runs beside the backward pass.
///
/// The hook's collectives are several for each bucket, with arithmetic between them, so the engine
/// cannot take them as one operation; the buckets go to the thread in order.
pub(crate) struct HookRunner {
    start_step: u64,
    half: Option<HalfType>,
    hook: Arc<Mutex<Box<dyn CommHook>>>,
    /// `None` only while it is dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// How long a runner that is dropped waits for its thread, which holds a handle of the group: a
/// process should not end before the group has heard so.
const GOODBYE: Duration = Duration::from_secs(1);

impl Drop for HookRunner {
    fn drop(&mut self) {
        self.jobs = None;
        let Some(thread) = self.thread.take() else { return };
        let end = Instant::now() + GOODBYE;
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Else a bucket is on its way, for as long as the group's deadline.
        if thread.is_finished() {
            drop(thread.join());
        }
    }
}

struct Job {
    layout: Arc<BucketLayout>,
    bucket: usize,
    memory: HostBuffer,
    done: Sender<Result<HostBuffer, ParallelError>>,
}

impl HookRunner {
    /// Starts the thread; `most` is the largest number of buckets that a window can have.
    pub(crate) fn new(
        hook: Box<dyn CommHook>,
        group: ProcessGroup,
        most: usize,
    ) -> Result<Self, ParallelError> {
        let (start_step, half) = (hook.start_step(), hook.half());
        let hook = Arc::new(Mutex::new(hook));
        let (jobs, received) = bounded::<Job>(most);
        let worker = hook.clone();
        let thread = std::thread::Builder::new()
            .name("bonfire-hook".to_string())
            .spawn(move || {
                for Job { layout, bucket, mut memory, done } in received {
                    let pass = || reduce(&worker, &layout, bucket, &mut memory, &group);
                    let result = catch_unwind(AssertUnwindSafe(pass));
                    let result = result.unwrap_or_else(|_| Err(hook_ended()));
                    if let Err(error) = &result {
                        // The other ranks wait for what this one cannot send.
                        group.abort(&error.to_string());
                    }
                    // Nobody waits for it any more after a failure elsewhere.
                    drop(done.send(result.map(|()| memory)));
                }
            })
            .map_err(|error| CommError::Internal {
                detail: format!("no thread for the communication hook: {error}"),
            })?;
        Ok(Self { start_step, half, hook, jobs: Some(jobs), thread: Some(thread) })
    }

    /// The step, counted from 0, from which the hook acts.
    pub(crate) fn start_step(&self) -> u64 {
        self.start_step
    }

    /// The type that gradients travel in, if that is all that the hook does.
    pub(crate) fn half(&self) -> Option<HalfType> {
        self.half
    }

    /// Gives a bucket to the thread.
    pub(crate) fn start(
        &self,
        layout: &Arc<BucketLayout>,
        bucket: usize,
        memory: HostBuffer,
    ) -> Result<Pending, ParallelError> {
        let (done, receiver) = bounded(1);
        let job = Job { layout: layout.clone(), bucket, memory, done };
        let jobs = self.jobs.as_ref().ok_or_else(hook_ended)?;
        jobs.send(job).map_err(|_| hook_ended())?;
        Ok(Pending::Hooked(receiver))
    }

    /// The hook itself, between windows.
    pub(crate) fn hook(&self) -> MutexGuard<'_, Box<dyn CommHook>> {
        lock(&self.hook)
    }
}

fn reduce(
    hook: &Mutex<Box<dyn CommHook>>,
    layout: &BucketLayout,
    bucket: usize,
    memory: &mut HostBuffer,
    group: &ProcessGroup,
) -> Result<(), ParallelError> {
    let segments = &layout.buckets()[bucket].segments;
    lock(hook).reduce(&HookBucket { index: bucket, segments }, memory, group)
}

fn lock(hook: &Mutex<Box<dyn CommHook>>) -> MutexGuard<'_, Box<dyn CommHook>> {
    hook.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hook_ended() -> ParallelError {
    let detail = "the communication hook has panicked; see its message above".to_string();
    CommError::Internal { detail }.into()
}
