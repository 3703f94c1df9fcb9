//! Images for validation that come without the training split whose classes theirs would be.

use bonfire_data::{DataError, ImageDataset, ImageFiles, Split, VALID_FOLDERS, holds_classes};
use bonfire_trainer::config::DataSource;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where such images are.
pub(crate) struct Untrained<'a> {
    source: &'a DataSource,
    /// The folder of classes, or the list.
    home: PathBuf,
    /// Whether that is the whole data set, which then has no splits.
    pub(crate) whole: bool,
}

impl<'a> Untrained<'a> {
    /// Finds them; `None` where there is a training split, or where labels need none.
    pub(crate) fn find(source: &'a DataSource) -> Option<Self> {
        match source {
            DataSource::Folder { folder, train, valid, .. } if !folder.join(train).is_dir() => {
                let named = valid.as_deref().map_or(VALID_FOLDERS.to_vec(), |valid| vec![valid]);
                let mut homes = named.into_iter().map(|name| folder.join(name));
                match homes.find(|home| home.is_dir()) {
                    Some(home) => Some(Self { source, home, whole: false }),
                    None if holds_classes(folder) => {
                        Some(Self { source, home: folder.clone(), whole: true })
                    }
                    None => None,
                }
            }
            DataSource::Csv { folder, train, valid, .. } => {
                let home = folder.join(valid);
                let alone = !folder.join(train).exists() && home.exists();
                alone.then_some(Self { source, home, whole: false })
            }
            _ => None,
        }
    }

    /// Opens them. Labels are places among `classes`, or else those that follow from the images; a list
    /// of paths has its own always.
    pub(crate) fn open(
        &self,
        classes: Option<&[String]>,
    ) -> Result<Arc<dyn ImageDataset>, DataError> {
        let home: &Path = &self.home;
        Ok(match self.source {
            DataSource::Csv { options, .. } => {
                Arc::new(ImageFiles::open_list(home, home, Split::Test, *options)?)
            }
            DataSource::Folder { options, .. } => {
                Arc::new(ImageFiles::open_classes(home, classes, Split::Test, *options)?)
            }
            other => bonfire_trainer::open_images(other, Split::Test)?,
        })
    }
}
