use crate::checkpoint::CheckpointError;
use bonfire_tensor::TensorError;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why weights cannot be taken from a file, or written to one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// Happens when a file has a suffix of no known format.
    #[error("\"{path}\" is no file of weights: expected .safetensors, .pt or .pth")]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// Happens when a file of PyTorch cannot be read.
    #[error("reading weights from \"{path}\" failed: {reason}; save a state_dict by torch.save")]
    PyTorch {
        /// The file.
        path: PathBuf,
        /// The reader's reason.
        reason: String,
    },
    /// Happens when the tensors of a file are not those of the model; says all that differ.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
    /// Happens when the head of a model is to stay new, and the model has none.
    #[error("the model names no head whose weights could stay new; leave reset_head out")]
    NoHead,
    /// Happens when a model is exported that has no names of PyTorch.
    #[error(
        "the model does not say what PyTorch calls its tensors; model.safetensors of its run has them by module path"
    )]
    NoPyTorchNames,
    /// Happens when a safetensors file cannot be read or written.
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// Happens when tensors of the model cannot be read or set.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Everything in which a file of weights and a model differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The file.
    pub path: PathBuf,
    /// By which names the tensors were looked for.
    pub names: &'static str,
    /// Tensors of the model that the file lacks, by the names of the file.
    pub missing: Vec<String>,
    /// Tensors of the file that the model lacks.
    pub unexpected: Vec<String>,
    /// Tensors that differ in shape or type.
    pub wrong: Vec<WrongShape>,
    /// Path of the head, if it is among the wrong ones: of another number of classes.
    pub head: Option<String>,
}

/// Tensors of a kind that a message names.
const NAMED: usize = 10;

impl Mismatch {
    /// Makes one of a file in which nothing differs yet.
    pub fn new(path: &Path, names: &'static str) -> Self {
        let (missing, unexpected, wrong) = (Vec::new(), Vec::new(), Vec::new());
        Self { path: path.to_path_buf(), names, missing, unexpected, wrong, head: None }
    }

    /// Turns "nothing differs" into `Ok`.
    ///
    /// # Errors
    /// [`WeightsError::Mismatch`] if anything does.
    pub fn into_result(self) -> Result<(), WeightsError> {
        match self.missing.is_empty() && self.unexpected.is_empty() && self.wrong.is_empty() {
            true => Ok(()),
            false => Err(WeightsError::Mismatch(Box::new(self))),
        }
    }
}

/// A tensor that is not as the model needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongShape {
    /// Its name in the file.
    pub name: String,
    /// What the model needs there, in the layout of the file.
    pub expected: String,
    /// What the file has.
    pub got: String,
}

impl fmt::Display for WrongShape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{}\" is {}, the model's is {}", self.name, self.got, self.expected)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, names) = (self.path.display(), self.names);
        write!(formatter, "the weights in \"{path}\" ({names}) are not those of the model:")?;
        let quoted = |name: &String| format!("\"{name}\"");
        list(formatter, "missing", self.missing.iter().map(quoted))?;
        list(formatter, "unexpected", self.unexpected.iter().map(quoted))?;
        list(formatter, "other shape", self.wrong.iter().map(ToString::to_string))?;
        let Some(head) = &self.head else { return Ok(()) };
        write!(
            formatter,
            "\n  the head \"{head}\" is that of other classes; model.reset_head = true (--reset-head) keeps \
             the model's new one and takes all the rest"
        )
    }
}

/// Writes the first lines of a list, and how many there are more.
fn list(
    formatter: &mut fmt::Formatter<'_>,
    what: &str,
    lines: impl ExactSizeIterator<Item = String>,
) -> fmt::Result {
    let more = lines.len().saturating_sub(NAMED);
    for line in lines.take(NAMED) {
        write!(formatter, "\n  {what}: {line}")?;
    }
    match more {
        0 => Ok(()),
        more => write!(formatter, "\n  {what}: {more} more"),
    }
}
