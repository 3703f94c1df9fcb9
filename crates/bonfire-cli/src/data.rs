//! The data that a recipe names.

use crate::CliError;
use crate::model_folder::ModelDescription;
use crate::own_data::Images;
use crate::registry::ModelConfig;
use crate::weights::keys_of;
use bonfire_data::{
    DataError, DataLoader, ImageDataset, LoaderConfig, Padding, Shard, Split, Transformed,
    check_classes,
};
use bonfire_nn::ImageShape;
use bonfire_trainer::ImageCollate;
use bonfire_trainer::config::{BatchLimit, Normalize, Plan, TransformsPlan};
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
    pub(crate) fn open(plan: &Plan, images: &Images, device: &Device) -> Result<Self, CliError> {
        let (train, valid) = match [Split::Train, Split::Test].map(|split| images.open(split)) {
            [Ok(train), Ok(valid)] => (train, valid),
            [Err(train), Err(valid)] => return Err(both(train, valid).into()),
            [Err(error), _] | [_, Err(error)] => return Err(error.into()),
        };
        check_classes(train.as_ref(), valid.as_ref())?;
        let normalize = plan.data.normalize.as_ref();
        // What is learnt by heart is seen as it is.
        let (valid, transforms) = match plan.train.overfit_batches {
            Some(_) => (train.clone(), &plan.data.valid_transforms),
            None => (valid, &plan.data.transforms),
        };
        let train = transformed(train, transforms, normalize);
        let valid = transformed(valid, &plan.data.valid_transforms, normalize);
        let shape = image_shape("training", "data.transforms", &train)?;
        check_alike(shape, image_shape("validation", "data.valid_transforms", &valid)?)?;
        let num_classes = train.num_classes();
        let (train, valid): (Arc<dyn ImageDataset>, Arc<dyn ImageDataset>) = (train, valid);
        let collate = collate(shape, normalize, device)?;
        let overfits = plan.train.overfit_batches.is_some();
        let train_collate = match plan.data.transforms.mix {
            Some(mix) if !overfits => collate.clone().with_mix(mix),
            _ => collate.clone(),
        };
        let config = LoaderConfig {
            batch_size: plan.data.batch_size,
            workers: plan.data.workers,
            prefetch_factor: plan.data.prefetch_factor,
            timeout: plan.data.timeout,
            seed: plan.seed,
            padding: Padding::Skip,
            ..LoaderConfig::default()
        };
        let drop_last = plan.data.drop_last;
        let train_config = LoaderConfig { shuffle: !overfits, drop_last, ..config };
        let train_limit = plan.train.overfit_batches.or(plan.train.limit_train_batches);
        let valid_limit = plan.train.overfit_batches.or(plan.train.limit_val_batches);
        let train = DataLoader::new(train, Arc::new(train_collate), train_config);
        let valid = DataLoader::new(valid, Arc::new(collate), config);
        Ok(Self {
            train: limited(train, train_limit, plan.world_size),
            valid: limited(valid, valid_limit, plan.world_size),
            shape,
            num_classes,
        })
    }

    /// What it takes to make the model again, and to apply it.
    pub(crate) fn describe<C: ModelConfig>(
        &self,
        config: &C,
        plan: &Plan,
    ) -> Result<ModelDescription, CliError> {
        Ok(ModelDescription {
            kind: plan.model.kind.clone(),
            num_classes: self.num_classes,
            class_names: self.train.dataset().digest().class_names,
            normalize: plan.data.normalize.clone(),
            valid_transforms: plan.to_run_config().data.valid_transforms,
            image: self.shape.into(),
            config: keys_of(config)?,
        })
    }
}

/// A loader whose epochs end after some of its batches.
fn limited(loader: Loader, limit: Option<BatchLimit>, ranks: usize) -> Loader {
    let Some(limit) = limit else { return loader };
    let all = loader.num_batches(Shard { index: 0, count: ranks }) as u64;
    let batches = usize::try_from(limit.of(all)).unwrap_or(usize::MAX);
    loader.with_limit_batches(Some(batches.max(1)))
}

/// What is wrong with both splits, told once where it is the same.
pub(crate) fn both(train: DataError, valid: DataError) -> DataError {
    // Validation cannot be opened without the list of training, which has more wrong than that.
    if let (DataError::ImageSet { path: list, .. }, DataError::ImageSet { path, .. }) =
        (&train, &valid)
        && list == path
        && path.is_file()
    {
        return train;
    }
    match (train.to_string(), valid.to_string()) {
        (first, second) if first == second => train,
        (first, second) => DataError::message(format!("{first}; and for validation: {second}")),
    }
}

/// The images after a recipe's transforms.
pub(crate) fn transformed(
    images: Arc<dyn ImageDataset>,
    transforms: &TransformsPlan,
    normalize: Option<&Normalize>,
) -> Arc<Transformed<dyn ImageDataset>> {
    Arc::new(Transformed::new(images, transforms.transforms(normalize)))
}

/// Makes batches of images of a shape, normalised as a recipe says.
pub(crate) fn collate(
    shape: ImageShape,
    normalize: Option<&Normalize>,
    device: &Device,
) -> Result<ImageCollate, DataError> {
    let collate = ImageCollate::new(shape, None, device);
    match normalize {
        Some(Normalize { mean, std }) => {
            collate.with_normalization(mean.as_slice(), std.as_slice())
        }
        None => Ok(collate),
    }
}

/// The shape of the images that models get.
fn image_shape(
    split: &str,
    section: &str,
    images: &Transformed<dyn ImageDataset>,
) -> Result<ImageShape, CliError> {
    let shape = images
        .output_shape()
        .map_err(|error| DataError::message(format!("{section}: {error} ({split} images)")))?;
    let Some([height, width, channels]) = shape else {
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
