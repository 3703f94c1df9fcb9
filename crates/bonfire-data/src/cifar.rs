//! CIFAR-10 and CIFAR-100 in their binary version.
//!
//! A record is one label byte (CIFAR-100: the coarse one, then the fine one) and 32x32 pixels, first
//! all red values, then green, then blue. How many records a file has is told by its size.
//!
//! # Reference
//!
//! Krizhevsky: "Learning Multiple Layers of Features from Tiny Images", 2009, and "The CIFAR-10
//! dataset" (cs.toronto.edu/~kriz/cifar.html), section "Binary version".

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::{
    DataError, Dataset, DatasetDigest, Image, ImageDataset, ImageSample, ImageSetProblem, Pixels,
    SampleContext, Split,
};

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;
const IMAGE_BYTES: usize = 3 * PLANE;

/// Which of the data sets, and which of its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cifar {
    /// CIFAR-10, with 10 classes.
    Ten,
    /// CIFAR-100 with its 100 fine labels.
    HundredFine,
    /// CIFAR-100 with its 20 coarse labels.
    HundredCoarse,
}

impl Cifar {
    fn num_classes(self) -> usize {
        match self {
            Self::Ten => 10,
            Self::HundredFine => 100,
            Self::HundredCoarse => 20,
        }
    }

    /// The label bytes of a record, and which of them counts.
    fn label_bytes(self) -> (usize, usize) {
        match self {
            Self::Ten => (1, 0),
            Self::HundredCoarse => (2, 0),
            Self::HundredFine => (2, 1),
        }
    }

    /// The file that names the classes, one a line.
    fn names_file(self) -> &'static str {
        match self {
            Self::Ten => "batches.meta.txt",
            Self::HundredFine => "fine_label_names.txt",
            Self::HundredCoarse => "coarse_label_names.txt",
        }
    }

    /// The folder inside the published archive.
    fn folder(self) -> &'static str {
        match self {
            Self::Ten => "cifar-10-batches-bin",
            Self::HundredFine | Self::HundredCoarse => "cifar-100-binary",
        }
    }

    /// The names of the files of a split; those of CIFAR-10's training data are as many as there are.
    fn files(self, split: Split) -> &'static [&'static str] {
        match (self, split) {
            (Self::Ten, Split::Train) => &[
                "data_batch_1.bin",
                "data_batch_2.bin",
                "data_batch_3.bin",
                "data_batch_4.bin",
                "data_batch_5.bin",
            ],
            (Self::Ten, Split::Test) => &["test_batch.bin"],
            (_, Split::Train) => &["train.bin"],
            (_, Split::Test) => &["test.bin"],
        }
    }
}

/// Coloured images of 32x32 pixels and their labels, read from CIFAR's binary files into memory.
#[derive(Debug, Clone)]
pub struct CifarImages {
    pixels: Arc<Vec<u8>>,
    labels: Vec<u8>,
    class_names: Vec<String>,
    content: u64,
}

impl CifarImages {
    /// Reads one split from a folder, or from the folder in it that the published archive makes.
    ///
    /// All files of the split that exist are read, in the order of their names, and at least one must.
    /// Classes are called as in `batches.meta.txt`, `fine_label_names.txt` or
    /// `coarse_label_names.txt` where that file lies beside, and by number otherwise.
    ///
    /// # Errors
    ///
    /// - [`DataError::MissingFiles`] when the folder or all files of the split do not exist.
    /// - [`DataError::Io`] when a file cannot be read.
    /// - [`DataError::ImageSet`] when a file is a pickle, is empty, ends within a record or has a label
    ///   out of range.
    pub fn open_folder(
        folder: impl AsRef<Path>,
        cifar: Cifar,
        split: Split,
    ) -> Result<Self, DataError> {
        let folder = folder.as_ref();
        let inner = folder.join(cifar.folder());
        let files_in = |folder: &Path| -> Vec<PathBuf> {
            let paths = cifar.files(split).iter().map(|name| folder.join(name));
            paths.filter(|path| path.is_file()).collect()
        };
        let (home, files) = match files_in(folder) {
            files if files.is_empty() => (inner.as_path(), files_in(&inner)),
            files => (folder, files),
        };
        if files.is_empty() {
            return Err(missing(folder, cifar, split));
        }
        let mut reader = Reader { cifar, pixels: Vec::new(), labels: Vec::new() };
        files.iter().try_for_each(|path| reader.read(path))?;
        let mut hash = Xxh3::new();
        hash.update(&reader.labels);
        hash.update(&reader.pixels);
        Ok(Self {
            pixels: Arc::new(reader.pixels),
            labels: reader.labels,
            class_names: class_names(home, cifar),
            content: hash.digest(),
        })
    }

    /// Returns the labels of all images.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }
}

/// What was read so far.
struct Reader {
    cifar: Cifar,
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

impl Reader {
    fn read(&mut self, path: &Path) -> Result<(), DataError> {
        let bytes =
            fs::read(path).map_err(|source| DataError::Io { path: path.to_owned(), source })?;
        let problem = |problem| DataError::image_set(path, problem);
        let (label_bytes, which) = self.cifar.label_bytes();
        let record_bytes = label_bytes + IMAGE_BYTES;
        if bytes.is_empty() {
            return Err(problem(ImageSetProblem::NoImages));
        }
        if is_pickle(&bytes) {
            return Err(problem(ImageSetProblem::Pickle));
        }
        if bytes.len() % record_bytes != 0 {
            let (file_bytes, record_bytes) = (bytes.len() as u64, record_bytes as u64);
            return Err(problem(ImageSetProblem::PartialRecord { file_bytes, record_bytes }));
        }
        self.pixels.reserve_exact(bytes.len() / record_bytes * IMAGE_BYTES);
        let num_classes = self.cifar.num_classes();
        for (record, bytes) in bytes.chunks_exact(record_bytes).enumerate() {
            let (labels, planes) = bytes.split_at(label_bytes);
            if usize::from(labels[which]) >= num_classes {
                let label = u32::from(labels[which]);
                let out_of_range = ImageSetProblem::LabelOutOfRange { record, label, num_classes };
                return Err(problem(out_of_range));
            }
            self.labels.push(labels[which]);
            let pixel = |at: usize| [planes[at], planes[PLANE + at], planes[2 * PLANE + at]];
            self.pixels.extend((0..PLANE).flat_map(pixel));
        }
        Ok(())
    }
}

impl Dataset for CifarImages {
    type Item = ImageSample;

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, context: &SampleContext) -> Result<ImageSample, DataError> {
        let index = context.index;
        let out_of_range = DataError::IndexOutOfRange { index, len: self.labels.len() };
        let Some(&label) = self.labels.get(index) else { return Err(out_of_range) };
        let range = index * IMAGE_BYTES..(index + 1) * IMAGE_BYTES;
        let pixels = Pixels::view(&self.pixels, range).ok_or(out_of_range)?;
        Ok(ImageSample { image: Image::new(pixels, [SIDE, SIDE, 3])?, label: u32::from(label) })
    }

    fn digest(&self) -> DatasetDigest {
        DatasetDigest {
            num_samples: self.labels.len() as u64,
            class_names: self.class_names.clone(),
            content: self.content,
        }
    }
}

impl ImageDataset for CifarImages {
    fn image_shape(&self) -> Option<[usize; 3]> {
        Some([SIDE, SIDE, 3])
    }

    fn num_classes(&self) -> usize {
        self.class_names.len()
    }
}

/// Says what is missing, or that only the version for Python is there.
fn missing(folder: &Path, cifar: Cifar, split: Split) -> DataError {
    let names = cifar.files(split);
    let folders =
        [folder.to_owned(), folder.join("cifar-10-batches-py"), folder.join("cifar-100-python")];
    let mut pickles = folders
        .iter()
        .flat_map(|folder| names.iter().map(|name| folder.join(name.trim_end_matches(".bin"))));
    if let Some(pickle) = pickles.find(|path| path.is_file()) {
        return DataError::image_set(&pickle, ImageSetProblem::Pickle);
    }
    DataError::MissingFiles {
        folder: folder.to_owned(),
        folder_exists: folder.is_dir(),
        looked_for: names.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// Whether the file starts as pickles of protocol 2 and later do; no record can, since 0x80 is no
/// label.
fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=5, ..])
}

fn class_names(folder: &Path, cifar: Cifar) -> Vec<String> {
    let text = fs::read_to_string(folder.join(cifar.names_file())).unwrap_or_default();
    let names: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let num_classes = cifar.num_classes();
    match names.len() == num_classes {
        true => names,
        false => (0..num_classes).map(|class| class.to_string()).collect(),
    }
}

#[cfg(test)]
mod tests;
