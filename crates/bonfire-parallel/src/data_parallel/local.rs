//! Steps without exchange, and the averages between them.

use super::DataParallel;
use crate::ParallelError;
use crate::exchange::Exchange;
use crate::local_sgd::mean_over_ranks;
use bonfire_comm::{Buffer, ReduceOp};
use bonfire_tensor::host::flat_from_host;
use bonfire_tensor::parameters::{self, Role};
use bonfire_tensor::state::{HostTensor, State};
use burn::module::Module;

impl<M: Module> DataParallel<M> {
    /// Averages the parameters if the policy says so after the step at hand, which was local, and
    /// returns the votes of all ranks; else nobody hears of them.
    ///
    /// # Collective
    /// All ranks.
    pub(super) fn average_if_due(&mut self, votes: f64) -> Result<f64, ParallelError> {
        let Some(policy) = self.config.local_sgd else { return Ok(votes) };
        if self.control.world_size() == 1 {
            return Ok(votes);
        }
        if !policy.averages_after(self.steps) {
            return Ok(0.0);
        }
        let mut votes = [votes];
        self.control.all_reduce(&mut votes, ReduceOp::Sum)?;
        let mut means = mean_over_ranks(self.reducer.group(), &self.flat)?;
        if let Some(settings) = policy.outer {
            self.outer.step(settings, &mut means);
        }
        self.synchronize_buffers()?;
        self.flat = means.into_iter().map(|mean| flat_from_host(mean, &self.device)).collect();
        self.show_flat();
        Ok(votes[0])
    }

    /// Tells whether the step at hand is local; before the first one, notes where the outer optimizer
    /// starts from.
    pub(super) fn begin_local(&mut self) -> Result<bool, ParallelError> {
        let local = self.exchange() == Exchange::None;
        let outer = self.config.local_sgd.is_some_and(|policy| policy.outer.is_some());
        if local && outer && self.control.world_size() > 1 {
            self.outer.begin(&self.flat)?;
        }
        Ok(local)
    }

    /// Whether the replicas may differ now, since the last steps were local.
    pub fn drifts(&self) -> bool {
        let Some(policy) = self.config.local_sgd else { return false };
        let Some(last) = self.steps.checked_sub(1) else { return false };
        self.control.world_size() > 1 && policy.is_local(last) && !policy.averages_after(last)
    }

    /// Ends training: every rank takes over the [`consensus`](Self::consensus).
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// Failures of the group.
    pub fn agree(&mut self) -> Result<(), ParallelError> {
        if self.drifts() {
            let model = self.consensus()?;
            self.adopt(parameters::read(&model, |_| true)?)?;
        }
        Ok(())
    }

    /// The model with the mean of all ranks' parameters, to validate and to keep. Between two
    /// averages of [`LocalSgd`](crate::LocalSgd) this is no rank's own; otherwise it is the model.
    /// Training goes on from each rank's own.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// Failures of the group.
    pub fn consensus(&self) -> Result<M, ParallelError> {
        if !self.drifts() {
            return Ok(self.model.clone());
        }
        let own = parameters::read(&self.model, |spec| spec.role == Role::Trainable)?;
        let mut works = Vec::new();
        for (path, tensor) in own.tensors {
            let buffer = Buffer::Host(tensor.data);
            let work = self.control.start_all_reduce(buffer, ReduceOp::Mean)?;
            works.push((path, tensor.shape, work));
        }
        let mut mean = State::default();
        for (path, shape, work) in works {
            let data = work.wait()?.into_host()?;
            mean.tensors.insert(path, HostTensor { shape, data });
        }
        Ok(parameters::write(self.model.clone(), mean)?)
    }
}
