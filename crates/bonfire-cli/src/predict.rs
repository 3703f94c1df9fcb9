//! `bonfire predict`: the classes of pictures.

use crate::CliError;
use crate::args::PredictArgs;
use crate::classifier::Classifier;
use crate::exit::Outcome;
use crate::pictures::{self, Picture};
use crate::registry::Registry;
use bonfire_data::{Collate, ImageSample};
use bonfire_nn::softmax;
use bonfire_tensor::TensorError;
use bonfire_trainer::{TrainError, limit_threads};
use burn::tensor::Tensor;
use std::io;

/// Prints the likeliest classes of every picture as CSV.
pub(crate) fn predict(registry: &Registry, args: &PredictArgs) -> Result<Outcome, CliError> {
    limit_threads(1);
    let classifier = Classifier::open(registry, &args.model, args.variant.as_deref())?;
    let pictures = pictures::find(&args.paths)?;
    let mut table = csv::Writer::from_writer(io::stdout().lock());
    let mut rows = vec![["path", "class", "probability"].map(str::to_string)];
    for chunk in pictures.chunks(args.batch_size.max(1)) {
        rows.extend(classify(&classifier, chunk, args.top)?);
        for row in rows.drain(..) {
            // Nobody reads on: that is how `head` ends a program.
            if table.write_record(row).and_then(|()| Ok(table.flush()?)).is_err() {
                return Ok(Outcome::Done);
            }
        }
    }
    Ok(Outcome::Done)
}

/// The rows of a few pictures, `top` for each.
fn classify(
    classifier: &Classifier,
    pictures: &[Picture],
    top: usize,
) -> Result<Vec<[String; 3]>, CliError> {
    let shape = classifier.description.image_shape();
    // The class is not known: any will do, since scores do not depend on it.
    let transforms = classifier.transforms()?;
    let sample =
        |picture: &Picture| Ok(ImageSample { image: picture.read(shape, &transforms)?, label: 0 });
    let samples: Result<Vec<_>, CliError> = pictures.iter().map(sample).collect();
    let batch = classifier.collate()?.collate(samples?)?;
    let Some(scores) = classifier.model.scores(&batch) else {
        let kind = &classifier.description.kind;
        let problem = format!("a model of kind \"{kind}\" gives no scores of classes");
        return Err(CliError::NotAClassifier { problem });
    };
    let probabilities = rows_of(softmax(scores, 1))?;
    let rows = pictures.iter().zip(probabilities).flat_map(|(picture, probabilities)| {
        let mut ranked: Vec<(usize, f32)> = probabilities.into_iter().enumerate().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        let name = picture.name();
        ranked.into_iter().take(top).map(move |(class, probability)| {
            [name.clone(), classifier.description.class_name(class), format!("{probability:.6}")]
        })
    });
    Ok(rows.collect())
}

/// The rows of a matrix.
pub(crate) fn rows_of(matrix: Tensor<2>) -> Result<Vec<Vec<f32>>, CliError> {
    let [_, columns] = matrix.dims();
    let values: Vec<f32> = matrix
        .try_into_vec_as()
        .map_err(|error| TrainError::from(TensorError::Read { reason: format!("{error:?}") }))?;
    Ok(values.chunks(columns.max(1)).map(<[f32]>::to_vec).collect())
}
