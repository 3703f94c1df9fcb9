use crate::AmpError;
use bonfire_tensor::host::HostTensorMut;
use burn::tensor::{DType, Tensor};

/// Which norm of all gradients together is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NormType {
    /// The square root of the sum of squares.
    #[default]
    Two,
    /// The largest absolute value.
    Infinity,
}

impl NormType {
    /// The norm type that a number stands for, 2 or infinity.
    ///
    /// # Errors
    /// [`AmpError::Setting`] for any other.
    pub fn from_number(value: f64) -> Result<Self, AmpError> {
        match value {
            2.0 => Ok(Self::Two),
            f64::INFINITY => Ok(Self::Infinity),
            _ => Err(AmpError::Setting { name: "norm_type", value, reason: "must be 2 or inf" }),
        }
    }

    /// The number that stands for it.
    pub fn number(self) -> f64 {
        match self {
            Self::Two => 2.0,
            Self::Infinity => f64::INFINITY,
        }
    }
}

/// A bound on gradients, after they were unscaled and before the optimizer sees them.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Clip {
    /// Multiplies all gradients by `min(1, max_norm / (norm + 1e-6))`, where `norm` is the norm of the
    /// gradients of all parameters together, on whichever rank they lie.
    ///
    /// # Reference
    /// `torch.nn.utils.clip_grad_norm_`; Pascanu et al. 2013, arXiv:1211.5063, section 3.2.
    Norm {
        /// The bound, above 0.
        max_norm: f64,
        /// Which norm.
        norm_type: NormType,
        /// Whether a norm that is not finite is an error; otherwise the gradients become NaN or zero,
        /// as in PyTorch. Steps that a scaler skips are none.
        error_if_nonfinite: bool,
    },
    /// Limits every element to `[-limit, limit]`.
    ///
    /// # Reference
    /// `torch.nn.utils.clip_grad_value_`.
    Value {
        /// The bound, above 0.
        limit: f64,
    },
}

impl Clip {
    /// Bounds the global 2-norm.
    pub fn norm(max_norm: f64) -> Self {
        Self::Norm { max_norm, norm_type: NormType::Two, error_if_nonfinite: false }
    }

    /// Bounds every element.
    pub fn value(limit: f64) -> Self {
        Self::Value { limit }
    }

    /// The norm that is computed, and logged: the bounded one, or the 2-norm.
    pub fn norm_type(&self) -> NormType {
        match self {
            Self::Norm { norm_type, .. } => *norm_type,
            Self::Value { .. } => NormType::Two,
        }
    }

    /// Checks the bound.
    ///
    /// # Errors
    /// [`AmpError::Setting`] unless it is above 0.
    pub fn validate(&self) -> Result<(), AmpError> {
        let (name, value) = match *self {
            Self::Norm { max_norm, .. } => ("max_norm", max_norm),
            Self::Value { limit } => ("value", limit),
        };
        if value > 0.0 {
            return Ok(());
        }
        Err(AmpError::Setting { name, value, reason: "must be above 0" })
    }

    /// What gradients of a norm have to be multiplied by; NaN for a norm that is NaN.
    pub fn coefficient(&self, norm: f64) -> f64 {
        match *self {
            // Only measured.
            Self::Norm { max_norm: f64::INFINITY, .. } => 1.0,
            Self::Norm { max_norm, .. } => {
                let coefficient = max_norm / (norm + 1e-6);
                if coefficient > 1.0 { 1.0 } else { coefficient }
            }
            Self::Value { .. } => 1.0,
        }
    }
}

/// Multiplies flat gradients by `scale` and limits them to `[-limit, limit]`, in their own memory where
/// they lie on the CPU.
pub fn scale_and_limit(flat: Tensor<1>, scale: f64, limit: f64) -> Tensor<1> {
    if !matches!(flat.dtype(), DType::F32 | DType::F64) {
        return flat.mul_scalar(scale).clamp(-limit, limit);
    }
    let Some(mut host) = HostTensorMut::take(flat.clone()) else {
        return flat.mul_scalar(scale).clamp(-limit, limit);
    };
    // The host tensor must be the only owner, or it copies.
    drop(flat);
    if let Some(values) = host.slice_mut::<f32>() {
        let (scale, limit) = (scale as f32, limit as f32);
        values.iter_mut().for_each(|value| *value = (*value * scale).clamp(-limit, limit));
    } else if let Some(values) = host.slice_mut::<f64>() {
        values.iter_mut().for_each(|value| *value = (*value * scale).clamp(-limit, limit));
    }
    host.into_tensor()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn the_coefficient_is_at_most_one_and_nan_for_nan() {
        let clip = Clip::norm(1.0);
        assert_eq!(clip.coefficient(0.5), 1.0);
        assert!((clip.coefficient(4.0) - 0.25).abs() < 1e-6);
        assert_eq!(clip.coefficient(f64::INFINITY), 0.0);
        assert!(clip.coefficient(f64::NAN).is_nan());
        assert_eq!(Clip::value(1.0).coefficient(4.0), 1.0);
    }

    #[test]
    fn bounds_that_are_not_above_zero_are_refused() {
        for bound in [0.0, -1.0, f64::NAN] {
            assert!(Clip::norm(bound).validate().is_err(), "{bound}");
            assert!(Clip::value(bound).validate().is_err(), "{bound}");
        }
        assert!(Clip::norm(f64::INFINITY).validate().is_ok());
        assert!(NormType::from_number(1.0).is_err());
        assert_eq!(NormType::from_number(f64::INFINITY), Ok(NormType::Infinity));
    }

    #[test]
    fn elements_are_scaled_and_then_limited() {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let flat = Tensor::<1>::from_data([8.0f32, -8.0, 1.0], &Device::flex()).cast(dtype);
            let limited = scale_and_limit(flat, 0.25, 1.5).cast(DType::F32);
            assert_eq!(limited.try_into_vec_as::<f32>().unwrap(), [1.5, -1.5, 0.25], "{dtype:?}");
        }
    }
}
