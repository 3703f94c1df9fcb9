//! Burn's own learner on several ranks: the same training as on one, and one set of artifacts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use bonfire_comm::{InitOptions, ProcessGroup};
use bonfire_tensor::lend::pretend;
use bonfire_tensor::parameters;
use bonfire_tests::training::numbers;
use bonfire_tests::{
    ExactFloats, Precision, RankOutput, as_rank, assert_close, results, run_ranks,
};
use bonfire_trainer::Context;
use bonfire_trainer::burn_learner::{
    DataParallelStrategy, DataParallelTraining, DistributedLoaderBuilder,
};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError};
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn::train::metric::LossMetric;
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::{
    InferenceStep, Learner, LearningResult, MetricEarlyStoppingStrategy, RegressionOutput,
    StoppingCondition, SupervisedTraining, TrainOutput, TrainStep,
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);
const SAMPLES: usize = 48;
/// Samples of all ranks in a step; divides by 1, 2 and 3.
const GLOBAL_BATCH: usize = 12;
const SEED: u64 = 5;
/// Names a rank's artifact folder.
const FOLDER: &str = "BURN_LEARNER_FOLDER";

#[test]
fn ranks_train_as_one_process_of_burn_does() {
    let test = "ranks_train_as_one_process_of_burn_does";
    let work = |group: &ProcessGroup| {
        let device = Precision::F64.device();
        let accumulations = [None, Some(3)];
        accumulations.map(|accumulation| {
            let batch_size = GLOBAL_BATCH / group.world_size();
            let mut program = Program { accumulation, ..Program::new(&device) };
            if std::env::var_os("BURN_ALONE").is_some() {
                // Without any of our code.
                let loader = DataLoaderBuilder::new(Stack).batch_size(batch_size);
                let train = loader.build(Points::new(SAMPLES));
                return Trained::of(&program.training(train).launch(program.learner(SEED)).model);
            }
            let context = Context::enter(group.clone(), group.rank());
            program.strategy = Some(DataParallelStrategy::new().unwrap());
            let loader = DistributedLoaderBuilder::new(Stack).batch_size(batch_size);
            let train = loader.build(Points::new(SAMPLES)).unwrap();
            // Every rank draws other weights, so that only rank 0's can make them equal.
            let learner = program.learner(SEED + context.rank() as u64);
            Trained::of(&program.training(train).launch(learner).model)
        })
    };
    if as_rank(work) {
        return;
    }
    let alone: Vec<[Trained; 2]> = results(&run(1, test, &[("BURN_ALONE", "1")]));
    for world in 1..=3 {
        let ranks: Vec<[Trained; 2]> = results(&run(world, test, &[]));
        for runs in &ranks {
            for (case, run) in runs.iter().enumerate() {
                assert_eq!(run.fingerprint, ranks[0][case].fingerprint, "{world} ranks");
                let what = format!("parameters of case {case} on {world} ranks");
                assert_close(&what, &run.values.0, &alone[0][case].values.0, 1e-9);
            }
        }
    }
}

#[test]
fn a_resumed_training_ends_as_one_that_was_never_interrupted() {
    let test = "a_resumed_training_ends_as_one_that_was_never_interrupted";
    let work = |group: &ProcessGroup| {
        let _context = Context::enter(group.clone(), group.rank());
        let device = Precision::F32.device();
        let setting = |name: &str| std::env::var(name).ok().map(|value| value.parse().unwrap());
        let program = Program {
            num_epochs: setting("EPOCHS").unwrap(),
            checkpoint: setting("FROM"),
            norm: true,
            strategy: Some(DataParallelStrategy::new().unwrap()),
            ..Program::new(&device)
        };
        let loader = DistributedLoaderBuilder::new(Stack).batch_size(4).shuffle(9).num_workers(1);
        let train = loader.build(Points::new(SAMPLES)).unwrap();
        // A resumed program does not know the weights that the first one drew.
        let seed = SEED + (group.rank() + program.checkpoint.unwrap_or(0)) as u64;
        Trained::of(&program.training(train).launch(program.learner(seed)).model)
    };
    if as_rank(work) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, epochs: &str, from: Option<&str>| -> u64 {
        let folder = folder.path().join(name);
        let mut env = vec![(FOLDER, folder.to_str().unwrap()), ("EPOCHS", epochs)];
        env.extend(from.map(|from| ("FROM", from)));
        let ranks: Vec<Trained> = results(&run_ranks(2, test, &env, DEADLINE));
        assert_eq!(ranks[0].fingerprint, ranks[1].fingerprint);
        ranks[0].fingerprint
    };
    let whole = train("whole", "4", None);
    let half = train("parts", "2", None);
    assert_ne!(whole, half);
    assert_eq!(train("parts", "4", Some("2")), whole);
}

#[test]
fn a_device_with_gradient_checkpointing_trains_to_the_same_bits() {
    let test = "a_device_with_gradient_checkpointing_trains_to_the_same_bits";
    let work = |group: &ProcessGroup| {
        let _context = Context::enter(group.clone(), group.rank());
        let device = Precision::F32.device();
        [device.clone(), device.clone().gradient_checkpointing()].map(|of_strategy| {
            let strategy = Some(DataParallelStrategy::new().unwrap().with_device(of_strategy));
            let program = Program { norm: true, strategy, ..Program::new(&device) };
            let loader = DistributedLoaderBuilder::new(Stack).batch_size(4);
            let train = loader.build(Points::new(SAMPLES)).unwrap();
            Trained::of(&program.training(train).launch(program.learner(SEED)).model)
        })
    };
    if as_rank(work) {
        return;
    }
    // As on the CPU, so on a device.
    for env in [&[][..], &[(pretend::VARIABLE, "1")]] {
        for [kept, computed_again] in results::<[Trained; 2]>(&run(2, test, env)) {
            assert_eq!(kept.fingerprint, computed_again.fingerprint, "{env:?}");
        }
    }
}

#[test]
fn every_epoch_is_split_anew() {
    let test = "every_epoch_is_split_anew";
    let work = |group: &ProcessGroup| {
        let _context = Context::enter(group.clone(), group.rank());
        let device = Precision::F32.device();
        let strategy = Some(DataParallelStrategy::new().unwrap());
        let program = Program { strategy, ..Program::new(&device) };
        let points = Points::new(SAMPLES);
        let read = points.read.clone();
        let loader = DistributedLoaderBuilder::new(Stack).batch_size(4).shuffle(9);
        program.training(loader.build(points).unwrap()).launch(program.learner(SEED));
        read.lock().unwrap().clone()
    };
    if as_rank(work) {
        return;
    }
    let ranks: Vec<Vec<usize>> = results(&run(3, test, &[]));
    let share = SAMPLES / ranks.len();
    let epoch = |epoch: usize| -> Vec<usize> {
        ranks.iter().flat_map(|read| read[epoch * share..(epoch + 1) * share].to_vec()).collect()
    };
    assert_ne!(epoch(0), epoch(1));
    for mut seen in [epoch(0), epoch(1)] {
        seen.sort_unstable();
        assert_eq!(seen, (0..SAMPLES).collect::<Vec<_>>());
    }
}

#[test]
fn only_rank_0_leaves_files_and_prints() {
    let test = "only_rank_0_leaves_files_and_prints";
    let work = |group: &ProcessGroup| {
        let context = Context::enter(group.clone(), group.rank());
        let device = Precision::F32.device();
        let strategy = Some(DataParallelStrategy::new().unwrap());
        let program = Program { strategy, logs: true, ..Program::new(&device) };
        let scratch = context.artifact_folder(program.folder.join("rank-0")).unwrap();
        // A folder of its own shows what a rank would have written.
        let own = program.folder.join(format!("rank-{}", group.rank()));
        let program = Program { folder: own, ..program };
        let loader = DistributedLoaderBuilder::new(Stack).batch_size(6);
        let train = loader.build(Points::new(SAMPLES)).unwrap();
        program.training(train).launch(program.learner(SEED));
        scratch
    };
    if as_rank(work) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let env = [(FOLDER, folder.path().to_str().unwrap())];
    let outputs = run_ranks(2, test, &env, DEADLINE);
    let scratch: Vec<PathBuf> = results(&outputs);
    assert_eq!(scratch[0], folder.path().join("rank-0"));
    assert!(!scratch[1].exists(), "{}", scratch[1].display());

    let left = files(&folder.path().join("rank-0"));
    for name in ["experiment.log", "checkpoint/model-2.bpk", "valid/epoch-2/Loss.log"] {
        assert!(left.contains(&PathBuf::from(name)), "{name} is not among {left:?}");
    }
    assert_eq!(files(&folder.path().join("rank-1")), Vec::<PathBuf>::new());
    assert!(outputs[0].log.contains("Starting training for 2 epochs"), "{}", outputs[0].log);
    assert!(!outputs[1].log.contains("Starting"), "{}", outputs[1].log);
}

#[test]
fn a_rank_that_fails_ends_all_of_them() {
    let test = "a_rank_that_fails_ends_all_of_them";
    if bonfire_tests::ranks::is_rank() {
        let options = InitOptions::default().with_timeout(DEADLINE);
        let context = bonfire_trainer::init_with(options).unwrap();
        let device = Precision::F32.device();
        let strategy = Some(DataParallelStrategy::new().unwrap());
        let program = Program { strategy, ..Program::new(&device) };
        let broken = (context.rank() == 1).then_some(31);
        let loader = DistributedLoaderBuilder::new(Stack).batch_size(2);
        let train = loader.build(Points { broken, ..Points::new(SAMPLES) }).unwrap();
        program.training(train).launch(program.learner(SEED));
        unreachable!("rank {} went on", context.rank());
    }
    let start = Instant::now();
    let outputs = run(3, test, &[]);
    assert!(start.elapsed() < DEADLINE / 2, "{:?}", start.elapsed());
    for output in &outputs {
        assert_eq!(output.status.code(), Some(1), "{}", output.log);
        assert!(output.log.contains("error: "), "{}", output.log);
        assert!(!output.log.contains("panicked"), "{}", output.log);
    }
    assert!(outputs[1].log.contains("sample 31 is unreadable"), "{}", outputs[1].log);
    for other in [0, 2] {
        let log = &outputs[other].log;
        assert!(log.contains("rank 1 failed: ") && log.contains("sample 31 is"), "{log}");
    }
}

#[test]
fn a_stop_on_one_rank_stops_all_after_the_same_step() {
    let test = "a_stop_on_one_rank_stops_all_after_the_same_step";
    let work = |group: &ProcessGroup| {
        let _context = Context::enter(group.clone(), group.rank());
        let device = Precision::F32.device();
        let strategy = Some(DataParallelStrategy::new().unwrap());
        let program = Program { strategy, ..Program::new(&device) };
        let loader = DistributedLoaderBuilder::new(Stack).batch_size(4);
        let training = program.training(loader.build(Points::new(SAMPLES)).unwrap());
        if group.rank() == 1 {
            training.interrupter().stop(Some("enough"));
        }
        let result: LearningResult<Net> = training.launch(program.learner(SEED));
        (result.interrupted.unwrap().reason.unwrap(), Trained::of(&result.model).fingerprint)
    };
    if as_rank(work) {
        return;
    }
    let ranks: Vec<(String, u64)> = results(&run(2, test, &[]));
    assert_eq!(ranks[0].0, "rank 1: enough");
    assert_eq!(ranks[1].0, "enough");
    assert_eq!(ranks[0].1, ranks[1].1);
}

#[test]
fn early_stopping_is_decided_by_rank_0_and_burns_loaders_are_split() {
    let test = "early_stopping_is_decided_by_rank_0_and_burns_loaders_are_split";
    let work = |group: &ProcessGroup| {
        let _context = Context::enter(group.clone(), group.rank());
        let device = Precision::F32.device();
        let strategy = Some(DataParallelStrategy::new().unwrap());
        // A rate below the resolution of f32: nothing improves after the first epoch.
        let program = Program { strategy, num_epochs: 20, rate: 1e-30, ..Program::new(&device) };
        let points = Points::new(SAMPLES + 1);
        let read = points.read.clone();
        let train = DataLoaderBuilder::new(Stack).batch_size(4).shuffle(1).build(points);
        let training = program.training(train).early_stopping(MetricEarlyStoppingStrategy::new(
            &LossMetric::new(),
            Aggregate::Mean,
            Direction::Lowest,
            Split::Valid,
            StoppingCondition::NoImprovementSince { n_epochs: 2 },
        ));
        training.launch(program.learner(SEED));
        read.lock().unwrap().clone()
    };
    if as_rank(work) {
        return;
    }
    let ranks: Vec<Vec<usize>> = results(&run(2, test, &[]));
    let share = SAMPLES / 2;
    let mut seen = Vec::new();
    for read in &ranks {
        let epochs = read.len() / share;
        assert!((2..20).contains(&epochs), "{epochs} epochs");
        assert_eq!(read.len(), ranks[0].len());
        let mut first_epoch = read[..share].to_vec();
        seen.append(&mut first_epoch);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..SAMPLES).collect::<Vec<_>>());
}

#[test]
fn validation_data_must_not_be_split() {
    let test = "validation_data_must_not_be_split";
    if bonfire_tests::ranks::is_rank() {
        let _context = bonfire_trainer::init().unwrap();
        let program = Program::new(&Precision::F32.device());
        let loader = || DistributedLoaderBuilder::new(Stack).build(Points::new(SAMPLES)).unwrap();
        SupervisedTraining::new(&program.folder, loader(), loader())
            .with_application_logger(None)
            .with_data_parallel(DataParallelStrategy::new().unwrap())
            .launch(program.learner(SEED));
        unreachable!("it went on");
    }
    for output in run(2, test, &[]) {
        assert_eq!(output.status.code(), Some(1), "{}", output.log);
        assert!(output.log.contains("build it with Burn's DataLoaderBuilder"), "{}", output.log);
    }
}

/// Runs ranks that leave their artifacts in a folder of their own.
fn run(world: usize, test: &str, env: &[(&str, &str)]) -> Vec<RankOutput> {
    let folder = tempfile::tempdir().unwrap();
    let env = [&[(FOLDER, folder.path().to_str().unwrap())], env].concat();
    run_ranks(world, test, &env, DEADLINE)
}

/// What a program of Burn consists of.
struct Program {
    device: Device,
    folder: PathBuf,
    num_epochs: usize,
    checkpoint: Option<usize>,
    accumulation: Option<usize>,
    rate: f64,
    norm: bool,
    logs: bool,
    strategy: Option<DataParallelStrategy>,
}

impl Program {
    fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            folder: PathBuf::from(std::env::var_os(FOLDER).unwrap()),
            num_epochs: 2,
            checkpoint: None,
            accumulation: None,
            rate: 0.05,
            norm: false,
            logs: false,
            strategy: None,
        }
    }

    fn training(&self, train: Arc<dyn DataLoader<Batch>>) -> SupervisedTraining<Net> {
        let valid = DataLoaderBuilder::new(Stack).batch_size(8).build(Points::new(20));
        let mut training = SupervisedTraining::new(&self.folder, train, valid)
            .num_epochs(self.num_epochs)
            .metrics((LossMetric::new(),))
            .with_default_checkpointers()
            .with_checkpointing_strategy(KeepLastNCheckpoints::new(2));
        if let Some(accumulation) = self.accumulation {
            training = training.grads_accumulation(accumulation);
        }
        if let Some(checkpoint) = self.checkpoint {
            training = training.checkpoint(checkpoint);
        }
        if !self.logs {
            training = training.with_application_logger(None);
        }
        match &self.strategy {
            Some(strategy) => training.with_data_parallel(strategy.clone()),
            None => training,
        }
    }

    fn learner(&self, seed: u64) -> Learner<Net> {
        self.device.seed(seed);
        let model = Net::new(self.norm, &self.device);
        // A rate that changes shows whether the scheduler was resumed.
        let rate = LinearLrSchedulerConfig::new(self.rate, self.rate / 10.0, 40).init().unwrap();
        Learner::new(model, AdamWConfig::new().init(), rate)
    }
}

/// A perceptron that fits a function of three variables.
#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    norm: Option<BatchNorm>,
    output: Linear,
}

impl Net {
    fn new(norm: bool, device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(3, 8).init(device),
            norm: norm.then(|| BatchNormConfig::new(8).init(device)),
            output: LinearConfig::new(8, 1).init(device),
        }
    }

    fn fit(&self, batch: Batch) -> RegressionOutput {
        let hidden = self.hidden.forward(batch.inputs);
        let hidden = match &self.norm {
            Some(norm) => norm.forward(hidden),
            None => hidden,
        };
        let output = self.output.forward(tanh(hidden));
        let loss = (output.clone() - batch.targets.clone()).square().mean();
        RegressionOutput::new(loss, output, batch.targets)
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let output = self.fit(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        self.fit(batch)
    }
}

type Point = [f64; 4];

/// Points, all of them different, one of which may be unreadable.
struct Points {
    count: usize,
    broken: Option<usize>,
    read: Arc<Mutex<Vec<usize>>>,
}

impl Points {
    fn new(count: usize) -> Self {
        Self { count, broken: None, read: Arc::default() }
    }
}

impl Dataset<Point> for Points {
    fn get(&self, index: usize) -> Result<Point, DatasetError> {
        if self.broken == Some(index) {
            let reason = std::io::Error::other(format!("sample {index} is unreadable"));
            return Err(DatasetError::new(reason));
        }
        self.read.lock().unwrap().push(index);
        let value = |key: usize| ((key * 37 % 101) as f64 / 50.5) - 1.0;
        Ok([value(3 * index), value(3 * index + 1), value(3 * index + 2), value(7 * index + 5)])
    }

    fn len(&self) -> usize {
        self.count
    }
}

#[derive(Debug, Clone)]
struct Batch {
    /// Shape `[batch, 3]`.
    inputs: Tensor<2>,
    /// Shape `[batch, 1]`.
    targets: Tensor<2>,
}

struct Stack;

impl Batcher<Point, Batch> for Stack {
    fn batch(&self, points: Vec<Point>, device: &Device) -> Batch {
        let flat: Vec<f64> = points.iter().flatten().copied().collect();
        let dtype = device.settings().float_dtype.into();
        let all = Tensor::<1>::from_data(flat.as_slice(), (device, dtype));
        let all = all.reshape([points.len(), 4]);
        Batch {
            inputs: all.clone().slice([0..points.len(), 0..3]),
            targets: all.slice([0..points.len(), 3..4]),
        }
    }
}

/// The parameters of a trained model.
#[derive(Serialize, Deserialize)]
struct Trained {
    fingerprint: u64,
    values: ExactFloats,
}

impl Trained {
    fn of(model: &Net) -> Self {
        let state = parameters::read(model, |_| true).unwrap();
        let fingerprint = parameters::fingerprint(&state);
        Self { fingerprint, values: ExactFloats(numbers(&state).into_values().flatten().collect()) }
    }
}

/// All files below a folder, by their paths in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        let name = PathBuf::from(path.file_name().unwrap());
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|inner| name.join(inner)));
        } else {
            found.push(name);
        }
    }
    found
}
