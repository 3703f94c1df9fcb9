use crate::image::{ImageBatch, MixedTargets};
use bonfire_nn::{
    ImageClassifier, correct_predictions, cross_entropy, cross_entropy_mixed,
    cross_entropy_smoothed,
};
use bonfire_parallel::LossReduction;
use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor};

/// A model that knows how to learn from a batch.
///
/// Every [`ImageClassifier`] is one: cross-entropy and accuracy on an [`ImageBatch`], with
/// the run's label smoothing in training steps. Of images that are mixed (mixup, CutMix) the loss takes
/// both classes, and the accuracy counts predictions of the class with the larger share.
pub trait Learnable: Module {
    /// What the data loader gives.
    type Batch: Send + 'static;

    /// Computes loss and metrics of a micro-batch; the trainer runs the backward pass.
    ///
    /// Layers such as dropout and batch normalisation train only on inputs with autodiff, and in mixed
    /// precision only on inputs of the right type: give the first layer what
    /// [`context.input`](StepContext::input) makes of the batch. A loss is computed in f32.
    fn training_step(&self, batch: Self::Batch, context: &StepContext) -> StepOutput;

    /// Computes loss and metrics of a batch of validation data; called on the model without
    /// autodiff.
    fn validation_step(&self, batch: Self::Batch, context: &StepContext) -> StepOutput;

    /// Computes a score of every class for every sample of a batch, `[batch, classes]` before any
    /// softmax; called on the model without autodiff. `None`, the default, for a model that does not
    /// classify.
    ///
    /// `bonfire predict` needs it, and `bonfire evaluate` for the accuracy of each class.
    fn class_scores(&self, _batch: &Self::Batch) -> Option<Tensor<2>> {
        None
    }
}

/// Where in the run a step stands.
#[derive(Debug, Clone)]
pub struct StepContext {
    /// Pass over the training data, from 0.
    pub epoch: u64,
    /// Optimizer step, from 0.
    pub step: u64,
    /// Micro-batch within the optimizer step, from 0.
    pub micro_batch: usize,
    /// This process in the group.
    pub rank: usize,
    /// Processes in the group.
    pub world_size: usize,
    /// Where the model lies; with autodiff in a training step only.
    pub device: Device,
    /// Type that the model's inputs must have, in mixed precision; see [`input`](Self::input).
    pub input_dtype: Option<DType>,
    /// Share of the target's probability that the loss of a training step of a classifier spreads
    /// over all classes; for a model that has no use for it, nothing.
    pub label_smoothing: f64,
}

impl StepContext {
    /// The context of a step outside of a run: of one rank, at the beginning, with inputs and targets
    /// as they are.
    pub fn outside(device: Device) -> Self {
        Self {
            epoch: 0,
            step: 0,
            micro_batch: 0,
            rank: 0,
            world_size: 1,
            device,
            input_dtype: None,
            label_smoothing: 0.0,
        }
    }

    /// Prepares a floating-point input of the model: casts it in mixed precision, and gives it
    /// autodiff in a training step.
    pub fn input<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let input = match self.input_dtype {
            Some(dtype) => input.cast(dtype),
            None => input,
        };
        match self.device.gradient_checkpointing_strategy() {
            Some(strategy) => input.autodiff().with_gradient_checkpointing_strategy(strategy),
            None => input,
        }
    }
}

/// What a step computed.
#[derive(Debug, Clone)]
pub struct StepOutput {
    /// The loss, shape `[1]`.
    pub loss: Tensor<1>,
    /// Whether the loss is a mean or a sum over the batch.
    pub reduction: LossReduction,
    /// Samples (or tokens, or other units) that the loss stands for: every unit has the same
    /// influence on the gradient, however ranks and micro-batches share them.
    pub weight: f64,
    /// Further figures to report.
    pub metrics: Vec<Metric>,
    /// What figures of classes are computed from: F1 or the area under the ROC curve, for example. Looked at
    /// in validations only.
    pub scores: Option<ClassScores>,
}

/// Scores of every class, and the right ones.
#[derive(Debug, Clone)]
pub struct ClassScores {
    /// Shape `[batch, classes]`, before any softmax.
    pub scores: Tensor<2>,
    /// Shape `[batch]`.
    pub targets: Tensor<1, Int>,
}

impl StepOutput {
    /// Makes the output of a mean loss over `samples` samples.
    pub fn mean(loss: Tensor<1>, samples: usize) -> Self {
        let reduction = LossReduction::Mean;
        Self { loss, reduction, weight: samples as f64, metrics: Vec::new(), scores: None }
    }

    /// Makes the output of a summed loss over `samples` samples.
    pub fn sum(loss: Tensor<1>, samples: usize) -> Self {
        let reduction = LossReduction::Sum;
        Self { loss, reduction, weight: samples as f64, metrics: Vec::new(), scores: None }
    }

    /// Gives the scores of every class, `[batch, classes]` before any softmax, and the right classes, `[batch]`:
    /// from a validation step, for the figures of classes that the run is asked for.
    pub fn with_scores(self, scores: Tensor<2>, targets: Tensor<1, Int>) -> Self {
        Self { scores: Some(ClassScores { scores, targets }), ..self }
    }

    /// Adds a figure that is reported as `sum / count` over all ranks.
    pub fn with_metric(mut self, name: &'static str, sum: Tensor<1>, count: f64) -> Self {
        self.metrics.push(Metric { name, sum, count });
        self
    }
}

/// A figure as sum and count, so that ranks and batches of any size combine exactly.
#[derive(Debug, Clone)]
pub struct Metric {
    /// Its name, a column of the metrics file.
    pub name: &'static str,
    /// Sum over the batch, shape `[1]`.
    pub sum: Tensor<1>,
    /// What the sum is divided by.
    pub count: f64,
}

impl<M: ImageClassifier> Learnable for M {
    type Batch = ImageBatch;

    fn training_step(&self, batch: ImageBatch, context: &StepContext) -> StepOutput {
        classify(self, batch, context).0
    }

    fn validation_step(&self, batch: ImageBatch, context: &StepContext) -> StepOutput {
        let targets = batch.targets.clone();
        let context = StepContext { label_smoothing: 0.0, ..context.clone() };
        let (output, scores) = classify(self, batch, &context);
        output.with_scores(scores, targets)
    }

    fn class_scores(&self, batch: &ImageBatch) -> Option<Tensor<2>> {
        Some(self.forward(batch.images.clone()))
    }
}

/// The output of a step, and the scores of the classes.
fn classify(
    model: &impl ImageClassifier,
    batch: ImageBatch,
    context: &StepContext,
) -> (StepOutput, Tensor<2>) {
    let samples = batch.len();
    let ImageBatch { images, targets, mixed } = batch;
    let logits = model.forward(context.input(images));
    let correct = correct_predictions(logits.clone(), prevailing(&targets, mixed.as_ref()));
    let smoothing = context.label_smoothing;
    let scores = logits.clone();
    let loss = match mixed {
        Some(MixedTargets { partners, lambda }) => {
            cross_entropy_mixed(logits, [targets, partners], lambda, smoothing)
        }
        None if smoothing > 0.0 => cross_entropy_smoothed(logits, targets, smoothing),
        None => cross_entropy(logits, targets),
    };
    let accuracy = correct.float().cast(DType::F32);
    (StepOutput::mean(loss, samples).with_metric("accuracy", accuracy, samples as f64), scores)
}

/// The classes with the larger share in each image.
fn prevailing(targets: &Tensor<1, Int>, mixed: Option<&MixedTargets>) -> Tensor<1, Int> {
    match mixed {
        Some(MixedTargets { partners, lambda }) if *lambda < 0.5 => partners.clone(),
        _ => targets.clone(),
    }
}
