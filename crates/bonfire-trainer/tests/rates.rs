//! How schedules, parameter groups and label smoothing act in `Trainer::fit`.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_comm::{ProcessGroup, local};
use bonfire_nn::ImageClassifier;
use bonfire_parallel::{ParameterGroup, ParameterGroups};
use bonfire_trainer::config::{
    CheckpointPlan, Course, OneCycle, OptimizerPlan, ReduceOnPlateau, SchedulePlan, ThresholdMode,
};
use bonfire_trainer::{FitReport, ImageBatch, Learnable, StepContext, TrainError, TrainerConfig};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use support::{Line, SGD, line, loader, numbers, points, trainer};

fn fit(group: &ProcessGroup, config: TrainerConfig) -> Result<FitReport<Line>, TrainError> {
    let data = loader(points(31), 4);
    trainer(config, group).fit(line(), &data, Some(&data))
}

fn config(course: Course) -> TrainerConfig {
    TrainerConfig::new(SGD).with_max_epochs(4).with_schedule(SchedulePlan::new(course))
}

/// Falls at every validation but the first, since nothing is ever good enough.
fn never_content() -> ReduceOnPlateau {
    ReduceOnPlateau {
        patience: 0,
        factor: 0.5,
        threshold: 1e9,
        threshold_mode: ThresholdMode::Abs,
        ..ReduceOnPlateau::default()
    }
}

fn fingerprint(config: TrainerConfig) -> u64 {
    fit(&ProcessGroup::single(), config).unwrap().parameters_xxh3
}

#[test]
fn a_rate_on_plateaus_goes_on_after_a_resume_as_if_never_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let keep = CheckpointPlan {
        every_n_steps: Some(1),
        asynchronous: false,
        every_n_epochs: 1,
        keep_last: 99,
        ..CheckpointPlan::default()
    };
    let base = || TrainerConfig {
        checkpoint: keep.clone(),
        ..config(Course::ReduceOnPlateau(never_content()))
    };
    let whole =
        local::spawn(2, |group| fit(&group, base().with_checkpoints(folder.path())).unwrap());
    let last = whole[0].steps;
    for step in 1..=last {
        for report in local::spawn(2, |group| {
            let from = folder.path().join(format!("step-{step:08}"));
            fit(&group, base().with_resume(from)).unwrap()
        }) {
            assert_eq!(report.parameters_xxh3, whole[0].parameters_xxh3, "from step {step}");
        }
    }
    // The rate did fall: a constant one ends elsewhere, and so does another factor.
    let fallen = fingerprint(config(Course::ReduceOnPlateau(never_content())));
    assert_ne!(fallen, fingerprint(config(Course::Constant)));
    let patient = ReduceOnPlateau { patience: 9, ..never_content() };
    let constant = fingerprint(config(Course::ReduceOnPlateau(patient)));
    assert_eq!(constant, fingerprint(config(Course::Constant)));
}

#[test]
fn a_figure_that_is_not_validated_is_named_with_those_that_are() {
    let watch = || ReduceOnPlateau { metric: "accurracy".into(), ..never_content() };
    for error in local::spawn(2, |group| {
        fit(&group, config(Course::ReduceOnPlateau(watch()))).map(drop).unwrap_err().to_string()
    }) {
        assert!(error.contains("\"accurracy\"") && error.contains("loss, seen"), "{error}");
    }
    let data = loader(points(31), 4);
    let config = config(Course::ReduceOnPlateau(watch()));
    let error = trainer(config, &ProcessGroup::single()).fit(line(), &data, None).map(drop);
    let error = error.unwrap_err();
    assert!(matches!(error, TrainError::NothingToWatch { .. }), "{error}");
}

#[test]
fn one_cycle_sets_the_momentum_of_every_step() {
    let cycle = |momentum| Course::OneCycle(OneCycle { momentum, ..OneCycle::default() });
    let without = match SGD {
        OptimizerPlan::Sgd {
            lr, dampening, weight_decay, nesterov, momentum_correction, ..
        } => {
            let momentum = 0.0;
            OptimizerPlan::Sgd {
                lr,
                momentum,
                dampening,
                weight_decay,
                nesterov,
                momentum_correction,
            }
        }
        other => other,
    };
    let plain = TrainerConfig { optimizer: without, ..config(cycle(None)) };
    assert_eq!(fingerprint(config(cycle(Some((0.0, 0.0))))), fingerprint(plain));
    // One that stays at the optimizer's changes nothing, one that moves does.
    let still = fingerprint(config(cycle(Some((0.9, 0.9)))));
    assert_eq!(still, fingerprint(config(cycle(None))));
    assert_ne!(still, fingerprint(config(cycle(Some((0.85, 0.95))))));
}

#[test]
fn a_group_with_no_rate_stays_as_it_is() {
    let before = line();
    let groups =
        ParameterGroups::new().with_group(ParameterGroup::matching("*.bias").with_lr_factor(0.0));
    let bias = |line: &Line| numbers(&line.linear.bias.as_ref().unwrap().val());
    for report in local::spawn(2, |group| {
        fit(&group, config(Course::Constant).with_parameter_groups(groups.clone())).unwrap()
    }) {
        assert_eq!(bias(&report.model), bias(&before));
        let weight = |line: &Line| numbers(&line.linear.weight.val().reshape([3]));
        assert_ne!(weight(&report.model), weight(&before));
    }
}

#[test]
fn a_warm_up_longer_than_the_run_is_an_error_on_every_rank() {
    for error in local::spawn(2, |group| {
        let schedule = SchedulePlan::default().with_warmup_steps(17);
        fit(&group, TrainerConfig::new(SGD).with_max_epochs(4).with_schedule(schedule))
            .map(drop)
            .unwrap_err()
    }) {
        let expected = TrainError::WarmupTooLong { warmup_steps: 17, total_steps: 16 };
        assert_eq!(error.to_string(), expected.to_string());
    }
}

/// Scores that are the image itself.
#[derive(Module, Debug)]
struct Scores;

impl ImageClassifier for Scores {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        images.flatten(1, 3)
    }
}

#[test]
fn only_the_training_loss_of_a_classifier_is_smoothed() {
    let device = Device::flex();
    let batch = || {
        ImageBatch::new(
            Tensor::<1>::from_data([2.0, 0.0], &device).reshape([1, 2, 1, 1]),
            Tensor::<1, Int>::from_data([0], &device),
        )
    };
    let context =
        |label_smoothing| StepContext { label_smoothing, ..StepContext::outside(device.clone()) };
    let value = |output: bonfire_trainer::StepOutput| {
        numbers(&output.loss.without_autodiff().reshape([1]))[0]
    };
    let plain = value(Scores.validation_step(batch(), &context(0.2)));
    assert_eq!(plain, value(Scores.training_step(batch(), &context(0.0))));
    // The other class gets half of 0.2, and its loss is larger by the difference of the scores.
    let smoothed = value(Scores.training_step(batch(), &context(0.2)));
    assert!((smoothed - plain - 0.1 * 2.0).abs() < 1e-6, "{smoothed} {plain}");
}
