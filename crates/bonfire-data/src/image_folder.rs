//! A folder a class: `ROOT/train/<class>/*.png`.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::image_files::Listing;
use crate::image_set_problem::suffixes;
use crate::problems::Problems;
use crate::{
    DataError, FileOptions, IMAGE_SUFFIXES, ImageFiles, ImageSetProblem, OnCorrupt, Split,
    class_names,
};

/// The usual name of the folder of training images.
pub const TRAIN_FOLDER: &str = "train";
/// The usual names of the folder of validation images; the first that exists is taken.
pub const VALID_FOLDERS: [&str; 4] = ["val", "valid", "validation", "test"];

impl ImageFiles {
    /// Lists one split of a folder with a folder for each split, and in these one for each class.
    ///
    /// Labels are the places of classes in the sorted list of the training split's folders, in both
    /// splits. Images may lie in folders within that of their class. Those that count end in one of
    /// [`IMAGE_SUFFIXES`], in upper or lower case; what begins with a dot is passed over.
    ///
    /// `train` and `valid` are the names of the splits' folders; `None` stands for [`TRAIN_FOLDER`]
    /// and the first of [`VALID_FOLDERS`] that exists.
    ///
    /// # Errors
    ///
    /// - [`DataError::ImageSet`] when a folder is missing, classes are empty, there are fewer than two
    ///   classes, validation has a class that training lacks, a link leads to a folder that is listed
    ///   already, or an image is no regular file (but see [`OnCorrupt`]).
    /// - [`DataError::Io`] when a folder cannot be read.
    ///
    /// # Reference
    ///
    /// `torchvision.datasets.ImageFolder`.
    pub fn open_folder(
        root: impl AsRef<Path>,
        split: Split,
        [train, valid]: [Option<&str>; 2],
        options: FileOptions,
    ) -> Result<Self, DataError> {
        let root = root.as_ref();
        if !root.is_dir() {
            let expected = "expected a folder with images in train/<class>/ and val/<class>/";
            return Err(DataError::image_set(root, ImageSetProblem::NotAFolder { expected }));
        }
        let train = split_folder(root, train, &[TRAIN_FOLDER])?;
        let classes = classes_in(&train)?;
        class_names::check(&train, &classes)?;
        let home = match split {
            Split::Train => train,
            Split::Test => split_folder(root, valid, &VALID_FOLDERS)?,
        };
        Self::list_classes(root, &home, classes, split, options)
    }

    /// Lists a folder with a folder for each class, without splits.
    ///
    /// Labels are the places of the folders' names among `classes`, or else in their own sorted list.
    /// For what corrupt files become it counts as `split`.
    ///
    /// # Errors
    ///
    /// Those of [`open_folder`](Self::open_folder).
    pub fn open_classes(
        folder: impl AsRef<Path>,
        classes: Option<&[String]>,
        split: Split,
        options: FileOptions,
    ) -> Result<Self, DataError> {
        let folder = folder.as_ref();
        if !folder.is_dir() {
            let expected = "expected a folder with images in <class>/";
            return Err(DataError::image_set(folder, ImageSetProblem::NotAFolder { expected }));
        }
        let classes = match classes {
            Some(classes) => classes.to_vec(),
            None => classes_in(folder)?,
        };
        class_names::check(folder, &classes)?;
        Self::list_classes(folder, folder, classes, split, options)
    }

    fn list_classes(
        root: &Path,
        home: &Path,
        classes: Vec<String>,
        split: Split,
        options: FileOptions,
    ) -> Result<Self, DataError> {
        let mut lister = Lister::new(root, home, options.on_corrupt);
        for class in classes_in(home)? {
            lister.class(&class, &classes)?;
        }
        lister.problems.check(root)?;
        Self::new(home, lister.listing, classes, split, options)
    }
}

/// Whether there are folders with images in a folder, as classes have them.
pub fn holds_classes(folder: impl AsRef<Path>) -> bool {
    let folder = folder.as_ref();
    let holds_images = |class: String| {
        let entries = entries(&folder.join(class)).unwrap_or_default();
        entries.iter().any(|(_, path)| is_image(path))
    };
    classes_in(folder).is_ok_and(|classes| classes.into_iter().any(holds_images))
}

/// The names of the folders of classes.
fn classes_in(folder: &Path) -> Result<Vec<String>, DataError> {
    let folders = entries(folder)?.into_iter().filter(|(_, path)| path.is_dir());
    let classes: Vec<String> = folders.map(|(name, _)| name).collect();
    match classes.is_empty() {
        true => Err(DataError::image_set(folder, ImageSetProblem::NoClasses)),
        false => Ok(classes),
    }
}

fn split_folder(root: &Path, name: Option<&str>, usual: &[&str]) -> Result<PathBuf, DataError> {
    let names = name.map_or_else(|| usual.to_vec(), |name| vec![name]);
    let mut folders = names.iter().map(|name| root.join(name));
    folders.find(|folder| folder.is_dir()).ok_or_else(|| {
        let looked_for = names.iter().map(|name| format!("{name}/")).collect();
        DataError::image_set(root, ImageSetProblem::NoSplit { looked_for })
    })
}

/// The names of what lies in a folder, sorted, without what is hidden.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, DataError> {
    let failed = |source| DataError::Io { path: folder.to_owned(), source };
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            entries.push((name, path));
        }
    }
    entries.sort();
    Ok(entries)
}

/// Collects the images of one split.
struct Lister<'a> {
    root: &'a Path,
    home: &'a Path,
    on_corrupt: OnCorrupt,
    /// Folders by device and number: links can lead to one twice, or back into it.
    seen: HashMap<(u64, u64), PathBuf>,
    listing: Listing,
    problems: Problems,
}

impl<'a> Lister<'a> {
    fn new(root: &'a Path, home: &'a Path, on_corrupt: OnCorrupt) -> Self {
        let (listing, problems) = (Listing::default(), Problems::default());
        let mut seen = HashMap::new();
        // A link from a class back to the folder of all classes is a loop, too.
        seen.extend(identity(home).ok().map(|identity| (identity, home.to_owned())));
        Self { root, home, on_corrupt, seen, listing, problems }
    }

    /// Adds the images of a class.
    fn class(&mut self, class: &str, classes: &[String]) -> Result<(), DataError> {
        let folder = self.home.join(class);
        let label = match class_names::label(class, classes) {
            Ok(label) => label,
            Err(problem) => {
                self.problem(&folder, &problem.to_string());
                return Ok(());
            }
        };
        let before = (self.listing.files.len(), self.problems.count());
        self.folder(&folder, label)?;
        if (self.listing.files.len(), self.problems.count()) == before {
            let problem =
                format!("the class has no images ({}); add some or remove the folder", suffixes());
            self.problem(&folder, &problem);
        }
        Ok(())
    }

    /// Adds the images in a folder and in the folders within.
    fn folder(&mut self, folder: &Path, label: u32) -> Result<(), DataError> {
        if let Some(first) = self.seen.insert(identity(folder)?, folder.to_owned()) {
            let problem =
                format!("a link to {}, whose images would count twice; remove it", first.display());
            self.problem(folder, &problem);
            return Ok(());
        }
        for (_, path) in entries(folder)? {
            if path.is_dir() {
                self.folder(&path, label)?;
            } else if is_image(&path) {
                let name =
                    path.strip_prefix(self.home).unwrap_or(&path).to_string_lossy().into_owned();
                let added = self.listing.add(path.clone(), name, label, self.on_corrupt);
                if let Err(problem) = added {
                    self.problem(&path, &problem);
                }
            }
        }
        Ok(())
    }

    fn problem(&mut self, path: &Path, problem: &str) {
        let path = path.strip_prefix(self.root).unwrap_or(path).display();
        self.problems.add(format!("{path}: {problem}"));
    }
}

/// Device and number of a folder, which are the same on whatever way it is reached.
fn identity(folder: &Path) -> Result<(u64, u64), DataError> {
    let metadata =
        fs::metadata(folder).map_err(|source| DataError::Io { path: folder.to_owned(), source })?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Whether a name ends as images do.
pub(crate) fn is_image(path: &Path) -> bool {
    let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_lowercase());
    suffix.is_some_and(|suffix| IMAGE_SUFFIXES.contains(&suffix.as_str()))
}

#[cfg(test)]
mod tests;
