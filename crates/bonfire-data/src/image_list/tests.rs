use super::*;
use crate::image_files::tests::folder_with;
use crate::{Dataset, ImageDataset, SampleContext};

/// Opens lists beside the images a.png, b.JPG and c/d.webp.
fn open(train: &str, valid: &str, split: Split) -> Result<ImageFiles, String> {
    let small = Some([3, 2]);
    let folder = folder_with(&[("a.png", small), ("b.JPG", small), ("c/d.webp", small)]);
    let lists = ["train.csv", "valid.csv"].map(|name| folder.path().join(name));
    fs::write(&lists[0], train).unwrap();
    fs::write(&lists[1], valid).unwrap();
    let result = ImageFiles::open_list(&lists[0], &lists[1], split, FileOptions::default());
    let data = result
        .map_err(|error| error.to_string().replace(&folder.path().display().to_string(), "DIR"))?;
    for index in 0..data.len() {
        data.get(&SampleContext { seed: 0, epoch: 0, index }).unwrap();
    }
    Ok(data)
}

fn labels(data: &ImageFiles) -> Vec<u32> {
    data.files().map(|file| file.label).collect()
}

#[test]
fn lists_with_and_without_a_header_mean_the_same() {
    for train in [
        "a.png,dog\nb.JPG,cat\n\"c/d.webp\",dog\n",
        "path,label\na.png,dog\nb.JPG,cat\nc/d.webp,dog",
        "Label , weight, PATH\r\ndog,1,a.png\r\ncat,2, b.JPG\r\ndog,3,c/d.webp\r\n",
    ] {
        let data = open(train, "", Split::Train).unwrap();
        assert_eq!(data.class_names(), ["cat", "dog"], "{train}");
        assert_eq!(labels(&data), [1, 0, 1], "{train}");
    }
}

#[test]
fn whole_numbers_are_the_labels_themselves() {
    let data = open("a.png,2\nb.JPG,0\nc/d.webp,1", "c/d.webp,2\n", Split::Test).unwrap();
    assert_eq!((labels(&data), data.num_classes()), (vec![2], 3));
    // One that is none makes names of all.
    let data = open("a.png,3\nb.JPG,03\n", "", Split::Train).unwrap();
    assert_eq!(data.class_names(), ["03", "3"]);
}

#[test]
fn numbers_with_gaps_and_numbers_that_are_none_of_a_class_are_refused() {
    for (train, expected) in [
        (
            "a.png,0\nb.JPG,60000\n",
            "labels that are whole numbers stand for the classes 0 to 60000, and 59999 of these have \
             no image, the first is 1; number classes from 0",
        ),
        ("a.png,1\nb.JPG,2\n", "the classes 0 to 2, and 1 of these have no image, the first is 0"),
        ("a.png,0\nb.JPG,99999999999\n", "0 to 99999999999"),
        ("a.png,0\nb.JPG,1\nc/d.webp,-1", "all labels are numbers, but \"-1\" cannot be one"),
        ("a.png,0.0\nb.JPG,1.0\n", "all labels are numbers, but \"0.0\" cannot be one"),
    ] {
        let error = open(train, "", Split::Train).unwrap_err();
        assert!(error.starts_with("DIR/train.csv: ") && error.contains(expected), "{error}");
    }
    // Beside a word they are names.
    assert_eq!(open("a.png,-1\nb.JPG,x\n", "", Split::Train).unwrap().class_names(), ["-1", "x"]);
}

#[test]
fn all_wrong_lines_of_a_list_are_named_at_once() {
    let error = open("a.png,x\nno.png,y\nb.gif,y\nb.JPG\n", "", Split::Train).unwrap_err();
    for line in ["line 2: ", "line 3: \"b.gif\" is no image", "line 4: column 2 (label) is empty"] {
        assert!(error.contains(line), "{error}");
    }
    let pair = "a.png,x\nb.JPG,y\n";
    let error = open(pair, "a.png,z\nno.png,y\n", Split::Test).unwrap_err();
    assert!(error.contains("line 1: class \"z\" is unknown"), "{error}");
    assert!(error.contains("; line 2: DIR/no.png: No such file"), "{error}");
}

#[test]
fn lists_that_do_not_exist_are_named_together() {
    let folder = tempfile::tempdir().unwrap();
    let lists = ["train.csv", "valid.csv"].map(|name| folder.path().join(name));
    let options = FileOptions::default();
    for split in [Split::Train, Split::Test] {
        let error = ImageFiles::open_list(&lists[0], &lists[1], split, options).unwrap_err();
        assert!(error.to_string().ends_with("looked for train.csv; valid.csv"), "{error}");
    }
}

#[test]
fn wrong_lines_are_named() {
    let pair = "a.png,x\nb.JPG,y\n";
    for (train, valid, expected) in [
        ("", "", "DIR/train.csv: has no images; nothing can be learned from an empty data set"),
        ("path,label\n", "", "has no images"),
        ("file,class\na.png,x\n", "", "line 1: \"file,class\" is neither an image"),
        ("a.png,x\nb.JPG\n", "", "line 2: column 2 (label) is empty"),
        ("a.png,x\nb.gif,y\n", "", "line 2: \"b.gif\" is no image; its name has to end in"),
        ("a.png,x\nno.png,y\n", "", "line 2: DIR/no.png: No such file"),
        ("a.png,x\nb.JPG,x\n", "", "1 class(es) (x) are too few"),
        (pair, "a.png,z\n", "valid.csv: line 1: class \"z\" is unknown"),
    ] {
        let split = if valid.is_empty() { Split::Train } else { Split::Test };
        let error = open(train, valid, split).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
