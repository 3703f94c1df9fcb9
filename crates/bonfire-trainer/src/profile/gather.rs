//! Messages of any length to rank 0.

use crate::TrainError;
use bonfire_comm::ProcessGroup;

/// Sends every rank's bytes to rank 0, which gets them in the order of the ranks; the others get none.
///
/// # Collective
/// All ranks of the group.
pub(super) fn gather_bytes(group: &ProcessGroup, own: &[u8]) -> Result<Vec<Vec<u8>>, TrainError> {
    let mut lens = vec![0i64; group.world_size()];
    group.all_gather(&[own.len() as i64], &mut lens)?;
    if group.rank() > 0 {
        group.send(own, 0)?;
        return Ok(Vec::new());
    }
    let mut all = vec![own.to_vec()];
    for (rank, len) in lens.iter().enumerate().skip(1) {
        let mut bytes = vec![0u8; usize::try_from(*len).unwrap_or(0)];
        group.recv(&mut bytes, rank)?;
        all.push(bytes);
    }
    Ok(all)
}
