//! From [`RunConfig`] to [`Plan`]: defaults, limits and what must agree between keys.

use bonfire_amp::AmpError;
use std::fmt::Display;
use std::time::Duration;

use super::average::{self, AveragePlan};
use super::batch_limit::BatchLimit;
use super::checkpoint;
use super::clip;
use super::data;
use super::distributed;
use super::early_stopping;
use super::error::{ConfigError, Problem};
use super::optimizer;
use super::parameter_groups;
use super::plan::{Budget, DataPlan, LogPlan, ModelPlan, Plan, TrainPlan, WeightsPlan};
use super::precision;
use super::profile;
use super::resolve_transforms;
use super::run_config::RunConfig;
use super::schedule::{self, SchedulePlan, Surroundings};
use super::sections::Normalize;
use super::source::Source;
use super::train::DeviceKind;

/// Bytes of a MiB, the unit of bucket sizes.
pub(super) const MIB: f64 = 1024.0 * 1024.0;

impl Plan {
    /// Fills in every default for a world of `world_size` ranks, and checks every value.
    ///
    /// # Errors
    /// Happens when a required key is missing, a value is out of its range, keys exclude each
    /// other, or `global_batch_size` cannot be divided; the error carries all such problems.
    pub fn resolve(config: &RunConfig, world_size: usize) -> Result<Self, ConfigError> {
        let mut resolver = Resolver { source: &config.source, problems: Vec::new() };
        let plan = resolver.plan(config, world_size);
        ConfigError::check(plan, resolver.problems)
    }
}

/// Checks values, and collects what is wrong with them.
pub(super) struct Resolver<'a> {
    source: &'a Source,
    problems: Vec<Problem>,
}

impl Resolver<'_> {
    fn plan(&mut self, config: &RunConfig, world_size: usize) -> Plan {
        if world_size == 0 {
            self.reject("world_size", "world_size = 0: must be 1 or more");
        }
        let model = self.model(config);
        let train = self.train(config);
        let optimizer = optimizer::resolve(&config.optimizer, self);
        let seed = self.seed(config);
        let data = self.data(config, world_size.max(1), train.accumulate_grad_batches);
        let around = Surroundings {
            lr: optimizer.lr(),
            global_batch_size: data.global_batch_size,
            budget: train.budget,
            check_val_every_n_epochs: train.check_val_every_n_epochs,
        };
        let average = average::resolve(&config.average, train.budget, self);
        let plan = Plan {
            name: self.name(config, &model.kind),
            seed,
            world_size,
            data,
            parameter_groups: parameter_groups::resolve(&config.optimizer, self),
            schedule: SchedulePlan {
                swa: average.as_ref().and_then(AveragePlan::rate),
                ..schedule::resolve(&config.schedule, &around, self)
            },
            precision: precision::resolve(&config.precision, self),
            clip: clip::resolve(&config.clip, self),
            average,
            early_stopping: early_stopping::resolve(&config.early_stopping, self),
            distributed: distributed::resolve(&config.distributed, seed, self),
            checkpoint: checkpoint::resolve(&config.checkpoint, self),
            log: self.log(config),
            profile: profile::resolve(&config.profile, self),
            model,
            train,
            optimizer,
        };
        match plan.train.fast_dev_run {
            Some(steps) => tried(plan, steps),
            None => plan,
        }
    }

    fn name(&mut self, config: &RunConfig, model_kind: &str) -> String {
        let name = config.name.as_deref().unwrap_or(model_kind);
        let fits = !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
        if config.name.is_some() && (name.is_empty() || !fits) {
            let remedy = "must be usable as a folder's name: not empty, no slash, no leading dot";
            self.reject("name", format!("name = {name:?}: {remedy}"));
        }
        name.to_owned()
    }

    fn seed(&mut self, config: &RunConfig) -> u64 {
        let seed = config.seed.unwrap_or(0);
        self.check("seed", seed, i64::try_from(seed).is_ok(), "must be below 2^63, TOML's largest")
    }

    fn model(&mut self, config: &RunConfig) -> ModelPlan {
        let kind = config.model.kind.clone().unwrap_or_default();
        if kind.is_empty() {
            self.missing("model.kind", "the name of a registered model");
        }
        ModelPlan { kind, weights: self.weights(config), keys: config.model.keys.clone() }
    }

    fn weights(&mut self, config: &RunConfig) -> Option<WeightsPlan> {
        let (path, reset_head) = (config.model.weights.clone(), config.model.reset_head);
        match (path, reset_head) {
            (Some(path), _) => Some(WeightsPlan { path, reset_head: reset_head.unwrap_or(false) }),
            (None, Some(true)) => {
                let message = "model.reset_head = true: there are no weights to take the rest from; set \
                               model.weights to their file";
                self.reject("model.reset_head", message);
                None
            }
            (None, _) => None,
        }
    }

    fn log(&mut self, config: &RunConfig) -> LogPlan {
        let log = &config.log;
        let tensorboard = log.tensorboard.unwrap_or(true);
        let histograms = log.histograms_every_n_steps.unwrap_or(0);
        if histograms > 0 && !tensorboard {
            let message = format!(
                "log.histograms_every_n_steps = {histograms}: they are written into event files, which \
                 log.tensorboard = false leaves out"
            );
            self.reject("log.histograms_every_n_steps", message);
        }
        LogPlan {
            interval: self.seconds("log.interval_s", log.interval_s.unwrap_or(5.0)),
            samples: log.samples.unwrap_or(false),
            tensorboard,
            report: log.report.unwrap_or(true),
            grad_norm: log.grad_norm.unwrap_or(false),
            histograms_every_n_steps: histograms,
        }
    }

    fn train(&mut self, config: &RunConfig) -> TrainPlan {
        let train = &config.train;
        let budget = match (train.max_epochs, train.max_steps) {
            (None, None) => Budget::Epochs(10),
            (Some(epochs), None) => Budget::Epochs(self.one_or_more("train.max_epochs", epochs)),
            (None, Some(steps)) => Budget::Steps(self.one_or_more("train.max_steps", steps)),
            (Some(epochs), Some(steps)) => {
                self.exclusive("train.max_epochs", epochs, "train.max_steps", steps);
                Budget::Steps(steps)
            }
        };
        let limit = |written, key: &str, resolver: &mut Self| {
            BatchLimit::resolve(written, &format!("train.{key}"), resolver)
        };
        let limit_train_batches = limit(train.limit_train_batches, "limit_train_batches", self);
        let limit_val_batches = limit(train.limit_val_batches, "limit_val_batches", self);
        let overfit_batches = limit(train.overfit_batches, "overfit_batches", self);
        if let (Some(overfit), Some(limit)) = (overfit_batches, limit_train_batches) {
            self.exclusive("train.overfit_batches", overfit, "train.limit_train_batches", limit);
        }
        if let (Some(overfit), Some(limit)) = (overfit_batches, limit_val_batches) {
            self.exclusive("train.overfit_batches", overfit, "train.limit_val_batches", limit);
        }
        let accumulate = train.accumulate_grad_batches.unwrap_or(1);
        let log_every = train.log_every_n_steps.unwrap_or(50);
        TrainPlan {
            device: train.device.unwrap_or(DeviceKind::Cpu),
            budget,
            accumulate_grad_batches: self.one_or_more("train.accumulate_grad_batches", accumulate),
            log_every_n_steps: self.one_or_more("train.log_every_n_steps", log_every),
            check_val_every_n_epochs: train.check_val_every_n_epochs.unwrap_or(1),
            fast_dev_run: train.fast_dev_run.and_then(|run| run.0),
            limit_train_batches,
            limit_val_batches,
            overfit_batches,
            num_sanity_val_steps: train.num_sanity_val_steps.unwrap_or(2),
            detect_anomaly: train.detect_anomaly.unwrap_or(false),
            metrics: train.metrics.clone().unwrap_or_default(),
            gradient_checkpointing: train.gradient_checkpointing.unwrap_or(false),
            label_smoothing: self.label_smoothing(train.label_smoothing.unwrap_or(0.0)),
        }
    }

    fn label_smoothing(&mut self, value: f64) -> f64 {
        let ok = (0.0..=1.0).contains(&value);
        self.check("train.label_smoothing", value, ok, "must be from 0 to 1")
    }

    fn data(&mut self, config: &RunConfig, world_size: usize, accumulate: usize) -> DataPlan {
        let data = &config.data;
        let source = data::resolve(data, self);
        if let Some(normalize) = &data.normalize {
            self.normalize(normalize);
        }
        let section = data.transforms.clone().unwrap_or_default();
        let transforms = resolve_transforms::resolve(&section, self);
        let section = data.valid_transforms.clone().unwrap_or_default();
        let valid_transforms = resolve_transforms::resolve_valid(&section, self);
        let (batch_size, global_batch_size) = self.batch(config, world_size, accumulate);
        DataPlan {
            source,
            batch_size,
            global_batch_size,
            workers: data.workers.unwrap_or(1),
            drop_last: data.drop_last.unwrap_or(false),
            normalize: data.normalize.clone(),
            prefetch_factor: self
                .one_or_more("data.prefetch_factor", data.prefetch_factor.unwrap_or(2)),
            timeout: self.seconds("data.timeout_s", data.timeout_s.unwrap_or(300.0)),
            transforms,
            valid_transforms,
        }
    }

    fn normalize(&mut self, Normalize { mean, std }: &Normalize) {
        let (means, deviations) = (mean.as_slice(), std.as_slice());
        let ok = !means.is_empty() && means.iter().all(|mean| mean.is_finite());
        self.check("data.normalize.mean", mean, ok, "must be finite");
        let positive = deviations.iter().all(|std| std.is_finite() && *std > 0.0);
        self.check(
            "data.normalize.std",
            std,
            positive && !deviations.is_empty(),
            "must be above 0",
        );
        if means.len() > 1 && deviations.len() > 1 && means.len() != deviations.len() {
            let message = format!(
                "data.normalize.mean = {mean} and std = {std}: give both for the same channels"
            );
            self.reject("data.normalize", message);
        }
    }

    /// Resolves samples per rank and micro-batch, and per optimizer step over all ranks.
    fn batch(&mut self, config: &RunConfig, world: usize, accumulate: usize) -> (usize, usize) {
        let data = &config.data;
        let shares = world.saturating_mul(accumulate).max(1);
        if let (Some(local), Some(global)) = (data.batch_size, data.global_batch_size) {
            self.exclusive("data.batch_size", local, "data.global_batch_size", global);
            return (local, global);
        }
        let Some(global) = data.global_batch_size else {
            let local = self.one_or_more("data.batch_size", data.batch_size.unwrap_or(32));
            return (local, local.saturating_mul(shares));
        };
        if global == 0 || global % shares != 0 {
            let below = global / shares * shares;
            let nearest = match below {
                0 => format!("at least {shares}"),
                below => format!("{below} or {}", below.saturating_add(shares)),
            };
            let message = format!(
                "data.global_batch_size = {global}: must be divisible by {shares} (world size \
                 {world} x train.accumulate_grad_batches {accumulate}); use {nearest}"
            );
            self.reject("data.global_batch_size", message);
        }
        (global / shares, global)
    }
}

/// A plan that only tries whether everything goes through.
fn tried(plan: Plan, steps: u64) -> Plan {
    let batches = steps.saturating_mul(plan.train.accumulate_grad_batches as u64);
    let train = TrainPlan {
        budget: Budget::Steps(steps),
        limit_train_batches: Some(BatchLimit::Batches(batches)),
        limit_val_batches: Some(BatchLimit::Batches(steps)),
        overfit_batches: None,
        num_sanity_val_steps: 0,
        ..plan.train
    };
    // What needs a run of some length would refuse this one.
    let schedule = SchedulePlan::default();
    let log = LogPlan { samples: false, histograms_every_n_steps: 0, ..plan.log };
    Plan { train, schedule, log, average: None, early_stopping: None, profile: None, ..plan }
}

/// Checks of single values; each hands the value on, so that resolving goes on after a problem.
impl Resolver<'_> {
    /// Reports `message` at `key`.
    pub(super) fn reject(&mut self, key: &str, message: impl Into<String>) {
        self.problems.push(self.source.problem(key, message));
    }

    /// Reports that the required `key` was left out; `what` says what to set it to.
    pub(super) fn missing(&mut self, key: &str, what: &str) {
        self.reject(key, format!("{key} is missing: set it to {what}"));
    }

    /// Reports `value` unless it is allowed.
    pub(super) fn check<T: Display>(&mut self, key: &str, value: T, ok: bool, remedy: &str) -> T {
        if !ok {
            self.reject(key, format!("{key} = {value}: {remedy}"));
        }
        value
    }

    /// Requires a finite number of 0 or more.
    pub(super) fn zero_or_more(&mut self, key: &str, value: f64) -> f64 {
        self.check(key, value, value.is_finite() && value >= 0.0, "must be 0 or more")
    }

    /// Requires a finite number above 0.
    pub(super) fn above_zero(&mut self, key: &str, value: f64) -> f64 {
        self.check(key, value, value.is_finite() && value > 0.0, "must be above 0")
    }

    pub(super) fn one_or_more<T: Display + PartialOrd + From<u8>>(
        &mut self,
        key: &str,
        value: T,
    ) -> T {
        let ok = value >= T::from(1);
        self.check(key, value, ok, "must be 1 or more")
    }

    /// Reports a setting that `bonfire-amp` refuses, as a key of `section`.
    pub(super) fn reject_amp(&mut self, section: &str, error: &AmpError) {
        match error {
            AmpError::Setting { name, .. } => {
                self.reject(&format!("{section}.{name}"), format!("{section}.{error}"));
            }
            other => self.reject(section, other.to_string()),
        }
    }

    pub(super) fn exclusive(
        &mut self,
        one: &str,
        value: impl Display,
        other: &str,
        other_value: impl Display,
    ) {
        let message =
            format!("{one} = {value} and {other} = {other_value} exclude each other: remove one");
        self.reject(one, message);
    }

    pub(super) fn seconds(&mut self, key: &str, value: f64) -> Duration {
        match Duration::try_from_secs_f64(value) {
            Ok(duration) if !duration.is_zero() => duration,
            _ => {
                self.check(key, value, false, "must be a number of seconds above 0");
                Duration::ZERO
            }
        }
    }

    pub(super) fn mebibytes(&mut self, key: &str, value: f64) -> usize {
        let bytes = value * MIB;
        let ok = (1.0..=MIB * MIB).contains(&bytes);
        self.check(key, value, ok, "must be a size in MiB above 0");
        bytes as usize
    }
}
