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
    let loss = |ended: &Ended| ended.summary()["train_loss"].as_f64().unwrap();
    assert!((loss(&three) - loss(&alone)).abs() < 1e-4, "{} {}", loss(&three), loss(&alone));
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
    let data = format!("kind = \"cifar10\"\npath = {path:?}");
    let recipe_path = scratch.path().join("recipe.toml");
    let text = format!(
        "[model]\nkind = \"mlp\"\nhidden = [16]\n[train]\nmax_steps = 20\n[optimizer]\n\
         kind = \"sgd\"\nlr = 0.01\n[data]\nbatch_size = 32\n{data}\n"
    );
    fs::write(&recipe_path, text).unwrap();
    recipe(&recipe_path).ranks(2).succeed();
}
