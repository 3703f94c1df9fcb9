//! Mixed precision and clipping in `Trainer::fit`, on ranks that are threads.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_amp::{Clip, GradScalerConfig, MixedPrecision};
use bonfire_comm::{ProcessGroup, local};
use bonfire_parallel::ParallelError;
use bonfire_tensor::lend::pretend::Memory;
use bonfire_trainer::config::{SchedulePlan, Warmup, WarmupLength};
use bonfire_trainer::{
    Callback, Learnable, StepContext, StepEnd, StepOutput, TrainError, TrainerConfig,
};
use burn::module::Module;
use burn::tensor::{DType, Tensor, TensorData};
use std::sync::{Arc, Mutex};
use support::{Line, Point, SGD, line, loader, normalized, points, trainer};

/// A line whose gradients overflow fp16 in step 3 on rank 1.
#[derive(Module, Debug)]
struct Overflowing {
    line: Line,
}

impl Learnable for Overflowing {
    type Batch = Vec<Point>;

    fn training_step(&self, batch: Vec<Point>, context: &StepContext) -> StepOutput {
        let count = batch.len();
        let tensor = |values: Vec<f32>, columns: usize| {
            Tensor::<2>::from_data(TensorData::new(values, [count, columns]), &context.device)
        };
        let features = tensor(batch.iter().flat_map(|point| point.0).collect(), 3);
        let wanted = tensor(batch.iter().map(|point| point.1).collect(), 1);
        let predicted = self.line.linear.forward(context.input(features)).cast(DType::F32);
        let difference = predicted - wanted;
        let factor = if context.step == 3 && context.rank == 1 { 1e9 } else { 1.0 };
        StepOutput::mean((difference.clone() * difference).mean().mul_scalar(factor), count)
    }

    fn validation_step(&self, batch: Vec<Point>, context: &StepContext) -> StepOutput {
        // Validation sees the parameters themselves.
        assert_eq!(self.line.linear.weight.val().dtype(), DType::F32);
        assert_eq!(context.input_dtype, None);
        self.training_step(batch, &StepContext { step: 0, ..context.clone() })
    }
}

/// Keeps what every step reported.
struct Recorder(Arc<Mutex<Vec<StepEnd>>>);

impl Callback for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn on_step_end(&mut self, end: &StepEnd) -> Result<(), TrainError> {
        self.0.lock().unwrap().push(end.clone());
        Ok(())
    }
}

/// A warm-up over the whole run, so that every step has a rate of its own.
fn warm_up() -> SchedulePlan {
    let warmup = Warmup { length: WarmupLength::Steps(8), ..Warmup::default() };
    SchedulePlan { warmup, ..SchedulePlan::default() }
}

#[test]
fn a_skipped_step_is_counted_reported_and_unknown_to_the_schedule() {
    let run = |group: ProcessGroup| {
        let steps = Arc::new(Mutex::new(Vec::new()));
        let mut config = TrainerConfig::new(SGD)
            .with_max_epochs(2)
            .with_mixed_precision(MixedPrecision::fp16())
            .with_clip(Clip::norm(10.0))
            .with_log_every_n_steps(2);
        config.scaler = GradScalerConfig::new().with_init_scale(256.0);
        config.schedule = warm_up();
        let (train, valid) = (loader(points(32), 4), loader(points(8), 4));
        let report = trainer(config, &group)
            .with_callback(Recorder(steps.clone()))
            .fit(Overflowing { line: line() }, &train, Some(&valid))
            .unwrap();
        let steps = steps.lock().unwrap();
        let skipped: Vec<bool> = steps.iter().map(|end| end.skipped).collect();
        assert_eq!(skipped, [false, false, false, true, false, false, false, false]);
        let rate = |taken: f64| 0.05 * (0.1 + 0.9 * taken / 8.0);
        for (end, taken) in steps.iter().zip([0.0, 1.0, 2.0, 3.0, 3.0, 4.0, 5.0, 6.0]) {
            assert!((end.learning_rate - rate(taken)).abs() < 1e-12, "{end:?}");
            assert_eq!(end.grad_norm.is_none(), end.skipped);
        }
        report
    };
    // On a device it is known a step later.
    for report in Memory::ALL.into_iter().flat_map(|memory| memory.spawn(2, run)) {
        assert_eq!((report.steps, report.skipped_steps), (8, Some(1)));
        assert_eq!(report.train.mean("loss_scale"), Some(128.0), "of the last epoch");
        assert_eq!(report.train.mean("skipped"), Some(0.0));
        assert!(report.train.mean("grad_norm").unwrap() > 0.0);
        assert!(report.valid.unwrap().mean("grad_norm").is_none());
    }
}

#[test]
fn a_batch_norm_of_burn_is_an_error_on_every_rank_before_the_first_step() {
    let errors = local::spawn(3, |group| {
        let config = TrainerConfig::new(SGD).with_mixed_precision(MixedPrecision::bf16());
        let result = trainer(config, &group).fit(normalized(), &loader(points(9), 2), None);
        result.map(drop).unwrap_err()
    });
    for error in errors {
        assert!(matches!(&error, TrainError::Parallel(ParallelError::Amp(_))), "{error}");
        assert!(error.to_string().contains("\"norm\" is Burn's BatchNorm"), "{error}");
    }
}

#[test]
fn fp16_needs_master_weights() {
    let mut config = TrainerConfig::new(SGD).with_mixed_precision(MixedPrecision::fp16());
    config.master_weights = false;
    let mut trainer = trainer(config, &ProcessGroup::single());
    let error = trainer.fit(line(), &loader(points(9), 2), None).map(drop).unwrap_err();
    assert!(error.to_string().contains("only bf16"), "{error}");
}
