//! `[data.transforms]` and `[data.valid_transforms]` as resolved.

use bonfire_data::transform::{
    BatchMix, CenterCrop, ColorJitter, Erasure, Pad, RandAugment, RandomCrop, RandomErasing,
    RandomHorizontalFlip, RandomResizedCrop, RandomRotation, Resize, Transforms,
    TrivialAugmentWide,
};

use super::sections::Normalize;

/// What becomes of images, in this order; made by [`Plan::resolve`](super::Plan::resolve).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransformsPlan {
    /// Resizing.
    pub resize: Option<Resize>,
    /// A border.
    pub pad: Option<Pad>,
    /// A crop.
    pub crop: Option<CropPlan>,
    /// Mirror images.
    pub horizontal_flip: Option<RandomHorizontalFlip>,
    /// Rotations.
    pub rotation: Option<RandomRotation>,
    /// Changes of colours.
    pub color_jitter: Option<ColorJitter>,
    /// Operations from a list.
    pub auto_augment: Option<AutoAugmentPlan>,
    /// Random erasing.
    pub random_erasing: Option<ErasingPlan>,
    /// What becomes of whole batches.
    pub mix: Option<BatchMix>,
}

/// Which part of an image is taken.
#[derive(Clone, Debug, PartialEq)]
pub enum CropPlan {
    /// The middle.
    Center(CenterCrop),
    /// One at a random place.
    Random(RandomCrop),
    /// One of random size, resized.
    RandomResized(RandomResizedCrop),
}

/// From which list operations are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoAugmentPlan {
    /// RandAugment's.
    Rand(RandAugment),
    /// TrivialAugment's.
    Trivial(TrivialAugmentWide),
}

/// Random erasing whose value may follow from the normalisation.
#[derive(Clone, Debug, PartialEq)]
pub struct ErasingPlan {
    /// Probability.
    pub p: f64,
    /// Least and greatest share of the image's area.
    pub scale: [f64; 2],
    /// Least and greatest height over width.
    pub ratio: [f64; 2],
    /// What erased parts consist of.
    pub value: ErasingValue,
}

/// What erased parts consist of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErasingValue {
    /// The mean that normalisation takes away, 0 without one.
    Mean,
    /// Normal noise with the mean and deviation of the normalisation, 0 and 1 without one.
    Random,
    /// Bytes, for all channels or for each.
    Bytes(Vec<u8>),
}

impl TransformsPlan {
    /// Makes the transforms of images that are normalised like this afterwards.
    pub fn transforms(&self, normalize: Option<&Normalize>) -> Transforms {
        let list = Transforms::new().with_some(self.resize).with_some(self.pad.clone());
        let list = match &self.crop {
            Some(CropPlan::Center(crop)) => list.with(*crop),
            Some(CropPlan::Random(crop)) => list.with(crop.clone()),
            Some(CropPlan::RandomResized(crop)) => list.with(*crop),
            None => list,
        };
        let list = list
            .with_some(self.horizontal_flip)
            .with_some(self.rotation.clone())
            .with_some(self.color_jitter);
        let list = match self.auto_augment {
            Some(AutoAugmentPlan::Rand(augment)) => list.with(augment),
            Some(AutoAugmentPlan::Trivial(augment)) => list.with(augment),
            None => list,
        };
        list.with_some(self.random_erasing.as_ref().map(|erasing| erasing.transform(normalize)))
    }
}

impl ErasingPlan {
    fn transform(&self, normalize: Option<&Normalize>) -> RandomErasing {
        let means = normalize.map_or(&[0.0][..], |normalize| normalize.mean.as_slice());
        let deviations = normalize.map_or(&[1.0][..], |normalize| normalize.std.as_slice());
        let value = match &self.value {
            ErasingValue::Mean => {
                Erasure::Fill(means.iter().map(|mean| (255.0 * mean).round() as u8).collect())
            }
            ErasingValue::Random => {
                Erasure::Normal { mean: means.to_vec(), std: deviations.to_vec() }
            }
            ErasingValue::Bytes(bytes) => Erasure::Fill(bytes.clone()),
        };
        RandomErasing { p: self.p, scale: self.scale, ratio: self.ratio, value }
    }
}

#[cfg(test)]
mod tests;
