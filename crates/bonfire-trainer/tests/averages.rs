//! Averages of the weights in `Trainer::fit`: evaluated, saved, resumed.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_amp::MixedPrecision;
use bonfire_comm::{ProcessGroup, local};
use bonfire_parallel::{DataParallelConfig, LocalSgd};
use bonfire_tensor::parameters::read;
use bonfire_tensor::state::State;
use bonfire_trainer::config::{CheckpointPlan, OnError};
use bonfire_trainer::run_folder::RunFolder;
use bonfire_trainer::{
    Callback, FitReport, Learnable, ModelValues, StepContext, TrainError, Trainer, TrainerConfig,
    WeightAverage,
};
use burn::module::Module;
use burn::tensor::Device;
use std::sync::{Arc, Mutex};
use support::{Normalized, SGD, line, loader, normalized, points};

const EPOCHS: u64 = 4;

fn config() -> TrainerConfig {
    TrainerConfig::new(SGD).with_max_epochs(EPOCHS)
}

fn fit(trainer: &mut Trainer) -> FitReport<Normalized> {
    let data = loader(points(31), 4);
    trainer.fit(normalized(), &data, Some(&data)).unwrap()
}

/// Keeps every step's values of the model.
struct History(Arc<Mutex<Vec<Vec<f64>>>>);

impl Callback for History {
    fn name(&self) -> &str {
        "history"
    }

    fn on_values(&mut self, values: &ModelValues<'_>) -> Result<(), TrainError> {
        let parameters = values.flat().iter().flat_map(support::numbers);
        self.0.lock().unwrap().push(parameters.map(f64::from).collect());
        Ok(())
    }
}

fn numbers(state: &State, path: &str) -> Vec<f32> {
    state.tensors[path].data.as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn an_average_is_evaluated_with_its_own_statistics_and_the_model_keeps_its_own() {
    for reports in [true, false].map(|averages| {
        local::spawn(2, |group| {
            let mut trainer = Trainer::new(config(), group);
            if averages {
                let ema = WeightAverage::ema(0.8).unwrap();
                trainer = trainer.with_callback(ema).with_callback(WeightAverage::swa(2).unwrap());
            }
            fit(&mut trainer)
        })
    }) {
        let fingerprints: Vec<u64> = reports.iter().map(|report| report.parameters_xxh3).collect();
        static FIRST: Mutex<Option<u64>> = Mutex::new(None);
        let first = *FIRST.lock().unwrap().get_or_insert(fingerprints[0]);
        // Keeping averages changes nothing else, running statistics included.
        assert_eq!(fingerprints, [first; 2]);
        for report in reports {
            let valid = report.valid.clone().unwrap();
            if report.variants.is_empty() {
                assert!(valid.mean("ema_loss").is_none());
                continue;
            }
            let own = read(&report.model, |_| true).unwrap();
            for (variant, name) in report.variants.iter().zip(["ema", "swa"]) {
                assert_eq!(variant.name, name);
                // Every parameter and buffer has another value than the model's.
                assert_eq!(variant.values.tensors.len(), own.tensors.len());
                for path in own.tensors.keys() {
                    assert_ne!(numbers(&variant.values, path), numbers(&own, path), "{path}");
                }
            }
            let (ema, swa) = (valid.mean("ema_loss").unwrap(), valid.mean("swa_loss").unwrap());
            assert!(ema != valid.loss().unwrap() && swa != ema, "{ema} {swa}");
            assert_eq!(valid.mean("ema_seen"), valid.mean("seen"));

            // What was evaluated is what is there: the model with these values has this loss.
            let values = report.variants[0].values.clone();
            let model = report.into_variant("ema").unwrap().unwrap();
            assert_eq!(read(&model, |_| true).unwrap(), values);
            let output = model.valid().validation_step(points(31), &context());
            let loss = f64::from(support::numbers(&output.loss.reshape::<1, _>([1]))[0]);
            assert!((loss - ema).abs() < 1e-6, "{loss} {ema}");
        }
    }
}

fn context() -> StepContext {
    StepContext::outside(Device::flex())
}

#[test]
fn averages_follow_the_steps_that_they_are_told_to() {
    let history = Arc::new(Mutex::new(Vec::new()));
    let mut trainer = Trainer::new(config(), ProcessGroup::single())
        .with_callback(WeightAverage::ema(0.7).unwrap().with_steps(3, 2))
        .with_callback(WeightAverage::swa(1).unwrap())
        .with_callback(History(history.clone()));
    let report = fit(&mut trainer);
    let history = history.lock().unwrap();
    let steps_per_epoch = 8;
    assert_eq!(history.len(), EPOCHS as usize * steps_per_epoch);
    let mut ema: Option<Vec<f64>> = None;
    // Steps 3, 6, 9 and so on, counted from 1.
    for values in history.iter().skip(2).step_by(3) {
        let old = ema.take().unwrap_or_else(|| values.clone());
        ema = Some(old.iter().zip(values).map(|(old, new)| 0.7 * old + 0.3 * new).collect());
    }
    let ends: Vec<&Vec<f64>> =
        (1..EPOCHS as usize).map(|epoch| &history[(epoch + 1) * steps_per_epoch - 1]).collect();
    let mean = |k: usize| ends.iter().map(|end| end[k]).sum::<f64>() / ends.len() as f64;
    let swa: Vec<f64> = (0..ends[0].len()).map(mean).collect();
    for (variant, expected) in report.variants.iter().zip([ema.unwrap(), swa]) {
        let mut found: Vec<f64> = Vec::new();
        for path in ["linear.weight", "linear.bias", "norm.gamma", "norm.beta"] {
            found.extend(numbers(&variant.values, path).into_iter().map(f64::from));
        }
        let mut expected = expected;
        found.sort_by(f64::total_cmp);
        expected.sort_by(f64::total_cmp);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{} {found} {expected}", variant.name);
        }
    }
}

#[test]
fn an_average_goes_on_after_a_resume_as_if_never_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let keep = CheckpointPlan {
        every_n_steps: Some(5),
        asynchronous: false,
        every_n_epochs: 0,
        keep_last: 99,
        ..CheckpointPlan::default()
    };
    let base = || TrainerConfig { checkpoint: keep.clone(), ..config() };
    let run = |group: ProcessGroup, config: TrainerConfig| {
        let mut trainer = Trainer::new(config, group)
            .with_callback(WeightAverage::ema(0.9).unwrap())
            .with_callback(WeightAverage::swa(1).unwrap());
        fit(&mut trainer)
    };
    let whole = local::spawn(2, |group| run(group, base().with_checkpoints(folder.path())));
    for step in [5, 10] {
        for report in local::spawn(2, |group| {
            run(group, base().with_resume(folder.path().join(format!("step-{step:08}"))))
        }) {
            assert_eq!(report.variants, whole[0].variants, "from step {step}");
            assert_eq!(report.valid, whole[0].valid, "from step {step}");
        }
    }
}

#[test]
fn several_averages_go_by_names_of_their_own() {
    let fit_with = |second: &str| {
        let mut trainer = Trainer::new(config(), ProcessGroup::single())
            .with_callback(WeightAverage::ema(0.9).unwrap())
            .with_callback(WeightAverage::ema(0.5).unwrap().with_name(second));
        let data = loader(points(31), 4);
        trainer.fit(normalized(), &data, Some(&data))
    };
    let report = fit_with("fast").unwrap();
    let valid = report.valid.unwrap();
    assert!(valid.mean("ema_loss") != valid.mean("fast_loss"));
    let error = fit_with("ema").map(drop).unwrap_err().to_string();
    assert!(error.contains("two callbacks are called \"ema\""), "{error}");
}

#[test]
fn values_that_are_due_when_the_run_ends_are_taken() {
    let report = local::spawn(2, |group| {
        // Averages after 5 of 32 steps each: the last epoch ends between two of them.
        let parallel =
            DataParallelConfig { local_sgd: Some(LocalSgd::new(5)), ..Default::default() };
        let mut trainer = Trainer::new(TrainerConfig { parallel, ..config() }, group)
            .with_callback(WeightAverage::swa(EPOCHS - 1).unwrap());
        fit(&mut trainer)
    })
    .remove(0);
    assert_eq!(report.variants.len(), 1);
    let own = read(&report.model, |_| true).unwrap();
    let path = "linear.weight";
    assert_eq!(numbers(&report.variants[0].values, path), numbers(&own, path));
}

#[test]
fn an_average_of_a_bf16_model_resumes_in_its_types() {
    let folder = tempfile::tempdir().unwrap();
    let base = || {
        let mixed = TrainerConfig::new(SGD).with_mixed_precision(MixedPrecision::bf16());
        TrainerConfig { master_weights: false, ..mixed }.with_max_epochs(2)
    };
    let run = |config: TrainerConfig| {
        let data = loader(points(31), 4);
        Trainer::new(config, ProcessGroup::single())
            .with_callback(WeightAverage::ema(0.9).unwrap())
            .fit(line(), &data, Some(&data))
            .unwrap()
    };
    let whole = run(base().with_checkpoints(folder.path()));
    // At the very end: there is nothing left to take in.
    let resumed = run(base().with_resume(folder.path()));
    assert_eq!(resumed.variants, whole.variants);
    assert_eq!(resumed.valid, whole.valid);
}

#[test]
fn with_local_steps_all_ranks_average_what_they_agreed_on() {
    let reports = local::spawn(2, |group| {
        let parallel =
            DataParallelConfig { local_sgd: Some(LocalSgd::new(3)), ..Default::default() };
        let mut trainer = Trainer::new(TrainerConfig { parallel, ..config() }, group)
            .with_callback(WeightAverage::ema(0.5).unwrap());
        fit(&mut trainer)
    });
    assert_eq!(reports[0].variants, reports[1].variants);
    assert_eq!(reports[0].variants.len(), 1);
}

#[test]
fn the_run_folder_has_the_averages_and_their_figures() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunFolder::create(folder.path()).unwrap();
    let mut trainer = Trainer::new(config(), ProcessGroup::single())
        .with_callback(run.metrics_file(OnError::Stop).unwrap())
        .with_callback(WeightAverage::swa(1).unwrap());
    let report = fit(&mut trainer);
    run.write_variant(&report.model, &report.variants[0]).unwrap();
    let file = folder.path().join("model_swa.safetensors");
    let tensors = bonfire_trainer::checkpoint::read_safetensors(&file).unwrap();
    assert_eq!(tensors, report.variants[0].values.tensors);

    // The first validation has no average yet: its column comes with the second.
    let text = std::fs::read_to_string(folder.path().join("metrics.csv")).unwrap();
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = head.iter().position(|name| *name == "swa_loss").unwrap();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == head.len()), "{text}");
    let valid: Vec<&Vec<&str>> = rows.iter().filter(|row| row[0] == "valid").collect();
    assert_eq!(valid.len(), EPOCHS as usize, "{text}");
    assert!(valid[0][column].is_empty(), "{text}");
    assert!(valid[1..].iter().all(|row| row[column].parse::<f64>().is_ok()), "{text}");
}

#[test]
fn a_run_whose_checkpoint_has_no_average_begins_one() {
    let folder = tempfile::tempdir().unwrap();
    let first = config().with_max_steps(4).with_checkpoints(folder.path());
    fit(&mut Trainer::new(first, ProcessGroup::single()));
    let second = config().with_resume(folder.path());
    let mut trainer = Trainer::new(second, ProcessGroup::single())
        .with_callback(WeightAverage::ema(0.9).unwrap());
    assert_eq!(fit(&mut trainer).variants.len(), 1);
}
