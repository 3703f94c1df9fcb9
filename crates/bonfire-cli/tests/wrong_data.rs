//! Wrong data sets: what `bonfire train` says of each.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use flate2::Compression;
use flate2::write::GzEncoder;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
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
    ("file that cannot be read", "folder", |folder| {
        images::folder(folder, 4, 2);
        // A regular file, of which a read fails.
        symlink("/proc/self/mem", folder.join("val/red/02.png")).unwrap();
    }),
    ("images that cannot be read", "idx", |folder| {
        idx::write(folder, 20, 10);
        let path = folder.join("train-images-idx3-ubyte");
        fs::remove_file(&path).unwrap();
        symlink("/proc/self/mem", path).unwrap();
    }),
    ("images cut short", "idx", |folder| {
        idx::write(folder, 20, 10);
        let path = folder.join("train-images-idx3-ubyte");
        fs::write(&path, &fs::read(&path).unwrap()[..700]).unwrap();
    }),
    ("compressed images cut short", "idx", |folder| {
        idx::write(folder, 20, 10);
        let path = folder.join("train-images-idx3-ubyte");
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&fs::read(&path).unwrap()).unwrap();
        let bytes = gzip.finish().unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    }),
    ("nothing of MNIST", "idx", |_| {}),
    ("pipe and link to nowhere among the images", "folder", |folder| {
        images::folder(folder, 4, 2);
        mkfifo(&folder.join("train/red/pipe.png"), Mode::S_IRWXU).unwrap();
        symlink("nowhere", folder.join("train/blue/link.png")).unwrap();
    }),
    ("link into itself", "folder", |folder| {
        images::folder(folder, 4, 2);
        symlink("..", folder.join("train/red/again")).unwrap();
    }),
    ("neither list", "csv", |_| {}),
    ("several wrong lines in both lists", "csv", |folder| {
        images::folder(folder, 1, 1);
        let train = "train/red/00.png,red\ntrain/blue/00.png\nnotes.txt,red\nno.png,blue\n";
        fs::write(folder.join("train.csv"), train).unwrap();
        fs::write(folder.join("valid.csv"), "val/red/00.png,red\n").unwrap();
    }),
    ("several wrong lines of validation", "csv", |folder| {
        images::folder(folder, 1, 1);
        let train = "train/red/00.png,red\ntrain/blue/00.png,blue\n";
        fs::write(folder.join("train.csv"), train).unwrap();
        fs::write(folder.join("valid.csv"), "val/red/00.png,rot\nno.png,blue\n").unwrap();
    }),
    ("numbers of classes with gaps", "csv", |folder| {
        images::folder(folder, 1, 1);
        fs::write(folder.join("train.csv"), "train/red/00.png,0\ntrain/blue/00.png,60000\n")
            .unwrap();
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

/// What images of 8x8 cannot become is told before the first step, by a dry run too.
#[test]
fn transforms_that_cannot_take_the_images_are_told_by_a_dry_run() {
    for (set, expected) in [
        (
            "data.transforms.random_crop={size=9}",
            "data.transforms: RandomCrop cannot take an image of 8 rows and 8 columns: it is smaller than \
             the crop of 9 x 9; resize it before, or use pad_if_needed (training images)",
        ),
        (
            "data.valid_transforms.pad={padding=8,mode=\"reflect\"}",
            "data.valid_transforms: Pad cannot take an image of 8 rows and 8 columns: a mirrored border of \
             8 and 8 pixels is too wide for it (validation images)",
        ),
    ] {
        digits().args(["--dry-run"]).set(&[set]).fail().says_once(&[expected]);
    }
}

/// A picture of one row and 60,000 columns would become one of 256 rows and 15,360,000 columns.
#[test]
fn a_thin_picture_that_would_fill_the_memory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    images::folder(folder.path(), 4, 2);
    images::write(&folder.path().join("train/red/thin.png"), [60_000, 1], 0, 0);
    let path = format!("data.path={}", folder.path().display());
    let set = ["data.kind=folder", &path, "data.global_batch_size=2"];
    let crops = [
        "data.transforms.resize=256",
        "data.transforms.center_crop=8",
        "data.valid_transforms.center_crop=8",
    ];
    let ended = digits().set(&set).set(&crops).fail();
    ended.says_once(&["it would become 256 x 15360000, more than the 1024 MiB"]);
}
