//! `bonfire evaluate`: the figures of a trained model on the test images of a data set.

use crate::CliError;
use crate::args::EvaluateArgs;
use crate::classifier::Classifier;
use crate::data::transformed;
use crate::data_sets::{Untrained, kind_of};
use crate::exit::Outcome;
use crate::output::print;
use crate::predict::{expect_finite, rows_of};
use crate::registry::Registry;
use bonfire_data::{DataLoader, ImageDataset, LoaderConfig, Padding, Shard, Split};
use bonfire_nn::cross_entropy;
use bonfire_parallel::LossReduction;
use bonfire_trainer::config::{OptimizerKind, Plan, RunConfig};
use bonfire_trainer::{ImageBatch, limit_threads};
use burn::tensor::Tensor;
use std::path::Path;
use std::sync::Arc;

/// Prints loss, accuracy and the accuracy of every class.
pub(crate) fn evaluate(registry: &Registry, args: &EvaluateArgs) -> Result<Outcome, CliError> {
    limit_threads(1);
    let classifier = Classifier::open(registry, &args.model, args.variant.as_deref())?;
    let config = data_config(&args.data, &args.overrides, &classifier)?;
    let plan = Plan::resolve(&config, 1)?.data;
    let images = match Untrained::find(&plan.source) {
        Some(images) => images.open(Some(&class_names(&classifier)))?,
        None => registry.images(&config, &plan.source)?.open(Split::Test)?,
    };
    check_fit(&classifier, images.as_ref())?;
    // What the recipe does not say is as it was in training.
    let transforms = match config.data.valid_transforms {
        Some(_) => plan.valid_transforms,
        None => classifier.description.transforms()?,
    };
    let images = transformed(images, &transforms, classifier.description.normalize.as_ref());

    let config = LoaderConfig {
        batch_size: args.batch_size.get(),
        workers: plan.workers,
        padding: Padding::Skip,
        ..LoaderConfig::default()
    };
    let loader = DataLoader::new(images, Arc::new(classifier.collate()?), config);
    let mut figures = Figures::new(classifier.description.num_classes);
    for batch in loader.batches(Shard::whole(), 0, 0)? {
        if let Some(batch) = batch?.data {
            figures.add(&classifier, batch)?;
        }
    }
    print(figures.table(&classifier))?;
    Ok(Outcome::Done)
}

fn class_names(classifier: &Classifier) -> Vec<String> {
    let description = &classifier.description;
    (0..description.num_classes).map(|class| description.class_name(class)).collect()
}

/// A recipe, or one that names a folder, of the kind that lies in it.
fn data_config(
    path: &Path,
    overrides: &[String],
    classifier: &Classifier,
) -> Result<RunConfig, CliError> {
    if path.extension().is_some_and(|suffix| suffix == "toml") {
        return Ok(RunConfig::load_with_overrides(path, overrides)?);
    }
    // A recipe needs a model and an optimizer too, of which nothing is used.
    let mut config = RunConfig::default();
    config.model.kind = Some("none".to_string());
    config.data.path = Some(path.to_path_buf());
    config.data.kind = kind_of(path).map(str::to_owned);
    if let Some("folder" | "csv") = config.data.kind.as_deref() {
        config.data.channels = Some(classifier.description.image_shape().channels);
    }
    config.optimizer.kind = Some(OptimizerKind::Sgd);
    config.apply_overrides(overrides)?;
    Ok(config)
}

/// Checks that the images and classes of a data set are those of the model.
fn check_fit(classifier: &Classifier, images: &dyn ImageDataset) -> Result<(), CliError> {
    let description = &classifier.description;
    let refuse = |problem: String| Err(CliError::NotAClassifier { problem });
    if images.num_classes() > description.num_classes {
        return refuse(format!(
            "the data set has {} classes, the model knows {}; evaluate it on the classes it was trained on",
            images.num_classes(),
            description.num_classes
        ));
    }
    let names = images.digest().class_names;
    let mut pairs = names.iter().zip(&description.class_names).enumerate();
    if let Some((class, (data, model))) = pairs.find(|(_, (data, model))| data != model) {
        return refuse(format!(
            "class {class} is \"{data}\" in the data set and \"{model}\" in the model; evaluate it on the \
             classes it was trained on"
        ));
    }
    Ok(())
}

/// Sums over the images so far.
struct Figures {
    loss: f64,
    /// What the loss is divided by.
    weight: f64,
    /// Images of each class, and those of them whose highest score was that of the class.
    classes: Vec<(u64, u64)>,
    has_scores: bool,
}

impl Figures {
    fn new(num_classes: usize) -> Self {
        Self { loss: 0.0, weight: 0.0, classes: vec![(0, 0); num_classes], has_scores: true }
    }

    fn add(&mut self, classifier: &Classifier, batch: ImageBatch) -> Result<(), CliError> {
        let Some(scores) = classifier.model.scores(&batch) else {
            self.has_scores = false;
            let output = classifier.model.validate(batch);
            let loss = scalar(output.loss);
            let factor = if output.reduction == LossReduction::Mean { output.weight } else { 1.0 };
            expect_finite(&[loss as f32], "test images")?;
            self.loss += loss * factor;
            self.weight += output.weight;
            return Ok(());
        };
        let samples = batch.len() as f64;
        self.loss += scalar(cross_entropy(scores.clone(), batch.targets.clone())) * samples;
        self.weight += samples;
        let targets: Vec<usize> =
            batch.targets.into_data().iter::<i64>().map(|t| t as usize).collect();
        for (target, scores) in targets.into_iter().zip(rows_of(scores)?) {
            expect_finite(&scores, "a test image")?;
            let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            if let Some((count, correct)) = self.classes.get_mut(target) {
                *count += 1;
                *correct += u64::from(best.is_some_and(|(class, _)| class == target));
            }
        }
        Ok(())
    }

    fn table(&self, classifier: &Classifier) -> String {
        let mut text = format!("{:<24}{:.4}\n", "loss", self.loss / self.weight);
        if !self.has_scores {
            return text;
        }
        let share = |correct: u64, of: u64| match of {
            0 => "-".to_string(),
            of => format!("{:.4}", correct as f64 / of as f64),
        };
        let images: u64 = self.classes.iter().map(|class| class.0).sum();
        let correct: u64 = self.classes.iter().map(|class| class.1).sum();
        text.push_str(&format!("{:<24}{}\n", "accuracy", share(correct, images)));
        text.push_str(&format!("{:<24}{images}\n\n", "images"));
        text.push_str(&format!("{:<24}{:>8}  accuracy\n", "class", "images"));
        for (class, (count, correct)) in self.classes.iter().enumerate() {
            let name = classifier.description.class_name(class);
            text.push_str(&format!("{name:<24}{count:>8}  {}\n", share(*correct, *count)));
        }
        text
    }
}

fn scalar(value: Tensor<1>) -> f64 {
    value.into_data().iter::<f64>().next().unwrap_or(f64::NAN)
}
