//! Are all replicas still the same?

use super::DataParallel;
use crate::ParallelError;
use bonfire_tensor::parameters::{self, Role};
use bonfire_tensor::state::State;
use burn::module::Module;

impl<M: Module> DataParallel<M> {
    /// Fingerprint of all parameters in path order; equal on ranks that hold the same bits.
    ///
    /// # Errors
    /// When a tensor cannot be read.
    pub fn fingerprint(&self) -> Result<u64, ParallelError> {
        Ok(parameters::fingerprint(&self.parameters()?))
    }

    /// Fingerprint of all parameters and buffers; equal on all ranks after
    /// [`synchronize_buffers`](Self::synchronize_buffers).
    ///
    /// # Errors
    /// When a tensor cannot be read.
    pub fn whole_fingerprint(&self) -> Result<u64, ParallelError> {
        Ok(parameters::fingerprint(&parameters::read(&self.model, |_| true)?))
    }

    /// Compares the parameters of all ranks, bit by bit.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`ParallelError::ReplicasDiffer`] on every rank, naming the first rank and parameter that
    /// differ from rank 0's; failures of the group.
    pub fn check_replicas(&self) -> Result<(), ParallelError> {
        let state = self.parameters()?;
        let prints: Vec<(&str, u64)> = self
            .specs
            .iter()
            .filter_map(|spec| {
                let tensor = state.tensors.get(&spec.path)?;
                let mut one = State::default();
                one.tensors.insert(spec.path.clone(), tensor.clone());
                Some((spec.path.as_str(), parameters::fingerprint(&one)))
            })
            .collect();
        let own: Vec<u8> = prints.iter().flat_map(|(_, print)| print.to_le_bytes()).collect();
        let all = self.control.all_gather_bytes(&own)?;
        let Some((zero, others)) = all.split_first() else { return Ok(()) };
        for (path, place) in prints.iter().map(|(path, _)| path).zip((0..).step_by(8)) {
            let print = |bytes: &[u8]| bytes.get(place..place + 8).map(<[u8]>::to_vec);
            if let Some(index) = others.iter().position(|other| print(other) != print(zero)) {
                let (step, rank, path) = (self.steps, index + 1, (*path).to_string());
                return Err(ParallelError::ReplicasDiffer { step, rank, path });
            }
        }
        Ok(())
    }

    /// Compares replicas every so many steps; not between two averages, when they may differ.
    pub(super) fn check_replicas_if_due(&self) -> Result<(), ParallelError> {
        let every = self.config.check_replicas_every;
        if every == 0 || !self.steps.is_multiple_of(every) || self.drifts() {
            return Ok(());
        }
        self.check_replicas()
    }

    fn parameters(&self) -> Result<State, ParallelError> {
        Ok(parameters::read(&self.model, |spec| spec.role != Role::Buffer)?)
    }
}
