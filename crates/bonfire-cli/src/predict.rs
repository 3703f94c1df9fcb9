//! `bonfire predict`: the classes of pictures.

use crate::CliError;
use crate::args::PredictArgs;
use crate::classifier::Classifier;
use crate::exit::Outcome;
use crate::output::offer;
use crate::pictures::{self, Found, Picture};
use crate::registry::Registry;
use bonfire_data::transform::Transforms;
use bonfire_data::{Collate, ImageSample};
use bonfire_nn::softmax;
use bonfire_tensor::TensorError;
use bonfire_trainer::{TrainError, limit_threads};
use burn::tensor::Tensor;

/// Prints the likeliest classes of every picture as CSV, and then tells which ones cannot be used.
pub(crate) fn predict(registry: &Registry, args: &PredictArgs) -> Result<Outcome, CliError> {
    limit_threads(1);
    let classifier = Classifier::open(registry, &args.model, args.variant.as_deref())?;
    let transforms = classifier.transforms()?;
    let Found { pictures, mut problems } = pictures::find(&args.paths);
    let total = pictures.len() + problems.len();
    let mut read_on = offer(csv_line(&["path", "class", "probability"])?)?;
    for chunk in pictures.chunks(args.batch_size.get()) {
        // Nobody sees what would come.
        if !read_on {
            return Ok(Outcome::Done);
        }
        let (names, samples) = read(&classifier, chunk, &transforms, &mut problems);
        let rows = classify(&classifier, &names, samples, args.top.get())?;
        read_on = offer(rows.concat())?;
    }
    match problems.is_empty() {
        true => Ok(Outcome::Done),
        false => Err(CliError::Pictures { problems, total }),
    }
}

/// Decodes pictures; what is wrong with those that cannot be used is added to `problems`.
fn read(
    classifier: &Classifier,
    pictures: &[Picture],
    transforms: &Transforms,
    problems: &mut Vec<String>,
) -> (Vec<String>, Vec<ImageSample>) {
    let shape = classifier.description.image_shape();
    let (mut names, mut samples) = (Vec::new(), Vec::new());
    for picture in pictures {
        match picture.read(shape, transforms) {
            Ok(image) => {
                names.push(picture.name());
                // The class is not known: any will do, since scores do not depend on it.
                samples.push(ImageSample { image, label: 0 });
            }
            Err(error) => problems.push(error.to_string()),
        }
    }
    (names, samples)
}

/// The lines of a few pictures, `top` for each.
fn classify(
    classifier: &Classifier,
    names: &[String],
    samples: Vec<ImageSample>,
    top: usize,
) -> Result<Vec<String>, CliError> {
    if samples.is_empty() {
        return Ok(Vec::new());
    }
    let batch = classifier.collate()?.collate(samples)?;
    let Some(scores) = classifier.model.scores(&batch) else {
        let kind = &classifier.description.kind;
        let problem = format!("a model of kind \"{kind}\" gives no scores of classes");
        return Err(CliError::NotAClassifier { problem });
    };
    for (name, scores) in names.iter().zip(rows_of(scores.clone())?) {
        expect_finite(&scores, name)?;
    }
    let mut lines = Vec::new();
    for (name, probabilities) in names.iter().zip(rows_of(softmax(scores, 1))?) {
        let mut ranked: Vec<(usize, f32)> = probabilities.into_iter().enumerate().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (class, probability) in ranked.into_iter().take(top) {
            let class = classifier.description.class_name(class);
            lines.push(csv_line(&[name, &class, &format!("{probability:.6}")])?);
        }
    }
    Ok(lines)
}

/// Checks what a model gives for an image.
pub(crate) fn expect_finite(scores: &[f32], image: &str) -> Result<(), CliError> {
    match scores.iter().find(|score| !score.is_finite()) {
        None => Ok(()),
        Some(score) => Err(CliError::NotAClassifier {
            problem: format!(
                "the model's scores of {image} are not finite ({score}): its training has diverged, or \
                 [normalize] in its model.toml is not what it was trained with"
            ),
        }),
    }
}

fn csv_line(fields: &[&str]) -> Result<String, CliError> {
    let failed = |source| CliError::Io { action: "encoding", path: "a row".into(), source };
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(fields).map_err(|error| failed(error.into()))?;
    let bytes = writer.into_inner().map_err(|error| failed(error.into_error()))?;
    String::from_utf8(bytes).map_err(|error| failed(std::io::Error::other(error)))
}

/// The rows of a matrix.
pub(crate) fn rows_of(matrix: Tensor<2>) -> Result<Vec<Vec<f32>>, CliError> {
    let [_, columns] = matrix.dims();
    let values: Vec<f32> = matrix
        .try_into_vec_as()
        .map_err(|error| TrainError::from(TensorError::Read { reason: format!("{error:?}") }))?;
    Ok(values.chunks(columns.max(1)).map(<[f32]>::to_vec).collect())
}
