//! The program of this example: recipes reach its model and its data set.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(env!("CARGO_BIN_EXE_custom_model")).current_dir(root).args(args).output().unwrap()
}

fn refusal(overrides: &[&str]) -> String {
    let mut args = vec!["train", "examples/custom_model/my_shapes.toml", "--dry-run"];
    args.extend(overrides.iter().flat_map(|value| ["--set", value]));
    let output = run(&args);
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_model_and_a_data_set_of_ones_own_train_and_are_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run").display().to_string();
    let recipe = "examples/custom_model/my_shapes.toml";
    let trained = run(&["train", recipe, "--nproc-per-node", "2", "--out", &out]);
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    let evaluated = run(&["evaluate", &out, recipe]);
    let table = String::from_utf8(evaluated.stdout).unwrap();
    let figure = |name: &str| -> f64 {
        let line = table.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().last().unwrap().parse().unwrap()
    };
    assert_eq!(figure("images"), 200.0);
    assert!(figure("accuracy") > 0.9, "{table}");
}

#[test]
fn wrong_kinds_keys_and_values_are_told() {
    let kind = refusal(&["data.kind=\"shape\""]);
    assert!(kind.contains("data.kind: \"shape\" is not one of \"idx\", "), "{kind}");
    assert!(kind.contains("\"shapes\"; did you mean \"shapes\"?"), "{kind}");
    let key = refusal(&["data.options.sides=3", "data.label=fine"]);
    assert!(key.contains("unknown key \"data.options.sides\"; did you mean \"side\"?"), "{key}");
    assert!(key.contains("data.label is a key of kind \"cifar100\", not of \"shapes\""), "{key}");
    let value = refusal(&["data.options.side=4"]);
    assert!(value.contains("data.options.side = 4: must be 8 or more"), "{value}");
}
