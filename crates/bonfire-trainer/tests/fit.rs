//! What `Trainer::fit` comes to, on ranks that are threads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod support;

use bonfire_comm::{HostBuffer, ProcessGroup, local};
use bonfire_nn::ImageClassifier;
use bonfire_trainer::config::CheckpointPlan;
use bonfire_trainer::{
    Callback, Figure, FitReport, ImageBatch, Learnable, StepContext, TrainError, TrainerConfig,
    checkpoint,
};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use support::{
    Line, Normalized, SGD, line, loader, normalized, numbers, parameters, points, trainer,
};

fn fit(group: &ProcessGroup, config: TrainerConfig, batch_size: usize) -> FitReport<Line> {
    let (train, valid) = (loader(points(13), batch_size), loader(points(7), batch_size));
    trainer(config, group).fit(line(), &train, Some(&valid)).unwrap()
}

/// Asserts that ranks with batches of 4 come to the parameters of one rank with their sum.
fn check_equal(world_size: usize, accumulate: usize) {
    let config =
        || TrainerConfig::new(SGD).with_max_epochs(5).with_accumulate_grad_batches(accumulate);
    let one = fit(&ProcessGroup::single(), config(), 4 * world_size);
    for ranks in local::spawn(world_size, |group| fit(&group, config(), 4)) {
        assert_eq!((ranks.steps, ranks.epochs), (one.steps, 5));
        for (got, expected) in parameters(&ranks.model).iter().zip(parameters(&one.model)) {
            assert!((got - expected).abs() <= 1e-5 * expected.abs(), "{got} {expected}");
        }
        let (got, expected) = (ranks.valid.unwrap(), one.valid.as_ref().unwrap());
        assert!((got.loss().unwrap() - expected.loss().unwrap()).abs() < 1e-5);
    }
}

#[test]
fn every_sample_weighs_the_same() {
    // 13 samples on 3 ranks: 4 each, then one on one rank and none on the others.
    check_equal(3, 1);
    check_equal(2, 1);
    // Both windows of the epoch in one step.
    check_equal(3, 2);
}

#[test]
fn parameters_are_equal_on_all_ranks_and_better_than_before() {
    let reports =
        local::spawn(3, |group| fit(&group, TrainerConfig::new(SGD).with_max_epochs(1), 4));
    assert!(reports.windows(2).all(|pair| pair[0].parameters_xxh3 == pair[1].parameters_xxh3));
    assert_ne!(parameters(&reports[0].model), parameters(&line()));
    assert!(reports.iter().all(|report| report.train == reports[0].train));
}

#[test]
fn evaluation_counts_every_sample_once() {
    for world_size in [1, 2, 3] {
        for report in local::spawn(world_size, |group| fit(&group, TrainerConfig::new(SGD), 4)) {
            let sum = |metrics: &bonfire_trainer::Metrics| {
                metrics.0.iter().find(|value| value.name == "seen").unwrap().sum
            };
            assert_eq!(sum(report.valid.as_ref().unwrap()), 7.0);
            assert_eq!(sum(&report.train), 13.0);
            assert_eq!(report.valid.unwrap().0[0].count, 7.0, "weight of the loss");
        }
    }
}

#[test]
fn a_budget_of_steps_ends_in_mid_epoch() {
    for report in local::spawn(2, |group| fit(&group, TrainerConfig::new(SGD).with_max_steps(3), 4))
    {
        // Two steps an epoch.
        assert_eq!((report.steps, report.epochs, report.stopped), (3, 1, false));
        assert!(report.valid.is_some(), "validated at the end");
    }
}

#[test]
fn a_loss_that_is_no_number_is_an_error_on_every_rank() {
    let errors = local::spawn(3, |group| {
        let mut points = points(26);
        points[17].1 = f32::NAN;
        let config = TrainerConfig::new(SGD).with_log_every_n_steps(1);
        trainer(config, &group).fit(line(), &loader(points, 4), None).map(drop).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, TrainError::LossNotFinite { epoch: 0, .. }), "{error}");
    }
}

#[test]
fn ranks_that_differ_are_told_so() {
    let errors = local::spawn(2, |group| {
        let config = TrainerConfig::new(SGD).with_seed(group.rank() as u64);
        trainer(config, &group).fit(line(), &loader(points(9), 4), None).map(drop).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, TrainError::RanksDisagree { rank: 1, .. }), "{text}");
        assert!(text.contains("\"seed\": 1 and 0"), "{text}");
    }
}

#[test]
fn more_ranks_than_samples_are_refused() {
    let errors = local::spawn(3, |group| {
        let config = TrainerConfig::new(SGD);
        trainer(config, &group).fit(line(), &loader(points(2), 1), None).map(drop).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, TrainError::TooFewSamples { samples: 2, ranks: 3, .. }), "{error}");
    }
}

#[test]
fn running_statistics_are_equal_on_all_ranks_and_saved() {
    let folder = tempfile::tempdir().unwrap();
    let reports = local::spawn(3, |group| {
        let config = TrainerConfig::new(SGD).with_max_epochs(2).with_checkpoints(folder.path());
        let data = loader(points(24), 4);
        trainer(config, &group).fit(normalized(), &data, Some(&data)).unwrap()
    });
    let saved = checkpoint::load(folder.path()).unwrap().state.tensors;
    let saved = |name: &str| match &saved[&format!("model.norm.{name}")].data {
        HostBuffer::F32(values) => values.clone(),
        other => panic!("{name} is saved as {}", other.dtype()),
    };
    for report in reports {
        let norm = &report.model.norm;
        assert_eq!(numbers(&norm.running_mean.value_sync()), saved("running_mean"));
        assert_eq!(numbers(&norm.running_var.value_sync()), saved("running_var"));
        assert_ne!(saved("running_mean"), vec![0.0; 3], "statistics were gathered");
    }
}

/// A classifier whose first layer behaves differently in training.
#[derive(Module, Debug)]
struct Images {
    inner: Normalized,
}

impl ImageClassifier for Images {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.inner.norm.forward(images).flatten(1, 3)
    }
}

#[test]
fn the_first_layer_of_a_classifier_trains_in_training_only() {
    let device = Device::flex();
    let model = Images { inner: normalized() };
    let batch = || {
        ImageBatch::new(Tensor::ones([2, 3, 1, 1], &device), Tensor::<1, Int>::zeros([2], &device))
    };
    let context = StepContext::outside(device.clone());
    let training = StepContext { device: device.clone().autodiff(), ..context.clone() };
    let mean = || numbers(&model.inner.norm.running_mean.value_sync());
    model.valid().validation_step(batch(), &context);
    assert_eq!(mean(), [0.0; 3]);
    model.training_step(batch(), &training);
    assert_eq!(mean(), [0.1; 3]);
}

#[test]
fn a_resumed_fit_ends_as_one_that_went_on() {
    let folder = tempfile::tempdir().unwrap();
    let keep = CheckpointPlan {
        every_n_steps: Some(1),
        asynchronous: false,
        every_n_epochs: 1,
        keep_last: 99,
        ..CheckpointPlan::default()
    };
    let base =
        || TrainerConfig { checkpoint: keep.clone(), ..TrainerConfig::new(SGD).with_max_epochs(4) };
    let whole = local::spawn(3, |group| {
        let config = base().with_checkpoints(folder.path());
        let data = loader(points(31), 4);
        trainer(config, &group).fit(normalized(), &data, Some(&data)).unwrap()
    });
    let last = whole[0].steps;
    for step in 1..=last {
        let resumed = local::spawn(3, |group| {
            let config = base().with_resume(folder.path().join(format!("step-{step:08}")));
            let data = loader(points(31), 4);
            trainer(config, &group).fit(normalized(), &data, Some(&data)).unwrap()
        });
        for (rank, report) in resumed.iter().enumerate() {
            assert_eq!((report.steps, report.epochs), (last, 4), "rank {rank} from {step}");
            assert_eq!(report.parameters_xxh3, whole[0].parameters_xxh3, "rank {rank} from {step}");
            if step < last {
                assert_eq!(report.valid, whole[0].valid, "rank {rank} from {step}");
            }
        }
    }
}

#[test]
fn a_validation_that_cannot_be_done_ends_the_run_before_its_first_step() {
    /// Refuses to be asked.
    struct NoStep;

    impl Callback for NoStep {
        fn name(&self) -> &str {
            "no_step"
        }

        fn on_step_start(&mut self, _epoch: u64, step: u64) -> Result<(), TrainError> {
            panic!("step {step} begins");
        }
    }

    for error in local::spawn(2, |group| {
        // A line has no classes.
        let config = TrainerConfig::new(SGD).with_max_epochs(1).with_metrics([Figure::F1]);
        let (train, valid) = (loader(points(8), 2), loader(points(4), 2));
        let result =
            trainer(config, &group).with_callback(NoStep).fit(line(), &train, Some(&valid));
        result.map(drop).unwrap_err()
    }) {
        assert!(error.to_string().contains("StepOutput::with_scores"), "{error}");
    }
}
