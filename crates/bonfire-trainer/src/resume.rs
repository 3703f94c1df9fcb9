//! How a run goes on from a checkpoint.

use crate::TrainError;
use crate::checkpoint::{self, Checkpoint, MODEL_PREFIX, Manifest, continuation};
use crate::learnable::Learnable;
use crate::lifecycle::Length;
use crate::run::Run;
use crate::told::rank_zero_tells;
use bonfire_tensor::state::Stateful;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Whether a run goes on from a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Resume {
    /// It begins at the beginning.
    #[default]
    Never,
    /// It goes on from a checkpoint, or from the newest sound one of a folder of checkpoints or of a
    /// run; that there is none is an error.
    From(PathBuf),
    /// It goes on from the newest sound checkpoint of its own folder, and begins at the beginning if
    /// there is none: the same command starts a run and restarts it.
    Auto,
}

impl Resume {
    /// What ranks compare.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::From(_) => "from a path",
            Self::Auto => "auto",
        }
    }
}

impl<M: Learnable> Run<'_, M> {
    /// Continues as configured: rank 0 reads the checkpoint and sends it to all.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn resume(&mut self, length: Length) -> Result<(), TrainError> {
        self.position.stretch(length);
        let config = self.config;
        if config.resume == Resume::Never {
            return self.prepare_folder();
        }
        let bytes = rank_zero_tells(&self.control.clone(), || {
            let found = match (&config.resume, &config.checkpoint_folder) {
                (Resume::From(path), _) => Some(checkpoint::load(path)?),
                (Resume::Auto, Some(folder)) => checkpoint::load_newest(folder)?,
                _ => None,
            };
            Ok(found.map(|found| found.to_bytes()).transpose()?.unwrap_or_default())
        })?;
        if bytes.is_empty() {
            tracing::info!("no checkpoint yet: the run begins at the beginning");
            return self.prepare_folder();
        }
        let checkpoint = Checkpoint::from_bytes(&bytes)?;
        self.compare(&checkpoint.manifest)?;
        self.load(checkpoint)?;
        self.position.stretch(length);
        self.prepare_folder()?;
        self.saved = Some(self.position);
        tracing::info!(step = self.position.step, epoch = self.position.epoch, "resumed");
        Ok(())
    }

    /// Refuses another run's checkpoint, and tells of what has changed.
    fn compare(&self, manifest: &Manifest) -> Result<(), TrainError> {
        let running: BTreeMap<String, String> = self.entries.iter().cloned().collect();
        let changes = continuation::compare(&manifest.configuration, &running)?;
        if self.control.rank() == 0 {
            let (saved, now) = (manifest.world_size, self.control.world_size());
            if saved != now {
                tracing::info!("the checkpoint was saved by {saved} rank(s), {now} go on");
            }
            for change in changes {
                tracing::warn!("the checkpoint {change}: the run goes on with that");
            }
        }
        Ok(())
    }

    fn load(&mut self, checkpoint: Checkpoint) -> Result<(), TrainError> {
        let mut state = checkpoint.state;
        self.parallel.load_state(state.take_under(MODEL_PREFIX))?;
        let (exchange, optimizer) = (state.take_under("exchange"), state.take_under("optimizer"));
        self.parallel.load_exchange_state(exchange, self.optimizer.as_mut(), optimizer)?;
        self.position.load_state(state.take_under("position"))?;
        self.best.load_state(state.take_under("best"))?;
        if let Some(scaler) = &mut self.precision.scaler {
            scaler.load_state(state.take_under("scaler"))?;
        }
        self.schedule.load_state(state.take_under("schedule"))?;
        for callback in self.callbacks.iter_mut() {
            let part = state.take_under(&format!("callback.{}", callback.name()));
            if let Some(callback) = callback.stateful() {
                callback.load_state(part)?;
            }
        }
        Ok(())
    }
}
