//! What is left of a run that fails.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod support;

use bonfire_amp::Clip;
use bonfire_comm::{ProcessGroup, local};
use bonfire_parallel::ZeroStage;
use bonfire_tensor::lend::pretend::Memory;
use bonfire_trainer::config::{CheckpointPlan, Monitor};
use bonfire_trainer::{
    BatchStart, Callback, EarlyStopping, FitReport, Metrics, StepEnd, TrainError, Trainer,
    TrainerConfig, checkpoint,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Normalized, SGD, loader, normalized, numbers, points, trainer};

/// Where a run fails.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    StepStart(u64),
    /// The second micro-batch of a step: the first has moved running statistics.
    SecondBatch(u64),
    StepEnd(u64),
    Validation(u64),
}

/// Fails once the run has come to a place.
struct Fails(Place);

impl Fails {
    fn at(&self, place: Place) -> Result<(), TrainError> {
        let reason = "as the test wants it";
        let value = "1".to_string();
        match self.0 == place {
            true => Err(TrainError::Setting { name: "callback", value, reason }),
            false => Ok(()),
        }
    }
}

impl Callback for Fails {
    fn name(&self) -> &str {
        "fails"
    }

    fn on_step_start(&mut self, _epoch: u64, step: u64) -> Result<(), TrainError> {
        self.at(Place::StepStart(step))
    }

    fn on_batch_start(&mut self, start: &BatchStart<'_>) -> Result<(), TrainError> {
        match start.micro_batch {
            1 => self.at(Place::SecondBatch(start.step)),
            _ => Ok(()),
        }
    }

    fn on_step_end(&mut self, end: &StepEnd) -> Result<(), TrainError> {
        self.at(Place::StepEnd(end.step))
    }

    fn on_validation_start(&mut self, epoch: u64) -> Result<(), TrainError> {
        self.at(Place::Validation(epoch))
    }
}

/// Four steps of two micro-batches an epoch, five epochs; no checkpoint but at the end.
fn config(folder: &Path) -> TrainerConfig {
    let plan = CheckpointPlan { every_n_epochs: 0, ..CheckpointPlan::default() };
    TrainerConfig { checkpoint: plan, ..TrainerConfig::new(SGD) }
        .with_max_epochs(5)
        .with_accumulate_grad_batches(2)
        .with_log_every_n_steps(3)
        // On a device the norm is known a step later.
        .with_clip(Clip::norm(0.5))
        .with_checkpoints(folder)
}

fn watching(group: &ProcessGroup, config: TrainerConfig) -> Trainer {
    trainer(config, group).with_callback(EarlyStopping::new(Monitor::new("loss")).with_patience(99))
}

fn fit(group: &ProcessGroup, mut trainer: Trainer) -> Result<FitReport<Normalized>, TrainError> {
    let batch = 8 / group.world_size();
    trainer.fit(normalized(), &loader(points(61), batch), Some(&loader(points(9), 4)))
}

/// Parameters, running statistics and the last validation of a run.
fn outcome(report: &FitReport<Normalized>) -> (u64, Vec<f32>, Option<Metrics>) {
    let norm = &report.model.norm;
    let statistics = [numbers(&norm.running_mean.value()), numbers(&norm.running_var.value())];
    (report.parameters_xxh3, statistics.concat(), report.valid.clone())
}

/// The outcome of a run that was not interrupted.
fn whole(ranks: usize, memory: Memory) -> (u64, Vec<f32>, Option<Metrics>) {
    let folder = tempfile::tempdir().unwrap();
    let run = |group: ProcessGroup| fit(&group, watching(&group, config(folder.path()))).unwrap();
    let reports = memory.spawn(ranks, run);
    outcome(&reports[0])
}

/// Has one rank fail at a place, and resumes; returns the step of the checkpoint.
fn check(ranks: usize, failing: usize, place: Place) -> u64 {
    let [host, device, staged] = Memory::ALL.map(|memory| check_in(memory, ranks, failing, place));
    if ranks < 3 {
        assert_eq!([device, staged], [host; 2]);
    }
    host
}

fn check_in(memory: Memory, ranks: usize, failing: usize, place: Place) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let errors = memory.spawn(ranks, |group| {
        let trainer = watching(&group, config(folder.path()));
        match group.rank() == failing {
            true => fit(&group, trainer.with_callback(Fails(place))).map(drop).unwrap_err(),
            false => fit(&group, trainer).map(drop).unwrap_err(),
        }
    });
    assert!(errors[failing].to_string().contains("as the test wants it"), "{}", errors[failing]);
    let step = checkpoint::load(folder.path()).unwrap().manifest.step;
    let resumed = memory.spawn(ranks, |group| {
        fit(&group, watching(&group, config(folder.path()).with_auto_resume())).unwrap()
    });
    assert_eq!(outcome(&resumed[0]), whole(ranks, memory), "{memory:?}");
    step
}

#[test]
fn a_failing_run_saves_its_last_finished_step() {
    assert_eq!(check(1, 0, Place::StepStart(6)), 6);
    assert_eq!(check(2, 0, Place::StepStart(6)), 6);
    // Rank 0 has finished the step, or the one before it, when it hears of the failure.
    let step = check(3, 2, Place::StepStart(7));
    assert!((6..=8).contains(&step), "{step}");
}

#[test]
fn running_statistics_are_those_of_the_last_finished_step() {
    assert_eq!(check(1, 0, Place::SecondBatch(6)), 6);
    assert_eq!(check(2, 1, Place::SecondBatch(6)), 6);
}

#[test]
fn a_step_that_callbacks_have_not_all_seen_is_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let group = ProcessGroup::single();
    let trainer = trainer(config(folder.path()), &group);
    fit(&group, trainer.with_callback(Fails(Place::StepEnd(6)))).map(drop).unwrap_err();
    assert!(checkpoint::load(folder.path()).is_err());
}

#[test]
fn a_run_that_fails_in_its_validation_goes_on_with_it() {
    assert_eq!(check(1, 0, Place::Validation(1)), 8);
    assert_eq!(check(2, 1, Place::Validation(2)), 12);
}

#[test]
fn what_lies_on_all_ranks_cannot_be_saved_by_one() {
    let folder = tempfile::tempdir().unwrap();
    local::spawn(2, |group| {
        let mut config = config(folder.path());
        config.parallel.zero_stage = ZeroStage::Optimizer;
        let trainer = trainer(config, &group);
        fit(&group, trainer.with_callback(Fails(Place::StepStart(6)))).map(drop).unwrap_err();
    });
    assert!(checkpoint::load(folder.path()).is_err());
}

/// Whether the model has panicked.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Panics in its own code, once.
struct Panics;

impl Callback for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    fn on_step_start(&mut self, _epoch: u64, step: u64) -> Result<(), TrainError> {
        assert!(step != 6 || PANICKED.swap(true, Ordering::Relaxed), "as the test wants it");
        Ok(())
    }
}

#[test]
fn a_panic_does_not_lose_what_was_trained() {
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        let group = ProcessGroup::single();
        let config = config(folder.path()).with_auto_resume();
        fit(&group, watching(&group, config).with_callback(Panics)).unwrap()
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map(drop).unwrap_err();
    assert_eq!(checkpoint::load(folder.path()).unwrap().manifest.step, 6);
    assert_eq!(outcome(&run()), whole(1, Memory::Host));
}
