//! Where a run stands between two steps, and what is on the way there.

use crate::TrainError;
use crate::learnable::Learnable;
use crate::position::Position;
use crate::run::Run;
use bonfire_parallel::StepInProgress;
use bonfire_tensor::TensorError;
use bonfire_tensor::host::to_host;
use bonfire_tensor::parameters::{self, ParameterSpec, Role};
use bonfire_tensor::state::{HostTensor, State};
use burn::tensor::Tensor;

/// Where a run stands between two steps.
pub(crate) struct Settled {
    pub(crate) position: Position,
    pub(crate) buffers: Buffers,
}

/// Running statistics and other buffers, which the next forward pass moves; where they may be needed.
#[derive(Default)]
pub(crate) struct Buffers {
    /// On their device, and not waited for.
    floats: Vec<Tensor<1>>,
    others: State,
    /// What they, and the parameters, come from: see
    /// [`device_mark`](bonfire_comm::ProcessGroup::device_mark).
    pub(crate) mark: u64,
}

impl Buffers {
    /// The values, by path.
    pub(crate) fn read(self, specs: &[ParameterSpec]) -> Result<State, TensorError> {
        let mut state = self.others;
        let others: Vec<String> = state.tensors.keys().cloned().collect();
        let floats = specs.iter().filter(|spec| spec.role == Role::Buffer);
        let floats = floats.filter(|spec| !others.contains(&spec.path));
        for (spec, values) in floats.zip(self.floats) {
            let tensor = HostTensor { shape: spec.shape.clone(), data: to_host(values)? };
            state.tensors.insert(spec.path.clone(), tensor);
        }
        Ok(state)
    }
}

/// A step whose outcome is not known yet.
pub(crate) struct Begun {
    pub(crate) step: StepInProgress,
    pub(crate) end: Ending,
}

/// What is to be told of a step.
pub(crate) struct Ending {
    /// Where the run stands behind it, unless it is skipped.
    pub(crate) position: Position,
    /// As they were behind it.
    pub(crate) buffers: Buffers,
    pub(crate) learning_rate: f64,
    pub(crate) samples: u64,
    /// Whether figures are due.
    pub(crate) reports: bool,
    pub(crate) last_of_epoch: bool,
}

impl<M: Learnable> Run<'_, M> {
    /// Notes that model, optimizer, schedule and callbacks are between two steps.
    pub(crate) fn settle(&mut self) -> Result<(), TrainError> {
        let buffers = self.buffers()?;
        self.settle_at(self.position, buffers);
        Ok(())
    }

    pub(crate) fn settle_at(&mut self, position: Position, buffers: Buffers) {
        self.settled = Some(Settled { position, buffers });
    }

    /// The buffers as they are now, if a failure may make them necessary.
    pub(crate) fn buffers(&self) -> Result<Buffers, TrainError> {
        let specs = self.parallel.specs();
        let mark = self.control.device_mark();
        let rescues = self.control.rank() == 0 && self.config.checkpoint_folder.is_some();
        if !rescues || !specs.iter().any(|spec| spec.role == Role::Buffer) {
            return Ok(Buffers { mark, ..Buffers::default() });
        }
        let model = self.parallel.model();
        let is_other = |spec: &ParameterSpec| spec.role == Role::Buffer && !spec.dtype.is_float();
        let others = match specs.iter().any(is_other) {
            true => parameters::read(model, is_other)?,
            false => State::default(),
        };
        Ok(Buffers { floats: parameters::float_buffers(model, specs), others, mark })
    }
}
