//! Ranks with different numbers of batches.

use super::DataParallel;
use super::guard::StepOptions;
use crate::optimizer::FlatOptimizer;
use crate::{Join, ParallelError};
use bonfire_comm::ReduceOp;
use burn::module::Module;

impl<M: Module> DataParallel<M> {
    /// Takes part with zeros in the steps of the other ranks until all of them have run out of
    /// batches. Every rank calls it after its own last batch.
    ///
    /// The optimizer takes the same steps as on the other ranks, with their learning rates, so
    /// parameters and optimizer state are equal on all ranks afterwards. Returns the number of
    /// steps taken here.
    ///
    /// A window that this rank has begun, inside [`no_sync`](Self::no_sync), is ended first.
    ///
    /// # Collective
    /// All ranks, each after its own last step. Needs [`DataParallelConfig::join`] in the settings
    /// of every rank.
    ///
    /// # Errors
    /// [`ParallelError::Setting`] without that; failures of the group.
    ///
    /// # Reference
    /// `torch.distributed.algorithms.Join` around `DistributedDataParallel`.
    ///
    /// [`DataParallelConfig::join`]: crate::DataParallelConfig::join
    pub fn join(&mut self, optimizer: &mut dyn FlatOptimizer) -> Result<u64, ParallelError> {
        self.join_with_options(optimizer, StepOptions::new())
    }

    /// As [`join`](Self::join), with the options of the other ranks' steps.
    ///
    /// # Errors
    /// As `join`, and those of [`step_with_options`](Self::step_with_options).
    pub fn join_with_options(
        &mut self,
        optimizer: &mut dyn FlatOptimizer,
        mut options: StepOptions<'_>,
    ) -> Result<u64, ParallelError> {
        if self.config.join == Join::Off {
            let reason = "DataParallel::join needs join = InitialWorldSize or ActiveRanks";
            return Err(ParallelError::Setting { name: "join", value: "Off".to_string(), reason });
        }
        let start = self.steps;
        if self.window_begun {
            self.empty_micro_batch()?;
            self.step_at(optimizer, None, options.reborrow())?;
        }
        while self.joins() {
            self.begin_window(false)?;
            if self.active.is_empty() {
                self.window_begun = false;
                self.active = (0..self.control.world_size()).collect();
                break;
            }
            self.empty_micro_batch()?;
            self.step_at(optimizer, None, options.reborrow())?;
        }
        Ok(self.steps - start)
    }

    /// Finds out which ranks have a batch for the coming window.
    ///
    /// # Collective
    /// All ranks.
    pub(super) fn roll_call(&mut self, has_batches: bool) -> Result<(), ParallelError> {
        let mut flags = vec![0u8; self.control.world_size()];
        self.control.all_gather(&[u8::from(has_batches)], &mut flags)?;
        let present = flags.iter().enumerate().filter(|(_, flag)| **flag == 1);
        self.active = present.map(|(rank, _)| rank).collect();
        Ok(())
    }

    /// The learning rate of the window's step, which a rank without batches does not know, as little
    /// as the optimizer's momentum: it takes over both. Where all ranks have joined in the middle of
    /// their window, those of the step before.
    ///
    /// # Collective
    /// All ranks, where they may join.
    pub(super) fn agreed_rate(
        &mut self,
        own: Option<f64>,
        optimizer: &mut dyn FlatOptimizer,
    ) -> Result<f64, ParallelError> {
        const UNKNOWN: f64 = f64::NEG_INFINITY;
        let momentum = optimizer.momentum().filter(|_| own.is_some());
        let mut rate = [own.unwrap_or(UNKNOWN), momentum.unwrap_or(UNKNOWN)];
        if self.joins() {
            self.control.all_reduce(&mut rate, ReduceOp::Max)?;
        }
        if own.is_none() && rate[1] != UNKNOWN {
            optimizer.set_momentum(rate[1])?;
        }
        let known = Some(rate[0]).filter(|rate| *rate != UNKNOWN).or(self.last_rate);
        self.last_rate = known;
        let reason = "join in the middle of the very first window: no rank has told a learning rate; \
                      call step for it first";
        known.ok_or(ParallelError::Setting {
            name: "learning_rate",
            value: "unknown".to_string(),
            reason,
        })
    }

    /// What the mean over all ranks has to be multiplied by.
    pub(super) fn join_factor(&self) -> f64 {
        match self.config.join {
            Join::ActiveRanks if !self.active.is_empty() => {
                self.control.world_size() as f64 / self.active.len() as f64
            }
            _ => 1.0,
        }
    }
}
