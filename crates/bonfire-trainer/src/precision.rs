//! In which types a run computes, and what it keeps for its backward passes.

use crate::{TrainError, TrainerConfig};
use bonfire_amp::{GradScaler, MixedPrecision};
use bonfire_parallel::{DataParallelConfig, ParallelError};
use bonfire_tensor::checkpointing::follow_device;
use burn::module::Module;
use burn::tensor::{DType, Device};

/// How a run computes.
pub(crate) struct Precision {
    /// Scales the loss, where it has to be.
    pub(crate) scaler: Option<GradScaler>,
    /// Type of the inputs of training steps; `None` leaves them as they are.
    pub(crate) training_inputs: Option<DType>,
    /// The same for validation, which sees the parameters themselves.
    pub(crate) validation_inputs: Option<DType>,
    gradient_checkpointing: bool,
}

impl Precision {
    pub(crate) fn new(config: &TrainerConfig) -> Result<Self, TrainError> {
        let mixed = config.parallel.mixed_precision.as_ref();
        let scaler = match mixed.is_some_and(MixedPrecision::needs_scaler) {
            true if config.master_weights => Some(config.scaler.init()?),
            true => {
                return Err(TrainError::Parallel(ParallelError::Setting {
                    name: "precision.master_weights",
                    value: "false".to_string(),
                    reason: "only bf16 trains without 32-bit parameters",
                }));
            }
            false => None,
        };
        let inputs = mixed.map(|mixed| mixed.half().dtype());
        Ok(Self {
            scaler,
            training_inputs: inputs,
            validation_inputs: inputs.filter(|_| !config.master_weights),
            gradient_checkpointing: config.gradient_checkpointing,
        })
    }

    /// The device as training steps see it.
    pub(crate) fn training_device(&self, device: &Device) -> Device {
        let device = device.clone().autodiff();
        if self.gradient_checkpointing { device.gradient_checkpointing() } else { device }
    }

    /// The model that is trained: with another strategy of its gradients, and, without master
    /// weights, with 16-bit parameters.
    pub(crate) fn prepare<M: Module>(
        &self,
        model: M,
        parallel: &mut DataParallelConfig,
        master_weights: bool,
    ) -> Result<M, TrainError> {
        let device = model.devices().into_iter().next().unwrap_or_default().without_autodiff();
        let model = match self.gradient_checkpointing {
            true => follow_device(model, &self.training_device(&device)),
            false => model,
        };
        match parallel.mixed_precision.take_if(|_| !master_weights) {
            Some(mixed) => {
                mixed.check(&model, &device)?;
                Ok(mixed.cast_for_good(model)?)
            }
            None => Ok(model),
        }
    }
}
