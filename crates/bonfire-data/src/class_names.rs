//! Names of classes, and the labels that follow from them.

use std::path::Path;

use crate::{DataError, ImageDataset, ImageSetProblem};

/// The fewest classes that a classifier can learn to tell apart.
pub const MIN_CLASSES: usize = 2;

/// Checks that there is something to tell apart.
pub(crate) fn check(path: &Path, names: &[String]) -> Result<(), DataError> {
    if names.len() >= MIN_CLASSES {
        return Ok(());
    }
    let (num_classes, names) = (names.len(), names.to_vec());
    Err(DataError::image_set(path, ImageSetProblem::TooFewClasses { num_classes, names }))
}

/// Returns the label of a class, which is its place among the names, or says that there is none.
pub(crate) fn label(name: &str, names: &[String]) -> Result<u32, ImageSetProblem> {
    let place = names.iter().position(|known| known == name);
    place.and_then(|place| u32::try_from(place).ok()).ok_or_else(|| ImageSetProblem::UnknownClass {
        name: name.to_owned(),
        known: names.to_vec(),
    })
}

/// Checks that a classifier can be trained on `train` and validated on `valid`: that there are at
/// least [`MIN_CLASSES`] classes, and that validation has no others.
///
/// # Errors
/// [`DataError::Classes`].
pub fn check_classes(train: &dyn ImageDataset, valid: &dyn ImageDataset) -> Result<(), DataError> {
    let (train, valid) = (train.num_classes(), valid.num_classes());
    match train >= MIN_CLASSES && valid <= train {
        true => Ok(()),
        false => Err(DataError::Classes { train, valid }),
    }
}
