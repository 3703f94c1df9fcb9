//! How many images were passed over because their files are corrupt, by all ranks together.

use bonfire_comm::{CommError, ProcessGroup, ReduceOp};
use bonfire_data::{ImageDataset, Skipped};
use std::collections::BTreeSet;

/// Stands for no index.
const NONE: i64 = -1;

/// Counts the images that any rank has passed over: each once, however many ranks have met it.
///
/// # Collective
/// All ranks of the group.
pub(crate) fn count_skipped(
    group: &ProcessGroup,
    images: &dyn ImageDataset,
) -> Result<usize, CommError> {
    let Skipped { unlisted, corrupt } = images.skipped();
    let mut most = [corrupt.len() as i64];
    group.all_reduce(&mut most, ReduceOp::Max)?;
    let mut own: Vec<i64> = corrupt.iter().map(|&index| index as i64).collect();
    own.resize(most[0] as usize, NONE);
    let mut all = vec![NONE; own.len() * group.world_size()];
    if !own.is_empty() {
        group.all_gather(&own, &mut all)?;
    }
    let distinct: BTreeSet<i64> = all.into_iter().filter(|&index| index != NONE).collect();
    // Every rank lists the same entries.
    Ok(distinct.len() + unlisted)
}
