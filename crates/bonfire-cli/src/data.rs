//! The data that a recipe names.

use crate::CliError;
use crate::registry::ModelConfig;
use bonfire_data::{
    DataError, DataLoader, ImageDataset, LoaderConfig, Padding, Split, check_classes,
};
use bonfire_nn::ImageShape;
use bonfire_trainer::config::Plan;
use bonfire_trainer::{ImageCollate, open_images};
use burn::tensor::Device;
use std::sync::Arc;

/// Loads batches of a recipe's images.
pub(crate) type Loader = DataLoader<dyn ImageDataset, ImageCollate>;

/// Training and validation data of a recipe, and what models have to know of them.
pub(crate) struct Data {
    pub(crate) train: Loader,
    pub(crate) valid: Loader,
    pub(crate) shape: ImageShape,
    pub(crate) num_classes: usize,
}

impl Data {
    /// Opens what the plan names.
    pub(crate) fn open(plan: &Plan, device: &Device) -> Result<Self, CliError> {
        let [train, valid] =
            [Split::Train, Split::Test].map(|split| open_images(&plan.data.source, split));
        let (train, valid) = (train?, valid?);
        check_classes(train.as_ref(), valid.as_ref())?;
        let shape = image_shape(train.as_ref())?;
        let num_classes = train.num_classes();
        let normalize = plan.data.normalize.map(|normalize| (normalize.mean, normalize.std));
        let collate = Arc::new(ImageCollate::new(shape, normalize, device));
        let config = LoaderConfig {
            batch_size: plan.data.batch_size,
            workers: plan.data.workers,
            seed: plan.seed,
            padding: Padding::Skip,
            ..LoaderConfig::default()
        };
        let train_config = LoaderConfig { shuffle: true, drop_last: plan.data.drop_last, ..config };
        Ok(Self {
            train: DataLoader::new(train, collate.clone(), train_config),
            valid: DataLoader::new(valid, collate, config),
            shape,
            num_classes,
        })
    }

    /// Kind, configuration and input of the model: enough to make it again.
    pub(crate) fn model_toml<C: ModelConfig>(
        &self,
        config: &C,
        plan: &Plan,
    ) -> Result<String, CliError> {
        #[derive(serde::Serialize)]
        struct Written<'a, C> {
            kind: &'a str,
            num_classes: usize,
            image: Image,
            config: &'a C,
        }
        #[derive(serde::Serialize)]
        struct Image {
            channels: usize,
            height: usize,
            width: usize,
        }
        let ImageShape { channels, height, width } = self.shape;
        let written = Written {
            kind: &plan.model.kind,
            num_classes: self.num_classes,
            image: Image { channels, height, width },
            config,
        };
        toml::to_string(&written).map_err(|error| CliError::Io {
            action: "encoding",
            path: "model.toml".into(),
            source: std::io::Error::other(error.to_string()),
        })
    }
}

/// The shape of the images that models get.
fn image_shape(images: &dyn ImageDataset) -> Result<ImageShape, CliError> {
    let Some([height, width, channels]) = images.image_shape() else {
        let message = "the images have different sizes; resize or crop them by data.transforms";
        return Err(DataError::message(message).into());
    };
    Ok(ImageShape { channels, height, width })
}
