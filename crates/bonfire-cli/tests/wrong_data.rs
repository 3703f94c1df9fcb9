//! Wrong data sets: what `bonfire train` says of each.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use support::{digits, idx, images};

/// Makes a data set in a folder.
type Make = fn(&Path);

/// What is wrong, the kind of the data set, and how it is made.
const CASES: &[(&str, &str, Make)] = &[
    ("truncated file", "cifar10", |folder| {
        cifar10(folder);
        fs::write(folder.join("data_batch_1.bin"), &images::cifar(&[1, 2])[..5000]).unwrap();
    }),
    ("wrong magic", "idx", |folder| {
        idx::write(folder, 20, 10);
        fs::write(folder.join("train-images-idx3-ubyte"), b"text, not images").unwrap();
    }),
    ("label out of range", "cifar10", |folder| {
        cifar10(folder);
        fs::write(folder.join("data_batch_1.bin"), images::cifar(&[1, 2, 10])).unwrap();
    }),
    ("label of validation unknown in training", "idx", |folder| {
        idx::write(folder, 5, 10);
    }),
    ("empty class", "folder", |folder| {
        images::folder(folder, 4, 2);
        fs::create_dir(folder.join("train/green")).unwrap();
    }),
    ("class of validation unknown in training", "folder", |folder| {
        images::folder(folder, 4, 2);
        images::write(&folder.join("val/green/00.png"), [8, 8], 0, 0);
    }),
    ("unreadable file", "folder", |folder| {
        images::folder(folder, 4, 2);
        let path = folder.join("train/red/01.png");
        let bytes = fs::read(&path).unwrap();
        fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    }),
    ("mixed sizes without resize", "folder", |folder| {
        images::folder(folder, 4, 2);
        images::write(&folder.join("train/red/02.png"), [8, 9], 0, 0);
    }),
    ("zero images", "csv", |folder| {
        fs::write(folder.join("train.csv"), "path,label\n").unwrap();
    }),
    ("too few classes", "folder", |folder| {
        images::folder(folder, 4, 2);
        fs::remove_dir_all(folder.join("train/blue")).unwrap();
    }),
    ("not a folder", "folder", |folder| {
        fs::remove_dir(folder).unwrap();
        fs::write(folder, "a file").unwrap();
    }),
    ("pickle instead of binary", "cifar10", |folder| {
        fs::write(folder.join("data_batch_1"), b"\x80\x02}q\x00").unwrap();
    }),
    ("list with a path that leads nowhere", "csv", |folder| {
        images::folder(folder, 1, 1);
        fs::write(folder.join("train.csv"), "train/red/00.png,red\ntrain/rad/00.png,blue\n")
            .unwrap();
    }),
];

fn cifar10(folder: &Path) {
    fs::write(folder.join("data_batch_1.bin"), images::cifar(&[1, 2, 3])).unwrap();
    fs::write(folder.join("test_batch.bin"), images::cifar(&[1])).unwrap();
}

/// What the program says of one.
fn message(kind: &str, make: Make) -> String {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    make(&data);
    let (path, kind) = (format!("data.path={}", data.display()), format!("data.kind={kind}"));
    let ended = digits().set(&[&path, &kind, "data.global_batch_size=2"]).fail();
    let errors: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("error")).collect();
    assert_eq!(errors.len(), 1, "{}", ended.log());
    errors[0].replace(&data.display().to_string(), "DIR")
}

#[test]
fn every_wrong_data_set_has_a_message_that_says_what_to_do() {
    let text = CASES.iter().fold(String::new(), |mut text, (what, kind, make)| {
        writeln!(text, "{what}:\n  {}", message(kind, *make)).unwrap();
        text
    });
    insta::assert_snapshot!("wrong_data", text);
}

/// The launcher says once what all ranks find.
#[test]
fn ranks_agree_on_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    images::folder(folder.path(), 4, 2);
    fs::create_dir(folder.path().join("train/green")).unwrap();
    let path = format!("data.path={}", folder.path().display());
    digits().ranks(3).set(&[&path, "data.kind=folder"]).fail().says_once(&["train/green"]);
}
