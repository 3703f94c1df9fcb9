//! Byte strings of any length: the control plane of whoever is above.

use super::ProcessGroup;
use crate::{CommError, Result};

/// Most bytes that are gathered in one call.
const MAX_CONTROL_BYTES: usize = 1 << 30;

impl ProcessGroup {
    /// Gathers byte strings of different lengths from all ranks, in the order of the ranks.
    ///
    /// # Collective
    /// Called by all ranks; blocks. Two collectives: do not call it from two threads at once.
    ///
    /// # Errors
    /// [`CommError::WrongLength`] for more than 1 GiB over all ranks; otherwise the failures of
    /// any collective.
    #[track_caller]
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut lens = vec![0i64; self.world_size()];
        self.all_gather(&[bytes.len() as i64], &mut lens)?;
        // Padded to the longest: the control plane is small, and one ring serves all shapes.
        let longest = lens.iter().copied().max().unwrap_or(0);
        let longest = self.control_len("all_gather_bytes", longest)?;
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let mut gathered = vec![0u8; longest * self.world_size()];
        self.all_gather(&padded, &mut gathered)?;
        let part = |(rank, &len): (usize, &i64)| {
            let start = rank * longest;
            gathered[start..start + usize::try_from(len).unwrap_or(0).min(longest)].to_vec()
        };
        Ok(lens.iter().enumerate().map(part).collect())
    }

    /// Gives every rank the bytes of rank `root`; the other ranks' argument is ignored.
    ///
    /// # Collective
    /// Called by all ranks with the same root. Two collectives: do not call it from two threads
    /// at once.
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`]; otherwise the failures of any collective.
    #[track_caller]
    pub fn broadcast_bytes(&self, mut bytes: Vec<u8>, root: usize) -> Result<Vec<u8>> {
        let mut len = [bytes.len() as i64];
        self.broadcast(&mut len, root)?;
        bytes.resize(usize::try_from(len[0]).unwrap_or(0), 0);
        self.broadcast(&mut bytes, root)?;
        Ok(bytes)
    }

    /// Bounds a length that other ranks told. All ranks come to the same verdict.
    fn control_len(&self, operation: &'static str, len: i64) -> Result<usize> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len.saturating_mul(self.world_size()) <= MAX_CONTROL_BYTES {
            return Ok(len);
        }
        let limit = MAX_CONTROL_BYTES / self.world_size();
        let expected = format!("at most {limit}");
        Err(CommError::WrongLength { operation, what: "message", expected, got: len })
    }
}
