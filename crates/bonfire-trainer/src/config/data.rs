//! `[data]`: which images, as resolved.

use std::path::PathBuf;

use bonfire_data::{Channels, FileOptions, MIN_CLASSES, OnCorrupt, TRAIN_FOLDER};
use toml::Table;

use super::choice::{choice, choose};
use super::resolve::Resolver;
use super::sections::{DataKind, DataSection};

choice! {
    /// `data.label`: which labels of CIFAR-100.
    CifarLabel {
        /// The 100 classes.
        Fine = "fine",
        /// The 20 classes of classes.
        Coarse = "coarse",
    }
}

choice! {
    /// `data.on_corrupt`: what becomes of a file that cannot be decoded.
    CorruptPolicy {
        /// Ends the run.
        Error = "error",
        /// Has the next image stand in for it.
        Skip = "skip",
    }
}

/// The lists of a set of images when a recipe names none.
const LISTS: [&str; 2] = ["train.csv", "valid.csv"];

/// Which images, with all that is needed to open them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DataSource {
    /// IDX files in a folder.
    Idx {
        /// The folder.
        folder: PathBuf,
    },
    /// CIFAR-10's binary files in a folder.
    Cifar10 {
        /// The folder.
        folder: PathBuf,
    },
    /// CIFAR-100's binary files in a folder.
    Cifar100 {
        /// The folder.
        folder: PathBuf,
        /// Which labels.
        label: CifarLabel,
    },
    /// A folder a split, with a folder a class in it.
    Folder {
        /// The folder of the splits' folders.
        folder: PathBuf,
        /// Name of the folder of training images.
        train: String,
        /// Name of the folder of validation images; `None` stands for the first usual one that exists.
        valid: Option<String>,
        /// How files become images.
        options: FileOptions,
    },
    /// A list a split.
    Csv {
        /// The folder of the lists.
        folder: PathBuf,
        /// Name of the list of training images.
        train: String,
        /// Name of the list of validation images.
        valid: String,
        /// How files become images.
        options: FileOptions,
    },
    /// Made-up images.
    Synthetic {
        /// Training samples; there are a fifth as many validation samples, rounded up.
        num_samples: usize,
        /// `[height, width, channels]`.
        image: [usize; 3],
        /// Classes.
        num_classes: usize,
    },
    /// A data set of the program's own, which only the program can open.
    Own {
        /// Its name, which is none of [`DataKind`]'s.
        kind: String,
        /// `data.path`.
        path: Option<PathBuf>,
        /// `[data.options]`.
        options: Table,
    },
}

impl DataSource {
    /// Returns the kind as recipes write it.
    pub fn kind(&self) -> &str {
        match self {
            Self::Idx { .. } => DataKind::Idx.as_str(),
            Self::Cifar10 { .. } => DataKind::Cifar10.as_str(),
            Self::Cifar100 { .. } => DataKind::Cifar100.as_str(),
            Self::Folder { .. } => DataKind::Folder.as_str(),
            Self::Csv { .. } => DataKind::Csv.as_str(),
            Self::Synthetic { .. } => DataKind::Synthetic.as_str(),
            Self::Own { kind, .. } => kind,
        }
    }
}

/// Fills in the defaults, and checks values and which keys go together.
pub(super) fn resolve(section: &DataSection, resolver: &mut Resolver<'_>) -> DataSource {
    let kind = match section.kind.as_deref().map(|kind| (kind, choose(kind))) {
        None => DataKind::Idx,
        Some((_, Ok(kind))) => kind,
        // Which of a program's own there are is for its registry to say.
        Some((kind, Err(_))) => return own(kind, section),
    };
    for (key, message) in foreign(section, Some(kind)) {
        resolver.reject(&key, message);
    }
    let folder = section.path.clone().unwrap_or_default();
    if folder == PathBuf::new() && kind != DataKind::Synthetic {
        resolver.missing("data.path", "the folder of the data set");
    }
    let name = |name: &Option<String>, usual: &str| name.clone().unwrap_or(usual.to_owned());
    match kind {
        DataKind::Idx => DataSource::Idx { folder },
        DataKind::Cifar10 => DataSource::Cifar10 { folder },
        DataKind::Cifar100 => {
            DataSource::Cifar100 { folder, label: section.label.unwrap_or(CifarLabel::Fine) }
        }
        DataKind::Folder => DataSource::Folder {
            folder,
            train: name(&section.train, TRAIN_FOLDER),
            valid: section.valid.clone(),
            options: file_options(section, resolver),
        },
        DataKind::Csv => DataSource::Csv {
            folder,
            train: name(&section.train, LISTS[0]),
            valid: name(&section.valid, LISTS[1]),
            options: file_options(section, resolver),
        },
        DataKind::Synthetic => synthetic(section, resolver),
    }
}

fn file_options(section: &DataSection, resolver: &mut Resolver<'_>) -> FileOptions {
    let channels = match section.channels.unwrap_or(3) {
        1 => Channels::Grey,
        3 => Channels::Rgb,
        other => {
            resolver.check("data.channels", other, false, "must be 1 (grey) or 3 (colour)");
            Channels::Rgb
        }
    };
    let on_corrupt = match section.on_corrupt {
        Some(CorruptPolicy::Skip) => OnCorrupt::Skip,
        _ => OnCorrupt::Error,
    };
    FileOptions { channels, on_corrupt }
}

fn synthetic(section: &DataSection, resolver: &mut Resolver<'_>) -> DataSource {
    let num_samples = section.num_samples.unwrap_or(1000);
    resolver.check("data.num_samples", num_samples, num_samples > 0, "must be 1 or more");
    let num_classes = section.num_classes.unwrap_or(10);
    let ok = num_classes >= MIN_CLASSES;
    resolver.check("data.num_classes", num_classes, ok, "must be 2 or more");
    let image = section.image.unwrap_or([32, 32, 3]);
    let [height, width, channels] = image;
    let sides = [height, width].iter().all(|side| (1..=1 << 14).contains(side));
    if !sides || ![1, 3].contains(&channels) {
        let remedy =
            "must be [height, width, channels], with sides from 1 to 16384 and 1 or 3 channels";
        resolver.reject("data.image", format!("data.image = {image:?}: {remedy}"));
    }
    DataSource::Synthetic { num_samples, image, num_classes }
}

fn own(kind: &str, section: &DataSection) -> DataSource {
    DataSource::Own {
        kind: kind.to_owned(),
        path: section.path.clone(),
        options: section.options.clone().unwrap_or_default(),
    }
}

/// The keys that belong to other kinds than this one, with what to do; `None` stands for a data set of
/// the program's own.
pub(super) fn foreign(section: &DataSection, kind: Option<DataKind>) -> Vec<(String, String)> {
    use DataKind::{Cifar10, Cifar100, Csv, Folder, Idx, Synthetic};
    let with_path: &[DataKind] = &[Idx, Cifar10, Cifar100, Folder, Csv];
    let keys: [(&str, bool, &[DataKind]); 9] = [
        ("path", section.path.is_some() && kind.is_some(), with_path),
        ("label", section.label.is_some(), &[Cifar100]),
        ("train", section.train.is_some(), &[Folder, Csv]),
        ("valid", section.valid.is_some(), &[Folder, Csv]),
        ("channels", section.channels.is_some(), &[Folder, Csv]),
        ("on_corrupt", section.on_corrupt.is_some(), &[Folder, Csv]),
        ("num_samples", section.num_samples.is_some(), &[Synthetic]),
        ("image", section.image.is_some(), &[Synthetic]),
        ("num_classes", section.num_classes.is_some(), &[Synthetic]),
    ];
    let name = match kind {
        Some(kind) => kind.as_str(),
        None => section.kind.as_deref().unwrap_or_default(),
    };
    let of_others = |of: &[DataKind]| kind.is_none_or(|kind| !of.contains(&kind));
    let mut problems: Vec<(String, String)> = keys
        .into_iter()
        .filter(|(_, set, of)| *set && of_others(of))
        .map(|(key, _, of)| {
            let kinds: Vec<String> = of.iter().map(|kind| format!("\"{kind}\"")).collect();
            let (key, kinds) = (format!("data.{key}"), kinds.join(" or "));
            let message = format!("{key} is a key of kind {kinds}, not of \"{name}\"; remove it");
            (key, message)
        })
        .collect();
    if section.options.is_some() && kind.is_some() {
        let key = "data.options".to_owned();
        let message =
            format!("{key} is for data sets of a program's own, not for \"{name}\"; remove it");
        problems.push((key, message));
    }
    problems
}

/// Writes a source back into a section.
pub(super) fn to_section(source: &DataSource) -> DataSection {
    let section = DataSection { kind: Some(source.kind().to_owned()), ..DataSection::default() };
    let at = |folder: &PathBuf| DataSection { path: Some(folder.clone()), ..section.clone() };
    let files = |folder: &PathBuf, options: &FileOptions| DataSection {
        channels: Some(options.channels.count()),
        on_corrupt: Some(match options.on_corrupt {
            OnCorrupt::Error => CorruptPolicy::Error,
            OnCorrupt::Skip => CorruptPolicy::Skip,
        }),
        ..at(folder)
    };
    match source {
        DataSource::Idx { folder } | DataSource::Cifar10 { folder } => at(folder),
        DataSource::Cifar100 { folder, label } => DataSection { label: Some(*label), ..at(folder) },
        DataSource::Folder { folder, train, valid, options } => DataSection {
            train: Some(train.clone()),
            valid: valid.clone(),
            ..files(folder, options)
        },
        DataSource::Csv { folder, train, valid, options } => DataSection {
            train: Some(train.clone()),
            valid: Some(valid.clone()),
            ..files(folder, options)
        },
        &DataSource::Synthetic { num_samples, image, num_classes } => DataSection {
            num_samples: Some(num_samples),
            image: Some(image),
            num_classes: Some(num_classes),
            ..section
        },
        DataSource::Own { path, options, .. } => DataSection {
            path: path.clone(),
            options: (!options.is_empty()).then(|| options.clone()),
            ..section
        },
    }
}

#[cfg(test)]
mod tests;
