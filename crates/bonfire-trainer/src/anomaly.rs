//! Where the first value came from that is not finite.

use crate::learnable::Learnable;
use crate::run::Run;
use crate::{StepOutput, TrainError};
use bonfire_nn::{LayerCall, LayerName};
use bonfire_tensor::parameters::{self, ParameterSpec};
use burn::tensor::DType;
use std::fmt;

/// The first value of a training step that is infinite or not a number, as
/// [`TrainerConfig::detect_anomaly`](crate::TrainerConfig::detect_anomaly) finds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Anomaly {
    /// Rank that has met it. A reduced gradient is the same on all ranks; each names itself.
    pub rank: usize,
    /// Pass over the training data, from 0.
    pub epoch: u64,
    /// Optimizer step, from 0.
    pub step: u64,
    /// The loss of the micro-batch, if it is not finite.
    pub loss: Option<f64>,
    /// Where it began.
    pub origin: Origin,
}

/// What is not finite, although everything before it is.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// A parameter, before the forward pass: an update has spoilt it.
    Parameter {
        /// Its path.
        path: String,
        /// The first layer that gives other than finite values for it, if it tells.
        layer: Option<String>,
    },
    /// The output of a layer whose parameters are finite, as are the outputs of the layers before it.
    Layer {
        /// Module path.
        path: String,
        /// Type of the layer.
        kind: &'static str,
        /// Shape of its output.
        output: Vec<usize>,
        /// Whether no layer was called before it: then its input comes from the data.
        first: bool,
    },
    /// The loss: the outputs of all layers that tell are finite.
    Loss {
        /// Calls of layers that tell.
        layers: usize,
    },
    /// The gradient of a parameter, although the loss is finite.
    Gradient {
        /// Path of the parameter.
        path: String,
    },
}

impl Anomaly {
    /// Whether nothing speaks against the parameters: what is wrong lies in the data or in a derivative. A
    /// loss that diverges has parameters that are finite and worth nothing.
    pub(crate) fn leaves_sound_values(&self) -> bool {
        matches!(self.origin, Origin::Layer { first: true, .. } | Origin::Gradient { .. })
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, epoch, step, loss, origin } = self;
        write!(f, "at step {step} (epoch {epoch}) on rank {rank} ")?;
        let loss = loss.map_or_else(|| "finite".to_owned(), |loss| loss.to_string());
        match origin {
            Origin::Parameter { path, layer } => {
                write!(
                    f,
                    "the loss is {loss}, since parameter \"{path}\" is no longer finite{}: the update before \
                     was too large; lower optimizer.lr, lengthen the warm-up, or bound the gradients (clip)",
                    Within(layer)
                )
            }
            Origin::Layer { path, kind, output, first: true } => write!(
                f,
                "the loss is {loss}; the first output that is not finite is that of \"{path}\" ({kind}, \
                 {output:?}), before which no other layer tells its output and whose parameters are finite: look \
                 for infinite values or NaN in the data, and for values too large for the precision"
            ),
            Origin::Layer { path, kind, output, first: false } => write!(
                f,
                "the loss is {loss}; the first output that is not finite is that of \"{path}\" ({kind}, \
                 {output:?}), whose parameters are finite, as are the outputs of the layers before: the training \
                 diverges (lower optimizer.lr, lengthen the warm-up, bound the gradients), its values are too large \
                 for the precision, or what lies before it divides by 0 or takes a logarithm of what has none"
            ),
            Origin::Loss { layers: 0 } => write!(
                f,
                "the loss is {loss}, all parameters are finite, and no layer of the model tells its output: \
                 take the layers of bonfire_nn, or tell with bonfire_nn::report_layer, to learn where it begins"
            ),
            Origin::Loss { layers } => write!(
                f,
                "the loss is {loss}, although all parameters and the outputs of all {layers} layers that tell \
                 are finite: look at what comes after the last layer, at the targets, and at the learning rate"
            ),
            Origin::Gradient { path } => write!(
                f,
                "the gradient of \"{path}\" is not finite, although the loss is: look for a root of 0, a \
                 norm of 0 or a division by nearly 0 behind it; bounding gradients (clip) does not mend that"
            ),
        }
    }
}

/// The layer that a parameter was seen in.
struct Within<'a>(&'a Option<String>);

impl fmt::Display for Within<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(layer) => write!(f, " (first met in layer \"{layer}\")"),
            None => Ok(()),
        }
    }
}

impl<M: Learnable> Run<'_, M> {
    /// Looks at the loss of a micro-batch; if it is not finite, at what led to it.
    pub(crate) fn check_forward(
        &self,
        output: &StepOutput,
        calls: &[LayerCall],
    ) -> Result<(), TrainError> {
        let loss = self.read_loss(output)?;
        if loss.is_finite() {
            return Ok(());
        }
        let specs = self.parallel.specs();
        let bad = calls.iter().position(|call| call.is_finite() == Some(false));
        let path = |call: &LayerCall| module_of(&call.name, specs);
        let origin = match (self.spoilt_parameter()?, bad) {
            (Some(parameter), bad) => {
                Origin::Parameter { path: parameter, layer: bad.map(|index| path(&calls[index])) }
            }
            (None, Some(index)) => Origin::Layer {
                path: path(&calls[index]),
                kind: calls[index].kind,
                output: calls[index].output.to_vec(),
                first: index == 0,
            },
            (None, None) => Origin::Loss { layers: calls.len() },
        };
        Err(self.anomaly(Some(loss), origin))
    }

    /// Looks at the reduced gradients of a window.
    ///
    /// Gradients of a scaled loss may overflow; the scaler sees to them.
    pub(crate) fn check_gradients(&self) -> Result<(), TrainError> {
        if self.precision.scaler.is_some() {
            return Ok(());
        }
        match self.parallel.non_finite_gradient()? {
            // A loss that is not finite has ended the run before.
            Some(path) => Err(self.anomaly(None, Origin::Gradient { path })),
            None => Ok(()),
        }
    }

    pub(crate) fn read_loss(&self, output: &StepOutput) -> Result<f64, TrainError> {
        let loss = output.loss.clone().without_autodiff().cast(DType::F64);
        let values = loss.try_into_vec_as::<f64>();
        let values =
            values.map_err(|error| TrainError::ReadMetric { reason: format!("{error:?}") })?;
        Ok(values.into_iter().sum())
    }

    fn anomaly(&self, loss: Option<f64>, origin: Origin) -> TrainError {
        let (epoch, step) = (self.position.epoch, self.position.step);
        let rank = self.control.rank();
        TrainError::Anomaly(Box::new(Anomaly { rank, epoch, step, loss, origin }))
    }

    /// The first parameter in path order that is not finite.
    fn spoilt_parameter(&self) -> Result<Option<String>, TrainError> {
        let tensors = parameters::trainable_tensors(self.parallel.model());
        let specs = parameters::trainable(self.parallel.specs());
        for (spec, tensor) in specs.iter().zip(tensors) {
            // Zero times infinity is NaN.
            let sum = tensor.mul_scalar(0.0).sum().cast(DType::F64).try_into_vec_as::<f64>();
            let sum =
                sum.map_err(|error| TrainError::ReadMetric { reason: format!("{error:?}") })?;
            if sum.iter().any(|value| *value != 0.0) {
                return Ok(Some(spec.path.clone()));
            }
        }
        Ok(None)
    }
}

/// The path of the module that was called.
pub(crate) fn module_of(name: &LayerName, specs: &[ParameterSpec]) -> String {
    match name {
        LayerName::Given(name) => name.clone(),
        LayerName::HolderOf(id) => match specs.iter().find(|spec| spec.id == *id) {
            Some(spec) => module_path(&spec.path).to_owned(),
            None => "a layer without a path".to_owned(),
        },
    }
}

/// The path of the module that holds a parameter.
pub(crate) fn module_path(parameter: &str) -> &str {
    parameter.rsplit_once('.').map_or("", |(module, _)| module)
}
