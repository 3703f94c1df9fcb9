use crate::config::{DataKind, DataPlan};
use bonfire_data::{DataError, IdxImages, ImageDataset, Split};
use std::sync::Arc;

/// Opens one part of the data set that a recipe names.
///
/// # Errors
/// [`DataError`] naming the file or folder at fault.
pub fn open_images(data: &DataPlan, split: Split) -> Result<Arc<dyn ImageDataset>, DataError> {
    Ok(match data.kind {
        DataKind::Idx => Arc::new(IdxImages::open_folder(&data.path, split)?),
    })
}
