//! `bonfire new` writes a package that builds and trains.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Train, bonfire, repository};

#[test]
fn a_package_depends_on_the_checkout_that_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("my-nets");
    new(&package)
        .args(["--path", repository().to_str().unwrap()])
        .succeed()
        .says("package \"my-nets\"");
    let read = |file: &str| fs::read_to_string(package.join(file)).unwrap();
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    assert_eq!(manifest["package"]["name"].as_str(), Some("my-nets"));
    for name in ["bonfire", "bonfire-cli"] {
        let path = manifest["dependencies"][name]["path"].as_str().unwrap();
        assert!(Path::new(path).join("Cargo.toml").is_file(), "{path}");
    }
    // The lines that a package outside of the workspace has to repeat are those of the workspace.
    let text = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let workspace: toml::Table = text.parse().unwrap();
    let burn = |manifest: &toml::Value| manifest["burn"]["version"].clone();
    let shared = &workspace["workspace"]["dependencies"];
    assert_eq!(burn(&manifest["dependencies"]), burn(shared));
    for (key, value) in manifest["profile"]["dev"]["package"]["*"].as_table().unwrap() {
        assert_eq!(&workspace["profile"]["dev"]["package"]["*"][key], value, "{key}");
    }
    let recipe: toml::Table = read("recipe.toml").parse().unwrap();
    assert!(Path::new(recipe["data"]["path"].as_str().unwrap()).is_dir());
}

#[test]
fn what_would_overwrite_or_cannot_work_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let full = folder.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("thesis.tex"), "years of work").unwrap();
    new(&full).fail().says_once(&["full: the folder is not empty"]);
    assert_eq!(fs::read_dir(&full).unwrap().count(), 1);
    new(&folder.path().join("2nd")).fail().says_once(&["cannot have the name", "a letter first"]);
    let nowhere = folder.path().join("nowhere");
    let ended = new(&folder.path().join("fine")).args(["--path", nowhere.to_str().unwrap()]).fail();
    ended.says_once(&["nowhere: there is no checkout of Bonfire"]);
    assert!(!folder.path().join("fine").exists());
}

/// `cargo new` is asked about the same names.
#[test]
fn names_that_cargo_refuses_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, cargos) = (folder.path().join("ours"), folder.path().join("cargo"));
    fs::create_dir(&cargos).unwrap();
    let names = [
        "build",
        "deps",
        "examples",
        "incremental",
        "test",
        "fn",
        "self",
        "Self",
        "crate",
        "async",
        "gen",
        "try",
        "yield",
        "2nd",
        "a.b",
        "my-nets",
        "nets2",
        "Nets",
        "selves",
    ];
    let mut refused = Vec::new();
    for name in names {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(&cargos).args(["new", "--quiet", "--vcs", "none", name]);
        let by_cargo = !cargo.output().unwrap().status.success();
        let by_us = !new(&ours.join(name)).run().status.success();
        assert!(by_us || !by_cargo, "cargo refuses {name:?}");
        refused.extend(by_us.then_some(name));
    }
    assert_eq!(refused.len(), names.len() - 4, "{refused:?}");
    // Nor may a package have the name of what it depends on, however it is spelled.
    for name in ["bonfire", "bonfire-cli", "bonfire_cli", "burn", "std"] {
        new(&ours.join(name)).fail().says_once(&["cannot have the name", "a crate of"]);
    }
}

/// Compiles Bonfire's crates a second time, as dependencies.
#[test]
#[ignore = "takes minutes; .ci/run has it"]
fn a_new_package_builds_and_trains() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("my-nets");
    new(&package).succeed();
    // The folder that this test was built in has Burn already.
    let debug = Path::new(env!("CARGO_BIN_EXE_bonfire")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(&package).args(["run", "--offline", "--", "train", "recipe.toml"]);
    cargo.args(["--nproc-per-node", "2", "--set", "train.max_epochs=1", "--out", "run"]);
    let status = cargo.env("CARGO_TARGET_DIR", debug.parent().unwrap()).status().unwrap();
    assert!(status.success());
    let summary = fs::read_to_string(package.join("run/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((&summary["world_size"], &summary["epochs"]), (&2.into(), &1.into()));
    assert!(summary["valid_accuracy"].as_f64().unwrap() > 0.5, "{summary}");
}

fn new(package: &Path) -> Train {
    let mut call = bonfire(&["new"]);
    call.command().arg(package);
    call
}
