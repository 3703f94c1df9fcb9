//! Data sets of a program's own, which recipes name by `data.kind`.

use bonfire_data::{DataError, ImageDataset, Split};
use bonfire_trainer::config::{ConfigError, DataSource, RunConfig};
use bonfire_trainer::open_images;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The keys of `[data.options]` and how to open the data set from them.
pub trait DataConfig: DeserializeOwned + Send + Sync + 'static {
    /// Opens one split; `path` is `data.path` of the recipe.
    ///
    /// Every rank opens both splits for itself. Samples must have the same order on all of them:
    /// before the first step ranks compare [`digest`](bonfire_data::Dataset::digest)s.
    ///
    /// # Errors
    /// [`DataError`], for instance [`DataError::message`], saying what is wrong with which key or file.
    fn open(&self, path: Option<&Path>, split: Split) -> Result<Arc<dyn ImageDataset>, DataError>;
}

/// Opens the splits of the data set that a recipe names.
#[derive(Clone)]
pub(crate) struct Images {
    source: DataSource,
    own: Option<Arc<dyn OwnData>>,
}

impl Images {
    /// Opens one split.
    pub(crate) fn open(&self, split: Split) -> Result<Arc<dyn ImageDataset>, DataError> {
        match &self.own {
            Some(own) => own.open(split),
            None => open_images(&self.source, split),
        }
    }
}

/// The kinds that a program adds.
#[derive(Clone, Default)]
pub(crate) struct OwnKinds {
    kinds: BTreeMap<String, Parse>,
}

/// Reads the keys of a recipe.
type Parse = fn(&RunConfig) -> Result<Arc<dyn OwnData>, ConfigError>;

/// A data set whose keys are read, with its type forgotten.
trait OwnData: Send + Sync {
    fn open(&self, split: Split) -> Result<Arc<dyn ImageDataset>, DataError>;
}

struct Parsed<C> {
    config: C,
    path: Option<PathBuf>,
}

impl<C: DataConfig> OwnData for Parsed<C> {
    fn open(&self, split: Split) -> Result<Arc<dyn ImageDataset>, DataError> {
        self.config.open(self.path.as_deref(), split)
    }
}

impl OwnKinds {
    /// Adds a kind under a name, in place of one of that name.
    pub(crate) fn add<C: DataConfig>(&mut self, kind: &str) {
        self.kinds.insert(kind.to_owned(), |config| {
            let path = config.data.path.clone();
            Ok(Arc::new(Parsed { config: config.parse_data::<C>()?, path }))
        });
    }

    /// Finds what a recipe names, and checks its keys.
    pub(crate) fn images(
        &self,
        config: &RunConfig,
        source: &DataSource,
    ) -> Result<Images, ConfigError> {
        let own = match source {
            DataSource::Own { kind, .. } => match self.kinds.get(kind) {
                Some(parse) => Some(parse(config)?),
                None => {
                    let own: Vec<&str> = self.kinds.keys().map(String::as_str).collect();
                    return Err(ConfigError::new(config.unknown_data_kind(kind, &own)));
                }
            },
            _ => None,
        };
        Ok(Images { source: source.clone(), own })
    }
}
