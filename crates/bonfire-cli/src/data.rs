//! The data that a recipe names.

use crate::CliError;
use crate::registry::ModelConfig;
use bonfire_data::{
    DataError, DataLoader, ImageDataset, LoaderConfig, Padding, Split, Transformed, check_classes,
};
use bonfire_nn::ImageShape;
use bonfire_trainer::config::{Normalize, Plan, TransformsPlan};
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
        let train = transformed(train?, &plan.data.transforms, plan);
        let valid = transformed(valid?, &plan.data.valid_transforms, plan);
        let shape = image_shape("training", "data.transforms", train.as_ref())?;
        check_alike(shape, image_shape("validation", "data.valid_transforms", valid.as_ref())?)?;
        let num_classes = train.num_classes();
        let mut collate = ImageCollate::new(shape, None, device);
        if let Some(Normalize { mean, std }) = &plan.data.normalize {
            collate = collate.with_normalization(mean.as_slice(), std.as_slice())?;
        }
        let train_collate = match plan.data.transforms.mix {
            Some(mix) => collate.clone().with_mix(mix),
            None => collate.clone(),
        };
        let config = LoaderConfig {
            batch_size: plan.data.batch_size,
            workers: plan.data.workers,
            prefetch_factor: plan.data.prefetch_factor,
            seed: plan.seed,
            padding: Padding::Skip,
            ..LoaderConfig::default()
        };
        let train_config = LoaderConfig { shuffle: true, drop_last: plan.data.drop_last, ..config };
        Ok(Self {
            train: DataLoader::new(train, Arc::new(train_collate), train_config),
            valid: DataLoader::new(valid, Arc::new(collate), config),
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

/// The images after a recipe's transforms.
fn transformed(
    images: Arc<dyn ImageDataset>,
    transforms: &TransformsPlan,
    plan: &Plan,
) -> Arc<dyn ImageDataset> {
    let transforms = transforms.transforms(plan.data.normalize.as_ref());
    Arc::new(Transformed::new(images, transforms))
}

/// The shape of the images that models get.
fn image_shape(
    split: &str,
    section: &str,
    images: &dyn ImageDataset,
) -> Result<ImageShape, CliError> {
    let Some([height, width, channels]) = images.image_shape() else {
        let message =
            format!("the {split} images have different sizes: resize or crop them in {section}");
        return Err(DataError::message(message).into());
    };
    Ok(ImageShape { channels, height, width })
}

/// Checks that a model can take the images of both splits.
fn check_alike(train: ImageShape, valid: ImageShape) -> Result<(), CliError> {
    if train == valid {
        return Ok(());
    }
    let words = |shape: ImageShape| {
        let ImageShape { channels, height, width } = shape;
        format!("{height} rows, {width} columns and {channels} channels")
    };
    let message = format!(
        "training images have {}, validation images {}: bring them to the same size in \
         data.transforms and data.valid_transforms",
        words(train),
        words(valid)
    );
    Err(DataError::message(message).into())
}
