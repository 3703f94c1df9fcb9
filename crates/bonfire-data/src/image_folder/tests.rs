use std::os::unix::fs::symlink;

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
    assert!(unknown.starts_with("val/c: class \"c\" is unknown"), "{unknown}");
    let error = open(Path::new("/no/such"), Split::Train).unwrap_err().to_string();
    assert!(error.starts_with("/no/such: is not a folder"), "{error}");
}

fn refusal(root: &Path) -> String {
    let error = open(root, Split::Train).unwrap_err().to_string();
    error.replace(&root.display().to_string(), "DIR")
}

#[test]
fn all_empty_classes_are_named_at_once() {
    let folder = folder_with(&[
        ("train/a/1.png", SMALL),
        ("train/b/notes.txt", None),
        ("train/c/more/readme.md", None),
    ]);
    let error = refusal(folder.path());
    assert!(error.starts_with("DIR: train/b: the class has no images (*.png, *.jpg"), "{error}");
    assert!(error.contains("; train/c: the class has no images"), "{error}");
}

#[test]
fn links_that_would_list_a_folder_twice_are_refused() {
    let folder = folder_with(&[("train/a/deep/1.png", SMALL), ("train/b/1.png", SMALL)]);
    let train = folder.path().join("train");
    symlink("..", train.join("a/deep/loop")).unwrap();
    symlink("../..", train.join("a/deep/back")).unwrap();
    symlink("b", train.join("c")).unwrap();
    let error = refusal(folder.path());
    let expected = "DIR: train/a/deep/back: a link to DIR/train, whose images would count twice; remove it; \
                    train/a/deep/loop: a link to DIR/train/a, whose images would count twice; remove it; \
                    train/c: a link to DIR/train/b, whose images would count twice; remove it";
    assert_eq!(error, expected);
    // A link to a folder elsewhere is a folder like any other.
    let elsewhere = folder_with(&[("2.png", SMALL)]);
    fs::remove_file(train.join("a/deep/loop")).unwrap();
    fs::remove_file(train.join("a/deep/back")).unwrap();
    fs::remove_file(train.join("c")).unwrap();
    symlink(elsewhere.path(), train.join("c")).unwrap();
    assert_eq!(open(folder.path(), Split::Train).unwrap().len(), 3);
}

#[test]
fn what_is_no_regular_file_is_refused_or_passed_over_and_counted() {
    let folder = folder_with(&[("train/a/1.png", SMALL), ("train/b/1.png", SMALL)]);
    let train = folder.path().join("train");
    symlink("nowhere", train.join("a/2.png")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(train.join("b/2.png")).unwrap();
    let error = refusal(folder.path());
    assert!(error.contains("train/a/2.png: No such file"), "{error}");
    assert!(error.ends_with("train/b/2.png: is no regular file"), "{error}");
    let skip = FileOptions { on_corrupt: OnCorrupt::Skip, ..FileOptions::default() };
    let data = ImageFiles::open_folder(folder.path(), Split::Train, [None, None], skip).unwrap();
    assert_eq!((data.len(), data.skipped().unlisted), (2, 2));
}

#[test]
fn classes_without_splits_have_their_own_labels_or_given_ones() {
    let folder = folder_with(&[("b/1.png", SMALL), ("c/1.png", SMALL)]);
    let open = |classes: Option<&[String]>| {
        ImageFiles::open_classes(folder.path(), classes, Split::Test, FileOptions::default())
    };
    assert_eq!(labels(&open(None).unwrap()), [0, 1]);
    let known = ["a", "b", "c"].map(str::to_owned);
    let given = open(Some(&known)).unwrap();
    assert_eq!((labels(&given), given.num_classes()), (vec![1, 2], 3));
    let error = open(Some(&known[..2])).unwrap_err().to_string();
    assert!(error.contains("c: class \"c\" is unknown"), "{error}");
    assert!(holds_classes(folder.path()) && !holds_classes(folder.path().join("b")));
}
