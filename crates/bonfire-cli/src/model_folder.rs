//! A trained model on the disk: its tensors, and what it takes to apply them.

use crate::CliError;
use bonfire_nn::ImageShape;
use bonfire_tensor::state::HostTensor;
use bonfire_trainer::TrainError;
use bonfire_trainer::checkpoint::read_safetensors;
use bonfire_trainer::config::{
    Normalize, OptimizerKind, Plan, RunConfig, TransformsPlan, ValidTransformsSection,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file that describes a model.
pub(crate) const DESCRIPTION: &str = "model.toml";

/// The content of `model.toml`: enough to make the model again and to apply it to an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelDescription {
    /// Name of the model in the registry.
    pub(crate) kind: String,
    pub(crate) num_classes: usize,
    /// In the order of the scores; empty where they have no names.
    #[serde(default)]
    pub(crate) class_names: Vec<String>,
    /// What the pixels in 0..1 become before the model sees them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) normalize: Option<Normalize>,
    /// What becomes of an image before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) valid_transforms: Option<ValidTransformsSection>,
    pub(crate) image: ImageSection,
    /// The model's own keys.
    #[serde(default)]
    pub(crate) config: toml::Table,
}

/// The shape of an image as the model gets it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageSection {
    channels: usize,
    height: usize,
    width: usize,
}

impl From<ImageShape> for ImageSection {
    fn from(ImageShape { channels, height, width }: ImageShape) -> Self {
        Self { channels, height, width }
    }
}

impl ModelDescription {
    pub(crate) fn image_shape(&self) -> ImageShape {
        let ImageSection { channels, height, width } = self.image;
        ImageShape { channels, height, width }
    }

    /// What becomes of an image that the model is applied to.
    pub(crate) fn transforms(&self) -> Result<TransformsPlan, CliError> {
        // A recipe needs data, a model and an optimizer too, of which nothing is used.
        let mut config = RunConfig::default();
        config.model.kind = Some(self.kind.clone());
        config.data.path = Some(PathBuf::from("."));
        config.data.valid_transforms = self.valid_transforms.clone();
        config.optimizer.kind = Some(OptimizerKind::Sgd);
        Ok(Plan::resolve(&config, 1)?.data.valid_transforms)
    }

    /// The name of a class, or its number where it has none.
    pub(crate) fn class_name(&self, class: usize) -> String {
        self.class_names.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    pub(crate) fn to_toml(&self) -> Result<String, CliError> {
        toml::to_string(self).map_err(|error| CliError::Io {
            action: "encoding",
            path: DESCRIPTION.into(),
            source: std::io::Error::other(error.to_string()),
        })
    }

    /// Reads a description, strictly.
    pub(crate) fn load(path: &Path) -> Result<Self, CliError> {
        let refuse = |problem| CliError::ModelFile { path: path.to_path_buf(), problem };
        let text = std::fs::read_to_string(path).map_err(|source| CliError::Io {
            action: "reading",
            path: path.to_path_buf(),
            source,
        })?;
        let read: Self =
            toml::from_str(&text).map_err(|error| refuse(error.to_string().trim().to_string()))?;
        let (names, classes) = (read.class_names.len(), read.num_classes);
        if names != 0 && names != classes {
            return Err(refuse(format!(
                "class_names has {names} names for num_classes = {classes}; name all classes or none"
            )));
        }
        Ok(read)
    }
}

/// A folder with a model in it: that of a run, or one that `bonfire weights import` has made.
pub(crate) struct ModelFolder {
    path: PathBuf,
    pub(crate) description: ModelDescription,
}

impl ModelFolder {
    pub(crate) fn open(path: &Path) -> Result<Self, CliError> {
        let file = path.join(DESCRIPTION);
        if !file.is_file() {
            let problem = format!(
                "there is no {DESCRIPTION}; give the folder of a finished run, or one that `bonfire weights \
                 import` has made"
            );
            return Err(CliError::ModelFile { path: path.to_path_buf(), problem });
        }
        Ok(Self { path: path.to_path_buf(), description: ModelDescription::load(&file)? })
    }

    /// Reads the tensors of the model, or of one of its averages.
    pub(crate) fn tensors(
        &self,
        variant: Option<&str>,
    ) -> Result<BTreeMap<String, HostTensor>, CliError> {
        let name = variant.map_or_else(
            || "model.safetensors".to_string(),
            |variant| format!("model_{variant}.safetensors"),
        );
        let path = self.path.join(name);
        if let Some(variant) = variant
            && !path.is_file()
        {
            let problem = match self.variants().as_slice() {
                [] => "it has no averages; leave --variant out".to_string(),
                known => format!("it has no variant \"{variant}\"; known are {}", known.join(", ")),
            };
            return Err(CliError::ModelFile { path: self.path.clone(), problem });
        }
        Ok(read_safetensors(&path).map_err(TrainError::from)?)
    }

    fn variants(&self) -> Vec<String> {
        let files = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let variant = |name: String| {
            let name = name.strip_prefix("model_")?.strip_suffix(".safetensors")?;
            Some(name.to_string())
        };
        let mut variants: Vec<String> = names.filter_map(variant).collect();
        variants.sort();
        variants
    }
}
