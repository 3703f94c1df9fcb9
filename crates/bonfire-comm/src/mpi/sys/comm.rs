//! Communicators and the calls on them.

use std::ffi::c_int;
use std::ptr;
use std::rc::Rc;

use ::mpi::ffi;

use super::{Memory, Mpi, Pending, check, int, return_errors};
use crate::Result;

fn bytes_type() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_UINT8_T }
}

/// A communicator. It is never freed before MPI is finalised: `MPI_Comm_free` may wait for the
/// other ranks, which may be anywhere.
#[derive(Clone)]
pub(in crate::mpi) struct Comm {
    raw: ffi::MPI_Comm,
    rank: usize,
    size: usize,
    mpi: Rc<Mpi>,
}

impl Comm {
    pub(super) fn adopt(mpi: &Rc<Mpi>, raw: ffi::MPI_Comm) -> Result<Self> {
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: a communicator of this library, on its thread.
        unsafe {
            check("MPI_Comm_rank", ffi::MPI_Comm_rank(raw, &raw mut rank))?;
            check("MPI_Comm_size", ffi::MPI_Comm_size(raw, &raw mut size))?;
        }
        let number = |value: c_int| usize::try_from(value).unwrap_or(0);
        Ok(Self { raw, rank: number(rank), size: number(size), mpi: mpi.clone() })
    }

    pub(super) fn mpi(&self) -> &Rc<Mpi> {
        &self.mpi
    }

    pub(in crate::mpi) fn rank(&self) -> usize {
        self.rank
    }

    pub(in crate::mpi) fn size(&self) -> usize {
        self.size
    }

    /// Begins to make a communicator of the same ranks; see [`Self::finish_duplicate`].
    pub(in crate::mpi) fn duplicate(&self) -> Result<Pending<Memory>> {
        let handle = Memory::new(size_of::<ffi::MPI_Comm>());
        Pending::begin(self, "MPI_Comm_idup", handle, |handle, request| {
            // SAFETY: the new handle is written into memory that stays until then.
            unsafe { ffi::MPI_Comm_idup(self.raw, handle.write_pointer().cast(), request) }
        })
    }

    /// Returns the communicator that a finished [`Self::duplicate`] has made.
    pub(in crate::mpi) fn finish_duplicate(&self, handle: &Memory) -> Result<Self> {
        handle.expect(size_of::<ffi::MPI_Comm>())?;
        // SAFETY: the library has written a handle there; a handle is plain data.
        let raw = unsafe { ptr::read(handle.read_pointer().cast::<ffi::MPI_Comm>()) };
        return_errors(raw)?;
        Self::adopt(&self.mpi, raw)
    }

    /// Makes a communicator of `members`, in that order. Blocks until all of them make it.
    pub(in crate::mpi) fn create_group(&self, members: &[usize], tag: u16) -> Result<Self> {
        let ranks: Vec<c_int> = members.iter().map(|&rank| int(rank)).collect::<Result<_>>()?;
        let count = int(ranks.len())?;
        // SAFETY: handles of this library, on its thread; `ranks` has `count` elements.
        let raw = unsafe {
            let (mut all, mut group) = (ffi::RSMPI_GROUP_NULL, ffi::RSMPI_GROUP_NULL);
            let mut raw = ffi::RSMPI_COMM_NULL;
            check("MPI_Comm_group", ffi::MPI_Comm_group(self.raw, &raw mut all))?;
            let code = ffi::MPI_Group_incl(all, count, ranks.as_ptr(), &raw mut group);
            check("MPI_Group_incl", code)?;
            let code = ffi::MPI_Comm_create_group(self.raw, group, c_int::from(tag), &raw mut raw);
            check("MPI_Comm_create_group", code)?;
            ffi::MPI_Group_free(&raw mut group);
            ffi::MPI_Group_free(&raw mut all);
            raw
        };
        return_errors(raw)?;
        Self::adopt(&self.mpi, raw)
    }

    /// Sends the first `bytes` of `memory`.
    pub(in crate::mpi) fn send(
        &self,
        memory: Memory,
        bytes: usize,
        to: usize,
    ) -> Result<Pending<Memory>> {
        memory.expect(bytes)?;
        let (count, to) = (int(bytes)?, int(to)?);
        Pending::begin(self, "MPI_Isend", memory, |memory, request| {
            let data = memory.read_pointer();
            // SAFETY: the memory has that many bytes and stays until the request is done.
            unsafe { ffi::MPI_Isend(data, count, bytes_type(), to, 0, self.raw, request) }
        })
    }

    /// Receives up to `bytes` into `memory`, from any rank unless `from` says which.
    pub(in crate::mpi) fn receive(
        &self,
        memory: Memory,
        bytes: usize,
        from: Option<usize>,
    ) -> Result<Pending<Memory>> {
        memory.expect(bytes)?;
        let count = int(bytes)?;
        // SAFETY: a constant of the library.
        let from = from.map_or(Ok(unsafe { ffi::RSMPI_ANY_SOURCE }), int)?;
        Pending::begin(self, "MPI_Irecv", memory, |memory, request| {
            let data = memory.write_pointer();
            // SAFETY: the memory has that many bytes and stays until the request is done.
            unsafe { ffi::MPI_Irecv(data, count, bytes_type(), from, 0, self.raw, request) }
        })
    }

    /// Sends the first `bytes` of the root's memory to all.
    pub(in crate::mpi) fn broadcast(
        &self,
        memory: Memory,
        bytes: usize,
        root: usize,
    ) -> Result<Pending<Memory>> {
        memory.expect(bytes)?;
        let (count, root) = (int(bytes)?, int(root)?);
        Pending::begin(self, "MPI_Ibcast", memory, |memory, request| {
            let data = memory.write_pointer();
            // SAFETY: the memory has that many bytes and stays until the request is done.
            unsafe { ffi::MPI_Ibcast(data, count, bytes_type(), root, self.raw, request) }
        })
    }

    /// Puts the first `block` bytes of every rank's `own` into `all`, in the order of the ranks.
    pub(in crate::mpi) fn all_gather(
        &self,
        own: Memory,
        all: Memory,
        block: usize,
    ) -> Result<Pending<(Memory, Memory)>> {
        own.expect(block)?;
        all.expect(block * self.size)?;
        let (count, kind) = (int(block)?, bytes_type());
        Pending::begin(self, "MPI_Iallgather", (own, all), |(own, all), request| {
            let (from, to) = (own.read_pointer(), all.write_pointer());
            // SAFETY: `own` has a block and `all` a block per rank; both stay until the request
            // is done.
            unsafe { ffi::MPI_Iallgather(from, count, kind, to, count, kind, self.raw, request) }
        })
    }

    /// Sends block s of `out` to rank s, and puts what rank s sends into block s of `into`.
    pub(in crate::mpi) fn all_to_all(
        &self,
        out: Memory,
        into: Memory,
        block: usize,
    ) -> Result<Pending<(Memory, Memory)>> {
        out.expect(block * self.size)?;
        into.expect(block * self.size)?;
        let (count, kind) = (int(block)?, bytes_type());
        Pending::begin(self, "MPI_Ialltoall", (out, into), |(out, into), request| {
            let (from, to) = (out.read_pointer(), into.write_pointer());
            // SAFETY: both have a block per rank and stay until the request is done.
            unsafe { ffi::MPI_Ialltoall(from, count, kind, to, count, kind, self.raw, request) }
        })
    }

    /// As [`Self::all_gather`], for the root only; `all` of the other ranks is not touched.
    pub(in crate::mpi) fn gather(
        &self,
        own: Memory,
        all: Memory,
        block: usize,
        root: usize,
    ) -> Result<Pending<(Memory, Memory)>> {
        own.expect(block)?;
        all.expect(if self.rank == root { block * self.size } else { 0 })?;
        let (count, kind, root) = (int(block)?, bytes_type(), int(root)?);
        Pending::begin(self, "MPI_Igather", (own, all), |(own, all), request| {
            let (from, to) = (own.read_pointer(), all.write_pointer());
            // SAFETY: `own` has a block and the root's `all` a block per rank; both stay until
            // the request is done.
            unsafe { ffi::MPI_Igather(from, count, kind, to, count, kind, root, self.raw, request) }
        })
    }

    /// Sends block s of the root's `all` into the `own` of rank s; `all` of the other ranks is
    /// not touched.
    pub(in crate::mpi) fn scatter(
        &self,
        all: Memory,
        own: Memory,
        block: usize,
        root: usize,
    ) -> Result<Pending<(Memory, Memory)>> {
        all.expect(if self.rank == root { block * self.size } else { 0 })?;
        own.expect(block)?;
        let (count, kind, root) = (int(block)?, bytes_type(), int(root)?);
        Pending::begin(self, "MPI_Iscatter", (all, own), |(all, own), request| {
            let (from, to) = (all.read_pointer(), own.write_pointer());
            // SAFETY: the root's `all` has a block per rank and `own` a block; both stay until
            // the request is done.
            unsafe {
                ffi::MPI_Iscatter(from, count, kind, to, count, kind, root, self.raw, request)
            }
        })
    }
}
