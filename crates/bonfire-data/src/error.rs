//! Everything that can go wrong with data.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use crate::ImageSetProblem;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// Happens when a shard's index is not below its count.
    #[error("shard {index} of {count} does not exist; the index must be below the count")]
    InvalidShard {
        /// The index of the shard.
        index: usize,
        /// The number of shards.
        count: usize,
    },

    /// Happens when an option of the sampler or loader has a value that cannot work.
    #[error("{name} is {value}; {rule}")]
    InvalidOption {
        /// The name of the option.
        name: &'static str,
        /// Its value.
        value: usize,
        /// What it should be.
        rule: &'static str,
    },

    /// Happens when an image is made of another number of bytes than its shape needs.
    #[error(
        "an image of {height} rows, {width} columns and {channels} channels was made of {pixels} bytes"
    )]
    PixelCount {
        /// The bytes given.
        pixels: usize,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Channels.
        channels: usize,
    },

    /// Happens when a transform meets an image that it cannot work on.
    #[error(
        "{transform} cannot take an image of {height} rows, {width} columns and {channels} channels: {rule}"
    )]
    Transform {
        /// The transform.
        transform: &'static str,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Channels.
        channels: usize,
        /// What it needs.
        rule: String,
    },

    /// Happens when a transform can take no image of a size, or would make one too large for memory.
    #[error("{transform} cannot take an image of {height} rows and {width} columns: {rule}")]
    ImageSize {
        /// The transform.
        transform: &'static str,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// What it needs.
        rule: String,
    },

    /// Happens when there are fewer samples than needed to give every shard something to do.
    #[error(
        "{num_samples} samples are too few for {num_shards} shards with batch size {batch_size} \
         and drop_last = {drop_last}, which need at least {needed}; use fewer ranks, a smaller \
         batch or more data"
    )]
    TooFewSamples {
        /// The number of samples in the data set.
        num_samples: usize,
        /// The number of shards.
        num_shards: usize,
        /// The batch size of each shard.
        batch_size: usize,
        /// Whether incomplete batches are dropped.
        drop_last: bool,
        /// The smallest number of samples that works.
        needed: usize,
    },

    /// Happens when an epoch is resumed behind its last sample: the data set has shrunk, or the
    /// cursor was saved with another one.
    #[error(
        "cursor {cursor} is beyond the end of the epoch, which has {num_samples} samples; was the \
         checkpoint written with another data set?"
    )]
    CursorBeyondEnd {
        /// The cursor.
        cursor: u64,
        /// The number of samples in the data set.
        num_samples: usize,
    },

    /// Happens when the order of an epoch does not fit into memory.
    #[error("the order of {num_samples} samples does not fit into memory")]
    PermutationTooLarge {
        /// The number of samples in the data set.
        num_samples: usize,
    },

    /// Happens when a data set is asked for a sample it does not have.
    #[error("sample {index} does not exist; the data set has {len} samples")]
    IndexOutOfRange {
        /// The index that was asked for.
        index: usize,
        /// The number of samples.
        len: usize,
    },

    /// Happens when a data set leaves a sample out: no failure, for a loader goes on without it.
    #[error("sample {index} is left out: {source}")]
    LeftOut {
        /// The index of the sample.
        index: usize,
        /// Why.
        source: Box<DataError>,
    },

    /// Happens when a data set fails to read a sample.
    #[error("cannot read sample {index} in epoch {epoch}: {source}")]
    Sample {
        /// The index of the sample.
        index: usize,
        /// The epoch it was read in.
        epoch: u64,
        /// What went wrong.
        source: Box<DataError>,
    },

    /// Happens when the data set or the collate function panics while a batch is built.
    #[error("building batch {batch} of epoch {epoch} panicked: {message}")]
    WorkerPanicked {
        /// Which batch, counted from where this iteration started.
        batch: usize,
        /// The epoch.
        epoch: u64,
        /// The message of the panic.
        message: String,
    },

    /// Happens when a worker thread ends without delivering its batch.
    #[error("the worker thread for batch {batch} of epoch {epoch} ended without delivering it")]
    WorkerLost {
        /// Which batch, counted from where this iteration started.
        batch: usize,
        /// The epoch.
        epoch: u64,
    },

    /// Happens when a batch is not ready in time: a read hangs, or is far too slow.
    #[error(
        "data worker {worker} did not deliver batch {batch} of epoch {epoch} within {seconds} s; does \
         the disk answer, and is a file perhaps no file but a pipe? data.timeout_s sets the limit"
    )]
    BatchOverdue {
        /// Which batch, counted from where this iteration started.
        batch: usize,
        /// The epoch.
        epoch: u64,
        /// The worker that builds it.
        worker: usize,
        /// How long was waited.
        seconds: f64,
    },

    /// Happens when the system refuses another thread.
    #[error("cannot start data worker {worker} of {workers}: {source}; use fewer workers")]
    WorkerSpawn {
        /// Which worker.
        worker: usize,
        /// How many were to be started.
        workers: usize,
        /// What the system said.
        source: io::Error,
    },

    /// Happens when a file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// Happens when a folder, or files expected in it, do not exist.
    #[error("{} {}; looked for {}", folder.display(), missing(*folder_exists), looked_for.join("; "))]
    MissingFiles {
        /// The folder.
        folder: PathBuf,
        /// Whether the folder itself exists.
        folder_exists: bool,
        /// For each missing file, the names it may have.
        looked_for: Vec<String>,
    },

    /// Happens when a file is not the IDX file it should be.
    #[error("{}: {problem} (at byte {offset}{})", path.display(), of_stream(*compressed))]
    MalformedIdx {
        /// The file.
        path: PathBuf,
        /// Where in the file, or in the decompressed stream, the problem was found.
        offset: u64,
        /// Whether the file is compressed, so that `offset` counts decompressed bytes.
        compressed: bool,
        /// What is wrong.
        problem: IdxProblem,
    },

    /// Happens when a folder, list or file of images is not as it should be.
    #[error("{}: {problem}", path.display())]
    ImageSet {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong.
        problem: ImageSetProblem,
    },

    /// Happens when a classifier cannot be trained and validated on the classes of the data.
    #[error(
        "the training data have {train} class(es) and the validation data {valid}; at least {} are \
         needed, and every label of the validation data must be below the number of classes of the \
         training data",
        crate::MIN_CLASSES
    )]
    Classes {
        /// The number of classes of the training data.
        train: usize,
        /// The number of classes of the validation data.
        valid: usize,
    },

    /// Happens when an image file and its label file do not belong together.
    #[error(
        "{} holds {num_images} images but {} holds {num_labels} labels; they must be of one split",
        images.display(), labels.display()
    )]
    CountMismatch {
        /// The file with the images.
        images: PathBuf,
        /// Their number.
        num_images: usize,
        /// The file with the labels.
        labels: PathBuf,
        /// Their number.
        num_labels: usize,
    },

    /// Happens when a data set or collate function of the user says so.
    #[error("{message}")]
    Message {
        /// What went wrong.
        message: String,
    },

    /// Happens when a data set or collate function of the user fails with its own error.
    #[error("{source}")]
    Other {
        /// The user's error.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl DataError {
    /// Says what is wrong with a folder, list or file of images.
    pub(crate) fn image_set(path: impl Into<PathBuf>, problem: ImageSetProblem) -> Self {
        Self::ImageSet { path: path.into(), problem }
    }

    /// Makes an error out of a message, for a user's own data set or collate function.
    pub fn message(message: impl Into<String>) -> Self {
        Self::Message { message: message.into() }
    }

    /// Wraps a user's own error.
    pub fn other(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other { source: source.into() }
    }
}

/// What is wrong with an IDX file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdxProblem {
    /// Happens when the first four bytes are those of no IDX file.
    #[error("not an IDX file: expected magic {expected:#010x}, got {found:#010x}")]
    NotIdx {
        /// The magic number that was expected.
        expected: u32,
        /// The magic number in the file.
        found: u32,
    },

    /// Happens when images are read from a label file or labels from an image file.
    #[error(
        "expected {wanted} (magic {expected:#010x}), got {got} (magic {found:#010x}); are the image \
         and label files swapped?"
    )]
    Swapped {
        /// What was expected: "images" or "labels".
        wanted: &'static str,
        /// What the file holds.
        got: &'static str,
        /// The magic number that was expected.
        expected: u32,
        /// The magic number in the file.
        found: u32,
    },

    /// Happens when the file holds anything but unsigned bytes.
    #[error(
        "elements of type {name} ({code:#04x}) are not supported, only unsigned bytes (0x08); \
         the magic is {found:#010x}"
    )]
    UnsupportedElement {
        /// The name of the element type.
        name: &'static str,
        /// The code of the element type.
        code: u8,
        /// The magic number in the file.
        found: u32,
    },

    /// Happens when the file has another number of dimensions.
    #[error("expected {expected} dimensions for {wanted}, got {found}")]
    WrongRank {
        /// What was expected: "images" or "labels".
        wanted: &'static str,
        /// The number of dimensions that was expected.
        expected: u8,
        /// The number of dimensions in the file.
        found: u8,
    },

    /// Happens when the file says that it holds nothing.
    #[error("the {dimension} is 0; nothing can be learned from an empty file")]
    ZeroDimension {
        /// "number of items", "height" or "width".
        dimension: &'static str,
    },

    /// Happens when the header promises more than a sane file holds.
    #[error("the dimensions {dimensions:?} promise more than the limit of {limit_bytes} bytes")]
    TooLarge {
        /// The dimensions in the header.
        dimensions: Vec<u32>,
        /// The limit.
        limit_bytes: u64,
    },

    /// Happens when the file ends within the header.
    #[error("the header is truncated: expected {expected_bytes} bytes, got {found_bytes}")]
    TruncatedHeader {
        /// The length of the header.
        expected_bytes: u64,
        /// How much of it is there.
        found_bytes: u64,
    },

    /// Happens when the file ends before the last item.
    #[error("the data is truncated: expected {expected_bytes} bytes, got {found_bytes}")]
    TruncatedData {
        /// How many bytes should follow the header.
        expected_bytes: u64,
        /// How many do.
        found_bytes: u64,
    },

    /// Happens when the file goes on after the last item.
    #[error("the data should end here, {expected_bytes} bytes after the header, but goes on")]
    TrailingBytes {
        /// How many bytes should follow the header.
        expected_bytes: u64,
    },

    /// Happens when the gzip stream is cut off or damaged.
    #[error("the gzip stream is truncated or corrupt: {reason}")]
    CorruptGzip {
        /// What the decoder said.
        reason: String,
    },
}

fn missing(folder_exists: bool) -> &'static str {
    if folder_exists { "lacks files" } else { "does not exist or is no folder" }
}

fn of_stream(compressed: bool) -> &'static str {
    if compressed { " of the decompressed data" } else { "" }
}
