//! Where a section computes, and what is there.

use crate::{Place, Result};
use bonfire::comm::{EngineKind, InitOptions, ProcessGroup, init_single};
use burn::tensor::Device;
use serde_json::{Value, json};

/// Finds what CUDA needs at run time. Called first in the process.
#[cfg_attr(feature = "cuda", allow(unsafe_code, reason = "the environment, before any thread"))]
pub(crate) fn prepare() {
    #[cfg(feature = "cuda")]
    // SAFETY: called first thing in the process, which has no other thread yet.
    unsafe {
        bonfire::comm::cuda::prepare();
    }
}

impl Place {
    /// The device of Burn; all ranks share the first GPU.
    pub(crate) fn device(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::flex()),
            Self::Cuda => cuda(),
        }
    }

    /// The engine between devices of this kind.
    pub(crate) fn options(self) -> InitOptions {
        let options = InitOptions::default().with_timeout(std::time::Duration::from_secs(60));
        match self {
            Self::Cpu => options.with_engine(EngineKind::Host),
            Self::Cuda => options.with_engine(EngineKind::Nccl).with_gpu(0),
        }
    }

    /// A group of this process alone.
    pub(crate) fn single(self) -> Result<ProcessGroup> {
        Ok(init_single(&self.options())?)
    }
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Device> {
    bonfire::comm::cuda::check(0)?;
    Ok(Device::cuda(0))
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Device> {
    Err("this program was built without CUDA; use --device cpu".into())
}

/// What the machine has.
pub(crate) fn environment(place: Place) -> Result<Value> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut found = json!({ "cores": cores, "device": crate::word(place) });
    found["nvidia_smi"] = tool(&[
        "nvidia-smi",
        "--query-gpu=name,memory.total,driver_version",
        "--format=csv,noheader",
    ]);
    found["python"] = tool(&[
        "python3",
        "-c",
        "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())",
    ]);
    found["cuda_path"] = json!(std::env::var("CUDA_PATH").ok());
    #[cfg(feature = "cuda")]
    if place == Place::Cuda {
        found["devices"] = json!(bonfire::comm::cuda::count_devices(0)?);
        bonfire::comm::cuda::check(0)?;
        found["nccl"] = json!(bonfire::comm::nccl::version()?);
    }
    Ok(found)
}

/// What a tool says, or why it does not.
fn tool(words: &[&str]) -> Value {
    let Some((program, arguments)) = words.split_first() else { return Value::Null };
    match std::process::Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => {
            json!(String::from_utf8_lossy(&output.stdout).trim())
        }
        Ok(output) => json!(format!("{program}: {}", output.status)),
        Err(error) => json!(format!("{program}: {error}")),
    }
}
