use crate::CliError;
use crate::exit::Outcome;
use crate::survey::Survey;
use crate::worker::{Rank, survey_model, train_model};
use bonfire_models::{LeNetConfig, MlpConfig, ModelError, ResNetConfig};
use bonfire_nn::ImageShape;
use bonfire_trainer::config::{ConfigError, Plan, RunConfig};
use bonfire_trainer::{ImageBatch, Learnable};
use burn::tensor::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
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
}

macro_rules! builtin {
    ($config:ty, $model:ty) => {
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
        }
    };
}

builtin!(MlpConfig, bonfire_models::Mlp);
builtin!(LeNetConfig, bonfire_models::LeNet);
builtin!(ResNetConfig, bonfire_models::ResNet);

/// The models that recipes can name by `model.kind`.
#[derive(Clone, Default)]
pub struct Registry {
    kinds: BTreeMap<String, Arc<dyn ModelKind>>,
}

/// A model configuration with its type forgotten.
pub(crate) trait ModelKind: Send + Sync {
    /// Checks the model's keys.
    fn check(&self, config: &RunConfig) -> Result<(), ConfigError>;

    /// Opens the data, makes the model, and checks the recipe against both.
    fn survey(&self, config: &RunConfig, plan: &Plan) -> Result<Survey, CliError>;

    /// Trains the model as one rank.
    fn train(&self, config: &RunConfig, plan: &Plan, rank: Rank<'_>) -> Result<Outcome, CliError>;
}

struct Kind<C>(std::marker::PhantomData<fn() -> C>);

impl<C: ModelConfig> ModelKind for Kind<C> {
    fn check(&self, config: &RunConfig) -> Result<(), ConfigError> {
        config.parse_model::<C>().map(drop)
    }

    fn survey(&self, config: &RunConfig, plan: &Plan) -> Result<Survey, CliError> {
        survey_model(&config.parse_model::<C>()?, config, plan)
    }

    fn train(&self, config: &RunConfig, plan: &Plan, rank: Rank<'_>) -> Result<Outcome, CliError> {
        train_model(&config.parse_model::<C>()?, config, plan, rank)
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

    /// Finds the model that a recipe names, and checks its keys.
    pub(crate) fn resolve(
        &self,
        config: &RunConfig,
        plan: &Plan,
    ) -> Result<Arc<dyn ModelKind>, ConfigError> {
        let Some(kind) = self.kinds.get(&plan.model.kind) else {
            let known: Vec<String> = self.kinds.keys().map(|kind| format!("\"{kind}\"")).collect();
            let message = format!(
                "model.kind = \"{}\": no such model; known are {}",
                plan.model.kind,
                known.join(", ")
            );
            return Err(ConfigError::new(config.problem("model.kind", message)));
        };
        kind.check(config)?;
        Ok(kind.clone())
    }
}
