//! What the layers of a model do in a forward pass, for those who ask.
//!
//! Burn's modules have no forward hooks. The layers of this crate report every call, if a forward pass runs
//! inside [`watch_layers`]; outside of it a report costs the look at a thread-local cell.

use burn::module::ParamId;
use burn::tensor::{Shape, Tensor};
use std::cell::RefCell;

/// Who was called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerName {
    /// The module that holds this parameter: what [`bonfire_tensor::parameters::inspect`] finds it by.
    HolderOf(ParamId),
    /// A name that [`report_layer`] was given.
    Given(String),
}

/// A call of a layer in a forward pass.
#[derive(Debug, Clone)]
pub struct LayerCall {
    /// Who was called.
    pub name: LayerName,
    /// Its type, such as `Conv2d`.
    pub kind: &'static str,
    /// Sizes of the input's dimensions.
    pub input: Shape,
    /// Sizes of the output's dimensions.
    pub output: Shape,
    /// Bytes of the output.
    pub output_bytes: usize,
    /// Multiplications and additions, each counted as one.
    pub flops: u64,
    /// Zero if all values of the output are finite, else NaN.
    finite: Option<Tensor<1>>,
}

impl LayerCall {
    /// Whether every value of the output is finite; waits for the device. `None` where values were not asked
    /// for or cannot be read.
    pub fn is_finite(&self) -> Option<bool> {
        let value: f64 = self.finite.clone()?.try_into_vec_as::<f64>().ok()?.first().copied()?;
        Some(value == 0.0)
    }
}

/// What is asked for of every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Shapes and arithmetic only: costs nothing.
    Shapes,
    /// Whether the output is finite, too: one pass over it, on the device.
    Values,
}

struct Recording {
    watch: Watch,
    calls: Vec<LayerCall>,
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Puts the recording of an outer [`watch_layers`] back, also when the forward pass panics.
struct Outer(Option<Recording>);

impl Drop for Outer {
    fn drop(&mut self) {
        RECORDING.with_borrow_mut(|recording| *recording = self.0.take());
    }
}

/// Runs `forward` on this thread, and tells which layers it called, in their order.
pub fn watch_layers<T>(watch: Watch, forward: impl FnOnce() -> T) -> (T, Vec<LayerCall>) {
    let recording = Recording { watch, calls: Vec::new() };
    let outer = Outer(RECORDING.replace(Some(recording)));
    let result = forward();
    let calls = RECORDING.take().map(|recording| recording.calls).unwrap_or_default();
    drop(outer);
    (result, calls)
}

/// Reports a call of something that is no layer of this crate: a layer of `burn::nn`, or a block that a
/// model has written out. `flops` counts multiplications and additions, each as one.
///
/// ```
/// use bonfire_nn::{Watch, report_layer, watch_layers};
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<2>::ones([4, 8], &Device::flex());
/// let (_, calls) = watch_layers(Watch::Values, || {
///     let y = x.clone().log() / 0.0;
///     report_layer("logarithm", "Log", &x, &y, 2 * 32);
/// });
/// assert_eq!(calls[0].is_finite(), Some(false));
/// ```
pub fn report_layer<const I: usize, const O: usize>(
    name: &str,
    kind: &'static str,
    input: &Tensor<I>,
    output: &Tensor<O>,
    flops: u64,
) {
    report(|| LayerName::Given(name.to_owned()), kind, input.shape(), output, || flops);
}

/// Reports a call of the module that holds a parameter.
pub(crate) fn report<const O: usize>(
    name: impl FnOnce() -> LayerName,
    kind: &'static str,
    input: Shape,
    output: &Tensor<O>,
    flops: impl FnOnce() -> u64,
) {
    let Some(watch) = RECORDING.with_borrow(|recording| recording.as_ref().map(|it| it.watch))
    else {
        return;
    };
    let shape = output.shape();
    // Zero times infinity is NaN, and no sum of zeros overflows.
    let finite =
        (watch == Watch::Values).then(|| output.clone().without_autodiff().mul_scalar(0.0).sum());
    let call = LayerCall {
        name: name(),
        kind,
        input,
        output_bytes: shape.num_elements() * output.dtype().size(),
        output: shape,
        flops: flops(),
        finite,
    };
    RECORDING.with_borrow_mut(|recording| {
        if let Some(recording) = recording {
            recording.calls.push(call);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinearConfig, NormConfig, NormKind, conv};
    use burn::tensor::{DType, Device};

    #[test]
    fn a_forward_pass_tells_its_layers_in_their_order() {
        let device = Device::flex();
        let conv = conv::Conv2dConfig::new([3, 8], [3, 3]).init(&device);
        let norm = NormConfig::new(NormKind::Batch).init(8, &device).unwrap();
        let linear = LinearConfig::new(8 * 4 * 4, 10).init(&device);
        let images = Tensor::<4>::zeros([2, 3, 6, 6], &device);
        let (scores, calls) = watch_layers(Watch::Shapes, || {
            linear.forward(norm.forward(conv.forward(images)).flatten::<2>(1, 3))
        });
        assert_eq!(scores.dims(), [2, 10]);
        let kinds: Vec<&str> = calls.iter().map(|call| call.kind).collect();
        assert_eq!(kinds, ["Conv2d", "BatchNorm", "Linear"]);
        assert_eq!(calls[0].name, LayerName::HolderOf(conv.weight.id));
        assert_eq!(calls[0].output.to_vec(), [2, 8, 4, 4]);
        assert_eq!(calls[0].output_bytes, 2 * 8 * 4 * 4 * 4);
        // 2 x 8 x 4 x 4 values of 27 products and as many additions, the bias among them.
        assert_eq!(calls[0].flops, 256 * (2 * 27));
        assert_eq!(calls[1].flops, 256 * 2);
        assert_eq!(calls[2].flops, 20 * (2 * 128));
        assert!(calls.iter().all(|call| call.is_finite().is_none()));
    }

    #[test]
    fn values_that_are_not_finite_are_seen_in_every_type() {
        let device = Device::flex();
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for (value, finite) in [
                (6e4f32, true),
                (f32::INFINITY, false),
                (f32::NEG_INFINITY, false),
                (f32::NAN, false),
            ] {
                let x = Tensor::<2>::from_data([[6e4f32, 1.0], [value, -2.0]], &device).cast(dtype);
                let (_, calls) = watch_layers(Watch::Values, || report_layer("x", "X", &x, &x, 0));
                assert_eq!(calls[0].is_finite(), Some(finite), "{value} in {dtype:?}");
            }
        }
    }

    #[test]
    fn a_panic_ends_the_watch() {
        let watched = std::panic::catch_unwind(|| {
            watch_layers(Watch::Shapes, || -> () { panic!("a layer of the user's") })
        });
        assert!(watched.is_err());
        RECORDING.with_borrow(|recording| assert!(recording.is_none()));
    }
}
