//! `bonfire predict` says what pictures show.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_data::{IdxImages, Split};
use image::imageops::FilterType;
use image::{DynamicImage, ImageFormat};
use std::fs;
use std::path::{Path, PathBuf};
use support::{Ended, bonfire, digits, repository};

#[test]
fn digits_are_recognised_wherever_they_come_from() {
    let trained = digits().succeed();
    let model = trained.run_folder();
    one_picture(&model);
    every_format(&model);
    whole_folders(&model, &trained);
    what_cannot_be_read_is_named(&model);
    good_pictures_are_classified_whatever_the_others_are(&model);
    numbers_of_nothing_are_refused(&model);
}

/// Probabilities of all classes, the likeliest first.
fn one_picture(model: &Path) {
    let ended = predict(model, &[&seven()], &["--top", "10"]);
    let rows = rows(&ended);
    assert_eq!(rows.len(), 10);
    assert_eq!((rows[0].0.as_str(), rows[0].1.as_str()), (seven().to_str().unwrap(), "7"));
    assert!(rows[0].2 > 0.5, "{rows:?}");
    assert!(rows.windows(2).all(|pair| pair[0].2 >= pair[1].2), "{rows:?}");
    let sum: f64 = rows.iter().map(|row| row.2).sum();
    assert!((sum - 1.0).abs() < 1e-4, "{sum}");
}

/// Other sizes, colours and codecs show the same digit; classes are told by name, files by path.
fn every_format(model: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let nested = folder.path().join("b, nested");
    fs::create_dir(&nested).unwrap();
    let small = image::open(seven()).unwrap();
    let large = small.resize_exact(160, 160, FilterType::Nearest);
    let wide = large.resize_exact(160, 160, FilterType::Nearest).into_rgb8();
    let save = |name: &str, picture: &DynamicImage, format| {
        picture.save_with_format(folder.path().join(name), format).unwrap();
    };
    save("a.PNG", &large, ImageFormat::Png);
    save("b, nested/c.jpeg", &wide.clone().into(), ImageFormat::Jpeg);
    save("b, nested/d.webp", &wide.into(), ImageFormat::WebP);
    save(".hidden.png", &large, ImageFormat::Png);
    fs::write(folder.path().join("notes.txt"), "no picture").unwrap();
    let ended = predict(model, &[folder.path()], &["--batch-size", "2"]);
    let rows = rows(&ended);
    let expected = ["a.PNG", "b, nested/c.jpeg", "b, nested/d.webp"];
    let expected: Vec<String> =
        expected.iter().map(|name| folder.path().join(name).display().to_string()).collect();
    let paths: Vec<&String> = rows.iter().map(|row| &row.0).collect();
    assert_eq!(paths, expected.iter().collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row.1 == "7"), "{rows:?}");
}

/// The images of a data set get the classes by which the run's accuracy was counted.
fn whole_folders(model: &Path, trained: &Ended) {
    let data = repository().join("data/digits");
    let rows = rows(&predict(model, &[&data], &["--batch-size", "100"]));
    let test = IdxImages::open_folder(&data, Split::Test).unwrap();
    assert_eq!(rows.len(), 1438 + 359);
    let predicted = rows.iter().filter(|row| row.0.contains("t10k"));
    let pairs = predicted.zip(test.labels());
    let correct = pairs.filter(|(row, label)| row.1 == label.to_string()).count();
    let expected = trained.summary()["valid_accuracy"].as_f64().unwrap();
    assert!((correct as f64 / 359.0 - expected).abs() < 1e-9, "{correct} {expected}");
}

fn what_cannot_be_read_is_named(model: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let broken = folder.path().join("broken.png");
    fs::write(&broken, "no picture").unwrap();
    for (path, says) in [
        (empty, "there is no picture in it"),
        (broken, "broken.png\" cannot be used"),
        (folder.path().join("absent.png"), "absent.png\" cannot be used"),
    ] {
        call(model, &[&path], &[]).fail().says_once(&[says]);
    }
    call(model, &[&seven()], &["--variant", "ema"]).fail().says_once(&["no averages"]);
    call(folder.path(), &[&seven()], &[])
        .fail()
        .says_once(&["there is no model.toml", "finished run"]);
}

fn good_pictures_are_classified_whatever_the_others_are(model: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.png"), "no picture").unwrap();
    fs::copy(seven(), at("b.png")).unwrap();
    fs::write(at("c-idx3-ubyte"), "no images").unwrap();
    fs::copy(seven(), at("d.png")).unwrap();
    let empty = at("empty");
    fs::create_dir(&empty).unwrap();
    for batch_size in ["1", "32"] {
        let options = ["--batch-size", batch_size];
        let ended = call(model, &[&empty, folder.path(), &seven()], &options).fail();
        let classes: Vec<String> = rows(&ended).into_iter().map(|row| row.1).collect();
        assert_eq!(classes, ["7", "7", "7"], "{}", ended.log());
        ended.says_once(&["3 of 6 pictures cannot be used:"]);
        for name in
            ["a.png\" cannot be used", "c-idx3-ubyte", "empty\" cannot be used: there is no"]
        {
            ended.says(name);
        }
    }
}

fn numbers_of_nothing_are_refused(model: &Path) {
    for option in ["--top", "--batch-size"] {
        call(model, &[&seven()], &[option, "0"]).fail().says(option);
    }
}

fn seven() -> PathBuf {
    repository().join("examples/infer/seven.png")
}

fn call(model: &Path, paths: &[&Path], options: &[&str]) -> support::Train {
    let mut call = bonfire(&["predict"]);
    call.command().arg(model).args(paths).args(options);
    call
}

fn predict(model: &Path, paths: &[&Path], options: &[&str]) -> Ended {
    call(model, paths, options).succeed()
}

fn rows(ended: &Ended) -> Vec<(String, String, f64)> {
    let mut table = csv::Reader::from_reader(ended.stdout.as_bytes());
    assert_eq!(
        table.headers().unwrap(),
        &csv::StringRecord::from(vec!["path", "class", "probability"])
    );
    table.deserialize().map(|row| row.unwrap()).collect()
}
