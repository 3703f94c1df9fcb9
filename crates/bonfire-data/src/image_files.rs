//! Images in files of their own, decoded when they are asked for.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use xxhash_rust::xxh3::Xxh3;

use crate::decode::{self, Channels};
use crate::{
    DataError, Dataset, DatasetDigest, Image, ImageDataset, ImageSample, ImageSetProblem,
    SampleContext, Skipped, Split,
};

/// What becomes of a file that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnCorrupt {
    /// Reading it is an error.
    #[default]
    Error,
    /// In training the next file that can be decoded stands in for it, so that the number of samples and
    /// the order of an epoch stay what they are, and all ranks agree without asking each other. In
    /// validation it is left out ([`DataError::LeftOut`]). Each such file is counted and logged once.
    ///
    /// That is for files whose contents are no image. A read that fails is an error all the same: it may
    /// fail on one rank only. Entries that are no readable files when the set is opened, such as links
    /// that lead nowhere and pipes, are no samples.
    Skip,
}

/// How files become images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FileOptions {
    /// How many channels images have. Default: [`Channels::Rgb`].
    pub channels: Channels,
    /// What becomes of a file that cannot be decoded. Default: [`OnCorrupt::Error`].
    pub on_corrupt: OnCorrupt,
}

/// One file of a data set.
#[derive(Debug, Clone)]
pub(crate) struct ImageFile {
    pub(crate) path: PathBuf,
    /// The name relative to the data set, with which it goes into the digest.
    pub(crate) name: String,
    pub(crate) label: u32,
    /// The length of the file.
    pub(crate) bytes: u64,
}

/// Files in the order of the samples.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) files: Vec<ImageFile>,
    /// Entries that were passed over because they are no readable files.
    unlisted: usize,
}

impl Listing {
    /// Adds a file, or says why it cannot be one. Policy `skip` passes over what is none.
    pub(crate) fn add(
        &mut self,
        path: PathBuf,
        name: String,
        label: u32,
        on_corrupt: OnCorrupt,
    ) -> Result<(), String> {
        let reason = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {
                self.files.push(ImageFile { path, name, label, bytes: metadata.len() });
                return Ok(());
            }
            // Reading a pipe would wait for somebody to write.
            Ok(_) => "is no regular file".to_owned(),
            Err(error) => error.to_string(),
        };
        match on_corrupt {
            OnCorrupt::Error => Err(reason),
            OnCorrupt::Skip => {
                self.unlisted += 1;
                tracing::warn!("{}: {reason}; it is passed over", path.display());
                Ok(())
            }
        }
    }
}

/// Images in files of their own, from [a folder](Self::open_folder) or [a list](Self::open_list).
///
/// Only names and sizes are read when it is opened, and they are what the digest covers. What is no regular
/// file is refused, or passed over with [`OnCorrupt::Skip`].
#[derive(Debug)]
pub struct ImageFiles {
    /// The folder or the list.
    source: PathBuf,
    files: Vec<ImageFile>,
    class_names: Vec<String>,
    options: FileOptions,
    content: u64,
    split: Split,
    unlisted: usize,
    shape: OnceLock<Option<[usize; 3]>>,
    corrupt: Mutex<BTreeSet<usize>>,
}

impl ImageFiles {
    /// Takes over files in their order.
    pub(crate) fn new(
        source: &Path,
        listing: Listing,
        class_names: Vec<String>,
        split: Split,
        options: FileOptions,
    ) -> Result<Self, DataError> {
        let Listing { files, unlisted } = listing;
        if files.is_empty() {
            return Err(DataError::image_set(source, ImageSetProblem::NoImages));
        }
        let mut hash = Xxh3::new();
        for file in &files {
            hash.update(file.name.as_bytes());
            // Ends the name: without it "a" of length 1 and "a\x01" could be taken for each other.
            hash.update(&[0]);
            hash.update(&file.bytes.to_le_bytes());
            hash.update(&file.label.to_le_bytes());
        }
        Ok(Self {
            source: source.to_owned(),
            files,
            class_names,
            options,
            content: hash.digest(),
            split,
            unlisted,
            shape: OnceLock::new(),
            corrupt: Mutex::new(BTreeSet::new()),
        })
    }

    /// Returns the names of the classes in the order of their labels.
    pub fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// Returns how many files were found corrupt until now and were skipped.
    pub fn num_corrupt(&self) -> usize {
        self.corrupt.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the path of a sample's file.
    pub fn path(&self, index: usize) -> Option<&Path> {
        self.files.get(index).map(|file| file.path.as_path())
    }

    /// The files in their order.
    #[cfg(test)]
    pub(crate) fn files(&self) -> impl Iterator<Item = &ImageFile> {
        self.files.iter()
    }

    /// Decodes one file.
    fn decode(&self, file: &ImageFile) -> Result<Image, DataError> {
        let bytes = fs::read(&file.path)
            .map_err(|source| DataError::Io { path: file.path.clone(), source })?;
        decode::decode(&bytes, self.options.channels).map_err(|reason| {
            let skipped = self.options.on_corrupt == OnCorrupt::Skip;
            DataError::image_set(&file.path, ImageSetProblem::Undecodable { reason, skipped })
        })
    }

    /// Decodes the first file after `index` that can be, beginning again at the first of all.
    fn stand_in(&self, index: usize, error: &DataError) -> Result<ImageSample, DataError> {
        let after = (index + 1..self.files.len()).chain(0..index);
        for other in after {
            match self.decode(&self.files[other]) {
                Ok(image) => return Ok(ImageSample { image, label: self.files[other].label }),
                Err(error) if is_corrupt(&error) => self.note_corrupt(other, &error),
                Err(error) => return Err(error),
            }
        }
        let problem = ImageSetProblem::NothingDecodable {
            num_images: self.files.len(),
            first: self.files[index].path.clone(),
            reason: error.to_string(),
        };
        Err(DataError::image_set(&self.source, problem))
    }

    fn note_corrupt(&self, index: usize, error: &DataError) {
        let mut corrupt = self.corrupt.lock().unwrap_or_else(PoisonError::into_inner);
        if corrupt.insert(index) {
            let all = corrupt.len();
            let what = match self.split {
                Split::Train => "the next image stands in for it",
                Split::Test => "it is left out",
            };
            tracing::warn!("{error}; {what} (corrupt files so far: {all})");
        }
    }

    /// Height and width of the image in a file, where it can be told.
    fn size(file: &ImageFile) -> Option<[usize; 2]> {
        decode::size(BufReader::new(fs::File::open(&file.path).ok()?)).ok()
    }

    /// Finds out whether all images have one size; stops at the first that has another.
    fn common_shape(&self) -> Option<[usize; 3]> {
        // What cannot be read says nothing of the others; reading it whole tells what is wrong.
        let mut sizes = self.files.iter().filter_map(Self::size);
        let first = sizes.next()?;
        let [height, width] = first;
        sizes.all(|size| size == first).then_some([height, width, self.options.channels.count()])
    }
}

impl Dataset for ImageFiles {
    type Item = ImageSample;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, context: &SampleContext) -> Result<ImageSample, DataError> {
        let (index, len) = (context.index, self.files.len());
        let file = self.files.get(index).ok_or(DataError::IndexOutOfRange { index, len })?;
        let error = match self.decode(file) {
            Ok(image) => return Ok(ImageSample { image, label: file.label }),
            Err(error) => error,
        };
        if self.options.on_corrupt == OnCorrupt::Error || !is_corrupt(&error) {
            return Err(error);
        }
        self.note_corrupt(index, &error);
        match self.split {
            Split::Train => self.stand_in(index, &error),
            Split::Test => Err(DataError::LeftOut { index, source: Box::new(error) }),
        }
    }

    fn digest(&self) -> DatasetDigest {
        DatasetDigest {
            num_samples: self.files.len() as u64,
            class_names: self.class_names.clone(),
            content: self.content,
        }
    }
}

impl ImageDataset for ImageFiles {
    /// Reads the beginnings of files until one has another size, at the first call.
    fn image_shape(&self) -> Option<[usize; 3]> {
        *self.shape.get_or_init(|| self.common_shape())
    }

    /// That of the first file.
    fn example_shape(&self) -> Option<[usize; 3]> {
        let [height, width] = Self::size(self.files.first()?)?;
        Some([height, width, self.options.channels.count()])
    }

    fn num_channels(&self) -> Option<usize> {
        Some(self.options.channels.count())
    }

    fn skipped(&self) -> Skipped {
        let corrupt = self.corrupt.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Skipped { unlisted: self.unlisted, corrupt }
    }

    fn num_classes(&self) -> usize {
        self.class_names.len()
    }
}

/// Whether a file was read and its contents are no image.
fn is_corrupt(error: &DataError) -> bool {
    matches!(error, DataError::ImageSet { problem: ImageSetProblem::Undecodable { .. }, .. })
}

#[cfg(test)]
pub(crate) mod tests;
