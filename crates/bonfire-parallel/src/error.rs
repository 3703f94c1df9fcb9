use bonfire_amp::AmpError;
use bonfire_comm::{CommError, DType};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::StateError;

/// What can go wrong in data-parallel training.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// Happens when the models of two ranks are not built alike.
    #[error(
        "rank {rank}: {rank_has}, rank 0: {zero_has}; build the model from the same config on \
         every rank"
    )]
    ModelsDiffer {
        /// First rank that differs from rank 0.
        rank: usize,
        /// What that rank has.
        rank_has: String,
        /// What rank 0 has in its place.
        zero_has: String,
    },
    /// Happens when a model has no parameter that requires gradients.
    #[error(
        "the model has no trainable parameter; build it on an autodiff device \
         (Device::flex().autodiff()) and leave at least one parameter unfrozen"
    )]
    NothingToTrain,
    /// Happens when a parameter took no part in a window's losses; the same on every rank.
    #[error(
        "no gradient for {}; use every parameter in the loss, freeze it, or set \
         find_unused_parameters = true", unused(.ranks)
    )]
    UnusedParameters {
        /// The ranks that lack gradients, with the paths of the parameters.
        ranks: Vec<(usize, Vec<String>)>,
    },
    /// Happens when a gradient has another element type than its parameter.
    #[error("the gradient of \"{path}\" is {got}, its parameter {expected}")]
    GradientType {
        /// The parameter.
        path: String,
        /// Its type.
        expected: DType,
        /// The gradient's.
        got: DType,
    },
    /// Happens when a parameter gets a gradient that it did not have in the first window, although
    /// `static_graph` promised that the same parameters are used in all of them.
    #[error(
        "rank {rank}: \"{path}\" has a gradient now and had none in the first step; \
         set static_graph = false and find_unused_parameters = true"
    )]
    GraphChanged {
        /// This rank.
        rank: usize,
        /// The parameter.
        path: String,
    },
    /// Happens when the replicas of two ranks have drifted apart; the same on every rank.
    #[error(
        "step {step}: \"{path}\" of rank {rank} differs from rank 0's; something changed it on some \
         ranks only (a random number, an update outside of step), or a device computed wrongly"
    )]
    ReplicasDiffer {
        /// Steps taken.
        step: u64,
        /// First rank that differs.
        rank: usize,
        /// First parameter that differs, in visiting order.
        path: String,
    },
    /// Happens when a communication hook's setting is impossible.
    #[error("communication hook setting {name} = {value} is impossible: {reason}")]
    HookSetting {
        /// Its name.
        name: &'static str,
        /// The value given.
        value: String,
        /// Why.
        reason: &'static str,
    },
    /// Happens when settings of [`DataParallelConfig`](crate::DataParallelConfig) are impossible or
    /// exclude each other.
    #[error("{name} = {value}: {reason}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// The value given.
        value: String,
        /// What is wrong with it, and what to do.
        reason: &'static str,
    },
    /// Happens when mixed precision, a loss scaler or clipping is impossible.
    #[error(transparent)]
    Amp(#[from] AmpError),
    /// Happens when clipping was told to stop at a gradient that is infinite or not a number; the
    /// same on every rank.
    #[error(
        "step {step}: the gradients have norm {norm}; lower the learning rate, check the data for \
         impossible values, or set clip.error_if_nonfinite = false"
    )]
    GradientNotFinite {
        /// Steps taken.
        step: u64,
        /// The norm.
        norm: f64,
    },
    /// Happens when `step` is called without a backward pass.
    #[error("rank {rank}: no backward pass since the last step; call backward first")]
    NoGradients {
        /// This rank.
        rank: usize,
    },
    /// Happens when a backward pass follows one that communicated, without a step between them.
    #[error(
        "rank {rank}: the gradients of this window are on their way already; call step before the \
         next backward, or wrap all backward passes of the window but the last in no_sync"
    )]
    WindowOver {
        /// This rank.
        rank: usize,
    },
    /// Happens when all ranks together had no sample in a window.
    #[error("no sample on any rank in this step; give the step at least one sample")]
    NoSamples,
    /// Happens when an optimizer's setting is impossible.
    #[error("optimizer setting {name} = {value} is impossible: {reason}")]
    OptimizerSetting {
        /// Its name.
        name: &'static str,
        /// The value given.
        value: String,
        /// Why.
        reason: &'static str,
    },
    /// Happens when a group of parameters has no parameter or an impossible setting; the same on
    /// every rank.
    #[error("parameter groups: {}", problems.join("; "))]
    ParameterGroups {
        /// What is wrong, a group each.
        problems: Vec<String>,
    },
    /// Happens when an optimizer cannot do what a step asks of it.
    #[error("{optimizer} has no {what}; {remedy}")]
    OptimizerLacks {
        /// The optimizer.
        optimizer: &'static str,
        /// What it lacks.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Happens when the loss is not a single number.
    #[error("the loss has {elements} elements; reduce it to one (mean or sum) before backward")]
    LossShape {
        /// Elements found.
        elements: usize,
    },
    /// Happens when tensors cannot be moved or restored.
    #[error(transparent)]
    Tensor(TensorError),
    /// Happens when a collective fails.
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl From<TensorError> for ParallelError {
    /// What a group says is told as such, also where the collective was on a tensor.
    fn from(error: TensorError) -> Self {
        match error {
            TensorError::Comm(error) => Self::Comm(error),
            error => Self::Tensor(error),
        }
    }
}

impl From<StateError> for ParallelError {
    fn from(error: StateError) -> Self {
        Self::Tensor(error.into())
    }
}

fn unused(ranks: &[(usize, Vec<String>)]) -> String {
    // Most often all ranks lack the same.
    let mut groups: Vec<(Vec<usize>, &[String])> = Vec::new();
    for (rank, paths) in ranks {
        match groups.iter_mut().find(|(_, other)| other == paths) {
            Some((same, _)) => same.push(*rank),
            None => groups.push((vec![*rank], paths)),
        }
    }
    let described = groups.iter().map(|(ranks, paths)| {
        let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
        let word = if ranks.len() == 1 { "rank" } else { "ranks" };
        format!("{} on {word} {}", quoted(paths), names.join(", "))
    });
    described.collect::<Vec<_>>().join("; ")
}

fn quoted(paths: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> =
        paths.iter().take(SHOWN).map(|path| format!("\"{path}\"")).collect();
    if paths.len() > SHOWN {
        text.push(format!("and {} more", paths.len() - SHOWN));
    }
    text.join(", ")
}
