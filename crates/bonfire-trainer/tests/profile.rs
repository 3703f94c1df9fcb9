//! Whose fault it is that a run is slow, on ranks that are threads.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_comm::local;
use bonfire_data::{DataError, DataLoader, InMemoryDataset, LoaderConfig};
use bonfire_trainer::{Learnable, ProfileConfig, StepContext, StepOutput, TrainerConfig, Verdict};
use burn::module::Module;
use serde_json::Value;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;
use support::{Line, Point, SGD, line, loader, points, trainer};

/// Much longer than anything else that a step does here.
const LONG: Duration = Duration::from_millis(40);

/// A line that takes long on some ranks.
#[derive(Module, Debug)]
struct Slow {
    line: Line,
    #[module(skip)]
    ranks: Vec<usize>,
}

impl Learnable for Slow {
    type Batch = Vec<Point>;

    fn training_step(&self, batch: Vec<Point>, context: &StepContext) -> StepOutput {
        if self.ranks.contains(&context.rank) {
            sleep(LONG);
        }
        self.line.training_step(batch, context)
    }

    fn validation_step(&self, batch: Vec<Point>, context: &StepContext) -> StepOutput {
        self.line.validation_step(batch, context)
    }
}

fn config() -> TrainerConfig {
    TrainerConfig::new(SGD).with_max_steps(12).with_profile(ProfileConfig::new(2..12))
}

/// The first finding, which all ranks have alike.
fn first(verdicts: Vec<Option<Verdict>>) -> Value {
    let verdicts: Vec<Verdict> = verdicts.into_iter().map(Option::unwrap).collect();
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{verdicts:?}");
    serde_json::to_value(&verdicts[0].findings[0]).unwrap()
}

#[test]
fn a_rank_that_computes_slowly_is_named() {
    let finding = first(local::spawn(3, |group| {
        let model = Slow { line: line(), ranks: vec![1] };
        trainer(config(), &group).fit(model, &loader(points(90), 2), None).unwrap().verdict
    }));
    assert_eq!((&finding["kind"], &finding["rank"]), (&"straggler".into(), &1.into()), "{finding}");
    assert!(finding["text"].as_str().unwrap().contains("slower in forward"), "{finding}");
    assert!(finding["share"].as_f64().unwrap() > 0.5, "{finding}");
}

#[test]
fn a_rank_with_slow_data_is_named() {
    let finding = first(local::spawn(3, |group| {
        let is_slow = group.rank() == 2;
        let collate = move |points: Vec<Point>| {
            if is_slow {
                sleep(LONG);
            }
            Ok::<_, DataError>(points)
        };
        let config_of_data = LoaderConfig { batch_size: 2, ..LoaderConfig::default() };
        let data = Arc::new(InMemoryDataset::new(points(90)));
        let train = DataLoader::new(data, Arc::new(collate), config_of_data);
        trainer(config(), &group).fit(line(), &train, None).unwrap().verdict
    }));
    assert_eq!((&finding["kind"], &finding["rank"]), (&"straggler".into(), &2.into()), "{finding}");
    assert!(finding["text"].as_str().unwrap().contains("slower in data"), "{finding}");
}

#[test]
fn ranks_that_are_all_slow_are_nobody_s_fault() {
    let finding = first(local::spawn(2, |group| {
        let model = Slow { line: line(), ranks: vec![0, 1] };
        trainer(config(), &group).fit(model, &loader(points(60), 2), None).unwrap().verdict
    }));
    assert_eq!(finding["kind"], "compute_bound", "{finding}");
}

#[test]
fn steps_that_never_come_leave_no_verdict() {
    let group = bonfire_comm::ProcessGroup::single();
    let config = TrainerConfig::new(SGD).with_max_steps(2).with_profile(ProfileConfig::new(5..9));
    let report = trainer(config, &group).fit(line(), &loader(points(8), 2), None).unwrap();
    assert!(report.verdict.is_none());
}
