//! Which cores a rank keeps to.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::ops::Range;

/// The share of one rank of `nproc` in the cores that this process may use; `None` where there are
/// fewer cores than ranks, or the system does not tell.
pub(crate) fn share(local_rank: usize, nproc: usize) -> Option<CpuSet> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let cores: Vec<usize> =
        (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false)).collect();
    let mut own = CpuSet::new();
    for core in cores.get(range(cores.len(), local_rank, nproc)?)? {
        own.set(*core).ok()?;
    }
    Some(own)
}

/// Neighbouring cores, which mostly share a cache; the first ranks have those that are left over.
fn range(cores: usize, local_rank: usize, nproc: usize) -> Option<Range<usize>> {
    let (each, more) = (cores / nproc.max(1), cores % nproc.max(1));
    let start = local_rank * each + local_rank.min(more);
    (each > 0).then(|| start..start + each + usize::from(local_rank < more))
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn all_cores_are_shared_out_and_none_twice() {
        let shares: Vec<_> = (0..3).map(|rank| range(8, rank, 3).unwrap()).collect();
        assert_eq!(shares, [0..3, 3..6, 6..8]);
        assert_eq!(range(2, 0, 3), None);
    }
}
