use crate::AmpError;
use crate::unsupported::find_batch_norm;
use bonfire_tensor::TensorError;
use bonfire_tensor::cast::{CastRule, Casting, Place, cast_parameters};
use bonfire_tensor::parameters::{ParameterSpec, Role, inspect};
use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use std::sync::Arc;

/// A 16-bit floating-point type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfType {
    /// bfloat16: the range of f32 with 8 bits of precision. Needs no loss scaling.
    Bf16,
    /// IEEE half precision: 11 bits, but gradients below 6e-8 are zero and activations above 65504
    /// infinite. Needs a [`GradScaler`](crate::GradScaler).
    Fp16,
}

impl HalfType {
    /// Its name in recipes, `bf16` or `fp16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }

    /// Burn's name of it.
    pub fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::BF16,
            Self::Fp16 => DType::F16,
        }
    }
}

/// Modules of `bonfire_nn` whose parameters stay in f32, since they cast inside, as Burn names them
/// to visitors. A `struct Norm` of somebody else is another.
const KEPT: [&str; 2] = ["Enum:Norm", "Struct:SyncBatchNorm"];

/// Which parameters forward and backward passes see in a 16-bit type.
///
/// The parameters themselves, the *master weights*, stay in f32, and so do their gradients and the
/// optimizer's state: the cast comes behind the gradient hook. Running statistics are never cast.
/// The modules of `bonfire_nn` that normalise keep f32 parameters and cast inside, and
/// `bonfire_nn::cross_entropy` casts scores up; other losses are the model's to compute in f32.
///
/// Parameters of Burn's `LayerNorm`, `GroupNorm`, `InstanceNorm` and `RmsNorm` are cast, since
/// those layers do not cast inside. To run one in f32, call it within `bonfire_nn::in_f32` and name
/// its type in [`keep_module`](Self::keep_module). `bonfire_nn::softmax` is computed in f32 by itself.
///
/// # Reference
/// Micikevicius et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740; the modes are those
/// of `torch.autocast`, the placing of the casts is that of `MixedPrecision` in PyTorch's FSDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedPrecision {
    half: HalfType,
    kept_modules: Vec<String>,
}

impl MixedPrecision {
    /// Makes the policy for a 16-bit type.
    pub fn new(half: HalfType) -> Self {
        Self { half, kept_modules: Vec::new() }
    }

    /// The policy for bfloat16.
    pub fn bf16() -> Self {
        Self::new(HalfType::Bf16)
    }

    /// The policy for half precision.
    pub fn fp16() -> Self {
        Self::new(HalfType::Fp16)
    }

    /// Leaves the parameters inside every module of a type as they are, by the type's name
    /// (`"MyNorm"`). Such a module gets 16-bit inputs and has to cast them itself.
    pub fn keep_module(mut self, type_name: impl Into<String>) -> Self {
        self.kept_modules.push(type_name.into());
        self
    }

    /// The 16-bit type.
    pub fn half(&self) -> HalfType {
        self.half
    }

    /// Whether the loss has to be scaled.
    pub fn needs_scaler(&self) -> bool {
        self.half == HalfType::Fp16
    }

    /// Casts a floating-point input of the model.
    pub fn cast_input<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        input.cast(self.half.dtype())
    }

    /// Checks that a model can run like this on a device.
    ///
    /// # Errors
    /// [`AmpError::DeviceLacks`], [`AmpError::BatchNorm`].
    pub fn check<M: Module>(&self, model: &M, device: &Device) -> Result<(), AmpError> {
        self.check_device(device)?;
        match find_batch_norm(model, self) {
            Some(path) => Err(AmpError::BatchNorm { path, mode: self.half.name() }),
            None => Ok(()),
        }
    }

    /// Whether the parameters inside a module stay in f32, by kind and name of its type.
    pub(crate) fn keeps(&self, container: &str) -> bool {
        let name = container.split_once(':').map_or(container, |(_, name)| name);
        KEPT.contains(&container) || self.kept_modules.iter().any(|kept| kept == name)
    }

    fn check_device(&self, device: &Device) -> Result<(), AmpError> {
        self.check_support(|dtype| device.supports_dtype(dtype), &format!("{device:?}"))
    }

    fn check_support(
        &self,
        supports: impl Fn(DType) -> bool,
        device: &str,
    ) -> Result<(), AmpError> {
        if supports(self.half.dtype()) {
            return Ok(());
        }
        let other = match self.half {
            HalfType::Bf16 => HalfType::Fp16,
            HalfType::Fp16 => HalfType::Bf16,
        };
        let or_other = match (supports(other.dtype()), other) {
            (false, _) => "",
            (true, HalfType::Bf16) => " or \"bf16\"",
            (true, HalfType::Fp16) => " or \"fp16\"",
        };
        let device = device.to_string();
        Err(AmpError::DeviceLacks { device, mode: self.half.name(), or_other })
    }

    /// The casts of a model's forward passes.
    pub fn casting(&self, specs: &[ParameterSpec]) -> Casting {
        let frozen = specs.iter().filter(|spec| spec.role == Role::Frozen).map(|spec| spec.id);
        Casting::new(Arc::new(self.clone()), frozen)
    }

    /// Gives up master weights: casts the parameters themselves, with all that follows from it
    /// (gradients, optimizer state and checkpoints in 16 bits). Saves half of the memory; updates
    /// smaller than 1/256 of a parameter are lost.
    ///
    /// # Errors
    /// When a parameter cannot be read.
    pub fn cast_for_good<M: Module>(&self, model: M) -> Result<M, TensorError> {
        let casting = self.casting(&inspect(&model)?);
        Ok(cast_parameters(model, &casting))
    }
}

impl CastRule for MixedPrecision {
    fn dtype(&self, place: &Place) -> Option<DType> {
        let kept = place.containers().any(|container| self.keeps(container));
        (!kept).then(|| self.half.dtype())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_lacks_a_type_is_named_with_the_modes_that_it_has() {
        let check = |mixed: MixedPrecision, has: &[DType]| {
            mixed.check_support(|dtype| has.contains(&dtype), "Cuda(0)")
        };
        assert!(check(MixedPrecision::bf16(), &[DType::BF16]).is_ok());
        let error = check(MixedPrecision::bf16(), &[DType::F16]).unwrap_err().to_string();
        assert!(error.contains("Cuda(0)") && error.contains("bf16"), "{error}");
        assert!(error.contains("or \"fp16\""), "{error}");
        let error = check(MixedPrecision::fp16(), &[]).unwrap_err().to_string();
        assert!(error.contains("fp16") && !error.contains("or \"bf16\""), "{error}");
    }

    #[test]
    fn only_the_own_norms_and_what_is_named_stay_in_f32() {
        let mixed = MixedPrecision::bf16().keep_module("Mine");
        let kept = ["Enum:Norm", "Struct:SyncBatchNorm", "Struct:Mine", "Enum:Mine"];
        assert!(kept.iter().all(|container| mixed.keeps(container)));
        let cast = ["Struct:Norm", "Struct:BatchNorm", "Enum:SyncBatchNorm"];
        assert!(!cast.iter().any(|container| mixed.keeps(container)));
    }
}
