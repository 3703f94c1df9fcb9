use crate::classifier::TrainedModel;
use crate::exit::Outcome;
use crate::model_folder::{ModelDescription, ModelTensors};
use crate::own_data::{DataConfig, Images, OwnKinds};
use crate::survey::Survey;
use crate::worker::{Rank, survey_model, train_model};
use crate::{CliError, classifier, lr_find, weights};
use bonfire_models::resnet::torchvision_tensor;
use bonfire_models::{LeNetConfig, MlpConfig, ModelError, ResNetConfig};
use bonfire_nn::ImageShape;
use bonfire_trainer::config::{ConfigError, DataSource, ModelKeys, Plan, RunConfig};
use bonfire_trainer::weights::{Head, WeightNames};
use bonfire_trainer::{ImageBatch, Learnable, LrCurve, LrFinder};
use burn::tensor::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The keys of a `[model]` section and how to make the model from them.
pub trait ModelConfig: Serialize + DeserializeOwned + 'static {
    /// The model.
    type Model: Learnable<Batch = ImageBatch> + 'static;

    /// Makes the model for images of a shape and a number of classes, on a device with autodiff.
    ///
    /// # Errors
    /// [`ModelError`] naming the key at fault.
    fn init(
        &self,
        image: ImageShape,
        num_classes: usize,
        device: &Device,
    ) -> Result<Self::Model, ModelError>;

    /// Describes the keys, for `bonfire config reference` and `bonfire config schema`:
    /// `Some(ModelKeys::of::<Self>(kind))` where they derive `schemars::JsonSchema`. By default nothing is
    /// known of them.
    fn describe_keys(_kind: &str) -> Option<ModelKeys> {
        None
    }

    /// Says how the model's tensors are called elsewhere: needed to begin with PyTorch's weights or to
    /// keep a new head. By default, nothing is known but their module paths.
    fn weight_names(&self) -> WeightNames {
        WeightNames::default()
    }
}

macro_rules! builtin {
    ($config:ty, $model:ty, $names:expr) => {
        impl ModelConfig for $config {
            type Model = $model;

            fn init(
                &self,
                image: ImageShape,
                num_classes: usize,
                device: &Device,
            ) -> Result<Self::Model, ModelError> {
                <$config>::init(self, image, num_classes, device)
            }

            fn describe_keys(kind: &str) -> Option<ModelKeys> {
                Some(ModelKeys::of::<Self>(kind))
            }

            fn weight_names(&self) -> WeightNames {
                $names(self)
            }
        }
    };
}

builtin!(MlpConfig, bonfire_models::Mlp, |mlp: &MlpConfig| {
    WeightNames::default().with_head(format!("layers.{}", mlp.hidden.len()))
});
builtin!(LeNetConfig, bonfire_models::LeNet, |_| WeightNames::default().with_head("fc2"));
builtin!(ResNetConfig, bonfire_models::ResNet, |_| {
    WeightNames::default().with_head("fc").with_pytorch(torchvision_tensor)
});

/// The models that recipes can name by `model.kind`, and the data sets of a program's own that they can
/// name by `data.kind`.
#[derive(Clone, Default)]
pub struct Registry {
    kinds: BTreeMap<String, Arc<dyn ModelKind>>,
    data: OwnKinds,
}

/// A model configuration with its type forgotten.
pub(crate) trait ModelKind: Send + Sync {
    /// Checks the model's keys.
    fn check(&self, config: &RunConfig) -> Result<(), ConfigError>;

    /// Describes them.
    fn keys(&self, kind: &str) -> ModelKeys;

    /// Opens the data, makes the model, and checks the recipe against both.
    fn survey(&self, config: &RunConfig, plan: &Plan, images: &Images) -> Result<Survey, CliError>;

    /// Trains the model with rising learning rates.
    fn find_lr(
        &self,
        config: &RunConfig,
        plan: &Plan,
        images: &Images,
        finder: &LrFinder,
    ) -> Result<LrCurve, CliError>;

    /// Trains the model as one rank.
    fn train(&self, config: &RunConfig, plan: &Plan, rank: Rank<'_>) -> Result<Outcome, CliError>;

    /// Makes a trained model again.
    fn restore(
        &self,
        description: &ModelDescription,
        tensors: ModelTensors,
    ) -> Result<Box<dyn TrainedModel>, CliError>;

    /// Makes a model folder of a file of weights.
    fn import(
        &self,
        description: &ModelDescription,
        file: &Path,
        head: Head,
        out: &Path,
    ) -> Result<(), CliError>;

    /// Writes the tensors of a model under PyTorch's names.
    fn export(
        &self,
        description: &ModelDescription,
        tensors: ModelTensors,
        out: &Path,
    ) -> Result<(), CliError>;
}

struct Kind<C>(std::marker::PhantomData<fn() -> C>);

impl<C: ModelConfig> ModelKind for Kind<C> {
    fn check(&self, config: &RunConfig) -> Result<(), ConfigError> {
        config.parse_model::<C>().map(drop)
    }

    fn keys(&self, kind: &str) -> ModelKeys {
        C::describe_keys(kind).unwrap_or_else(|| ModelKeys::unknown(kind))
    }

    fn survey(&self, config: &RunConfig, plan: &Plan, images: &Images) -> Result<Survey, CliError> {
        survey_model(&config.parse_model::<C>()?, config, plan, images)
    }

    fn find_lr(
        &self,
        config: &RunConfig,
        plan: &Plan,
        images: &Images,
        finder: &LrFinder,
    ) -> Result<LrCurve, CliError> {
        lr_find::find_with(&config.parse_model::<C>()?, plan, images, finder)
    }

    fn train(&self, config: &RunConfig, plan: &Plan, rank: Rank<'_>) -> Result<Outcome, CliError> {
        train_model(&config.parse_model::<C>()?, config, plan, rank)
    }

    fn restore(
        &self,
        description: &ModelDescription,
        tensors: ModelTensors,
    ) -> Result<Box<dyn TrainedModel>, CliError> {
        classifier::restore::<C>(description, tensors)
    }

    fn import(
        &self,
        description: &ModelDescription,
        file: &Path,
        head: Head,
        out: &Path,
    ) -> Result<(), CliError> {
        weights::import_model::<C>(description, file, head, out)
    }

    fn export(
        &self,
        description: &ModelDescription,
        tensors: ModelTensors,
        out: &Path,
    ) -> Result<(), CliError> {
        weights::export_model::<C>(description, tensors, out)
    }
}

impl Registry {
    /// Makes a registry without models.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Makes a registry of the models that come with Bonfire: `mlp`, `lenet` and `resnet`.
    pub fn builtin() -> Self {
        Self::empty()
            .with_model::<MlpConfig>("mlp")
            .with_model::<LeNetConfig>("lenet")
            .with_model::<ResNetConfig>("resnet")
    }

    /// Adds a model under a name, in place of one of that name.
    pub fn with_model<C: ModelConfig>(mut self, kind: &str) -> Self {
        self.kinds.insert(kind.to_string(), Arc::new(Kind::<C>(std::marker::PhantomData)));
        self
    }

    /// Adds a data set under a name, in place of one of that name. The names of Bonfire's own kinds
    /// (`idx`, `folder`, ...) stay with them.
    pub fn with_data<C: DataConfig>(mut self, kind: &str) -> Self {
        self.data.add::<C>(kind);
        self
    }

    /// Finds the data set that a recipe names, and checks its keys.
    pub(crate) fn images(
        &self,
        config: &RunConfig,
        source: &DataSource,
    ) -> Result<Images, ConfigError> {
        self.data.images(config, source)
    }

    /// Finds the model that a recipe names, if it names one, and checks its keys.
    pub(crate) fn resolve(
        &self,
        config: &RunConfig,
    ) -> Result<Option<Arc<dyn ModelKind>>, ConfigError> {
        let Some(kind) = &config.model.kind else { return Ok(None) };
        let kind = self.find(config, kind)?;
        kind.check(config)?;
        Ok(Some(kind))
    }

    /// The keys of every model, as far as they are known.
    pub(crate) fn model_keys(&self) -> Vec<ModelKeys> {
        self.kinds.iter().map(|(name, kind)| kind.keys(name)).collect()
    }

    /// Finds the model that a model folder names.
    pub(crate) fn kind(&self, kind: &str) -> Result<Arc<dyn ModelKind>, ConfigError> {
        self.find(&RunConfig::default(), kind)
    }

    fn find(&self, config: &RunConfig, kind: &str) -> Result<Arc<dyn ModelKind>, ConfigError> {
        self.kinds.get(kind).cloned().ok_or_else(|| {
            let known: Vec<String> = self.kinds.keys().map(|kind| format!("\"{kind}\"")).collect();
            let known = known.join(", ");
            let message = format!("model.kind = \"{kind}\": no such model; known are {known}");
            ConfigError::new(config.problem("model.kind", message))
        })
    }
}
