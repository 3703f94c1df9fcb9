//! Stand-in for `cubecl-llvm` 0.11.3 that contains no LLVM.
//!
//! **Why.** `cubecl-cuda` has two ways to make a kernel: CUDA C++ that NVRTC compiles, and LLVM.
//! Both are always built, and the build script of the original `cubecl-llvm` downloads an LLVM
//! distribution. A build that needs the network at an arbitrary moment, and several hundred
//! megabytes for a code path that it never takes, is not acceptable to us: Bonfire selects NVRTC
//! (feature `cuda-cpp` of `cubecl`), the way that also offers all features of Hopper GPUs.
//!
//! **What.** The names that `cubecl-cuda` 0.11.3 mentions, and nothing behind them. Should the
//! LLVM way be taken all the same, the first kernel fails with an error that says what to enable.
//!
//! **Who needs it.** A `[patch]` acts only in the workspace whose root manifest holds it. A project
//! that depends on Bonfire with the feature `cuda` therefore builds the original crate, download
//! included, unless its own root manifest has the same lines:
//!
//! ```toml
//! [patch.crates-io]
//! cubecl-llvm = { path = "path/to/bonfire/vendor/cubecl-llvm" }
//! ```
//!
//! **When to look again.** At every update of `cubecl`: the version here must follow, and the
//! compiler names whatever else `cubecl-cuda` has come to mention. `cubecl-cpu` and `cubecl-hip`
//! need the original and do not build against this crate.

use core::fmt;

use cubecl_core::ir::nvidia::SmArch;
use cubecl_core::prelude::KernelDefinition;
use cubecl_environment::backtrace::BackTrace;
use cubecl_runtime::compiler::{CompilationError, Compiler};
use cubecl_runtime::kernel::BufferIOAttr;

/// What concerns NVIDIA's virtual instruction set.
pub mod nvptx {
    /// Versions of the instruction set.
    pub mod ptx_version {
        use core::fmt;

        /// A version for LLVM to emit. There is no LLVM, so there is no value of this type.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum PtxVersion {}

        impl PtxVersion {
            /// Returns none, for any driver.
            pub fn for_driver(_driver: i32) -> Option<Self> {
                None
            }
        }

        impl fmt::Display for PtxVersion {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {}
            }
        }
    }
}

/// What concerns all targets of LLVM.
pub mod shared {
    /// What LLVM can do for a target.
    pub mod lowered_features {
        use cubecl_core::ir::DeviceProperties;

        /// A kind of GPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum GpuTarget {
            /// NVIDIA's.
            Nvptx,
        }

        /// Leaves `properties` alone: no kernel is going to be compiled for them.
        pub fn restrict_features(_properties: &mut DeviceProperties, _target: GpuTarget) {}
    }
}

/// What LLVM would compile for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    /// This machine.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Nvptx,
}

/// The compiler that is missing: every compilation is an error.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    /// What it would compile for.
    pub target: LlvmTarget,
}

/// Settings of a compilation.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    /// Architecture of another maker's GPU.
    pub arch: Option<()>,
    /// Architecture of an NVIDIA GPU.
    pub sm_arch: Option<SmArch>,
    /// Version of the instruction set.
    pub ptx_version: Option<nvptx::ptx_version::PtxVersion>,
    /// Whether launch parameters are grid constants.
    pub grid_constants: bool,
}

/// A compiled module for an NVIDIA GPU.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    /// Assembly, ending with a zero.
    pub ptx: Vec<core::ffi::c_char>,
    /// Name of the kernel.
    pub entrypoint: String,
    /// Intermediate code, for logs.
    pub ir: String,
    /// Shared memory of a launch, in bytes.
    pub shared_memory_size: usize,
    /// What the kernel does with each buffer.
    pub io: Vec<BufferIOAttr>,
}

/// What a compilation makes.
#[derive(Clone, Debug)]
pub enum PlironArtifact {
    /// Code for this machine.
    Jit,
    /// Code for an NVIDIA GPU.
    NvptxCode(NvptxModule),
}

impl fmt::Display for PlironArtifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jit => f.write_str("code for this machine"),
            Self::NvptxCode(module) => f.write_str(&module.ir),
        }
    }
}

impl Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;

    fn compile(
        &mut self,
        _kernel: KernelDefinition,
        _options: &PlironOptions,
    ) -> Result<PlironArtifact, CompilationError> {
        let reason = "this program was built without LLVM (vendor/cubecl-llvm stands in for it); \
                      enable the feature `cuda-cpp` of `cubecl`, which compiles with NVRTC";
        Err(CompilationError::Generic {
            reason: reason.to_owned(),
            backtrace: BackTrace::capture(),
        })
    }

    fn extension(&self) -> &'static str {
        "ll"
    }

    fn lang_tag(&self) -> &'static str {
        "llvm"
    }
}
