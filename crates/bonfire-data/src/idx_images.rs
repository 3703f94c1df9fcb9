//! MNIST and its relatives: images and labels in two IDX files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::idx::{IdxArray, IdxKind, open_idx};
use crate::{
    DataError, Dataset, DatasetDigest, Image, ImageDataset, ImageSample, Pixels, SampleContext,
};

/// Which part of a data set to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// What is trained on.
    Train,
    /// What is validated or tested on.
    Test,
}

impl Split {
    /// The beginning of the names of MNIST's files.
    fn prefix(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "t10k",
        }
    }
}

/// Grey-scale images and their labels, read from IDX files into memory.
///
/// Reads what MNIST, Fashion-MNIST, KMNIST and EMNIST use; plain or gzip, told by the contents.
#[derive(Debug, Clone)]
pub struct IdxImages {
    pixels: Arc<Vec<u8>>,
    labels: Vec<u8>,
    rows: usize,
    cols: usize,
    num_classes: usize,
    content: u64,
}

impl IdxImages {
    /// Reads the images from one file and their labels from another.
    ///
    /// # Errors
    ///
    /// - [`DataError::Io`] when a file cannot be read.
    /// - [`DataError::MalformedIdx`] when a file is not what it should be.
    /// - [`DataError::CountMismatch`] when there are not as many labels as images.
    pub fn open(images: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<Self, DataError> {
        let (images, labels) = (images.as_ref(), labels.as_ref());
        // Labels first: they are small, so a wrong file is noticed before much is read.
        let label_array = open_idx(labels, IdxKind::Labels)?;
        let image_array = open_idx(images, IdxKind::Images)?;
        let (num_images, num_labels) = (image_array.dimensions[0], label_array.dimensions[0]);
        if num_images != num_labels {
            let (images, labels) = (images.to_owned(), labels.to_owned());
            return Err(DataError::CountMismatch { images, num_images, labels, num_labels });
        }
        Ok(Self::from_arrays(image_array, label_array))
    }

    /// Reads one split from a folder with MNIST's usual names.
    ///
    /// These are `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
    /// `t10k-labels-idx1-ubyte`, also spelled with a dot (`train-images.idx3-ubyte`), with or
    /// without `.gz`.
    ///
    /// # Errors
    ///
    /// [`DataError::MissingFiles`] when the folder or a file does not exist; otherwise those of
    /// [`open`](Self::open).
    pub fn open_folder(folder: impl AsRef<Path>, split: Split) -> Result<Self, DataError> {
        let folder = folder.as_ref();
        let images = find(folder, &names(split, "images", 3));
        let labels = find(folder, &names(split, "labels", 1));
        match (images, labels) {
            (Ok(images), Ok(path)) => {
                let data = Self::open(images, &path)?;
                if let (Split::Train, Some(class)) = (split, data.first_absent_class()) {
                    tracing::warn!(
                        "{}: the classes are 0 to {}, the highest label, but class {class} (and perhaps \
                         more) has no image; the model gets an output for it all the same",
                        path.display(),
                        data.num_classes - 1
                    );
                }
                Ok(data)
            }
            (images, labels) => Err(DataError::MissingFiles {
                folder: folder.to_owned(),
                folder_exists: folder.is_dir(),
                looked_for: [images.err(), labels.err()].into_iter().flatten().collect(),
            }),
        }
    }

    /// Reads images alone, from a file without labels.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_unlabelled(images: impl AsRef<Path>) -> Result<Vec<Image>, DataError> {
        let array = open_idx(images.as_ref(), IdxKind::Images)?;
        let (count, shape) = (array.dimensions[0], [array.dimensions[1], array.dimensions[2], 1]);
        let (pixels, size) = (Arc::new(array.data), shape[0] * shape[1]);
        let image = |index: usize| {
            let range = index * size..(index + 1) * size;
            let out_of_range = DataError::IndexOutOfRange { index, len: count };
            Image::new(Pixels::view(&pixels, range).ok_or(out_of_range)?, shape)
        };
        (0..count).map(image).collect()
    }

    /// The first class below the highest label that no image has.
    fn first_absent_class(&self) -> Option<u8> {
        let seen: BTreeSet<u8> = self.labels.iter().copied().collect();
        (0..=u8::MAX).take(self.num_classes).find(|class| !seen.contains(class))
    }

    fn from_arrays(images: IdxArray, labels: IdxArray) -> Self {
        let content = content_of(&images, &labels);
        let highest = labels.data.iter().copied().max().unwrap_or(0);
        Self {
            rows: images.dimensions[1],
            cols: images.dimensions[2],
            pixels: Arc::new(images.data),
            labels: labels.data,
            num_classes: usize::from(highest) + 1,
            content,
        }
    }

    /// Returns the height of the images.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the width of the images.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the number of channels: 1.
    pub fn channels(&self) -> usize {
        1
    }

    /// Returns the number of classes: one more than the highest label.
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// Returns the pixels of all images one after the other.
    ///
    /// # Shapes
    ///
    /// `[len, rows, cols]`
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Returns the labels of all images.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }
}

impl Dataset for IdxImages {
    type Item = ImageSample;

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, context: &SampleContext) -> Result<ImageSample, DataError> {
        let index = context.index;
        let out_of_range = DataError::IndexOutOfRange { index, len: self.labels.len() };
        let Some(&label) = self.labels.get(index) else { return Err(out_of_range) };
        let size = self.rows * self.cols;
        let pixels = Pixels::view(&self.pixels, index * size..(index + 1) * size);
        let image = Image::new(pixels.ok_or(out_of_range)?, [self.rows, self.cols, 1])?;
        Ok(ImageSample { image, label: u32::from(label) })
    }

    fn digest(&self) -> DatasetDigest {
        DatasetDigest {
            num_samples: self.labels.len() as u64,
            class_names: (0..self.num_classes).map(|class| class.to_string()).collect(),
            content: self.content,
        }
    }
}

impl ImageDataset for IdxImages {
    fn image_shape(&self) -> Option<[usize; 3]> {
        Some([self.rows, self.cols, 1])
    }

    fn num_classes(&self) -> usize {
        self.num_classes
    }
}

/// Hashes dimensions, pixels and labels: the same for plain and compressed files.
fn content_of(images: &IdxArray, labels: &IdxArray) -> u64 {
    let mut hash = Xxh3::new();
    for array in [images, labels] {
        for &length in &array.dimensions {
            hash.update(&(length as u64).to_le_bytes());
        }
        hash.update(&array.data);
    }
    hash.digest()
}

/// Lists the names one file may have, best first.
fn names(split: Split, what: &str, rank: usize) -> [String; 4] {
    let prefix = split.prefix();
    [
        format!("{prefix}-{what}-idx{rank}-ubyte"),
        format!("{prefix}-{what}-idx{rank}-ubyte.gz"),
        format!("{prefix}-{what}.idx{rank}-ubyte"),
        format!("{prefix}-{what}.idx{rank}-ubyte.gz"),
    ]
}

/// Returns the first of `names` that is a file, or else all of them in words.
fn find(folder: &Path, names: &[String]) -> Result<PathBuf, String> {
    let mut paths = names.iter().map(|name| folder.join(name));
    paths.find(|path| path.is_file()).ok_or_else(|| names.join(" or "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn images_file(num_images: u32) -> Vec<u8> {
        let header = [0x0803, num_images, 2, 3].map(u32::to_be_bytes).concat();
        [header, (0..num_images as u8 * 6).collect()].concat()
    }

    fn labels_file(labels: &[u8]) -> Vec<u8> {
        let header = [0x0801, labels.len() as u32].map(u32::to_be_bytes).concat();
        [header, labels.to_vec()].concat()
    }

    fn context(index: usize) -> SampleContext {
        SampleContext { seed: 0, epoch: 0, index }
    }

    fn folder_with(names: [&str; 2], labels: &[u8]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(names[0]), images_file(3)).unwrap();
        fs::write(folder.path().join(names[1]), labels_file(labels)).unwrap();
        folder
    }

    #[test]
    fn images_and_labels_come_in_pairs() {
        let names = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];
        let folder = folder_with(names, &[4, 0, 6]);
        let data = IdxImages::open_folder(folder.path(), Split::Test).unwrap();
        assert_eq!((data.len(), data.channels(), data.rows(), data.cols()), (3, 1, 2, 3));
        assert_eq!(data.num_classes(), 7);
        let sample = data.get(&context(2)).unwrap();
        assert_eq!((sample.image.pixels(), sample.label), (&[12, 13, 14, 15, 16, 17][..], 6));
        assert_eq!(sample.image.shape(), [2, 3, 1]);
        let error = data.get(&context(3)).unwrap_err();
        assert!(matches!(error, DataError::IndexOutOfRange { index: 3, len: 3 }), "{error}");
    }

    #[test]
    fn all_spellings_are_found() {
        for (images, labels) in [
            ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
            ("train-images.idx3-ubyte", "train-labels.idx1-ubyte"),
            // Compression is told by the contents, so a plain file called .gz is read too.
            ("train-images-idx3-ubyte.gz", "train-labels.idx1-ubyte.gz"),
        ] {
            let folder = folder_with([images, labels], &[0, 1, 2]);
            IdxImages::open_folder(folder.path(), Split::Train).unwrap();
        }
    }

    #[test]
    fn missing_files_are_listed() {
        let folder = folder_with(["train-images-idx3-ubyte", "elsewhere"], &[0, 1, 2]);
        let error = IdxImages::open_folder(folder.path(), Split::Train).unwrap_err().to_string();
        assert!(error.contains("lacks files; looked for train-labels-idx1-ubyte or"), "{error}");
        assert!(error.contains("train-labels.idx1-ubyte.gz"), "{error}");
        assert!(!error.contains("images"), "{error}");
        let nowhere = folder.path().join("nowhere");
        let error = IdxImages::open_folder(&nowhere, Split::Test).unwrap_err().to_string();
        assert!(error.contains("nowhere does not exist or is no folder"), "{error}");
        assert!(error.contains("t10k-images-idx3-ubyte"), "{error}");
        assert!(error.contains("t10k-labels-idx1-ubyte"), "{error}");
    }

    #[test]
    fn a_label_too_few_is_an_error() {
        let folder = folder_with(["train-images-idx3-ubyte", "train-labels-idx1-ubyte"], &[1, 2]);
        let error = IdxImages::open_folder(folder.path(), Split::Train).unwrap_err();
        assert!(matches!(error, DataError::CountMismatch { num_images: 3, num_labels: 2, .. }));
    }

    #[test]
    fn the_digest_covers_pixels_labels_and_shape() {
        let array = |dimensions: &[usize], data: &[u8]| IdxArray {
            dimensions: dimensions.to_vec(),
            data: data.to_vec(),
        };
        let content = |shape: [usize; 2], pixels: &[u8], labels: &[u8]| {
            let images = array(&[1, shape[0], shape[1]], pixels);
            IdxImages::from_arrays(images, array(&[1], labels)).digest().content
        };
        let first = content([1, 2], &[1, 2], &[3]);
        assert_eq!(first, content([1, 2], &[1, 2], &[3]));
        assert_ne!(first, content([2, 1], &[1, 2], &[3]));
        assert_ne!(first, content([1, 2], &[1, 3], &[3]));
        assert_ne!(first, content([1, 2], &[1, 2], &[4]));
    }

    #[test]
    fn the_bundled_digits_are_readable() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/digits");
        for (split, num_samples) in [(Split::Train, 1438), (Split::Test, 359)] {
            let digits = IdxImages::open_folder(&folder, split).unwrap();
            assert_eq!((digits.len(), digits.rows(), digits.cols()), (num_samples, 8, 8));
            assert_eq!(digits.num_classes(), 10);
            assert_eq!(digits.digest().class_names[9], "9");
        }
    }
}
