//! Arguments, checked before any rank is involved.

use super::ProcessGroup;
use crate::{CommError, DType, Operation, Result};

impl ProcessGroup {
    /// Checks the arguments against the group and the engine, before any rank is involved.
    pub(super) fn check(&self, operation: Operation, dtype: DType, len: usize) -> Result<()> {
        let capabilities = self.capabilities();
        if !capabilities.operations.contains(&operation.kind()) {
            return Err(self.unsupported(operation.to_string()));
        }
        if !capabilities.dtypes.contains(&dtype) {
            return Err(self.unsupported(format!("{dtype} elements")));
        }
        match operation {
            Operation::Broadcast { root } | Operation::Reduce { root, .. } => {
                self.expect_rank("root", root, true)
            }
            Operation::Gather { root } => {
                self.expect_rank("root", root, true)?;
                self.expect_parts_of_root("gather", root, len)
            }
            Operation::Scatter { root } => {
                self.expect_rank("root", root, true)?;
                self.expect_parts_of_root("scatter", root, len)
            }
            Operation::AllToAll => self.expect_parts("all_to_all", len),
            Operation::Send { to } => self.expect_rank("destination", to, false),
            Operation::Recv { from } => self.expect_rank("source", from, false),
            Operation::AllGather => self.expect_parts("all_gather", len),
            Operation::ReduceScatter(_) => self.expect_parts("reduce_scatter", len),
            Operation::AllReduce(_) | Operation::Barrier => Ok(()),
        }
    }

    pub(super) fn unsupported(&self, what: String) -> CommError {
        CommError::Unsupported { engine: self.engine_name(), what }
    }

    fn expect_rank(&self, role: &'static str, rank: usize, own_allowed: bool) -> Result<()> {
        if rank < self.world_size() && (own_allowed || rank != self.rank()) {
            return Ok(());
        }
        let role = if rank == self.rank() { "this rank itself: rank" } else { role };
        let (group, world_size) = (self.inner.identity.clone(), self.world_size());
        Err(CommError::NoSuchRank { role, rank, group, world_size })
    }

    fn expect_parts(&self, operation: &'static str, len: usize) -> Result<()> {
        if len.is_multiple_of(self.world_size()) {
            return Ok(());
        }
        let expected = format!("a multiple of {}", self.world_size());
        Err(CommError::WrongLength { operation, what: "buffer", expected, got: len })
    }

    fn expect_parts_of_root(&self, operation: &'static str, root: usize, len: usize) -> Result<()> {
        if self.rank() == root { self.expect_parts(operation, len) } else { Ok(()) }
    }

    pub(super) fn expect_scaled(
        &self,
        operation: &'static str,
        what: &'static str,
        part: usize,
        whole: usize,
    ) -> Result<()> {
        self.expect_len(operation, what, part * self.world_size(), whole)
    }

    pub(super) fn expect_len(
        &self,
        operation: &'static str,
        what: &'static str,
        expected: usize,
        got: usize,
    ) -> Result<()> {
        if got == expected {
            return Ok(());
        }
        Err(CommError::WrongLength { operation, what, expected: expected.to_string(), got })
    }
}
