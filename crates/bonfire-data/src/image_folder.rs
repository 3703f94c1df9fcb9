//! A folder a class: `ROOT/train/<class>/*.png`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::image_files::ImageFile;
use crate::{
    DataError, FileOptions, IMAGE_SUFFIXES, ImageFiles, ImageSetProblem, Split, class_names,
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
    /// - [`DataError::ImageSet`] when a folder is missing, a class is empty, there are fewer than two
    ///   classes, or validation has a class that training lacks.
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
        let classes = folders_in(&train)?;
        if classes.is_empty() {
            return Err(DataError::image_set(train, ImageSetProblem::NoClasses));
        }
        class_names::check(&train, &classes)?;
        let (home, own) = match split {
            Split::Train => (train, classes.clone()),
            Split::Test => {
                let valid = split_folder(root, valid, &VALID_FOLDERS)?;
                let own = folders_in(&valid)?;
                (valid, own)
            }
        };
        let mut files = Vec::new();
        for class in own {
            let label = class_names::label(&home, &class, &classes)?;
            let before = files.len();
            list(&home, &home.join(&class), label, &mut files)?;
            if files.len() == before {
                return Err(DataError::image_set(home.join(class), ImageSetProblem::EmptyClass));
            }
        }
        Self::new(&home, files, classes, options)
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

fn folders_in(folder: &Path) -> Result<Vec<String>, DataError> {
    let entries = entries(folder)?.into_iter().filter(|(_, path)| path.is_dir());
    Ok(entries.map(|(name, _)| name).collect())
}

/// Adds the images in a folder and in the folders within.
fn list(
    home: &Path,
    folder: &Path,
    label: u32,
    files: &mut Vec<ImageFile>,
) -> Result<(), DataError> {
    for (_, path) in entries(folder)? {
        if path.is_dir() {
            list(home, &path, label, files)?;
        } else if is_image(&path) {
            let metadata = fs::metadata(&path)
                .map_err(|source| DataError::Io { path: path.clone(), source })?;
            let name = path.strip_prefix(home).unwrap_or(&path).to_string_lossy().into_owned();
            files.push(ImageFile { path, name, label, bytes: metadata.len() });
        }
    }
    Ok(())
}

/// Whether a name ends as images do.
pub(crate) fn is_image(path: &Path) -> bool {
    let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_lowercase());
    suffix.is_some_and(|suffix| IMAGE_SUFFIXES.contains(&suffix.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_files::tests::folder_with;
    use crate::{Dataset, ImageDataset, SampleContext};

    const SMALL: Option<[u32; 2]> = Some([3, 2]);

    fn open(root: &Path, split: Split) -> Result<ImageFiles, DataError> {
        ImageFiles::open_folder(root, split, [None, None], FileOptions::default())
    }

    fn labels(data: &ImageFiles) -> Vec<u32> {
        let context = |index| SampleContext { seed: 0, epoch: 0, index };
        (0..data.len()).map(|index| data.get(&context(index)).unwrap().label).collect()
    }

    #[test]
    fn classes_and_files_are_sorted_and_hidden_ones_passed_over() {
        let folder = folder_with(&[
            ("train/dog/2.PNG", SMALL),
            ("train/dog/1.jpg", SMALL),
            ("train/cat/deep/er.JpEg", SMALL),
            ("train/cat/a.webp", SMALL),
            ("train/cat/.hidden.png", None),
            ("train/.git/x.png", None),
            ("train/notes.txt", None),
            ("train/cat/readme.md", None),
            ("val/dog/only.png", SMALL),
        ]);
        let train = open(folder.path(), Split::Train).unwrap();
        assert_eq!(train.class_names(), ["cat", "dog"]);
        let names: Vec<&str> = train.files().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["cat/a.webp", "cat/deep/er.JpEg", "dog/1.jpg", "dog/2.PNG"]);
        assert_eq!(labels(&train), [0, 0, 1, 1]);
        // A class that validation lacks keeps its label.
        let valid = open(folder.path(), Split::Test).unwrap();
        assert_eq!((labels(&valid), valid.num_classes()), (vec![1], 2));
    }

    #[test]
    fn every_usual_name_of_the_validation_folder_is_found_and_others_can_be_given() {
        for name in VALID_FOLDERS {
            let valid = format!("{name}/a/1.png");
            let files = ["train/a/1.png", "train/b/1.png", &valid].map(|name| (name, SMALL));
            let folder = folder_with(&files);
            assert_eq!(open(folder.path(), Split::Test).unwrap().len(), 1, "{name}");
            let none = [None, Some("holdout")];
            let options = FileOptions::default();
            let error = ImageFiles::open_folder(folder.path(), Split::Test, none, options);
            assert!(error.unwrap_err().to_string().ends_with("looked for holdout/"));
        }
    }

    #[test]
    fn wrong_folders_are_told_apart() {
        let problem = |files: &[&str], split| {
            let files: Vec<_> = files.iter().map(|name| (*name, SMALL)).collect();
            let folder = folder_with(&files);
            fs::create_dir_all(folder.path().join("train")).unwrap();
            match open(folder.path(), split).unwrap_err() {
                DataError::ImageSet { problem, .. } => problem,
                other => panic!("{other}"),
            }
        };
        assert_eq!(problem(&[], Split::Train), ImageSetProblem::NoClasses);
        let (num_classes, names) = (1, vec!["a".to_owned()]);
        let few = ImageSetProblem::TooFewClasses { num_classes, names };
        assert_eq!(problem(&["train/a/1.png"], Split::Train), few);
        let pair = ["train/a/1.png", "train/b/1.png"];
        let without = problem(&pair, Split::Test).to_string();
        assert!(without.ends_with("looked for val/, valid/, validation/, test/"), "{without}");
        let unknown = problem(&[pair[0], pair[1], "val/c/1.png"], Split::Test).to_string();
        assert!(unknown.starts_with("class \"c\" is unknown"), "{unknown}");
        let error = open(Path::new("/no/such"), Split::Train).unwrap_err().to_string();
        assert!(error.starts_with("/no/such: is not a folder"), "{error}");
    }

    #[test]
    fn an_empty_class_is_an_error_that_names_its_folder() {
        let folder = folder_with(&[("train/a/1.png", SMALL), ("train/b/notes.txt", None)]);
        let error = open(folder.path(), Split::Train).unwrap_err().to_string();
        assert!(error.contains("train/b: the class has no images (*.png, *.jpg"), "{error}");
    }
}
