//! Images as they lie in a file: bytes.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

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

/// An image and its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSample {
    /// The pixels, 0 to 255.
    ///
    /// # Shapes
    ///
    /// `[channels, height, width]`, row by row.
    pub pixels: Pixels,
    /// The class, from 0.
    pub label: u32,
}
