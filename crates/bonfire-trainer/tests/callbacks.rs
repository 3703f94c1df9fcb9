//! When callbacks are called, and what they can do to a run.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_amp::Clip;
use bonfire_comm::{ProcessGroup, local};
use bonfire_tensor::TensorError;
use bonfire_tensor::lend::pretend::Memory;
use bonfire_tensor::state::{Scalar, State, Stateful};
use bonfire_trainer::config::OnError;
use bonfire_trainer::{
    Callback, EpochEnd, FitReport, FitStart, Metrics, Report, RunFolder, StepEnd, StopFlag,
    TrainError, TrainerConfig,
};
use std::sync::{Arc, Mutex};
use support::{Line, SGD, line, loader, points, trainer};

/// Notes every call.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn note(&self, call: impl Into<String>) -> Result<(), TrainError> {
        self.0.lock().unwrap().push(call.into());
        Ok(())
    }

    fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Callback for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn on_fit_start(&mut self, fit: &FitStart) -> Result<(), TrainError> {
        assert_eq!(fit.num_parameters, 4);
        self.note(format!("fit {} epochs of {} steps", fit.epochs, fit.steps_per_epoch))
    }

    fn on_epoch_start(&mut self, epoch: u64) -> Result<(), TrainError> {
        self.note(format!("epoch {epoch}"))
    }

    fn on_step_start(&mut self, _epoch: u64, step: u64) -> Result<(), TrainError> {
        self.note(format!("step {step}"))
    }

    fn on_step_end(&mut self, end: &StepEnd) -> Result<(), TrainError> {
        self.note(format!("step ended {}, {} samples", end.step, end.samples))
    }

    fn on_report(&mut self, report: &Report) -> Result<(), TrainError> {
        self.note(format!("report {}", report.step))
    }

    fn on_epoch_end(&mut self, end: &EpochEnd) -> Result<(), TrainError> {
        self.note(format!("epoch ended {}", end.epoch))
    }

    fn on_validation_start(&mut self, epoch: u64) -> Result<(), TrainError> {
        self.note(format!("valid {epoch}"))
    }

    fn on_validation_end(&mut self, e: u64, step: u64, _: &Metrics) -> Result<(), TrainError> {
        self.note(format!("valid ended {e}, {step}"))
    }

    fn on_fit_end(&mut self) -> Result<(), TrainError> {
        self.note("fit ended")
    }

    fn on_exception(&mut self, error: &TrainError) {
        self.note(format!("exception {error}")).unwrap();
    }
}

/// Fits a line to 13 points: on 3 ranks steps of 12 samples and of 1.
fn fit(
    group: &ProcessGroup,
    config: TrainerConfig,
    callback: impl Callback + 'static,
    recorder: &Recorder,
    stop: StopFlag,
) -> Result<FitReport<Line>, TrainError> {
    let trainer = trainer(config.with_log_every_n_steps(1), group);
    let mut trainer =
        trainer.with_callback(callback).with_callback(recorder.clone()).with_stop_flag(stop);
    trainer.fit(line(), &loader(points(13), 4), Some(&loader(points(5), 4)))
}

#[test]
fn calls_come_in_order_on_every_rank() {
    let expected = [
        "fit 2 epochs of 2 steps",
        "epoch 0",
        "step 0",
        "step ended 1, 12 samples",
        "step 1",
        "step ended 2, 1 samples",
        "report 1",
        "report 2",
        "epoch ended 0",
        "valid 0",
        "valid ended 0, 2",
        "epoch 1",
        "step 2",
        "step ended 3, 12 samples",
        "step 3",
        "step ended 4, 1 samples",
        "report 3",
        "report 4",
        "epoch ended 1",
        "valid 1",
        "valid ended 1, 4",
        "fit ended",
    ];
    for calls in local::spawn(3, |group| {
        let (first, second) = (Recorder::default(), Recorder::default());
        let config = TrainerConfig::new(SGD).with_max_epochs(2);
        fit(&group, config, first.clone(), &second, StopFlag::new()).unwrap();
        assert_eq!(first.calls(), second.calls());
        first.calls()
    }) {
        assert_eq!(calls, expected);
    }
}

#[test]
fn the_last_step_is_told_before_the_end_also_where_a_device_decides_it() {
    let told = Memory::ALL.map(|memory| {
        memory.spawn(2, |group| {
            let recorder = Recorder::default();
            // Off the grid of the figures, and in the midst of an epoch.
            let config = TrainerConfig::new(SGD)
                .with_max_steps(3)
                .with_log_every_n_steps(100)
                .with_clip(Clip::norm(0.1));
            fit(&group, config, Recorder::default(), &recorder, StopFlag::new()).unwrap();
            let mut calls = recorder.calls();
            // A device is asked to begin a step before what became of the last one is known.
            calls.retain(|call| !call.starts_with("step ") || call.starts_with("step ended"));
            calls
        })
    });
    assert!(told[0][0].iter().any(|call| call.starts_with("step ended 3")), "{:?}", told[0][0]);
    for (memory, told_there) in Memory::ALL.iter().zip(&told) {
        assert_eq!(told_there, &told[0], "{memory:?}");
    }
}

#[test]
fn validation_comes_as_often_as_asked_and_at_the_end() {
    for (every, expected) in [(1, vec!["0", "1", "2"]), (2, vec!["1", "2"]), (0, vec!["2"])] {
        let recorder = Recorder::default();
        let config = TrainerConfig::new(SGD).with_max_epochs(3);
        let config = TrainerConfig { check_val_every_n_epochs: every, ..config };
        let other = Recorder::default();
        fit(&ProcessGroup::single(), config, other, &recorder, StopFlag::new()).unwrap();
        let calls = recorder.calls();
        let epochs: Vec<&str> = calls.iter().filter_map(|c| c.strip_prefix("valid ")).collect();
        let epochs: Vec<&str> = epochs.into_iter().filter(|e| !e.starts_with("ended")).collect();
        assert_eq!(epochs, expected, "every {every}");
    }
}

/// Fails on one rank, at a step or at the end.
struct Failing {
    at: Option<u64>,
}

impl Failing {
    fn error() -> TrainError {
        TrainError::Callback { name: "failing".into(), reason: "the disk is full".into() }
    }
}

impl Callback for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    fn on_step_end(&mut self, end: &StepEnd) -> Result<(), TrainError> {
        if self.at == Some(end.step) { Err(Self::error()) } else { Ok(()) }
    }
}

#[test]
fn an_error_on_one_rank_ends_the_run_on_all_with_its_reason() {
    for (at, memory) in (1..4).flat_map(|at| Memory::ALL.map(|memory| (at, memory))) {
        let results = memory.spawn(3, |group| {
            let recorder = Recorder::default();
            let failing = Failing { at: (group.rank() == 1).then_some(at) };
            let config = TrainerConfig::new(SGD).with_max_epochs(50);
            let result = fit(&group, config, failing, &recorder, StopFlag::new());
            (result.map(drop).unwrap_err(), recorder.calls())
        });
        for (rank, (error, calls)) in results.into_iter().enumerate() {
            let text = error.to_string();
            let reason = "callback \"failing\" failed: the disk is full";
            let by = if rank == 1 { String::new() } else { "rank 1 failed: ".to_string() };
            assert_eq!(text, format!("{by}{reason}"), "rank {rank} at {at}");
            assert_eq!(error.is_of_another_rank(), rank != 1);
            assert_eq!(calls.last().unwrap(), &format!("exception {text}"));
        }
    }
}

/// Asks the run to stop after a step.
struct Stopping {
    after: Option<u64>,
    flag: StopFlag,
}

impl Callback for Stopping {
    fn name(&self) -> &str {
        "stopping"
    }

    fn on_step_end(&mut self, end: &StepEnd) -> Result<(), TrainError> {
        if self.after == Some(end.step) {
            self.flag.stop();
        }
        Ok(())
    }
}

#[test]
fn a_rank_that_is_asked_to_stop_stops_all_at_the_same_step() {
    for report in local::spawn(3, |group| {
        let flag = StopFlag::new();
        let after = (group.rank() == 2).then_some(4);
        let stopping = Stopping { after, flag: flag.clone() };
        let config = TrainerConfig::new(SGD).with_max_epochs(50);
        fit(&group, config, stopping, &Recorder::default(), flag).unwrap()
    }) {
        // With the next step, in mid-epoch, and so without a validation of its own.
        assert_eq!((report.steps, report.epochs, report.stopped), (5, 2, true));
    }
}

/// Counts steps over resumes.
#[derive(Clone, Default)]
struct Counter(Arc<Mutex<u64>>);

impl Callback for Counter {
    fn name(&self) -> &str {
        "counter"
    }

    fn on_step_end(&mut self, _end: &StepEnd) -> Result<(), TrainError> {
        *self.0.lock().unwrap() += 1;
        Ok(())
    }

    fn stateful(&mut self) -> Option<&mut dyn Stateful> {
        Some(self)
    }
}

impl Stateful for Counter {
    fn state(&self) -> Result<State, TensorError> {
        let mut state = State::default();
        state.scalars.insert("steps".into(), Scalar::Uint(*self.0.lock().unwrap()));
        Ok(state)
    }

    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        *self.0.lock().unwrap() = state.take_uint("steps")?;
        Ok(state.finish()?)
    }
}

#[test]
fn state_of_callbacks_is_kept_over_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let run = |config: TrainerConfig| {
        local::spawn(2, |group| {
            let counter = Counter::default();
            let recorder = Recorder::default();
            fit(&group, config.clone(), counter.clone(), &recorder, StopFlag::new()).unwrap();
            *counter.0.lock().unwrap()
        })
    };
    let config = TrainerConfig::new(SGD);
    assert_eq!(run(config.clone().with_max_epochs(2).with_checkpoints(folder.path())), [4, 4]);
    assert_eq!(run(config.with_max_epochs(5).with_resume(folder.path())), [10, 10]);
}

/// A disk that is full costs the events, and not the run, where the run may go on.
#[test]
fn events_that_cannot_be_written_are_survived_if_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("tensorboard");
    std::fs::write(&in_the_way, "no folder").unwrap();
    let run = RunFolder::create(folder.path()).unwrap();
    let fit = |on_error| {
        let config = TrainerConfig::new(SGD).with_max_steps(3);
        let mut trainer = trainer(config, &ProcessGroup::single());
        trainer = trainer.with_callback(run.tensorboard(on_error));
        trainer.fit(line(), &loader(points(24), 4), None).map(drop)
    };
    fit(OnError::Continue).unwrap();
    let error = fit(OnError::Stop).unwrap_err().to_string();
    assert!(error.contains("tensorboard"), "{error}");
}
