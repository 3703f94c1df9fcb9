//! What the engine needs of a library, made of NCCL's functions and CUDA's streams and events.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, result, sys as driver};

use super::sys::{
    Comm as Handle, Config, Functions, ID_BYTES, IN_PROGRESS, SUCCESS, Status, UniqueId,
};
use crate::cuda::{self, Event};
use crate::device::{Library, Memory, Progress, Seat};
use crate::device_buffer::DeviceEvent;
use crate::{DType, Operation, ReduceOp, Result};

/// Time in which a stream comes to rest after an abort.
const QUIET: Duration = Duration::from_secs(5);

pub(super) struct Nccl {
    functions: &'static Functions,
    context: Arc<CudaContext>,
}

impl Nccl {
    pub(super) fn new(ordinal: usize) -> Result<Self> {
        Ok(Self { functions: Functions::get()?, context: cuda::context(ordinal)? })
    }

    fn check(&self, status: Status, comm: Handle) -> Result<(), String> {
        match status {
            // The engine asks for the progress next.
            SUCCESS | IN_PROGRESS => Ok(()),
            status => Err(self.functions.explain(status, comm)),
        }
    }

    fn poll(&self, comm: Handle) -> Progress {
        let mut status = SUCCESS;
        // SAFETY: a live communicator; writes one number.
        let asked = unsafe { (self.functions.comm_get_async_error)(comm, &raw mut status) };
        match if asked == SUCCESS { status } else { asked } {
            SUCCESS => Progress::Settled,
            IN_PROGRESS => Progress::Busy,
            status => Progress::Failed(self.functions.explain(status, comm)),
        }
    }

    /// Messages from and to all ranks at once.
    fn grouped(&self, comm: &Comm, messages: impl FnOnce() -> Vec<Status>) -> Result<(), String> {
        // SAFETY: start and end are paired, on one thread.
        let begun = unsafe { (self.functions.group_start)() };
        self.check(begun, comm.handle)?;
        let sent = messages();
        // SAFETY: as above.
        let ended = unsafe { (self.functions.group_end)() };
        sent.into_iter().chain([ended]).try_for_each(|status| self.check(status, comm.handle))
    }
}

/// A communicator and the stream of its operations.
pub(super) struct Comm {
    handle: Handle,
    stream: Arc<CudaStream>,
    rank: usize,
    size: usize,
    /// Memory that an operation has used besides its buffer.
    scratch: Cell<Option<driver::CUdeviceptr>>,
}

impl Comm {
    fn raw_stream(&self) -> *mut c_void {
        self.stream.cu_stream().cast()
    }
}

impl Library for Nccl {
    type Comm = Comm;

    const ENGINE: &'static str = "nccl";
    const NAME: &'static str = "NCCL";
    const LOG: &'static str = "NCCL_DEBUG=INFO";

    fn unique_id() -> Result<Vec<u8>, String> {
        let functions = Functions::get().map_err(|error| error.to_string())?;
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: writes an id.
        match unsafe { (functions.get_unique_id)(&raw mut id) } {
            SUCCESS => Ok(id.0.to_vec()),
            status => Err(functions.explain(status, std::ptr::null_mut())),
        }
    }

    fn attach(&self) -> Result<(), String> {
        self.context.bind_to_thread().map_err(|error| error.to_string())
    }

    fn join(&self, seat: &Seat<'_>) -> Result<Comm, String> {
        let id = UniqueId(seat.id.try_into().map_err(|_| "the id has another length")?);
        let stream = self.context.new_stream().map_err(|error| error.to_string())?;
        let mut config = Config::non_blocking();
        let mut handle: Handle = std::ptr::null_mut();
        let (rank, size) = (seat.rank, seat.size);
        // SAFETY: what it writes to lives across the call; the device is current on this thread.
        let status = unsafe {
            (self.functions.comm_init_rank_config)(
                &raw mut handle,
                size as c_int,
                id,
                rank as c_int,
                &raw mut config,
            )
        };
        self.check(status, handle)?;
        Ok(Comm { handle, stream, rank, size, scratch: Cell::new(None) })
    }

    fn progress(&self, comm: &Comm) -> Progress {
        self.poll(comm.handle)
    }

    fn wait_for(&self, comm: &Comm, event: &dyn DeviceEvent) -> Result<(), String> {
        // SAFETY: the stream is ours, the event recorded, and the device's context current here.
        unsafe { Event::make_wait(comm.raw_stream() as u64, event) }
    }

    fn enqueue(&self, comm: &Comm, operation: Operation, memory: Memory) -> Result<(), String> {
        let Memory { pointer, dtype, len } = memory;
        let (functions, handle, stream) = (self.functions, comm.handle, comm.raw_stream());
        let (rank, size, kind) = (comm.rank, comm.size, code(dtype));
        let whole = pointer as *mut c_void;
        let part = len / size.max(1);
        let at =
            |index: usize| (pointer + (index * part * dtype.size_bytes()) as u64) as *mut c_void;
        let own = at(rank);
        let send = |from: *mut c_void, count: usize, to: usize| {
            // SAFETY: the memory is alive until the mark behind the operation, for all calls below.
            unsafe { (functions.send)(from, count, kind, to as c_int, handle, stream) }
        };
        let recv = |into: *mut c_void, count: usize, from: usize| {
            // SAFETY: as above.
            unsafe { (functions.recv)(into, count, kind, from as c_int, handle, stream) }
        };
        let others = || (0..size).filter(move |peer| *peer != rank);
        let status = match operation {
            // SAFETY: as above; in place.
            Operation::AllReduce(op) => unsafe {
                (functions.all_reduce)(whole, whole, len, kind, reduction(op), handle, stream)
            },
            // SAFETY: as above; in place.
            Operation::Reduce { root, op } => unsafe {
                let (op, root) = (reduction(op), root as c_int);
                (functions.reduce)(whole, whole, len, kind, op, root, handle, stream)
            },
            // SAFETY: as above; in place.
            Operation::Broadcast { root } => unsafe {
                (functions.broadcast)(whole, whole, len, kind, root as c_int, handle, stream)
            },
            // SAFETY: as above; in place, since the own part is where it belongs.
            Operation::AllGather => unsafe {
                (functions.all_gather)(own, whole, part, kind, handle, stream)
            },
            // SAFETY: as above; in place, since the own part is where it belongs.
            Operation::ReduceScatter(op) => unsafe {
                (functions.reduce_scatter)(whole, own, part, kind, reduction(op), handle, stream)
            },
            Operation::AllToAll => return self.all_to_all(comm, memory),
            Operation::Gather { root } if root == rank => {
                let receive = || others().map(|peer| recv(at(peer), part, peer)).collect();
                return self.grouped(comm, receive);
            }
            Operation::Gather { root } => send(whole, len, root),
            Operation::Scatter { root } if root == rank => {
                let distribute = || others().map(|peer| send(at(peer), part, peer)).collect();
                return self.grouped(comm, distribute);
            }
            Operation::Scatter { root } => recv(whole, len, root),
            Operation::Send { to } => send(whole, len, to),
            Operation::Recv { from } => recv(whole, len, from),
            // A barrier is of the ranks, not of their devices.
            Operation::Barrier => SUCCESS,
        };
        self.check(status, handle)
    }

    fn record(&self, comm: &Comm) -> Result<Arc<dyn DeviceEvent>, String> {
        if let Some(scratch) = comm.scratch.take() {
            // SAFETY: it is given back in the order of the stream, behind the operation, which the
            // library has put there.
            unsafe { result::free_async(scratch, comm.stream.cu_stream()) }
                .map_err(|error| error.to_string())?;
        }
        let event = Event::on(&self.context)?;
        // SAFETY: the stream is ours, and the device's context current here.
        unsafe { event.record(comm.raw_stream() as u64) }?;
        Ok(Arc::new(event))
    }

    fn elapsed(&self, from: &dyn DeviceEvent, to: &dyn DeviceEvent) -> Option<Duration> {
        let (from, to) = (from.raw() as driver::CUevent, to.raw() as driver::CUevent);
        // SAFETY: both events are alive, and the device has come to them.
        let milliseconds = unsafe { result::event::elapsed(from, to) }.ok()?;
        Some(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    fn abort(&self, comms: Vec<Comm>) -> bool {
        let functions = self.functions;
        // Each by a thread of its own, so that none waits for kernels of another.
        std::thread::scope(|scope| {
            for comm in &comms {
                let (handle, context) = (comm.handle as usize, &self.context);
                scope.spawn(move || {
                    // Without it NCCL chooses the device itself.
                    let _ = context.bind_to_thread();
                    // SAFETY: a live communicator, which nobody uses hereafter.
                    unsafe { (functions.comm_abort)(handle as Handle) }
                });
            }
        });
        // One deadline for all: what hangs once it has passed hangs for good.
        let deadline = Instant::now() + QUIET;
        comms.iter().all(|comm| is_quiet(&comm.stream, deadline))
    }

    fn leave(&self, comm: &Comm) -> Result<(), String> {
        // SAFETY: a live communicator on which nothing is under way.
        let status = unsafe { (self.functions.comm_finalize)(comm.handle) };
        self.check(status, comm.handle)
    }

    fn close(&self, comm: Comm) {
        // SAFETY: a live communicator, which nobody uses hereafter.
        unsafe {
            match self.poll(comm.handle) {
                Progress::Settled => (self.functions.comm_destroy)(comm.handle),
                _ => (self.functions.comm_abort)(comm.handle),
            }
        };
    }
}

impl Nccl {
    /// NCCL has no such operation in place: what is sent is copied first.
    fn all_to_all(&self, comm: &Comm, memory: Memory) -> Result<(), String> {
        let Memory { pointer, dtype, len } = memory;
        let (rank, size, kind) = (comm.rank, comm.size, code(dtype));
        let part = len / size.max(1);
        let bytes = part * dtype.size_bytes();
        if bytes == 0 || size == 1 {
            return Ok(());
        }
        let stream = comm.stream.cu_stream();
        // SAFETY: allocated, filled and used in the order of one stream; given back behind the
        // operation, by `record`.
        let scratch = unsafe {
            let scratch = result::malloc_async(stream, size * bytes).map_err(|e| e.to_string())?;
            comm.scratch.set(Some(scratch));
            result::memcpy_dtod_async(scratch, pointer, size * bytes, stream)
                .map_err(|error| error.to_string())?;
            scratch
        };
        let messages = || {
            let others = (0..size).filter(|peer| *peer != rank);
            others
                .flat_map(|peer| {
                    let (offset, raw) = ((peer * bytes) as u64, comm.raw_stream());
                    let (from, into) = (scratch + offset, pointer + offset);
                    let (from, into) = (from as *mut c_void, into as *mut c_void);
                    let peer = peer as c_int;
                    // SAFETY: the memory is alive until the mark behind the operation.
                    unsafe {
                        [
                            (self.functions.send)(from, part, kind, peer, comm.handle, raw),
                            (self.functions.recv)(into, part, kind, peer, comm.handle, raw),
                        ]
                    }
                })
                .collect()
        };
        self.grouped(comm, messages)
    }
}

/// Waits for the end of what is on a stream, and tells whether it came.
fn is_quiet(stream: &CudaStream, deadline: Instant) -> bool {
    loop {
        // SAFETY: the stream is ours.
        let status = unsafe { driver::cuStreamQuery(stream.cu_stream()) };
        match status {
            driver::CUresult::CUDA_ERROR_NOT_READY if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            driver::CUresult::CUDA_ERROR_NOT_READY => return false,
            _ => return true,
        }
    }
}

/// `ncclDataType_t`.
fn code(dtype: DType) -> c_int {
    match dtype {
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    }
}

/// `ncclRedOp_t`.
fn reduction(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Mean => 4,
    }
}
