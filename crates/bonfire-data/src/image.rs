//! Images as they lie in a file: bytes.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::{DataError, Dataset};

/// The pixels of one image: a view into memory that all images of a data set share.
///
/// It dereferences to `[u8]`; cloning copies no pixels.
#[derive(Clone)]
pub struct Pixels {
    store: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Pixels {
    /// Views `range` of `store`, or nothing when it is not within.
    pub(crate) fn view(store: &Arc<Vec<u8>>, range: Range<usize>) -> Option<Self> {
        store.get(range.clone())?;
        Some(Self { store: Arc::clone(store), range })
    }
}

impl From<Vec<u8>> for Pixels {
    fn from(pixels: Vec<u8>) -> Self {
        let range = 0..pixels.len();
        Self { store: Arc::new(pixels), range }
    }
}

impl Deref for Pixels {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.store[self.range.clone()]
    }
}

impl AsRef<[u8]> for Pixels {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Pixels {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Pixels {}

impl fmt::Debug for Pixels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Pixels({} bytes)", self.len())
    }
}

/// An image of bytes.
///
/// # Shapes
///
/// `[height, width, channels]`, row by row, the channels of a pixel side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pixels: Pixels,
    height: usize,
    width: usize,
    channels: usize,
}

impl Image {
    /// Makes an image of its pixels, 0 to 255.
    ///
    /// # Errors
    ///
    /// [`DataError::PixelCount`] when there are not `height * width * channels` of them.
    pub fn new(
        pixels: impl Into<Pixels>,
        [height, width, channels]: [usize; 3],
    ) -> Result<Self, DataError> {
        let pixels = pixels.into();
        if pixels.len() != height * width * channels {
            return Err(DataError::PixelCount { pixels: pixels.len(), height, width, channels });
        }
        Ok(Self { pixels, height, width, channels })
    }

    /// Returns the bytes, `[height, width, channels]`.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Returns the number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Returns the number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of channels: 1 for grey, 3 for red, green and blue.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns `[height, width, channels]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.height, self.width, self.channels]
    }

    /// Returns the bytes, in memory of their own that nobody else holds; a copy only where the image
    /// shared its memory.
    pub fn into_vec(self) -> Vec<u8> {
        let Pixels { store, range } = self.pixels;
        let whole = range == (0..store.len());
        match Arc::try_unwrap(store) {
            Ok(pixels) if whole => pixels,
            Ok(pixels) => pixels[range].to_vec(),
            Err(shared) => shared[range].to_vec(),
        }
    }
}

/// An image and its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSample {
    /// The image.
    pub image: Image,
    /// The class, from 0.
    pub label: u32,
}

/// What a set of images passes over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Entries that were no readable files when the set was opened, so that they are no samples.
    pub unlisted: usize,
    /// Indices of samples that this process has found corrupt until now.
    pub corrupt: BTreeSet<usize>,
}

/// Images with classes.
pub trait ImageDataset: Dataset<Item = ImageSample> {
    /// Returns `[height, width, channels]` where all images have the same, which is known without
    /// reading them.
    fn image_shape(&self) -> Option<[usize; 3]>;

    /// Returns the number of channels where all images have the same, which may be known although
    /// their sizes differ.
    fn num_channels(&self) -> Option<usize> {
        self.image_shape().map(|[_, _, channels]| channels)
    }

    /// Returns `[height, width, channels]` of one image, where that costs little; transforms are checked
    /// on it before the first batch.
    fn example_shape(&self) -> Option<[usize; 3]> {
        self.image_shape()
    }

    /// Returns which samples were passed over until now because their files are corrupt.
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }

    /// Returns the number of classes; every label is below it.
    fn num_classes(&self) -> usize;
}
