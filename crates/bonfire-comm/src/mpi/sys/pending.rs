//! Memory for MPI, and calls that it works on in the background.

use std::ffi::{c_int, c_void};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use ::mpi::ffi;

use super::{Comm, Mpi, check};
use crate::{CommError, Result};

/// Bytes that MPI may read and write, aligned for every element type.
#[derive(Debug, Default)]
pub(in crate::mpi) struct Memory {
    words: Vec<u64>,
}

impl Memory {
    /// Returns zeroed memory of at least `bytes`.
    pub(in crate::mpi) fn new(bytes: usize) -> Self {
        Self { words: vec![0; bytes.div_ceil(8)] }
    }

    /// Makes room for at least `bytes`.
    pub(in crate::mpi) fn reserve(&mut self, bytes: usize) {
        if self.len() < bytes {
            self.words.resize(bytes.div_ceil(8), 0);
        }
    }

    pub(in crate::mpi) fn len(&self) -> usize {
        self.words.len() * 8
    }

    pub(in crate::mpi) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    pub(in crate::mpi) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words)
    }

    pub(super) fn read_pointer(&self) -> *const c_void {
        self.words.as_ptr().cast()
    }

    pub(super) fn write_pointer(&mut self) -> *mut c_void {
        self.words.as_mut_ptr().cast()
    }

    /// A mistake in our own arithmetic must not become a write beyond the end.
    pub(super) fn expect(&self, bytes: usize) -> Result<()> {
        if bytes <= self.len() {
            return Ok(());
        }
        let detail = format!("{bytes} bytes in memory of {}", self.len());
        Err(CommError::Internal { detail })
    }
}

/// A call that MPI has begun; it ends with its memory, which `M` is.
#[must_use = "a dropped call leaks its memory"]
pub(in crate::mpi) struct Pending<M> {
    call: &'static str,
    request: ffi::MPI_Request,
    memory: Option<M>,
    _mpi: Rc<Mpi>,
}

impl<M> Pending<M> {
    /// Begins a call on memory that stays with it.
    pub(super) fn begin(
        comm: &Comm,
        call: &'static str,
        mut memory: M,
        begin: impl FnOnce(&mut M, *mut ffi::MPI_Request) -> c_int,
    ) -> Result<Self> {
        // SAFETY: a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let code = begin(&mut memory, &raw mut request);
        let pending = Self { call, request, memory: Some(memory), _mpi: comm.mpi().clone() };
        check(call, code).map(|()| pending)
    }

    /// Gives MPI time to work and returns the memory if the call is done.
    pub(in crate::mpi) fn test(&mut self) -> Result<Option<M>> {
        let mut done: c_int = 0;
        // SAFETY: a request of this library, on its thread.
        let code = unsafe {
            ffi::MPI_Test(&raw mut self.request, &raw mut done, ffi::RSMPI_STATUS_IGNORE)
        };
        check(self.call, code)?;
        Ok(if done == 0 { None } else { self.memory.take() })
    }

    /// Gives up a receive; for the end of the process, since the memory is lost.
    pub(in crate::mpi) fn cancel(mut self) {
        // SAFETY: a request of this library, on its thread. A cancelled receive ends at once,
        // whatever the sender does, so the wait does not block.
        unsafe {
            ffi::MPI_Cancel(&raw mut self.request);
            ffi::MPI_Wait(&raw mut self.request, ffi::RSMPI_STATUS_IGNORE);
        }
    }
}

impl<M: Unpin> Future for Pending<M> {
    type Output = Result<M>;

    fn poll(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.test() {
            Ok(Some(memory)) => Poll::Ready(Ok(memory)),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<M> Drop for Pending<M> {
    fn drop(&mut self) {
        // MPI may still use what it has not given back.
        std::mem::forget(self.memory.take());
    }
}
