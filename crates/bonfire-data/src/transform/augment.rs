//! RandAugment and TrivialAugment: operations drawn from a list.

use super::affine::{Affine, mapped};
use super::color::{brightness, check_channels, contrast, saturation};
use super::tone::{autocontrast, equalize, posterize, sharpness, solarize};
use super::{Interpolation, Transform};
use crate::{DataError, Image, RandomSource};

/// Applies `num_ops` operations of one strength, each drawn uniformly from fourteen: nothing, shear and
/// shift in either direction, rotation, brightness, saturation, contrast, sharpness, posterisation,
/// solarisation, stretched and equalised histogram.
///
/// What can go both ways goes either way with probability 1/2. What comes from outside is black.
///
/// # Reference
///
/// `torchvision.transforms.v2.RandAugment`; Cubuk et al., "RandAugment: Practical automated data
/// augmentation with a reduced search space", 2019, arXiv:1909.13719.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandAugment {
    /// Operations one after the other; default 2.
    pub num_ops: usize,
    /// Strength, below `num_magnitude_bins`; default 9.
    pub magnitude: usize,
    /// Number of strengths from nothing to the greatest; default 31.
    pub num_magnitude_bins: usize,
    /// How pixels between pixels are made; default nearest.
    pub interpolation: Interpolation,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self {
            num_ops: 2,
            magnitude: 9,
            num_magnitude_bins: 31,
            interpolation: Interpolation::Nearest,
        }
    }
}

impl Transform for RandAugment {
    fn apply(&self, image: Image, random: &mut RandomSource) -> Result<Image, DataError> {
        check_channels("RandAugment", &image)?;
        let size = [image.height(), image.width()];
        let strength = strength(self.magnitude, self.num_magnitude_bins);
        (0..self.num_ops).try_fold(image, |image, _| {
            let operation = Operation::draw(random);
            let amount = Space::RAND_AUGMENT.amount(operation, strength, size);
            let amount = operation.signed(amount, random);
            operation.apply("RandAugment", image, amount, self.interpolation)
        })
    }
}

/// Applies one operation of [`RandAugment`]'s list, of a strength that is drawn too, from wider ranges.
///
/// # Reference
///
/// `torchvision.transforms.v2.TrivialAugmentWide`; Müller, Hutter, "TrivialAugment: Tuning-free Yet
/// State-of-the-Art Data Augmentation", 2021, arXiv:2103.10158.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrivialAugmentWide {
    /// Number of strengths from nothing to the greatest; default 31.
    pub num_magnitude_bins: usize,
    /// How pixels between pixels are made; default nearest.
    pub interpolation: Interpolation,
}

impl Default for TrivialAugmentWide {
    fn default() -> Self {
        Self { num_magnitude_bins: 31, interpolation: Interpolation::Nearest }
    }
}

impl Transform for TrivialAugmentWide {
    fn apply(&self, image: Image, random: &mut RandomSource) -> Result<Image, DataError> {
        check_channels("TrivialAugmentWide", &image)?;
        let size = [image.height(), image.width()];
        let operation = Operation::draw(random);
        let magnitude = random.below(self.num_magnitude_bins);
        let strength = strength(magnitude, self.num_magnitude_bins);
        let amount = Space::TRIVIAL_WIDE.amount(operation, strength, size);
        let amount = operation.signed(amount, random);
        operation.apply("TrivialAugmentWide", image, amount, self.interpolation)
    }
}

/// The share of the greatest strength, in 0..1.
fn strength(magnitude: usize, bins: usize) -> f64 {
    magnitude as f64 / bins.saturating_sub(1).max(1) as f64
}

/// One of the fourteen operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

impl Operation {
    /// All of them, in torchvision's order.
    pub(super) const ALL: [Self; 14] = [
        Self::Identity,
        Self::ShearX,
        Self::ShearY,
        Self::TranslateX,
        Self::TranslateY,
        Self::Rotate,
        Self::Brightness,
        Self::Color,
        Self::Contrast,
        Self::Sharpness,
        Self::Posterize,
        Self::Solarize,
        Self::AutoContrast,
        Self::Equalize,
    ];

    fn draw(random: &mut RandomSource) -> Self {
        Self::ALL[random.below(Self::ALL.len())]
    }

    /// Turns an amount around with probability 1/2, where the operation goes both ways.
    fn signed(self, amount: f64, random: &mut RandomSource) -> f64 {
        let one_way = matches!(
            self,
            Self::Identity | Self::Posterize | Self::Solarize | Self::AutoContrast | Self::Equalize
        );
        if !one_way && random.chance(0.5) { -amount } else { amount }
    }

    /// Applies the operation by an amount in its own unit, see [`Space::amount`].
    pub(super) fn apply(
        self,
        transform: &'static str,
        image: Image,
        amount: f64,
        interpolation: Interpolation,
    ) -> Result<Image, DataError> {
        let map = match self {
            Self::ShearX => Affine::shear_x(amount, image.height()),
            Self::ShearY => Affine::shear_y(amount, image.width()),
            Self::TranslateX => Affine::translation(amount.trunc(), 0.0),
            Self::TranslateY => Affine::translation(0.0, amount.trunc()),
            Self::Rotate => Affine::rotation(amount),
            Self::Identity => return Ok(image),
            Self::Brightness => return brightness(image, 1.0 + amount),
            Self::Color => return saturation(image, 1.0 + amount),
            Self::Contrast => return contrast(image, 1.0 + amount),
            Self::Sharpness => return sharpness(image, 1.0 + amount),
            Self::Posterize => return posterize(image, amount as u32),
            Self::Solarize => return solarize(image, amount),
            Self::AutoContrast => return autocontrast(image),
            Self::Equalize => return equalize(image),
        };
        mapped(transform, &image, map, interpolation, &[0])
    }
}

/// The greatest amounts of the operations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Space {
    shear: f64,
    /// Shift as a share of the edge, or else in pixels.
    shift_share: Option<f64>,
    shift_pixels: f64,
    degrees: f64,
    factor: f64,
    /// Bits that posterisation takes away.
    bits: f64,
}

impl Space {
    pub(super) const RAND_AUGMENT: Self = Self {
        shear: 0.3,
        shift_share: Some(150.0 / 331.0),
        shift_pixels: 0.0,
        degrees: 30.0,
        factor: 0.9,
        bits: 4.0,
    };
    pub(super) const TRIVIAL_WIDE: Self = Self {
        shear: 0.99,
        shift_share: None,
        shift_pixels: 32.0,
        degrees: 135.0,
        factor: 0.99,
        bits: 6.0,
    };

    /// The amount of an operation at a strength in 0..1: pixels to the side for each row (shears),
    /// pixels (shifts), degrees (rotation), what is added to the factor 1 (colours), bits that stay
    /// (posterisation), the least byte that is inverted (solarisation).
    pub(super) fn amount(
        &self,
        operation: Operation,
        strength: f64,
        [height, width]: [usize; 2],
    ) -> f64 {
        let shift = |edge: usize| match self.shift_share {
            Some(share) => share * edge as f64,
            None => self.shift_pixels,
        };
        match operation {
            Operation::ShearX | Operation::ShearY => self.shear * strength,
            Operation::TranslateX => shift(width) * strength,
            Operation::TranslateY => shift(height) * strength,
            Operation::Rotate => self.degrees * strength,
            Operation::Brightness
            | Operation::Color
            | Operation::Contrast
            | Operation::Sharpness => self.factor * strength,
            Operation::Posterize => (8.0 - self.bits * strength).round_ties_even(),
            Operation::Solarize => 255.0 * (1.0 - strength),
            Operation::Identity | Operation::AutoContrast | Operation::Equalize => 0.0,
        }
    }
}
