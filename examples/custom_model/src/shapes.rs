//! A data set of one's own: squares and discs, drawn when it is opened.

use bonfire::data::{DataError, Image, ImageDataset, ImageSample, InMemoryDataset, RandomSource};
use bonfire::data::{SampleContext, Split};
use bonfire_cli::DataConfig;
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// Keys of `[data.options]` with `kind = "shapes"`; an unknown key is an error that names the nearest.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(crate) struct ShapesConfig {
    /// Training images; there are a fifth as many for validation.
    num_samples: usize,
    /// Height and width of the images.
    side: usize,
}

impl Default for ShapesConfig {
    fn default() -> Self {
        Self { num_samples: 1000, side: 16 }
    }
}

impl DataConfig for ShapesConfig {
    fn open(&self, _: Option<&Path>, split: Split) -> Result<Arc<dyn ImageDataset>, DataError> {
        if self.side < 8 {
            let message = format!("data.options.side = {}: must be 8 or more", self.side);
            return Err(DataError::message(message));
        }
        let (seed, len) = match split {
            Split::Train => (0, self.num_samples),
            Split::Test => (1, self.num_samples / 5),
        };
        let samples = (0..len).map(|index| self.draw(SampleContext { seed, epoch: 0, index }));
        let images = InMemoryDataset::of_images(samples.collect::<Result<_, _>>()?);
        Ok(Arc::new(images.with_class_names(["square", "disc"].map(str::to_owned).to_vec())))
    }
}

impl ShapesConfig {
    /// Draws a square (class 0) or a disc (class 1) at a place that depends on the context alone, so that
    /// every rank sees the same.
    fn draw(&self, context: SampleContext) -> Result<ImageSample, DataError> {
        let mut random = RandomSource::for_sample(&context, 0);
        let label = context.index as u32 % 2;
        let radius = 2 + random.below(self.side / 4 - 1);
        let centre = [0; 2].map(|_| radius + random.below(self.side - 2 * radius));
        let inside = |place: usize| {
            let [down, right] =
                [place / self.side, place % self.side].map(|coordinate| coordinate as f32);
            let (down, right) = (down - centre[0] as f32, right - centre[1] as f32);
            match label {
                0 => down.abs().max(right.abs()) <= radius as f32,
                _ => down.hypot(right) <= radius as f32,
            }
        };
        let pixels: Vec<u8> =
            (0..self.side * self.side).map(|place| if inside(place) { 220 } else { 20 }).collect();
        Ok(ImageSample { image: Image::new(pixels, [self.side, self.side, 1])?, label })
    }
}
