//! One rank of a run, from reading the data to the summary.

use crate::CliError;
use crate::args::TrainArgs;
use crate::batch_find::TrialRecorder;
use crate::data::{Data, Loader};
use crate::device::TrainDevice;
use crate::environment;
use crate::exit::Outcome;
use crate::flight;
use crate::followers;
use crate::interrupt::Interrupt;
use crate::own_data::Images;
use crate::registry::ModelConfig;
use crate::report::Header;
use crate::results::Results;
use crate::run_lock::RunLock;
use crate::skipped::count_skipped;
use crate::survey::{self, Survey};
use crate::voice::{self, say};
use crate::weights::begin_with;
use bonfire_comm::ProcessGroup;
use bonfire_nn::{ImageShape, has_sync_batchnorm};
use bonfire_parallel::ParallelError;
use bonfire_tensor::parameters::{self, ParameterSpec};
use bonfire_trainer::config::{Plan, RunConfig};
use bonfire_trainer::run_folder::{Baseline, SkippedFiles};
use bonfire_trainer::{
    BatchSource, ImageBatch, Learnable, ModelSummary, Resume, RunFolder, StepContext, TrainError,
    Trainer, TrainerConfig,
};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What makes a process (or thread) one rank of a run.
pub(crate) struct Rank<'a> {
    pub(crate) group: ProcessGroup,
    pub(crate) device: TrainDevice,
    pub(crate) args: &'a TrainArgs,
    pub(crate) images: &'a Images,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) threads: usize,
}

/// Trains a model as one rank; rank 0 writes the run folder.
pub(crate) fn train_model<C: ModelConfig>(
    model_config: &C,
    run_config: &RunConfig,
    plan: &Plan,
    rank: Rank<'_>,
) -> Result<Outcome, CliError> {
    let device = rank.device.configured(plan.precision.mode)?;
    let first = rank.group.rank() == 0;
    if first {
        Header::new(&rank.group, &rank.device, plan, rank.threads).print();
    }
    let baseline = rank.args.baseline.as_deref().filter(|_| first);
    let baseline = baseline.map(Baseline::read).transpose()?;
    let data = Data::open(plan, rank.images, &device)?;
    let model = init_model(model_config, plan, &data, &device)?;
    let samples = data.train.num_samples();
    survey::check(run_config, plan, samples, &trainable(&model)?, has_sync_batchnorm(&model))?;
    // The others begin with what rank 0 has, and a checkpoint takes the place of both.
    let model = match first && !matches!(rank.args.resume, Resume::From(_)) {
        true => begin_with(model_config, model, plan)?,
        false => model,
    };

    let description = data.describe(model_config, plan)?.to_toml()?;
    let mut config = TrainerConfig::from_plan(plan);
    config.resume = rank.args.resume.clone();
    let folder = run_folder(plan, &rank, first)?;
    let _lock = folder.as_ref().map(|folder| RunLock::take(folder.path())).transpose()?;
    if let Some(folder) = &folder {
        let surroundings = environment::describe(&rank.group, &rank.device, plan, rank.threads);
        folder.write_environment(&surroundings)?;
        folder.write_model_summary(&summarize(&model, &data)?)?;
    }
    let shared = flight::agree(&rank.group, folder.as_ref().map(RunFolder::path));
    if let Some(shared) = shared.map_err(TrainError::from)? {
        voice::keep(&shared, rank.group.rank(), rank.group.world_size());
    }
    // Every rank has a folder configured, since saving is collective; only rank 0's is used.
    if plan.train.fast_dev_run.is_none() {
        config.checkpoint_folder =
            Some(folder.as_ref().map_or_else(PathBuf::new, RunFolder::checkpoints));
    }
    if let Some(profile) = &mut config.profile {
        profile.folder = folder.as_ref().map(RunFolder::profile);
    }
    let trainer = Trainer::new(config, rank.group.clone())
        .with_stop_flag(rank.interrupt.stop_flag())
        .with_device_meter(rank.device.meter());
    let recorder = rank.args.trial_record.as_deref().filter(|_| first);
    let recorder = recorder.map(|path| (TrialRecorder::new(), path));
    let mut trainer = followers::add(trainer, plan, &rank, folder.as_ref(), &description)?;
    if let Some((recorder, _)) = &recorder {
        trainer = trainer.with_callback(recorder.callback());
    }
    let report = trainer.fit(model, &data.train, Some(&data.valid))?;
    let skipped = |loader: &Loader| count_skipped(&rank.group, loader.dataset());
    let skipped_files = SkippedFiles {
        train: skipped(&data.train).map_err(TrainError::from)?,
        valid: skipped(&data.valid).map_err(TrainError::from)?,
    };

    let class_names = data.valid.dataset().digest().class_names;
    let results = Results { report: &report, plan, skipped_files, baseline, class_names };
    match &folder {
        Some(folder) => results.write(folder, &description)?,
        None if first => results.tell_of_try(),
        None => {}
    }
    if let Some((recorder, path)) = &recorder {
        recorder.write(&report, path)?;
    }
    match report.stopped {
        true => Ok(Outcome::Stopped { signal: rank.interrupt.signal() }),
        false => Ok(Outcome::Done),
    }
}

/// Opens the data, makes the model, and checks the recipe against both.
pub(crate) fn survey_model<C: ModelConfig>(
    model_config: &C,
    run_config: &RunConfig,
    plan: &Plan,
    images: &Images,
) -> Result<Survey, CliError> {
    // What would be trained, wherever that is: only one image goes through the model.
    let device = TrainDevice::Cpu.configured(plan.precision.mode)?;
    let data = Data::open(plan, images, &device)?;
    let model = init_model(model_config, plan, &data, &device)?;
    let model = begin_with(model_config, model, plan)?;
    if let Some(mixed) = plan.precision.mixed_precision() {
        mixed
            .check(&model, &device)
            .map_err(|error| TrainError::from(ParallelError::from(error)))?;
    }
    let (samples, trainable) = (data.train.num_samples(), trainable(&model)?);
    let synchronized = has_sync_batchnorm(&model);
    let (length, settings) = survey::check(run_config, plan, samples, &trainable, synchronized)?;
    let ImageShape { channels, height, width } = data.shape;
    Ok(Survey {
        model: summarize(&model, &data)?,
        train_samples: samples,
        valid_samples: data.valid.num_samples(),
        image: [channels, height, width],
        num_classes: data.num_classes,
        parameters: trainable.into_iter().zip(settings).collect(),
        length,
    })
}

/// Looks at a forward pass of one image.
fn summarize<M: Learnable<Batch = ImageBatch>>(
    model: &M,
    data: &Data,
) -> Result<ModelSummary, CliError> {
    let device = model.devices().into_iter().next().unwrap_or_default().without_autodiff();
    let ImageShape { channels, height, width } = data.shape;
    let images = Tensor::zeros([1, channels, height, width], &device);
    let batch = ImageBatch::new(images, Tensor::zeros([1], &device));
    let summary = ModelSummary::of(model, 1, |model| {
        model.validation_step(batch, &StepContext::outside(device))
    });
    Ok(summary?)
}

fn trainable<M: Module>(model: &M) -> Result<Vec<ParameterSpec>, CliError> {
    let specs = parameters::inspect(model).map_err(TrainError::from)?;
    Ok(parameters::trainable(&specs))
}

/// Makes the folder of a run that was given none: `runs/<name>-<time>`, the time in UTC.
pub(crate) fn default_run_folder(name: &str) -> Result<PathBuf, CliError> {
    let now = time::OffsetDateTime::now_utc();
    let (date, clock) = (now.date(), now.time());
    let stamp = format!(
        "{:04}{:02}{:02}-{:02}{:02}{:02}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        clock.hour(),
        clock.minute(),
        clock.second()
    );
    let runs = PathBuf::from("runs");
    let failed = |path: &PathBuf| {
        let path = path.clone();
        move |source| CliError::Io { action: "creating", path, source }
    };
    std::fs::create_dir_all(&runs).map_err(failed(&runs))?;
    // Runs that start in the same second take turns by making the folder.
    let mut path = runs.join(format!("{name}-{stamp}"));
    for number in 2.. {
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                path = runs.join(format!("{name}-{stamp}-{number}"));
            }
            result => {
                result.map_err(failed(&path))?;
                break;
            }
        }
    }
    Ok(path)
}

fn run_folder(plan: &Plan, rank: &Rank<'_>, first: bool) -> Result<Option<RunFolder>, CliError> {
    if !first || plan.train.fast_dev_run.is_some() {
        return Ok(None);
    }
    let path = match &rank.args.out {
        Some(path) => path.clone(),
        None => default_run_folder(&plan.name)?,
    };
    check_unused(&path, &rank.args.resume)?;
    let folder = RunFolder::create(path)?;
    say(format_args!("run folder {}", folder.path().display()));
    Ok(Some(folder))
}

/// Refuses a folder that holds another run, unless that run is the one to be resumed.
pub(crate) fn check_unused(folder: &Path, resume: &Resume) -> Result<(), CliError> {
    let holds_a_run = folder.join("config.toml").exists() || folder.join("checkpoints").exists();
    let canonical = |path: &Path| std::fs::canonicalize(path).ok();
    let continues = match resume {
        Resume::Auto => true,
        Resume::Never => false,
        Resume::From(path) => canonical(path)
            .zip(canonical(folder))
            .is_some_and(|(path, folder)| path.starts_with(folder)),
    };
    if holds_a_run && !continues {
        return Err(CliError::FolderInUse { path: folder.to_path_buf() });
    }
    Ok(())
}

/// Makes the model from the run's seed.
///
/// Flex has one random generator for the whole process, so ranks that are threads take turns.
pub(crate) fn init_model<C: ModelConfig>(
    model_config: &C,
    plan: &Plan,
    data: &Data,
    device: &Device,
) -> Result<C::Model, CliError> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(plan.seed);
    let device = device.clone().autodiff();
    let model = model_config.init(data.shape, data.num_classes, &device)?;
    // Burn draws a parameter's values when they are first looked at: look now, in this turn.
    drop(parameters::inspect(&model).map_err(TrainError::from)?);
    Ok(model)
}
