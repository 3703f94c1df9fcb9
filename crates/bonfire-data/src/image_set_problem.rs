//! What is wrong with a set of images.

use std::path::PathBuf;

use crate::{IMAGE_SUFFIXES, MIN_CLASSES};

/// What is wrong with a folder, a list or a file of images, or with one image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageSetProblem {
    /// Happens when a folder of images is a file or does not exist.
    #[error("is not a folder; {expected}")]
    NotAFolder {
        /// What should be there.
        expected: &'static str,
    },

    /// Happens when a folder lacks the folder of a split.
    #[error("lacks the folder of a split; looked for {}", looked_for.join(", "))]
    NoSplit {
        /// The names it may have.
        looked_for: Vec<String>,
    },

    /// Happens when a folder of classes has images or nothing where folders should be.
    #[error("has no folders of classes; images lie in <class>/<image>.png")]
    NoClasses,

    /// Happens when a list or file has no images.
    #[error("has no images; nothing can be learned from an empty data set")]
    NoImages,

    /// Happens when there is nothing to tell apart.
    #[error(
        "{num_classes} class(es) ({}) are too few; a classifier needs at least {}",
        names.join(", "), MIN_CLASSES
    )]
    TooFewClasses {
        /// The number of classes.
        num_classes: usize,
        /// Their names.
        names: Vec<String>,
    },

    /// Happens when validation data have a class that the training data lack.
    #[error("class {name:?} is unknown to the training data, whose classes are {}", shorten(known))]
    UnknownClass {
        /// The class.
        name: String,
        /// The classes of the training data.
        known: Vec<String>,
    },

    /// Happens when a label is not below the number of classes.
    #[error(
        "record {record} has label {label}; labels must be below the number of classes, \
         {num_classes}"
    )]
    LabelOutOfRange {
        /// Which record, from 0.
        record: usize,
        /// Its label.
        label: u32,
        /// The number of classes.
        num_classes: usize,
    },

    /// Happens when a CIFAR file ends within a record.
    #[error(
        "{file_bytes} bytes are no whole number of records of {record_bytes} bytes; the file is \
         truncated, or of the other of CIFAR-10 and CIFAR-100"
    )]
    PartialRecord {
        /// The length of the file.
        file_bytes: u64,
        /// The length of a record.
        record_bytes: u64,
    },

    /// Happens when the Python version of CIFAR is given.
    #[error(
        "is the Python (pickle) version of CIFAR, which can run code when it is read; get the binary \
         version, cifar-10-binary.tar.gz or cifar-100-binary.tar.gz (bonfire data fetch cifar10)"
    )]
    Pickle,

    /// Happens when lines of a list, or classes or files of a folder, cannot be used.
    #[error("{}{}", problems.join("; "), and_more(*more))]
    Unusable {
        /// The first of them, each with its line or its path.
        problems: Vec<String>,
        /// How many there are beside.
        more: usize,
    },

    /// Happens when a file cannot be decoded.
    #[error(
        "cannot decode the image: {reason}{}",
        if *skipped { "" } else { "; replace the file, or pass over such files with on_corrupt = \"skip\"" }
    )]
    Undecodable {
        /// The decoder's reason.
        reason: String,
        /// Whether another image stands in for it.
        skipped: bool,
    },

    /// Happens when corrupt files are skipped and no other is left.
    #[error("none of {num_images} images can be decoded; the first is {}: {reason}", first.display())]
    NothingDecodable {
        /// The number of images.
        num_images: usize,
        /// The first image.
        first: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The suffixes of images in words.
pub(crate) fn suffixes() -> String {
    IMAGE_SUFFIXES.map(|suffix| format!("*.{suffix}")).join(", ")
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!("; and {more} more") }
}

/// Lists the first few names.
fn shorten(names: &[String]) -> String {
    const MOST: usize = 10;
    match names.len() {
        0..=MOST => names.join(", "),
        all => format!("{} and {} more", names[..MOST].join(", "), all - MOST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_classes_are_cut() {
        let known: Vec<String> = (0..12).map(|class| class.to_string()).collect();
        let error = ImageSetProblem::UnknownClass { name: "cat".into(), known };
        assert_eq!(
            error.to_string(),
            "class \"cat\" is unknown to the training data, whose classes are 0, 1, 2, 3, 4, 5, 6, \
             7, 8, 9 and 2 more"
        );
    }
}
