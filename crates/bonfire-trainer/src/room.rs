//! Room on the disk for checkpoints.

use crate::TrainError;
use crate::config::OptimizerPlan;
use crate::learnable::Learnable;
use crate::run::Run;
use crate::told::rank_zero_tells;
use nix::sys::statvfs::statvfs;
use std::path::Path;

/// Checkpoints for which there has to be room before the first step: two that stay, and one that is
/// being written.
const CHECKPOINTS: u64 = 3;

impl<M: Learnable> Run<'_, M> {
    /// Refuses to begin where no folder of checkpoints can be made, or where three of model and
    /// optimizer have no room. Averages and other state of callbacks, which come later, are not
    /// counted.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn check_room(&self) -> Result<(), TrainError> {
        let Some(folder) = &self.config.checkpoint_folder else { return Ok(()) };
        rank_zero_tells(&self.control, || {
            let made = std::fs::create_dir_all(folder);
            made.map_err(TrainError::io("creating", folder))?;
            let specs = self.parallel.specs().iter();
            let sizes = specs.map(|spec| (spec.num_elements() * spec.dtype.size_bytes()) as u64);
            let model: u64 = sizes.sum();
            let one = model * (1 + state_per_parameter(&self.config.optimizer));
            check(folder, CHECKPOINTS * one)?;
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

/// Checks that the file system of a folder has `needed` bytes free.
fn check(folder: &Path, needed: u64) -> Result<(), TrainError> {
    // A file system that does not tell is given the benefit of the doubt.
    let Ok(system) = statvfs(folder) else { return Ok(()) };
    let free = system.blocks_available() * system.fragment_size();
    match free < needed {
        true => Err(TrainError::NoRoom { folder: folder.to_path_buf(), free, needed }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_when_three_checkpoints_have_no_room() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path(), 1).unwrap();
        let error = check(folder.path(), u64::MAX).unwrap_err().to_string();
        let named = error.contains(&folder.path().display().to_string());
        assert!(named && error.contains("MiB free"), "{error}");
    }
}
