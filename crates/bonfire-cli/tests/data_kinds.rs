//! Training from every kind of data set.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::fs;
use std::path::Path;
use support::{Ended, images, recipe};

/// A recipe of a small perceptron, with `data` as its section of that name.
fn train(folder: &Path, data: &str, ranks: usize) -> Ended {
    let path = folder.join("recipe.toml");
    let text = format!(
        "seed = 1\n[model]\nkind = \"mlp\"\nhidden = [16]\n[train]\nmax_epochs = 4\n\
         [optimizer]\nkind = \"adamw\"\nlr = 0.01\n[data]\nglobal_batch_size = 12\n{data}\n"
    );
    fs::write(&path, text).unwrap();
    recipe(&path).ranks(ranks).succeed()
}

fn accuracy(ended: &Ended) -> f64 {
    ended.summary()["valid_accuracy"].as_f64().unwrap()
}

#[test]
fn made_up_images_are_learned() {
    let folder = tempfile::tempdir().unwrap();
    let data = "kind = \"synthetic\"\nnum_samples = 600\nimage = [8, 8, 1]\nnum_classes = 4";
    let ended = train(folder.path(), data, 2);
    assert!(accuracy(&ended) > 0.9, "{}", ended.log());
}

#[test]
fn a_folder_and_a_list_of_the_same_files_train_the_same() {
    let folder = tempfile::tempdir().unwrap();
    images::folder(folder.path(), 12, 4);
    let by_folder =
        train(folder.path(), &format!("kind = \"folder\"\npath = {:?}", folder.path()), 2);
    assert_eq!(accuracy(&by_folder), 1.0, "{}", by_folder.log());
    // In the order of the folder: classes sorted.
    for (list, split, count) in [("train.csv", "train", 12), ("valid.csv", "val", 4)] {
        let lines = ["blue", "red"].into_iter().flat_map(|class| {
            (0..count).map(move |number| format!("{split}/{class}/{number:02}.png,{class}\n"))
        });
        fs::write(folder.path().join(list), lines.collect::<String>()).unwrap();
    }
    let by_list = train(folder.path(), &format!("kind = \"csv\"\npath = {:?}", folder.path()), 2);
    assert_eq!(by_list.fingerprint(), by_folder.fingerprint());
}

#[test]
fn skipping_corrupt_files_trains_the_same_on_any_number_of_ranks_and_tells_of_each() {
    let folder = tempfile::tempdir().unwrap();
    images::folder(folder.path(), 12, 4);
    fs::write(folder.path().join("train/red/03.png"), "rubbish").unwrap();
    let data = format!("kind = \"folder\"\non_corrupt = \"skip\"\npath = {:?}", folder.path());
    let alone = train(folder.path(), &data, 1);
    alone.says_once(&["red/03.png", "stands in for it (corrupt files so far: 1)"]);
    let again = train(folder.path(), &data, 1);
    assert_eq!(again.fingerprint(), alone.fingerprint());
    // Three ranks read each sample once an epoch; sums over ranks may round otherwise.
    let three = train(folder.path(), &data, 3);
    // However many ranks meet it in however many epochs, it is one file.
    for ended in [&alone, &three] {
        let expected = serde_json::json!({ "train": 1, "valid": 0 });
        assert_eq!(ended.summary()["skipped_files"], expected);
        let line = ended.stdout.lines().find(|line| line.starts_with("corrupt files skipped"));
        assert!(line.is_some_and(|line| line.ends_with("1 training, 0 validation")));
    }
    let loss = |ended: &Ended| ended.summary()["train_loss"].as_f64().unwrap();
    assert!((loss(&three) - loss(&alone)).abs() < 1e-4, "{} {}", loss(&three), loss(&alone));
}

/// Two of eight validation images are left out, wherever ranks meet them, and the figures are those of
/// the other six.
#[test]
fn skipped_files_of_validation_count_in_no_figure() {
    let folder = tempfile::tempdir().unwrap();
    images::folder(folder.path(), 12, 4);
    let data = format!("kind = \"folder\"\non_corrupt = \"skip\"\npath = {:?}", folder.path());
    for name in ["red/01", "blue/02"] {
        fs::remove_file(folder.path().join(format!("val/{name}.png"))).unwrap();
    }
    let without = train(folder.path(), &data, 2);
    assert!(!without.stdout.contains("corrupt files skipped"), "{}", without.stdout);
    for name in ["red/01", "blue/02"] {
        fs::write(folder.path().join(format!("val/{name}.png")), "rubbish").unwrap();
    }
    // A link that leads nowhere is no sample at all.
    std::os::unix::fs::symlink("nowhere", folder.path().join("val/red/09.png")).unwrap();
    for ranks in [1, 2, 3] {
        let with = train(folder.path(), &data, ranks);
        let expected = serde_json::json!({ "train": 0, "valid": 3 });
        assert_eq!(with.summary()["skipped_files"], expected, "{ranks} ranks");
        let loss = |ended: &Ended| ended.summary()["valid_loss"].as_f64().unwrap();
        assert!((loss(&with) - loss(&without)).abs() < 1e-5, "{ranks} ranks");
        with.says("val/red/01.png");
        assert!(with.log().contains("it is left out"), "{}", with.log());
    }
}

#[test]
fn grey_images_have_one_channel() {
    let folder = tempfile::tempdir().unwrap();
    images::folder(folder.path(), 3, 1);
    let data = format!("kind = \"folder\"\nchannels = 1\npath = {:?}", folder.path());
    let ended = train(folder.path(), &data, 1);
    let model = fs::read_to_string(ended.run_folder().join("model.toml")).unwrap();
    assert!(model.contains("channels = 1"), "{model}");
}

#[test]
fn a_part_of_cifar_10_trains() {
    let Some(folder) = std::env::var_os("BONFIRE_DATA_DIR") else {
        println!("SKIPPED: needs BONFIRE_DATA_DIR, the folder of larger data sets");
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let path = Path::new(&folder).join("cifar10-bin-small");
    let recipe_path = scratch.path().join("recipe.toml");
    let text = format!(
        "seed = 1\n[model]\nkind = \"mlp\"\nhidden = [32]\n[train]\nmax_steps = 100\n\
         log_every_n_steps = 20\n[optimizer]\nkind = \"adamw\"\nlr = 0.001\n[data]\nbatch_size = 32\n\
         kind = \"cifar10\"\npath = {path:?}\n"
    );
    fs::write(&recipe_path, text).unwrap();
    let ended = recipe(&recipe_path).ranks(2).succeed();
    let metrics = fs::read_to_string(ended.run_folder().join("metrics.csv")).unwrap();
    let losses = training_losses(&metrics);
    // Guessing among ten classes has a loss of ln 10, 2.30.
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(losses.len() >= 5 && last < 2.15 && last < first, "{losses:?}");
}

/// The losses of all training reports.
fn training_losses(metrics: &str) -> Vec<f64> {
    let mut lines = metrics.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let column = |name: &str| head.iter().position(|column| *column == name).unwrap();
    let (phase, loss) = (column("phase"), column("loss"));
    lines.filter(|row| row[phase] == "train").map(|row| row[loss].parse().unwrap()).collect()
}
