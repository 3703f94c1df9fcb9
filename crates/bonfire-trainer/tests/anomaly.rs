//! The first value that is not finite ends a run with the name of where it began.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod support;

use bonfire_comm::{ProcessGroup, local};
use bonfire_nn::Linear;
use bonfire_trainer::config::OptimizerPlan;
use bonfire_trainer::{
    Anomaly, Learnable, ModelSummary, Origin, StepContext, StepOutput, TrainError, TrainerConfig,
};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use support::{Point, SGD, line, loader, points, trainer};

/// What goes wrong, in step 2.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Nothing,
    /// What goes into the second layer is too large for it.
    Activation,
    /// A division by 0 behind the last layer.
    Division,
    /// A root of 0, whose derivative is infinite.
    Root,
}

/// Three layers one after the other.
#[derive(Module, Debug)]
struct Deep {
    first: Linear,
    second: Linear,
    third: Linear,
    #[module(skip)]
    fault: Fault,
    /// The rank that has it.
    #[module(skip)]
    rank: usize,
}

fn deep(fault: Fault, rank: usize) -> Deep {
    let device = Device::flex().autodiff();
    // Tests share the random generator of the process.
    let linear = |input: usize, output: usize| {
        let value = |index: usize| (index * 37 % 19) as f32 / 19.0 - 0.4;
        let weight = TensorData::new((0..input * output).map(value).collect(), [input, output]);
        let bias = TensorData::new((0..output).map(value).collect(), [output]);
        Linear {
            weight: Param::from_tensor(Tensor::from_data(weight, &device)),
            bias: Some(Param::from_tensor(Tensor::from_data(bias, &device))),
        }
    };
    Deep { first: linear(3, 4), second: linear(4, 4), third: linear(4, 1), fault, rank }
}

impl Deep {
    fn forward(&self, x: Tensor<2>, fault: Fault) -> Tensor<2> {
        let x = self.first.forward(x);
        let x = if fault == Fault::Activation { x.mul_scalar(1e38).mul_scalar(1e38) } else { x };
        let x = self.second.forward(x);
        let x = if fault == Fault::Root { x.clone() + x.mul_scalar(0.0).sqrt() } else { x };
        let x = self.third.forward(x);
        if fault == Fault::Division { x.div_scalar(0.0) } else { x }
    }
}

impl Learnable for Deep {
    type Batch = Vec<Point>;

    fn training_step(&self, batch: Vec<Point>, context: &StepContext) -> StepOutput {
        let fault = match context.step == 2 && context.rank == self.rank {
            true => self.fault,
            false => Fault::Nothing,
        };
        let values: Vec<f32> = batch.iter().flat_map(|point| point.0).collect();
        let data = TensorData::new(values, [batch.len(), 3]);
        let x = context.input(Tensor::from_data(data, &context.device));
        StepOutput::mean(self.forward(x, fault).square().mean(), batch.len())
    }

    fn validation_step(&self, batch: Vec<Point>, context: &StepContext) -> StepOutput {
        self.training_step(batch, context)
    }
}

fn config() -> TrainerConfig {
    TrainerConfig::new(SGD).with_max_steps(6).with_detect_anomaly(true)
}

fn fit(
    group: &ProcessGroup,
    config: TrainerConfig,
    model: Deep,
    points: Vec<Point>,
) -> Result<(), TrainError> {
    trainer(config, group).fit(model, &loader(points, 4), None).map(drop)
}

fn anomaly(result: Result<(), TrainError>) -> Anomaly {
    match result {
        Err(TrainError::Anomaly(anomaly)) => *anomaly,
        other => panic!("no anomaly: {other:?}"),
    }
}

fn alone(fault: Fault) -> Anomaly {
    anomaly(fit(&ProcessGroup::single(), config(), deep(fault, 0), points(40)))
}

#[test]
fn a_layer_whose_output_is_not_finite_is_named() {
    let found = alone(Fault::Activation);
    assert_eq!((found.step, found.epoch, found.rank), (2, 0, 0));
    let Origin::Layer { path, kind, output, first } = &found.origin else { panic!("{found:?}") };
    assert_eq!(
        (path.as_str(), *kind, output.as_slice(), *first),
        ("second", "Linear", &[4, 4][..], false)
    );
    let words = found.to_string();
    assert!(words.starts_with("at step 2 (epoch 0) on rank 0 the loss is "), "{words}");
    assert!(words.contains("that of \"second\" (Linear, [4, 4])"), "{words}");
}

#[test]
fn data_that_are_not_finite_are_told_from_layers() {
    let mut bad = points(40);
    bad.iter_mut().for_each(|point| point.0[1] = f32::NAN);
    let found = anomaly(fit(&ProcessGroup::single(), config(), deep(Fault::Nothing, 0), bad));
    assert!(
        matches!(&found.origin, Origin::Layer { path, first: true, .. } if path == "first"),
        "{found:?}"
    );
    assert!(found.to_string().contains("NaN in the data"), "{found}");
}

#[test]
fn parameters_that_an_update_has_spoilt_are_named() {
    let OptimizerPlan::Sgd { momentum, dampening, weight_decay, nesterov, .. } = SGD else {
        panic!("not SGD")
    };
    let optimizer = OptimizerPlan::Sgd {
        lr: 1e39,
        momentum,
        dampening,
        weight_decay,
        nesterov,
        momentum_correction: true,
    };
    let config = TrainerConfig { optimizer, ..config() };
    let found = anomaly(fit(&ProcessGroup::single(), config, deep(Fault::Nothing, 0), points(40)));
    assert_eq!(found.step, 1);
    assert!(
        matches!(&found.origin, Origin::Parameter { path, .. } if path == "first.weight"),
        "{found:?}"
    );
    assert!(found.to_string().contains("lower optimizer.lr"), "{found}");
}

#[test]
fn a_loss_and_a_gradient_that_alone_are_not_finite_are_told() {
    let found = alone(Fault::Division);
    assert_eq!(found.origin, Origin::Loss { layers: 3 });
    let found = alone(Fault::Root);
    assert_eq!((found.step, found.loss), (2, None));
    // Whatever comes after the root is finite: the gradients of the layers before are not.
    let Origin::Gradient { path } = &found.origin else { panic!("{found:?}") };
    assert!(path.starts_with("second."), "{found}");
}

#[test]
fn one_rank_that_fails_is_named_on_all_of_them() {
    for fault in [Fault::Activation, Fault::Division] {
        let errors =
            local::spawn(3, |group| fit(&group, config(), deep(fault, 1), points(60)).unwrap_err());
        let own = anomaly(Err(errors.into_iter().nth(1).unwrap()));
        assert_eq!((own.rank, own.step), (1, 2));
    }
    let texts = local::spawn(3, |group| {
        fit(&group, config(), deep(Fault::Division, 1), points(60)).unwrap_err().to_string()
    });
    assert!(texts.iter().all(|text| text.contains("on rank 1 the loss is")), "{texts:?}");
}

#[test]
fn a_gradient_of_one_rank_reaches_all_of_them() {
    for zero_stage in [bonfire_parallel::ZeroStage::Off, bonfire_parallel::ZeroStage::Gradients] {
        let texts = local::spawn(2, |group| {
            let mut config = config();
            config.parallel.zero_stage = zero_stage;
            fit(&group, config, deep(Fault::Root, 1), points(60)).unwrap_err().to_string()
        });
        // Where ranks share the gradients, each names the first of its own.
        assert!(texts.iter().all(|text| text.contains("the gradient of \"")), "{texts:?}");
        if zero_stage == bonfire_parallel::ZeroStage::Off {
            assert!(texts.iter().all(|text| text.contains("\"second.bias\"")), "{texts:?}");
        }
    }
}

#[test]
fn without_the_search_the_loss_is_told_at_the_next_report() {
    let config = TrainerConfig { detect_anomaly: false, log_every_n_steps: 3, ..config() };
    let error = fit(&ProcessGroup::single(), config, deep(Fault::Division, 0), points(40));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("detect_anomaly = true"), "{text}");
}

#[test]
fn a_sound_run_is_the_same_with_the_search() {
    let run = |detect_anomaly| {
        let config = TrainerConfig { detect_anomaly, ..config() };
        let model = deep(Fault::Nothing, 0);
        let data = loader(points(40), 4);
        trainer(config, &ProcessGroup::single()).fit(model, &data, None).unwrap().parameters_xxh3
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_model_is_summed_up_layer_by_layer() {
    let x = Tensor::<2>::zeros([2, 3], &Device::flex());
    let summary =
        ModelSummary::of(&deep(Fault::Nothing, 0), 2, |model| model.forward(x, Fault::Nothing));
    let summary = summary.unwrap();
    let rows: Vec<(&str, usize, u64)> = summary
        .layers
        .iter()
        .map(|layer| (layer.path.as_str(), layer.parameters, layer.flops))
        .collect();
    assert_eq!(rows, [("first", 16, 48), ("second", 20, 64), ("third", 5, 16)]);
    assert_eq!((summary.trainable, summary.frozen, summary.buffers), (41, 0, 0));
    assert_eq!((summary.bytes, summary.activation_bytes), (164, 4 * (8 + 8 + 2)));
    assert!(summary.is_complete());
    let text = summary.to_string();
    assert!(text.contains("41 trainable and 0 frozen parameters"), "{text}");

    // A layer of Burn's own has parameters, and tells nothing.
    let x = Tensor::<2>::zeros([2, 3], &Device::flex());
    let plain = ModelSummary::of(&line(), 2, |model| model.linear.forward(x)).unwrap();
    assert_eq!((plain.layers[0].path.as_str(), plain.layers[0].kind), ("linear", None));
    assert!(!plain.is_complete());
    assert!(plain.to_string().contains("report_layer"), "{plain}");
}
