//! Rotations by random angles.

use super::Transform;
use super::affine::{Affine, Interpolation, mapped};
use crate::{DataError, Image, RandomSource};

/// Rotates around the middle, counter-clockwise, by an angle that is drawn uniformly; the size stays.
///
/// # Reference
///
/// `torchvision.transforms.v2.RandomRotation` with its default `expand=False`.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomRotation {
    /// Least and greatest angle in degrees.
    pub degrees: [f64; 2],
    /// How pixels between pixels are made; default nearest.
    pub interpolation: Interpolation,
    /// Value of what lies outside, for all channels or for each; default 0.
    pub fill: Vec<u8>,
}

impl RandomRotation {
    /// Makes a rotation with the defaults.
    pub fn new(degrees: [f64; 2]) -> Self {
        Self { degrees, interpolation: Interpolation::Nearest, fill: vec![0] }
    }
}

impl Transform for RandomRotation {
    fn apply(&self, image: Image, random: &mut RandomSource) -> Result<Image, DataError> {
        let angle = random.uniform(self.degrees[0], self.degrees[1]);
        mapped("RandomRotation", &image, Affine::rotation(angle), self.interpolation, &self.fill)
    }
}
