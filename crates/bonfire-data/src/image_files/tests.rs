use std::sync::Arc;

use image::{Rgb, RgbImage};

use super::*;
use crate::{DataLoader, LoaderConfig, Padding, Shard};

/// A folder with images of the given names and sizes (columns, rows); without a size, of rubbish.
pub(crate) fn folder_with(images: &[(&str, Option<[u32; 2]>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (number, (name, size)) in images.iter().enumerate() {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match size {
            Some([width, height]) => {
                let colour = Rgb([number as u8, 100, 200]);
                RgbImage::from_pixel(*width, *height, colour).save(&path).unwrap();
            }
            None => fs::write(&path, b"rubbish").unwrap(),
        }
    }
    folder
}

fn open(
    names: &[(&str, Option<[u32; 2]>)],
    options: FileOptions,
) -> (tempfile::TempDir, ImageFiles) {
    open_split(names, Split::Train, options)
}

fn open_split(
    names: &[(&str, Option<[u32; 2]>)],
    split: Split,
    options: FileOptions,
) -> (tempfile::TempDir, ImageFiles) {
    let folder = folder_with(names);
    let file = |(index, (name, _)): (usize, &(&str, _))| ImageFile {
        path: folder.path().join(name),
        name: (*name).to_owned(),
        label: index as u32 % 2,
        bytes: 7,
    };
    let files = names.iter().enumerate().map(file).collect();
    let classes = vec!["even".to_owned(), "odd".to_owned()];
    let listing = Listing { files, unlisted: 0 };
    let data = ImageFiles::new(folder.path(), listing, classes, split, options).unwrap();
    (folder, data)
}

fn context(index: usize) -> SampleContext {
    SampleContext { seed: 0, epoch: 0, index }
}

const SMALL: Option<[u32; 2]> = Some([3, 2]);

#[test]
fn a_corrupt_file_is_an_error_that_names_it() {
    let (_folder, data) = open(&[("a.png", SMALL), ("b.png", None)], FileOptions::default());
    assert_eq!(data.get(&context(0)).unwrap().image.shape(), [2, 3, 3]);
    let error = data.get(&context(1)).unwrap_err().to_string();
    assert!(
        error.contains("b.png: cannot decode the image: not a PNG, JPEG or WebP file"),
        "{error}"
    );
    assert!(error.ends_with("with on_corrupt = \"skip\""), "{error}");
    assert_eq!(data.num_corrupt(), 0);
}

#[test]
fn the_next_readable_file_stands_in_and_each_corrupt_one_counts_once() {
    let options = FileOptions { on_corrupt: OnCorrupt::Skip, ..FileOptions::default() };
    let names =
        [("a.png", SMALL), ("b.png", None), ("c.png", None), ("d.png", SMALL), ("e.png", None)];
    let (_folder, data) = open(&names, options);
    for _ in 0..2 {
        let sample = data.get(&context(1)).unwrap();
        assert_eq!((sample.image.pixels()[0], sample.label), (3, 1));
        assert_eq!(data.num_corrupt(), 2);
    }
    // Behind the last comes the first.
    assert_eq!(data.get(&context(4)).unwrap().image.pixels()[0], 0);
    assert_eq!((data.num_corrupt(), data.len()), (3, 5));
}

#[test]
fn nothing_readable_at_all_is_an_error_even_when_skipping() {
    let options = FileOptions { on_corrupt: OnCorrupt::Skip, ..FileOptions::default() };
    let (_folder, data) = open(&[("a.png", None), ("b.png", None)], options);
    let error = data.get(&context(1)).unwrap_err().to_string();
    assert!(error.contains("none of 2 images can be decoded"), "{error}");
}

#[test]
fn the_shape_is_known_when_all_files_have_one_size() {
    let grey = FileOptions { channels: Channels::Grey, ..FileOptions::default() };
    let (_folder, same) = open(&[("a.png", SMALL), ("b.png", SMALL), ("c.png", None)], grey);
    assert_eq!(same.image_shape(), Some([2, 3, 1]));
    let (_folder, mixed) = open(&[("a.png", SMALL), ("b.png", Some([3, 3]))], grey);
    assert_eq!(mixed.image_shape(), None);
}

#[test]
fn the_digest_covers_names_sizes_and_labels_but_no_folders() {
    let digest = |name: &str, label, bytes| {
        let path = tempfile::tempdir().unwrap().path().join(name);
        let file = ImageFile { path, name: name.to_owned(), label, bytes };
        let listing = Listing { files: vec![file], unlisted: 0 };
        ImageFiles::new(Path::new("x"), listing, vec![], Split::Train, FileOptions::default())
            .unwrap()
            .digest()
    };
    assert_eq!(digest("a", 0, 1), digest("a", 0, 1));
    for other in [digest("b", 0, 1), digest("a", 1, 1), digest("a", 0, 2)] {
        assert_ne!(digest("a", 0, 1), other);
    }
}

const SKIP: FileOptions = FileOptions { channels: Channels::Rgb, on_corrupt: OnCorrupt::Skip };

#[test]
fn validation_leaves_corrupt_files_out() {
    let names = [("a.png", SMALL), ("b.png", None), ("c.png", SMALL)];
    let (_folder, data) = open_split(&names, Split::Test, SKIP);
    let error = data.get(&context(1)).unwrap_err();
    assert!(matches!(error, DataError::LeftOut { index: 1, .. }), "{error}");
    assert_eq!(data.skipped().corrupt, BTreeSet::from([1]));
    // A loader goes on without it, and counts what it has.
    let count = Arc::new(|samples: Vec<ImageSample>| Ok::<usize, DataError>(samples.len()));
    let config = LoaderConfig { batch_size: 2, padding: Padding::Skip, ..LoaderConfig::default() };
    let loader = DataLoader::new(Arc::new(data), count, config);
    let batches: Vec<_> =
        loader.batches(Shard::whole(), 0, 0).unwrap().map(Result::unwrap).collect();
    let found: Vec<_> = batches.iter().map(|b| (b.data, b.samples, b.indices.clone())).collect();
    assert_eq!(found, [(Some(1), 1, vec![0]), (Some(1), 1, vec![2])]);
}

#[test]
fn a_read_that_fails_is_an_error_whatever_becomes_of_corrupt_files() {
    let names = [("a.png", SMALL), ("b.png", None), ("c.png", SMALL)];
    for split in [Split::Train, Split::Test] {
        let (folder, data) = open_split(&names, split, SKIP);
        std::fs::remove_file(folder.path().join("c.png")).unwrap();
        assert!(matches!(data.get(&context(2)).unwrap_err(), DataError::Io { .. }));
        if split == Split::Train {
            // Nor does it stand in for another, or another for it.
            assert!(matches!(data.get(&context(1)).unwrap_err(), DataError::Io { .. }));
        }
        assert!(!data.skipped().corrupt.contains(&2));
    }
}
