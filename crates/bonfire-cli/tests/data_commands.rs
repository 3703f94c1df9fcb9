//! `bonfire data`: what is in a data set, and how fetching one fails.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;
#[path = "../src/data_sets/test_server.rs"]
mod test_server;

use std::fs;
use std::path::Path;
use support::{bonfire, idx, images};
use test_server::{Answer, Server};

/// What `bonfire data info` prints, without the folder's place.
fn info(folder: &Path, options: &[&str]) -> String {
    let path = folder.display().to_string();
    let ended = bonfire(&[&["data", "info", &path], options].concat()).succeed();
    ended.stdout.replace(&path, "DIR")
}

#[test]
fn the_bundled_digits_are_described() {
    let folder = support::repository().join("data/digits");
    insta::assert_snapshot!("info_digits", info(&folder, &[]));
}

#[test]
fn a_folder_is_described_with_what_cannot_be_read_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    images::folder(folder.path(), 3, 1);
    fs::write(folder.path().join("train/red/01.png"), "rubbish").unwrap();
    images::write(&folder.path().join("val/red/wide.png"), [20, 10], 0, 0);
    let sheet = folder.path().join("sheet.png");
    let text = info(folder.path(), &["--sheet", &sheet.display().to_string()]);
    assert!(
        text.ends_with("\nDIR/sheet.png: a row for each class, in the order above\n"),
        "{text}"
    );
    insta::assert_snapshot!("info_folder", text);
    let sheet = image::open(sheet).unwrap().into_rgb8();
    // Two classes, ten columns; "blue" comes first.
    assert_eq!(sheet.dimensions(), (684, 140));
    let [red, _, blue] = sheet.get_pixel(6, 6).0;
    assert!(blue > 150 && red < 100);
}

#[test]
fn a_list_and_a_missing_split_are_described() {
    let folder = tempfile::tempdir().unwrap();
    images::folder(folder.path(), 2, 0);
    let lines = "path,label\ntrain/red/00.png,warm\ntrain/blue/00.png,cold\n";
    fs::write(folder.path().join("mine.csv"), lines).unwrap();
    let options = ["--kind", "csv", "--train", "mine.csv", "--channels", "1"];
    insta::assert_snapshot!("info_list", info(folder.path(), &options));
}

/// Whether the table has a line of these words.
fn has_row(text: &str, row: &[&str]) -> bool {
    text.lines().any(|line| line.split_whitespace().eq(row.iter().copied()))
}

/// Whatever of a data set is there is described.
#[test]
fn data_sets_without_a_training_split_and_without_splits_are_described() {
    let folder = tempfile::tempdir().unwrap();
    images::folder(folder.path(), 0, 2);
    let only_validation = info(folder.path(), &[]);
    assert!(only_validation.contains("(of validation pixels, in 0..1)"), "{only_validation}");
    assert!(has_row(&only_validation, &["red", "-", "2"]), "{only_validation}");
    let reason =
        "the training split cannot be opened: DIR: lacks the folder of a split; looked for train/";
    assert!(only_validation.contains(reason), "{only_validation}");

    let plain = info(&folder.path().join("val"), &[]);
    assert!(has_row(&plain, &["class", "images"]) && has_row(&plain, &["red", "2"]), "{plain}");
    assert!(!plain.contains("cannot be opened"), "{plain}");

    let lines = "val/red/00.png,warm\nval/blue/00.png,cold\n";
    fs::write(folder.path().join("valid.csv"), lines).unwrap();
    let list = info(folder.path(), &[]);
    assert!(list.starts_with("DIR: csv") && has_row(&list, &["warm", "-", "1"]), "{list}");

    let mnist = tempfile::tempdir().unwrap();
    idx::write(mnist.path(), 20, 10);
    fs::remove_file(mnist.path().join("train-images-idx3-ubyte")).unwrap();
    let test = info(mnist.path(), &[]);
    assert!(has_row(&test, &["9", "-", "1"]), "{test}");
    assert!(test.contains("the training split cannot be opened: DIR lacks files"), "{test}");
}

#[test]
fn a_sheet_tells_of_the_classes_that_it_leaves_out_and_is_a_png() {
    let folder = tempfile::tempdir().unwrap();
    for class in 0..53 {
        images::write(&folder.path().join(format!("train/{class:02}/0.png")), [4, 4], 0, class);
    }
    let sheet = folder.path().join("sheet.PNG").display().to_string();
    let text = info(folder.path(), &["--sheet", &sheet]);
    let told = "sheet.PNG: a row for each class, in the order above; 3 more class(es) do not fit";
    assert!(text.contains(told), "{text}");
    let path = folder.path().display().to_string();
    let ended = bonfire(&["data", "info", &path, "--sheet", "sheet.jpg"]).fail();
    ended.says_once(&["--sheet sheet.jpg", "a name that ends in .png"]);
}

#[test]
fn folders_without_data_and_foreign_options_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    let ended = bonfire(&["data", "info", &path]).fail();
    ended.says_once(&["holds no data set of a known kind", "--kind"]);
    let digits = support::repository().join("data/digits").display().to_string();
    let ended = bonfire(&["data", "info", &digits, "--label", "fine"]).fail();
    ended.says_once(&["data.label is a key of kind \"cifar100\", not of \"idx\""]);
}

/// Calls `bonfire data fetch mnist` with a server that has another file of that name.
fn fetch(answers: &[Answer], options: &[&str]) -> support::Ended {
    let file = ("train-images-idx3-ubyte.gz".to_owned(), vec![7; 10_000]);
    let server = Server::start(vec![file], answers);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("mnist").display().to_string();
    let args = ["data", "fetch", "mnist", "--out", &out, "--url", &server.base];
    bonfire(&[&args, options].concat()).fail()
}

#[test]
fn failures_of_fetching_name_the_address_and_the_remedy() {
    let ended = fetch(&[Answer::Well], &[]);
    ended.says_once(&["train-images-idx3-ubyte.gz", "expected f68b3c2dcbeaaa9fbdd348bbdeb94873"]);
    fetch(&[Answer::Status(404)], &[]).says_once(&["the server answered 404", "--url BASE"]);
    let ended = fetch(&[Answer::Stalls(4000)], &["--timeout", "1", "--retries", "1"]);
    ended.says_once(&["trying again in 0.5 s"]);
    ended.says_once(&["gave up after 2 attempt(s)", "goes on from the 8000 bytes"]);
    let ended = fetch(&[Answer::Breaks(4000), Answer::Well], &[]);
    ended.says_once(&["the transfer broke off", "trying again"]);
    ended.says_once(&["error", "expected f68b3c2dcbeaaa9fbdd348bbdeb94873"]);
}

#[test]
fn only_known_collections_can_be_fetched() {
    bonfire(&["data", "fetch", "imagenet", "--out", "x"]).fail().says("cifar10");
}
