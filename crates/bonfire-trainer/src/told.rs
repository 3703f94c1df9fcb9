//! What rank 0 does for all.

use crate::TrainError;
use bonfire_comm::ProcessGroup;

/// Runs `f` on rank 0 and gives its result to every rank; its failure is an error on all of them.
pub(crate) fn rank_zero_tells(
    group: &ProcessGroup,
    f: impl FnOnce() -> Result<Vec<u8>, TrainError>,
) -> Result<Vec<u8>, TrainError> {
    if group.rank() == 0 {
        let result = f();
        let mut message = match &result {
            Ok(bytes) => bytes.clone(),
            Err(error) => error.to_string().into_bytes(),
        };
        message.insert(0, u8::from(result.is_ok()));
        group.broadcast_bytes(message, 0)?;
        return result;
    }
    let mut message = group.broadcast_bytes(Vec::new(), 0)?;
    if message.first() == Some(&1) {
        message.remove(0);
        return Ok(message);
    }
    let reason = String::from_utf8_lossy(message.get(1..).unwrap_or_default()).into_owned();
    Err(TrainError::OtherRank { rank: 0, reason })
}
