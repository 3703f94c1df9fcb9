//! From what a recipe names to images.

use crate::config::{CifarLabel, DataSource};
use bonfire_data::{
    Cifar, CifarImages, DataError, IdxImages, ImageDataset, ImageFiles, Split, SyntheticImages,
};
use std::sync::Arc;

/// Opens one split of the data set that a recipe names.
///
/// # Errors
/// [`DataError`] naming the file or folder at fault, or the kind, when only the program can open it
/// ([`DataSource::Own`]).
pub fn open_images(source: &DataSource, split: Split) -> Result<Arc<dyn ImageDataset>, DataError> {
    Ok(match source {
        DataSource::Idx { folder } => Arc::new(IdxImages::open_folder(folder, split)?),
        DataSource::Cifar10 { folder } => {
            Arc::new(CifarImages::open_folder(folder, Cifar::Ten, split)?)
        }
        DataSource::Cifar100 { folder, label } => {
            let cifar = match label {
                CifarLabel::Fine => Cifar::HundredFine,
                CifarLabel::Coarse => Cifar::HundredCoarse,
            };
            Arc::new(CifarImages::open_folder(folder, cifar, split)?)
        }
        DataSource::Folder { folder, train, valid, options } => {
            let names = [Some(train.as_str()), valid.as_deref()];
            Arc::new(ImageFiles::open_folder(folder, split, names, *options)?)
        }
        DataSource::Csv { folder, train, valid, options } => {
            let (train, valid) = (folder.join(train), folder.join(valid));
            Arc::new(ImageFiles::open_list(train, valid, split, *options)?)
        }
        &DataSource::Synthetic { num_samples, image, num_classes } => {
            let num_samples = match split {
                Split::Train => num_samples,
                Split::Test => num_samples.div_ceil(5),
            };
            Arc::new(SyntheticImages::new(num_samples, image, num_classes, split)?)
        }
        DataSource::Own { kind, .. } => {
            let message = format!("data.kind = \"{kind}\" is none of the data sets of Bonfire");
            return Err(DataError::message(message));
        }
    })
}
