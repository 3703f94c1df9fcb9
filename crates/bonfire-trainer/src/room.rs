//! Room on the disk for checkpoints.

use crate::TrainError;
use crate::checkpoint::{forget_best_after, occupied, tidy};
use crate::config::OptimizerPlan;
use crate::learnable::Learnable;
use crate::run::Run;
use crate::told::rank_zero_tells;
use nix::sys::statvfs::statvfs;
use std::path::Path;

/// Fewest checkpoints for which there has to be room.
const FEWEST: u64 = 3;

impl<M: Learnable> Run<'_, M> {
    /// Makes the folder of checkpoints, clears it of what interrupted saves have left and of a best one
    /// that this run has not come to, and refuses to begin where those that are kept, and one more that
    /// is being written, have no room. Checkpoints that are there count as room: they go when others
    /// come. Averages and other state of callbacks are not counted.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn prepare_folder(&self) -> Result<(), TrainError> {
        let Some(folder) = &self.config.checkpoint_folder else { return Ok(()) };
        rank_zero_tells(&self.control, || {
            let made = std::fs::create_dir_all(folder);
            made.map_err(TrainError::io("creating", folder))?;
            tidy(folder)?;
            forget_best_after(folder, self.position.step)?;
            let specs = self.parallel.specs().iter();
            let sizes = specs.map(|spec| (spec.num_elements() * spec.dtype.size_bytes()) as u64);
            let model: u64 = sizes.sum();
            let one = model * (1 + state_per_parameter(&self.config.optimizer));
            let plan = &self.config.checkpoint;
            let kept = plan.keep_last as u64 + u64::from(plan.keep_best.is_some()) + 1;
            // Many are kept by those who do not mean to fill a disk.
            let count = if plan.keep_last > 9 { FEWEST } else { kept.max(FEWEST) };
            check(folder, count, count * one)?;
            Ok(Vec::new())
        })?;
        Ok(())
    }
}

/// Numbers that an optimizer keeps for each parameter.
fn state_per_parameter(optimizer: &OptimizerPlan) -> u64 {
    match optimizer {
        OptimizerPlan::Sgd { momentum, .. } => u64::from(*momentum > 0.0),
        OptimizerPlan::Adam { .. } | OptimizerPlan::AdamW { .. } => 2,
    }
}

/// Checks that the file system of a folder has room for `count` checkpoints of `needed` bytes.
fn check(folder: &Path, count: u64, needed: u64) -> Result<(), TrainError> {
    // A file system that does not tell is given the benefit of the doubt.
    let Ok(system) = statvfs(folder) else { return Ok(()) };
    let free = system.blocks_available() * system.fragment_size() + occupied(folder);
    match free < needed {
        true => Err(TrainError::NoRoom { folder: folder.to_path_buf(), free, count, needed }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_when_three_checkpoints_have_no_room() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path(), 3, 1).unwrap();
        let error = check(folder.path(), 3, u64::MAX).unwrap_err().to_string();
        let named = error.contains(&folder.path().display().to_string());
        assert!(named && error.contains("MiB for checkpoints"), "{error}");
    }
}
