//! A trained model on the disk: its tensors, and what it takes to apply them.

use crate::CliError;
use bonfire_data::MIN_CLASSES;
use bonfire_nn::ImageShape;
use bonfire_tensor::state::HostTensor;
use bonfire_trainer::TrainError;
use bonfire_trainer::checkpoint::read_safetensors;
use bonfire_trainer::config::{
    ConfigError, LONGEST_EDGE, Normalize, OptimizerKind, Plan, Problem, RunConfig, TransformsPlan,
    ValidTransformsSection,
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
    pub(crate) fn transforms(&self) -> Result<TransformsPlan, ConfigError> {
        Ok(self.plan()?.data.valid_transforms)
    }

    /// Resolves the keys that recipes have too, by the checks of recipes.
    fn plan(&self) -> Result<Plan, ConfigError> {
        // A recipe needs data and an optimizer too, of which nothing is used.
        let mut config = RunConfig::default();
        config.model.kind = Some(self.kind.clone());
        config.data.path = Some(PathBuf::from("."));
        config.data.normalize = self.normalize.clone();
        config.data.valid_transforms = self.valid_transforms.clone();
        config.optimizer.kind = Some(OptimizerKind::Sgd);
        Plan::resolve(&config, 1)
    }

    /// Everything that is wrong with the values, a line each.
    fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut check = |ok: bool, problem: String| found.extend((!ok).then_some(problem));
        let (names, classes) = (self.class_names.len(), self.num_classes);
        check(
            classes >= MIN_CLASSES,
            format!("num_classes = {classes}: must be at least {MIN_CLASSES}"),
        );
        check(
            names == 0 || names == classes,
            format!(
                "class_names has {names} names for num_classes = {classes}; name all classes or none"
            ),
        );
        let ImageSection { channels, height, width } = self.image;
        for (key, edge) in [("channels", channels), ("height", height), ("width", width)] {
            let ok = (1..=LONGEST_EDGE).contains(&edge);
            check(ok, format!("image.{key} = {edge}: must be from 1 to {LONGEST_EDGE}"));
        }
        if let Some(Normalize { mean, std }) = &self.normalize {
            for (key, values) in [("mean", mean), ("std", std)] {
                let given = values.as_slice().len();
                check(
                    given <= 1 || given == channels,
                    format!(
                        "normalize.{key} has {given} numbers for images of {channels} channels; give one, or \
                         one for each channel"
                    ),
                );
            }
        }
        let of_recipes = self.plan().err().map(|error| error.problems).unwrap_or_default();
        found.extend(of_recipes.iter().map(in_model_toml));
        found
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
        match read.problems().as_slice() {
            [] => Ok(read),
            problems => Err(refuse(problems.join("\n"))),
        }
    }
}

/// Names the description in errors of its model, which know only a recipe.
pub(crate) fn of_description(path: &Path) -> impl Fn(CliError) -> CliError + use<'_> {
    let refuse = |problem| CliError::ModelFile { path: path.to_path_buf(), problem };
    move |error| match error {
        CliError::Config(ConfigError { problems, .. }) => {
            refuse(problems.iter().map(in_model_toml).collect::<Vec<_>>().join("\n"))
        }
        CliError::Model(error) => {
            refuse(format!("config.{} = {}: {}", error.key, error.value, error.remedy))
        }
        other => other,
    }
}

/// A problem of a recipe's key by the key that it has in a description.
fn in_model_toml(problem: &Problem) -> String {
    let key = match problem.key.split_once('.') {
        Some(("model", "kind")) => "kind".to_string(),
        Some(("model", rest)) => format!("config.{rest}"),
        Some(("data", rest)) => rest.to_string(),
        _ => problem.key.clone(),
    };
    problem.message.replace(&problem.key, &key)
}

/// The tensors of a model, by module path.
pub(crate) struct ModelTensors {
    /// The file that they come from.
    pub(crate) path: PathBuf,
    pub(crate) tensors: BTreeMap<String, HostTensor>,
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

    /// The file that describes the model.
    pub(crate) fn description_file(&self) -> PathBuf {
        self.path.join(DESCRIPTION)
    }

    /// Reads the tensors of the model, or of one of its averages.
    pub(crate) fn tensors(&self, variant: Option<&str>) -> Result<ModelTensors, CliError> {
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
        let tensors = read_safetensors(&path).map_err(TrainError::from)?;
        Ok(ModelTensors { path, tensors })
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
