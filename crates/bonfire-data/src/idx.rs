//! The IDX file format of MNIST, plain or compressed with gzip.
//!
//! A file is a magic number (two zero bytes, the element type, the number of dimensions), one
//! big-endian `u32` per dimension, and the elements. Whatever the bytes are, reading ends in an
//! array or in an error that says where and what; memory grows with what the file really holds, never
//! with what its header promises.
//!
//! # Reference
//!
//! LeCun, Cortes, Burges: "The MNIST database of handwritten digits", section "File formats".

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::{DataError, IdxProblem};

/// The largest array an IDX file may hold, in bytes: 4 GiB, eighty times the size of MNIST.
pub const MAX_IDX_BYTES: u64 = 1 << 32;

const UNSIGNED_BYTE: u8 = 0x08;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What a file should hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdxKind {
    Images,
    Labels,
}

impl IdxKind {
    fn name(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Labels => "labels",
        }
    }

    fn dimensions(self) -> &'static [&'static str] {
        match self {
            Self::Images => &["number of items", "height", "width"],
            Self::Labels => &["number of items"],
        }
    }

    fn magic(self) -> u32 {
        u32::from_be_bytes([0, 0, UNSIGNED_BYTE, self.dimensions().len() as u8])
    }

    fn other(self) -> Self {
        match self {
            Self::Images => Self::Labels,
            Self::Labels => Self::Images,
        }
    }
}

/// An array of unsigned bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdxArray {
    /// The lengths of the dimensions, none of them 0.
    pub(crate) dimensions: Vec<usize>,
    /// As many bytes as the product of the dimensions.
    pub(crate) data: Vec<u8>,
}

/// Reads the file at `path`.
pub(crate) fn open_idx(path: &Path, kind: IdxKind) -> Result<IdxArray, DataError> {
    let io_error = |source| DataError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io_error)?;
    read_idx(BufReader::with_capacity(1 << 16, file), path, kind)
}

/// Reads from `source`, which errors call `path`.
pub(crate) fn read_idx(
    mut source: impl BufRead,
    path: &Path,
    kind: IdxKind,
) -> Result<IdxArray, DataError> {
    let io_error = |source| DataError::Io { path: path.to_owned(), source };
    let mut start = Vec::with_capacity(GZIP_MAGIC.len());
    source.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut start).map_err(io_error)?;
    let compressed = start == GZIP_MAGIC;
    let whole = io::Cursor::new(start).chain(source);
    if compressed {
        IdxReader { stream: MultiGzDecoder::new(whole), path, kind, compressed, offset: 0 }.read()
    } else {
        IdxReader { stream: whole, path, kind, compressed, offset: 0 }.read()
    }
}

/// Reads one file and knows where it is.
struct IdxReader<'a, R> {
    stream: R,
    path: &'a Path,
    kind: IdxKind,
    compressed: bool,
    offset: u64,
}

impl<R: Read> IdxReader<'_, R> {
    fn read(mut self) -> Result<IdxArray, DataError> {
        self.read_magic()?;
        let dimensions = self.read_dimensions()?;
        let expected_bytes = self.check_size(&dimensions)?;
        let data = self.read_data(expected_bytes)?;
        self.check_end(expected_bytes)?;
        let dimensions = dimensions.into_iter().map(|length| length as usize).collect();
        Ok(IdxArray { dimensions, data })
    }

    fn read_magic(&mut self) -> Result<(), DataError> {
        let found = self.read_u32()?;
        let expected = self.kind.magic();
        let [zero, zero_too, code, rank] = found.to_be_bytes();
        let (wanted, got) = (self.kind.name(), self.kind.other().name());
        let problem = if found == expected {
            return Ok(());
        } else if found == self.kind.other().magic() {
            IdxProblem::Swapped { wanted, got, expected, found }
        } else if (zero, zero_too) != (0, 0) {
            IdxProblem::NotIdx { expected, found }
        } else if code == UNSIGNED_BYTE {
            let expected = self.kind.dimensions().len() as u8;
            IdxProblem::WrongRank { wanted, expected, found: rank }
        } else if let Some(name) = element_name(code) {
            IdxProblem::UnsupportedElement { name, code, found }
        } else {
            IdxProblem::NotIdx { expected, found }
        };
        Err(self.malformed(0, problem))
    }

    fn read_dimensions(&mut self) -> Result<Vec<u32>, DataError> {
        let mut lengths = Vec::new();
        for dimension in self.kind.dimensions() {
            let offset = self.offset;
            let length = self.read_u32()?;
            if length == 0 {
                return Err(self.malformed(offset, IdxProblem::ZeroDimension { dimension }));
            }
            lengths.push(length);
        }
        Ok(lengths)
    }

    /// Returns the number of bytes that should follow the header.
    fn check_size(&self, dimensions: &[u32]) -> Result<u64, DataError> {
        dimensions
            .iter()
            .try_fold(1_u64, |product, &length| product.checked_mul(u64::from(length)))
            .filter(|&bytes| bytes <= MAX_IDX_BYTES && usize::try_from(bytes).is_ok())
            .ok_or_else(|| {
                let dimensions = dimensions.to_vec();
                let problem = IdxProblem::TooLarge { dimensions, limit_bytes: MAX_IDX_BYTES };
                self.malformed(4, problem)
            })
    }

    fn read_data(&mut self, expected_bytes: u64) -> Result<Vec<u8>, DataError> {
        let mut data = Vec::new();
        self.fill(&mut data, expected_bytes)?;
        let found_bytes = data.len() as u64;
        if found_bytes < expected_bytes {
            let problem = IdxProblem::TruncatedData { expected_bytes, found_bytes };
            return Err(self.malformed(self.offset, problem));
        }
        data.shrink_to_fit();
        Ok(data)
    }

    /// Reading on to the end also makes the gzip decoder verify its checksum.
    fn check_end(&mut self, expected_bytes: u64) -> Result<(), DataError> {
        let end = self.offset;
        let mut rest = Vec::new();
        self.fill(&mut rest, 1)?;
        if rest.is_empty() {
            Ok(())
        } else {
            Err(self.malformed(end, IdxProblem::TrailingBytes { expected_bytes }))
        }
    }

    fn read_u32(&mut self) -> Result<u32, DataError> {
        let mut bytes = Vec::with_capacity(4);
        self.fill(&mut bytes, 4)?;
        match bytes[..] {
            [a, b, c, d] => Ok(u32::from_be_bytes([a, b, c, d])),
            _ => {
                let expected_bytes = 4 + 4 * self.kind.dimensions().len() as u64;
                let problem =
                    IdxProblem::TruncatedHeader { expected_bytes, found_bytes: self.offset };
                Err(self.malformed(self.offset, problem))
            }
        }
    }

    /// Appends up to `limit` bytes: fewer only at the end of the stream.
    fn fill(&mut self, bytes: &mut Vec<u8>, limit: u64) -> Result<(), DataError> {
        let before = bytes.len();
        let result = self.stream.by_ref().take(limit).read_to_end(bytes);
        self.offset += (bytes.len() - before) as u64;
        result.map(drop).map_err(|source| self.stream_error(source))
    }

    /// Tells a damaged gzip stream from a file that cannot be read.
    fn stream_error(&self, source: io::Error) -> DataError {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        if self.compressed && matches!(source.kind(), InvalidData | InvalidInput | UnexpectedEof) {
            let reason = source.to_string();
            self.malformed(self.offset, IdxProblem::CorruptGzip { reason })
        } else {
            DataError::Io { path: self.path.to_owned(), source }
        }
    }

    fn malformed(&self, offset: u64, problem: IdxProblem) -> DataError {
        let (path, compressed) = (self.path.to_owned(), self.compressed);
        DataError::MalformedIdx { path, offset, compressed, problem }
    }
}

fn element_name(code: u8) -> Option<&'static str> {
    match code {
        0x09 => Some("signed byte"),
        0x0b => Some("16-bit integer"),
        0x0c => Some("32-bit integer"),
        0x0d => Some("32-bit float"),
        0x0e => Some("64-bit float"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
