//! The recipes of `configs/`: all of them can be read and resolved, and say what they need.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_trainer::config::{Plan, RunConfig};
use std::fs;
use std::path::PathBuf;
use support::{bonfire, images, recipe, repository};

fn recipes() -> Vec<PathBuf> {
    let files = fs::read_dir(repository().join("configs")).unwrap();
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_recipe_resolves_and_its_head_says_what_it_takes() {
    let paths = recipes();
    assert!(paths.len() >= 9, "{paths:?}");
    for path in paths {
        let config = RunConfig::load(&path).unwrap();
        for ranks in [1, 2, 8] {
            let plan = Plan::resolve(&config, ranks).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy();
            assert_eq!(plan.name, name);
            // What is written down is the same plan.
            let again = RunConfig::from_toml_str(&plan.to_toml().unwrap(), "plan").unwrap();
            assert_eq!(Plan::resolve(&again, ranks).unwrap(), plan, "{name}");
        }
        let text = fs::read_to_string(&path).unwrap();
        for word in
            ["# Hardware:", "# Budget:", "# Expected:", "#     cargo run --release -- train"]
        {
            assert!(text.contains(word), "{}: {word}", path.display());
        }
    }
}

/// Pictures of several sizes, transformed on the way: trained, evaluated, and one of them classified.
#[test]
fn pictures_of_ones_own_are_trained_on_and_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (split, count) in [("train", 16), ("val", 4)] {
        for (label, class) in ["red", "blue"].into_iter().enumerate() {
            for number in 0..count {
                let path = root.join(format!("{split}/{class}/{number:02}.png"));
                let size = [20 + number % 5, 18 + number % 7];
                images::write(&path, size, label as u32, number);
            }
        }
    }
    let trained = recipe(&repository().join("configs/custom_folder.toml"))
        .ranks(2)
        .set(&[
            &format!("data.path={}", root.display()),
            "data.batch_size=4",
            "model={kind=\"resnet\",depth=8,width=4,norm=\"group\",norm_groups=2}",
            "data.transforms.random_resized_crop={size=16,scale=[0.35,1.0]}",
            "data.valid_transforms={resize=18,center_crop=16}",
            "optimizer.lr=0.02",
            "train.max_epochs=8",
        ])
        .succeed();
    let accuracy = trained.summary()["valid_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.9, "{}", trained.log());
    let model = trained.run_folder();
    let model = model.to_str().unwrap();
    let picture = root.join("val/red/01.png");
    let predicted = bonfire(&["predict", model, picture.to_str().unwrap()]).succeed();
    assert!(predicted.stdout.contains("01.png,red,"), "{}", predicted.log());
    // The model remembers what becomes of a picture before it sees it.
    let evaluated = bonfire(&["evaluate", model, root.to_str().unwrap()])
        .args(["--set", "data.kind=folder"])
        .succeed();
    let loss = trained.summary()["valid_loss"].as_f64().unwrap();
    let said: f64 = evaluated
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("loss")?.trim().parse().ok())
        .unwrap();
    assert!((said - loss).abs() < 1e-3, "{said} {loss}");
    // As it does where a recipe says nothing of it.
    let silent = root.join("silent.toml");
    let recipe = format!(
        "model.kind = \"resnet\"\noptimizer.kind = \"sgd\"\ndata = {{ kind = \"folder\", path = {:?} }}\n",
        root.display().to_string()
    );
    fs::write(&silent, recipe).unwrap();
    let again = bonfire(&["evaluate", model, silent.to_str().unwrap()]).succeed();
    assert_eq!(again.stdout, evaluated.stdout);
}
