//! Where a rank trains.

use crate::CliError;
use bonfire_comm::CommError;
use bonfire_trainer::DeviceMeter;
use bonfire_trainer::config::{DeviceKind, Plan, PrecisionMode};
use burn::tensor::{Device, FloatDType};

/// A device that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrainDevice {
    Cpu,
    /// The GPU of this number, of those that the process sees.
    Cuda(usize),
}

impl TrainDevice {
    /// Finds the device that a recipe asks for, for the rank of this number on its machine.
    ///
    /// # Errors
    /// [`CommError::DeviceUnavailable`] says what is missing.
    pub(crate) fn open(plan: &Plan, local_rank: usize) -> Result<Self, CommError> {
        match plan.train.device {
            DeviceKind::Cuda => {
                check_cuda(local_rank)?;
                Ok(Self::Cuda(local_rank))
            }
            _ => Ok(Self::Cpu),
        }
    }

    /// Number of the GPU, if it is one.
    pub(crate) fn gpu(self) -> Option<usize> {
        match self {
            Self::Cpu => None,
            Self::Cuda(ordinal) => Some(ordinal),
        }
    }

    /// What measures how busy it is; nothing for the processor, whose cores are counted anyway.
    pub(crate) fn meter(self) -> Option<Box<dyn DeviceMeter>> {
        self.gpu().and_then(gpu_meter)
    }

    /// What it is, with the backend and the precision in brackets.
    pub(crate) fn describe(self, precision: PrecisionMode) -> String {
        match self {
            Self::Cpu => format!("cpu (flex, {precision})"),
            Self::Cuda(ordinal) => format!("cuda:{ordinal} (NVRTC, {precision})"),
        }
    }

    /// The device of Burn, where new tensors have the type of `precision`. Called once a process,
    /// before the first tensor.
    pub(crate) fn configured(self, precision: PrecisionMode) -> Result<Device, CliError> {
        let mut device = match self {
            Self::Cpu => Device::flex(),
            Self::Cuda(ordinal) => cuda(ordinal),
        };
        if precision == PrecisionMode::F64 {
            device.configure(FloatDType::F64).map_err(|error| CliError::Precision {
                mode: precision.to_string(),
                reason: format!("{error:?}"),
            })?;
        }
        Ok(device)
    }
}

#[cfg(feature = "cuda")]
fn check_cuda(ordinal: usize) -> Result<(), CommError> {
    bonfire_comm::cuda::check(ordinal)
}

#[cfg(not(feature = "cuda"))]
fn check_cuda(ordinal: usize) -> Result<(), CommError> {
    Err(CommError::DeviceUnavailable {
        device: format!("cuda:{ordinal}"),
        reason: "this program was built without CUDA".into(),
        remedy: "build it with `--features cuda`, or choose --device cpu".into(),
    })
}

#[cfg(feature = "cuda")]
fn cuda(ordinal: usize) -> Device {
    Device::cuda(ordinal)
}

/// Never reached: without the feature there is no such device to be found.
#[cfg(not(feature = "cuda"))]
fn cuda(_ordinal: usize) -> Device {
    Device::flex()
}

#[cfg(feature = "cuda")]
fn gpu_meter(ordinal: usize) -> Option<Box<dyn DeviceMeter>> {
    struct Gpu(bonfire_comm::cuda::Utilization);

    impl DeviceMeter for Gpu {
        fn take_utilization(&mut self) -> Option<f64> {
            self.0.take()
        }
    }

    match bonfire_comm::cuda::Utilization::watch(ordinal) {
        Ok(utilization) => Some(Box::new(Gpu(utilization))),
        Err(reason) => {
            tracing::info!("how busy GPU {ordinal} is cannot be told: {reason}");
            None
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn gpu_meter(_ordinal: usize) -> Option<Box<dyn DeviceMeter>> {
    None
}

/// Looks for what CUDA needs at run time, before anything else: it may write the environment.
#[cfg_attr(feature = "cuda", allow(unsafe_code, reason = "the environment, before any thread"))]
pub(crate) fn prepare() {
    #[cfg(feature = "cuda")]
    // SAFETY: called first thing in the process, which has no other thread yet.
    unsafe {
        bonfire_comm::cuda::prepare();
    }
}
