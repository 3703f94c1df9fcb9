//! What a run leaves on the disk, written by rank 0.
//!
//! ```text
//! runs/digits-20260131-120000/
//!   config.toml         the resolved configuration
//!   metrics.csv         training reports and validations
//!   metrics.jsonl       the same with what every rank did, see bonfire_report::history
//!   tensorboard/        the same as event files for TensorBoard
//!   environment.json    what the run ran on
//!   model_summary.json  parameters, memory and arithmetic of every layer
//!   logs/rank0.log      what every rank has said
//!   profile/            traces of some steps and what they show, if asked for
//!   report.html         all of it, to look at
//!   samples-rank0.csv   which samples each step of a rank has had, if asked for
//!   checkpoints/        see the checkpoint module
//!   model.safetensors   parameters and buffers by module path
//!   model_ema.safetensors  its averages, where it has any
//!   model.toml          kind and configuration: enough to make the model again
//!   summary.json        what the run came to
//! ```

use crate::checkpoint::write_safetensors;
use crate::config::OnError;
use crate::metrics_file::MetricsFile;
use crate::metrics_lines::MetricsLines;
use crate::report_page::ReportPage;
use crate::sample_log::SampleLog;
use crate::tensorboard::TensorBoard;
use crate::whole_file::write_whole;
use crate::{
    Callback, FitReport, FitStart, Learnable, Metrics, ModelSummary, RankFigures, TimeShare,
    TrainError, Variant,
};
use bonfire_metrics::ConfusionMatrix;
use bonfire_report::html::{self, Standing};
use bonfire_tensor::parameters;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The folder of a run.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
}

/// The content of `summary.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Processes that trained.
    pub world_size: usize,
    /// Whole epochs done.
    pub epochs: u64,
    /// Optimizer steps, skipped ones included.
    pub steps: u64,
    /// Steps that an overflow kept from the parameters, where the loss is scaled.
    pub skipped_steps: Option<u64>,
    /// Mean training loss of the last epoch (after a resume in mid-epoch: of its rest) over all
    /// ranks.
    pub train_loss: Option<f64>,
    /// Mean loss of the last validation.
    pub valid_loss: Option<f64>,
    /// Accuracy of the last validation, between 0 and 1.
    pub valid_accuracy: Option<f64>,
    /// How often each class (row) was taken for which (column) in the last validation, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confusion_matrix: Option<Vec<Vec<u64>>>,
    /// What its classes are called, if they have names; the program's to know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// Further figures of the last validation, by name.
    pub valid_figures: BTreeMap<String, f64>,
    /// The same of the values that callbacks keep beside the model's own, averages for example.
    pub variants: Vec<VariantFigures>,
    /// Training images per second over all ranks.
    pub images_per_s: f64,
    /// The same for each rank, in their order.
    pub images_per_s_by_rank: Vec<f64>,
    /// The same without the time in which a rank waited for others: a slow one stands out by this.
    pub busy_images_per_s_by_rank: Vec<f64>,
    /// Training images per second against those of the run that was given as a baseline.
    pub speed_up: Option<f64>,
    /// The same for each process more: 1 is a perfect speed-up.
    pub scaling_efficiency: Option<f64>,
    /// From the start of the program to the end of rank 0's first optimizer step.
    pub seconds_to_first_step: Option<f64>,
    /// Where rank 0's training time went.
    pub time_share: TimeShare,
    /// Where every rank's training time went, in their order.
    pub time_share_by_rank: Vec<TimeShare>,
    /// Processor cores that every rank's process has kept busy on average, in their order.
    pub cpu_cores_by_rank: Vec<f64>,
    /// Share of the time in which every rank's device has computed, from 0 to 1; null where the device is the
    /// processor, or its driver does not tell.
    pub device_utilization_by_rank: Vec<Option<f64>>,
    /// The most bytes of main memory that every rank's process has had at a time.
    pub peak_memory_bytes_by_rank: Vec<u64>,
    /// Payload bytes that rank 0 has sent for gradients and parameters.
    pub bytes_sent: u64,
    /// The same for each optimizer step.
    pub bytes_sent_per_step: f64,
    /// Bytes of parameters, gradient buckets and optimizer state on rank 0.
    pub memory_bytes: MemoryBytes,
    /// Corrupt files that were passed over.
    pub skipped_files: SkippedFiles,
    /// Fingerprint of the final parameters in path order, in hexadecimal.
    pub parameters_xxh3: String,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    /// Whether it ended before its budget was used up, since it had come far enough.
    pub stopped_early: bool,
}

/// Corrupt files of each split that any rank has met and passed over, each counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SkippedFiles {
    /// Of training; other images stood in for them.
    pub train: usize,
    /// Of validation; they were left out.
    pub valid: usize,
}

/// Figures of other values of the model in the last validation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VariantFigures {
    /// Name of the variant, such as `ema`.
    pub name: String,
    /// Mean loss.
    pub valid_loss: Option<f64>,
    /// Accuracy, between 0 and 1.
    pub valid_accuracy: Option<f64>,
}

/// Bytes that a rank holds from one step to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryBytes {
    /// Trainable parameters.
    pub parameters: usize,
    /// Gradient buckets.
    pub gradients: usize,
    /// State of the optimizer.
    pub optimizer: usize,
}

impl Summary {
    /// Sums up a report; `seconds_to_first_step` is the program's to know, and so are
    /// [`skipped_files`](Self::skipped_files), which are none here.
    pub fn new<M>(report: &FitReport<M>, seconds_to_first_step: Option<f64>) -> Self {
        let valid = |name: &str| report.valid.as_ref().and_then(|valid| valid.mean(name));
        let by_rank = |figure: fn(&RankFigures) -> f64| report.ranks.iter().map(figure).collect();
        let figures = |name: &String| VariantFigures {
            name: name.clone(),
            valid_loss: valid(&format!("{name}_loss")),
            valid_accuracy: valid(&format!("{name}_accuracy")),
        };
        Self {
            world_size: report.world_size,
            epochs: report.epochs,
            steps: report.steps,
            skipped_steps: report.skipped_steps,
            train_loss: report.train.loss(),
            valid_loss: valid("loss"),
            valid_accuracy: valid("accuracy"),
            confusion_matrix: report.confusion_matrix.as_ref().map(rows),
            class_names: Vec::new(),
            valid_figures: report.valid.iter().flat_map(further).collect(),
            variants: report.variants.iter().map(|variant| figures(&variant.name)).collect(),
            images_per_s: report.samples_per_second,
            images_per_s_by_rank: by_rank(RankFigures::samples_per_second),
            busy_images_per_s_by_rank: by_rank(RankFigures::busy_samples_per_second),
            speed_up: None,
            scaling_efficiency: None,
            seconds_to_first_step,
            time_share: report.time_share,
            time_share_by_rank: report.ranks.iter().map(|rank| rank.share).collect(),
            cpu_cores_by_rank: by_rank(|rank| rank.cpu_cores),
            device_utilization_by_rank: report
                .ranks
                .iter()
                .map(|rank| rank.device_utilization)
                .collect(),
            peak_memory_bytes_by_rank: report
                .ranks
                .iter()
                .map(|rank| rank.peak_memory_bytes)
                .collect(),
            bytes_sent: report.bytes_sent,
            bytes_sent_per_step: report.bytes_sent_per_step,
            memory_bytes: MemoryBytes {
                parameters: report.memory.parameters,
                gradients: report.memory.gradients,
                optimizer: report.memory.optimizer,
            },
            skipped_files: SkippedFiles::default(),
            parameters_xxh3: format!("{:016x}", report.parameters_xxh3),
            stopped: report.stopped,
            stopped_early: report.stopped_early,
        }
    }

    /// Compares the speed with another run's.
    #[must_use]
    pub fn against(self, baseline: &Baseline) -> Self {
        let speed_up = self.images_per_s / baseline.images_per_s;
        let more = self.world_size as f64 / baseline.world_size as f64;
        Self { speed_up: Some(speed_up), scaling_efficiency: Some(speed_up / more), ..self }
    }
}

fn rows(matrix: &ConfusionMatrix) -> Vec<Vec<u64>> {
    matrix.counts().chunks(matrix.classes().max(1)).map(<[u64]>::to_vec).collect()
}

/// Finite figures beside loss and accuracy.
fn further(metrics: &Metrics) -> Vec<(String, f64)> {
    let figures = metrics.0.iter().filter(|it| !["loss", "accuracy"].contains(&it.name.as_str()));
    let figures = figures.map(|it| (it.name.clone(), it.mean()));
    figures.filter(|(_, value)| value.is_finite()).collect()
}

/// What a run is compared with: the part of another's `summary.json` that matters.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Baseline {
    world_size: usize,
    images_per_s: f64,
}

impl Baseline {
    /// Reads a `summary.json`.
    ///
    /// # Errors
    /// [`TrainError::Io`] when it cannot be read or has no speed.
    pub fn read(path: &Path) -> Result<Self, TrainError> {
        let invalid = |reason: &str| std::io::Error::new(ErrorKind::InvalidData, reason);
        let read = || {
            let read: Self = serde_json::from_slice(&std::fs::read(path)?)
                .map_err(|error| invalid(&error.to_string()))?;
            match read.images_per_s > 0.0 && read.world_size > 0 {
                true => Ok(read),
                false => {
                    Err(invalid("its run has trained nothing, there is no speed to compare with"))
                }
            }
        };
        read().map_err(TrainError::io("reading the baseline", path))
    }
}

impl RunFolder {
    /// Makes the folder; it may exist already.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, TrainError> {
        let path = path.into();
        std::fs::create_dir_all(&path).map_err(TrainError::io("creating", &path))?;
        Ok(Self { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Folder of the profile.
    pub fn profile(&self) -> PathBuf {
        self.path.join("profile")
    }

    /// Folder of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Writes the resolved configuration.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn write_config(&self, toml: &str) -> Result<(), TrainError> {
        self.write("config.toml", toml.as_bytes())
    }

    /// Writes the model: its tensors, and the text from which it can be made again.
    ///
    /// # Errors
    /// [`TrainError`] naming the file.
    pub fn write_model<M: Learnable>(&self, model: &M, toml: &str) -> Result<(), TrainError> {
        let state = parameters::read(model, |_| true)?;
        write_safetensors(&self.path.join("model.safetensors"), &state.tensors)?;
        self.write_description(toml)
    }

    /// Writes the text from which the model can be made again, so that the checkpoints of a run that
    /// goes on can be used.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn write_description(&self, toml: &str) -> Result<(), TrainError> {
        self.write("model.toml", toml.as_bytes())
    }

    /// Writes a variant of the model as `model_<name>.safetensors`, with the model's own values where
    /// it has none.
    ///
    /// # Errors
    /// [`TrainError`] naming the file.
    pub fn write_variant<M: Learnable>(
        &self,
        model: &M,
        variant: &Variant,
    ) -> Result<(), TrainError> {
        let mut tensors = parameters::read(model, |_| true)?.tensors;
        tensors.extend(variant.values.tensors.clone());
        let name = format!("model_{}.safetensors", variant.name);
        Ok(write_safetensors(&self.path.join(name), &tensors)?)
    }

    /// Whether a run has come to its summary.
    pub fn has_summary(&self) -> bool {
        self.path.join("summary.json").is_file()
    }

    /// Writes the summary.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn write_summary(&self, summary: &Summary) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(summary)
            .map_err(|error| std::io::Error::other(error.to_string()))
            .map_err(TrainError::io("encoding", self.path.join("summary.json")))?;
        self.write("summary.json", format!("{text}\n").as_bytes())
    }

    /// A callback that appends to `metrics.csv`. Where failures to save are survived, a row that cannot
    /// be written is only told.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn metrics_file(&self, on_error: OnError) -> Result<MetricsFile, TrainError> {
        MetricsFile::open(self.path.join("metrics.csv"), on_error)
    }

    /// A callback that appends to `metrics.jsonl`, as [`metrics_file`](Self::metrics_file) does.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn metrics_lines(&self, on_error: OnError) -> Result<MetricsLines, TrainError> {
        MetricsLines::open(self.path.join("metrics.jsonl"), on_error)
    }

    /// A callback that writes event files into `tensorboard`, as [`metrics_file`](Self::metrics_file) does.
    pub fn tensorboard(&self, on_error: OnError) -> TensorBoard {
        TensorBoard::new(self.path.join("tensorboard")).with_on_error(on_error)
    }

    /// A callback that writes `report.html`.
    pub fn report_page(&self) -> ReportPage {
        ReportPage::new(self.path.clone())
    }

    /// Writes `report.html` from all files that are there.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn write_report(&self) -> Result<PathBuf, TrainError> {
        html::write(&self.path, Standing::AsItsFilesTell)
            .map_err(TrainError::io("writing the report of", &self.path))
    }

    /// Writes what the run runs on, a flat object.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn write_environment(&self, environment: &serde_json::Value) -> Result<(), TrainError> {
        self.write("environment.json", format!("{environment:#}\n").as_bytes())
    }

    /// Writes what the model is made of.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn write_model_summary(&self, summary: &ModelSummary) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(summary)
            .map_err(|error| std::io::Error::other(error.to_string()))
            .map_err(TrainError::io("encoding", self.path.join("model_summary.json")))?;
        self.write("model_summary.json", format!("{text}\n").as_bytes())
    }

    /// A callback that writes `config.toml` and `model.toml` when the run begins: a run that is refused
    /// leaves those of the run before.
    pub fn run_files(&self, config: String, description: String) -> RunFiles {
        RunFiles { folder: self.clone(), config, description }
    }

    /// A callback that appends to `samples-rank<rank>.csv`.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn sample_log(&self, rank: usize) -> Result<SampleLog, TrainError> {
        SampleLog::open(self.path.join(format!("samples-rank{rank}.csv")))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), TrainError> {
        let path = self.path.join(name);
        write_whole(&path, bytes).map_err(TrainError::io("writing", path))
    }
}

/// Writes what a run was made of when it begins; see [`RunFolder::run_files`].
#[derive(Debug)]
pub struct RunFiles {
    folder: RunFolder,
    config: String,
    description: String,
}

impl Callback for RunFiles {
    fn name(&self) -> &str {
        "run_files"
    }

    fn on_fit_start(&mut self, _fit: &FitStart) -> Result<(), TrainError> {
        self.folder.write_config(&self.config)?;
        self.folder.write_description(&self.description)
    }
}
