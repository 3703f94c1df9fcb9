//! Figures of classes of a validation over 3 ranks, whose last batches are padded, are scikit-learn's over all
//! samples (`tests/golden/classification.py`).

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::local;
use bonfire_data::{DataError, DataLoader, InMemoryDataset, LoaderConfig};
use bonfire_trainer::config::OptimizerPlan;
use bonfire_trainer::{Figure, Learnable, StepContext, StepOutput, Trainer, TrainerConfig};
use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde_json::Value;
use std::sync::Arc;

const RANKS: usize = 3;
/// Of a rank: 3 ranks have padding in the last one of 100 and of 120 samples.
const BATCH_SIZE: usize = 7;

const SGD: OptimizerPlan = OptimizerPlan::Sgd {
    lr: 0.1,
    momentum: 0.0,
    dampening: 0.0,
    weight_decay: 0.0,
    nesterov: false,
    momentum_correction: true,
};

/// Gives every sample the scores that it has in the golden file.
#[derive(Module, Debug)]
struct Known {
    weight: Param<Tensor<1>>,
    #[module(skip)]
    classes: usize,
    #[module(skip)]
    scores: Vec<f32>,
    #[module(skip)]
    targets: Vec<i64>,
}

impl Known {
    fn of(case: &Value) -> Self {
        let device = Device::flex().autodiff();
        let scores = case["scores"].as_array().unwrap();
        let targets = case["targets"].as_array().unwrap();
        Self {
            weight: Param::from_tensor(Tensor::from_data([1.0f32], &device)),
            classes: case["classes"].as_u64().unwrap() as usize,
            scores: scores.iter().map(|score| score.as_f64().unwrap() as f32).collect(),
            targets: targets.iter().map(|target| target.as_i64().unwrap()).collect(),
        }
    }
}

impl Learnable for Known {
    type Batch = Vec<usize>;

    fn training_step(&self, batch: Vec<usize>, _context: &StepContext) -> StepOutput {
        StepOutput::mean(self.weight.val().square(), batch.len())
    }

    fn validation_step(&self, batch: Vec<usize>, context: &StepContext) -> StepOutput {
        let row = |sample: &usize| &self.scores[sample * self.classes..(sample + 1) * self.classes];
        let scores: Vec<f32> = batch.iter().flat_map(|sample| row(sample).to_vec()).collect();
        let targets: Vec<i64> = batch.iter().map(|sample| self.targets[*sample]).collect();
        let scores = TensorData::new(scores, [batch.len(), self.classes]);
        let targets = TensorData::new(targets, [batch.len()]);
        let device = &context.device;
        let loss = Tensor::from_data([0.0f32], device);
        StepOutput::mean(loss, batch.len()).with_scores(
            Tensor::from_data(scores, device),
            Tensor::<1, Int>::from_data(targets, device),
        )
    }
}

#[test]
fn padded_ranks_count_every_sample_once() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/classification.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for name in ["two_classes", "three_classes", "ties"] {
        let case = &file["cases"][name];
        let samples = case["targets"].as_array().unwrap().len();
        assert_ne!(samples % (RANKS * BATCH_SIZE), 0, "nothing is padded");
        let reports = local::spawn(RANKS, |group| {
            let all = Arc::new(InMemoryDataset::new((0..samples).collect::<Vec<usize>>()));
            let collate = Arc::new(Ok::<Vec<usize>, DataError>);
            let config =
                LoaderConfig { batch_size: BATCH_SIZE, shuffle: false, ..LoaderConfig::default() };
            let data = DataLoader::new(all, collate, config);
            let figures = [
                Figure::Top5,
                Figure::Precision,
                Figure::Recall,
                Figure::F1,
                Figure::Auroc,
                Figure::ConfusionMatrix,
            ];
            let config = TrainerConfig::new(SGD).with_max_epochs(1).with_metrics(figures);
            let report = Trainer::new(config, group).fit(Known::of(case), &data, Some(&data));
            let report = report.unwrap();
            (report.valid.unwrap(), report.confusion_matrix.unwrap())
        });
        for (valid, matrix) in reports {
            let macro_average = &case["average"]["macro"];
            for (figure, expected) in [
                ("top5_accuracy", &case["top_k"]["5"]),
                ("precision", &macro_average["precision"]),
                ("recall", &macro_average["recall"]),
                ("f1", &macro_average["f1"]),
                ("auroc", &case["auroc"]),
            ] {
                let got = valid.mean(figure).unwrap();
                // Of two classes every sample is among the first five.
                let expected = expected.as_f64().unwrap_or(1.0);
                assert!((got - expected).abs() <= 1e-12, "{name}: {figure} {got} {expected}");
            }
            assert_eq!(matrix.total(), samples as u64, "{name}");
            for entry in case["confusion"].as_array().unwrap() {
                let [target, taken, count] = [0, 1, 2].map(|at| entry[at].as_u64().unwrap());
                let place = target as usize * matrix.classes() + taken as usize;
                assert_eq!(matrix.counts()[place], count, "{name}: {target} for {taken}");
            }
        }
    }
}
