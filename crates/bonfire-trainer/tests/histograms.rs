//! Histograms of parameters and gradients are those of the whole, however ranks share them.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_comm::{ProcessGroup, local};
use bonfire_parallel::ZeroStage;
use bonfire_trainer::{Callback, Histogram, Histograms, TrainError, TrainerConfig};
use std::sync::{Arc, Mutex};
use support::{SGD, line, loader, points, trainer};

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Histograms>>>);

impl Callback for Seen {
    fn name(&self) -> &str {
        "seen"
    }

    fn on_histograms(&mut self, histograms: &Histograms) -> Result<(), TrainError> {
        self.0.lock().unwrap().push(histograms.clone());
        Ok(())
    }
}

/// What a rank saw of a run over batches of 12 samples on all ranks.
fn run(group: &ProcessGroup, zero_stage: ZeroStage) -> Vec<Histograms> {
    let mut config = TrainerConfig::new(SGD).with_max_steps(5).with_histograms_every_n_steps(2);
    config.parallel.zero_stage = zero_stage;
    let seen = Seen::default();
    let data = loader(points(60), 12 / group.world_size());
    trainer(config, group).with_callback(seen.clone()).fit(line(), &data, None).unwrap();
    seen.0.lock().unwrap().clone()
}

fn figures(histogram: &Histogram) -> [f64; 3] {
    let (least, _) = histogram.range().unwrap();
    [histogram.sum(), histogram.sum_squares(), f64::from(least)]
}

#[test]
fn every_sharing_of_the_gradients_counts_the_same() {
    let alone = run(&ProcessGroup::single(), ZeroStage::Off);
    let steps: Vec<u64> = alone.iter().map(|histograms| histograms.step).collect();
    assert_eq!(steps, [0, 2, 4]);
    for zero_stage in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients] {
        let mut ranks = local::spawn(3, |group| run(&group, zero_stage));
        assert!(ranks[1].is_empty() && ranks[2].is_empty(), "only rank 0 is told");
        for (own, whole) in ranks.swap_remove(0).iter().zip(&alone) {
            for (of, expected) in
                [(&own.parameters, &whole.parameters), (&own.gradients, &whole.gradients)]
            {
                let paths: Vec<&String> = of.keys().collect();
                assert_eq!(paths, ["linear.bias", "linear.weight"]);
                for (path, histogram) in of {
                    assert_eq!(histogram.num(), expected[path].num(), "{zero_stage:?} {path}");
                    let pairs = figures(histogram).into_iter().zip(figures(&expected[path]));
                    for (got, expected) in pairs {
                        assert!((got - expected).abs() < 1e-5, "{zero_stage:?} {path}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_first_ones_are_of_the_first_values_and_their_gradients() {
    let first = &run(&ProcessGroup::single(), ZeroStage::Off)[0];
    assert_eq!(first.parameters["linear.weight"].range(), Some((-0.2, 0.3)));
    assert!((first.parameters["linear.weight"].sum() - 0.2).abs() < 1e-6);
    assert_eq!(first.gradients["linear.weight"].num(), 3);
    assert_eq!(first.gradients["linear.weight"].non_finite(), 0);
    assert!(first.gradients["linear.weight"].sum_squares() > 0.0);
}

/// The norm that a bound measures, and the parameters of a run that only tells it.
#[test]
fn a_norm_that_is_only_told_changes_nothing() {
    let run = |change: fn(TrainerConfig) -> TrainerConfig| {
        let config = change(TrainerConfig::new(SGD).with_max_steps(5).with_log_every_n_steps(5));
        let data = loader(points(60), 12);
        let report = trainer(config, &ProcessGroup::single()).fit(line(), &data, None).unwrap();
        (report.train.mean("grad_norm"), report.parameters_xxh3)
    };
    let (none, plain) = run(|config| config);
    let (told, same) = run(|config| config.with_log_grad_norm(true));
    let (measured, _) = run(|config| config.with_clip(bonfire_amp::Clip::norm(1e6)));
    assert_eq!((none, plain), (None, same));
    assert!(told.unwrap() > 0.0);
    assert_eq!(told, measured);
}
