//! `bonfire config`, completions and man pages: the program explains itself.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use support::{bonfire, repository};

/// A recipe that is right, for what is put in front of it.
const REST: &str = "[model]\nkind = \"mlp\"\nhidden = [8]\n[data]\npath = \"digits\"\n[optimizer]\nkind = \"sgd\"\n";

/// What `bonfire config check` says of a recipe, from which every variable of this machine is gone.
fn check(files: &[(&str, &str)], args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    command.args(["config", "check", files[0].0]).args(args).current_dir(folder.path());
    let output = command.env_clear().output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn wrong_recipes_are_told_with_place_and_remedy() {
    let of = |head: &str| format!("{head}{REST}");
    let model = "[model]\nkind = \"mlp\"\n";
    let optimizer = "[optimizer]\nkind = \"sgd\"\n";
    let data = "[data]\npath = \"digits\"\n";
    let cases = [
        ("an unknown key", of("[train]\nmax_epoch = 3\n")),
        ("an unknown section", of("[optimiser]\nlr = 0.1\n")),
        ("a key of another section", of("lr = 0.1\n")),
        ("a wrong type", of("[train]\nmax_epochs = \"three\"\n")),
        ("a section that is a value", of("train = 3\n")),
        ("no TOML", of("[train\nmax_epochs = 3\n")),
        ("two slips in the TOML", of("seed = \n[train]\nmax_epochs = = 3\n")),
        ("a value out of its range", of("[train]\nlabel_smoothing = 1.5\n")),
        ("keys that exclude each other", of("[train]\nmax_epochs = 3\nmax_steps = 10\n")),
        ("a required key that is missing", format!("[data]\npath = \"digits\"\n{optimizer}")),
        ("an unknown model", format!("[model]\nkind = \"resnett\"\n{data}{optimizer}")),
        ("an unknown key of the model", format!("{model}hiden = [8]\n{data}{optimizer}")),
        ("a wrong type in the model", format!("{model}hidden = \"8\"\n{data}{optimizer}")),
        ("unknown data", format!("{model}hidden = [8]\n[data]\nkind = \"cifar\"\n{optimizer}")),
        (
            "a key of another optimizer",
            format!("{model}hidden = [8]\n{data}[optimizer]\nkind = \"adamw\"\nmomentum = 0.9\n"),
        ),
        ("a slip in a word", of("[schedule]\nkind = \"cosin\"\n")),
        (
            "a list of the wrong length",
            format!("{model}hidden = [8]\n{data}[optimizer]\nkind = \"adamw\"\nbetas = [0.9]\n"),
        ),
        (
            "wrong elements of a list",
            format!(
                "{model}hidden = [8]\n{data}{optimizer}[[optimizer.groups]]\nmatch = \"fc*\"\n"
            ),
        ),
        (
            "a variable that is not set",
            format!("{model}hidden = [8]\n[data]\npath = \"${{DATA}}/digits\"\n{optimizer}"),
        ),
        ("a file that is not there", of("extends = \"base.toml\"\n")),
        ("a warm-up given twice", of("[schedule]\nwarmup_steps = 5\nwarmup_epochs = 1\n")),
        (
            "several problems at once",
            "sed = 1\n[train]\nmax_epochs = 0\nlog_every_n_steps = -5\n[model]\nkind = \"mlp\"\n\
                 hiden = [8]\n[data]\npath = 3\nbatch_size = 0\n[optimizer]\nkind = \"sgdd\"\nlr = -1\n\
                 [checkpoint]\nkeep_last = \"three\"\n"
                .to_owned(),
        ),
    ];
    let mut text = String::new();
    for (name, recipe) in &cases {
        let _ = writeln!(text, "=== {name}\n{}", check(&[("recipe.toml", recipe)], &[]));
    }
    let divided = of("").replace("[data]", "[data]\nglobal_batch_size = 100");
    let said = check(&[("recipe.toml", &divided)], &["--nproc-per-node", "3"]);
    let _ = writeln!(text, "=== a batch that ranks cannot share\n{said}");
    let said = check(&[("recipe.toml", &of(""))], &["--set", "optimizer.lr=fast", "--set", "seed"]);
    let _ = writeln!(text, "=== wrong overrides\n{said}");
    let child = ("recipe.toml", "extends = \"base.toml\"\n[train]\nmax_epochs = 0\n");
    let base = of("[train]\nlog_every_n_steps = 0\nmax_epochs = 3\n");
    let said = check(&[child, ("base.toml", &base)], &[]);
    let _ = writeln!(text, "=== a problem in the file that is extended\n{said}");
    let circle = ("base.toml", "extends = \"recipe.toml\"\n");
    let said = check(&[child, circle], &[]);
    let _ = writeln!(text, "=== a circle\n{said}");
    insta::assert_snapshot!("wrong_recipes", text);
}

#[test]
fn a_file_on_top_of_another_has_the_last_word() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let digits = repository().join("configs/digits.toml");
    write("middle.toml", &format!("extends = \"{}\"\n[train]\nmax_epochs = 3\n", digits.display()));
    write(
        "top.toml",
        "extends = \"middle.toml\"\nname = \"${NAME:-unnamed}\"\nseed = \"${SEED}\"\n[train]\n\
         max_steps = 70\n[optimizer]\nkind = \"sgd\"\n",
    );
    let top = folder.path().join("top.toml");
    let shown = bonfire(&["train", top.to_str().unwrap(), "--dry-run"]).env("SEED", "11").succeed();
    let has = |line: &str| shown.stdout.lines().any(|shown| shown == line);
    assert!(has("name = \"unnamed\"") && has("seed = 11"), "{}", shown.stdout);
    assert!(has("max_steps = 70") && !shown.stdout.contains("max_epochs"), "{}", shown.stdout);
    // A key that wants a string has the words, whatever they look like.
    let shown = bonfire(&["train", top.to_str().unwrap(), "--dry-run"]);
    let shown = shown.env("SEED", "11").env("NAME", "2024").succeed();
    assert!(shown.stdout.lines().any(|line| line == "name = \"2024\""), "{}", shown.stdout);
    let shown =
        bonfire(&["train", top.to_str().unwrap(), "--dry-run"]).env("SEED", "eleven").fail();
    shown.says("seed: ");
    // Another kind of optimizer takes nothing of the one below it; what is not touched stays.
    let shown = bonfire(&["train", top.to_str().unwrap(), "--dry-run"]).env("SEED", "11").succeed();
    let has = |line: &str| shown.stdout.lines().any(|shown| shown == line);
    assert!(has("lr = 0.001") && has("path = \"data/digits\""), "{}", shown.stdout);
}

#[test]
fn all_recipes_of_the_repository_are_right() {
    let mut paths: Vec<_> = fs::read_dir(repository().join("configs"))
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect();
    paths.sort();
    let args: Vec<&str> =
        ["config", "check"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let ended = bonfire(&args).succeed();
    assert_eq!(ended.stdout.lines().count(), paths.len(), "{}", ended.stdout);
    assert!(ended.stdout.lines().all(|line| line.ends_with(": ok")), "{}", ended.stdout);
}

#[test]
fn the_reference_in_the_documentation_is_the_program_s() {
    let ended = bonfire(&["config", "reference"]).succeed();
    let page = repository().join("docs/configuration.md");
    if std::env::var_os("BONFIRE_UPDATE_DOCS").is_some() {
        fs::write(&page, &ended.stdout).unwrap();
    }
    let written = fs::read_to_string(&page).unwrap_or_default();
    assert!(
        written == ended.stdout,
        "docs/configuration.md is out of date: run this test with BONFIRE_UPDATE_DOCS=1"
    );
}

#[test]
fn the_schema_knows_the_models_and_is_json() {
    let ended = bonfire(&["config", "schema"]).succeed();
    let schema: Value = serde_json::from_str(&ended.stdout).unwrap();
    let model = &schema["properties"]["model"];
    assert_eq!(model["properties"]["kind"]["enum"], serde_json::json!(["lenet", "mlp", "resnet"]));
    let resnet = &model["allOf"][2]["then"]["properties"];
    assert_eq!(resnet["depth"]["default"], 18, "{resnet}");
}

#[test]
fn shells_and_man_hear_of_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = bonfire(&["completions", shell]).succeed();
        assert!(ended.stdout.contains("nproc-per-node"), "{shell}");
    }
    let page = bonfire(&["man"]).succeed();
    assert!(page.stdout.contains(".TH bonfire 1"), "{}", page.stdout);
    let folder = tempfile::tempdir().unwrap();
    bonfire(&["man", "--out", folder.path().to_str().unwrap()]).succeed();
    let train = fs::read_to_string(folder.path().join("bonfire-train.1")).unwrap();
    assert!(train.contains("\\-\\-resume"), "{train}");
}

/// What of a value a schema refuses, as far as the schema of recipes goes.
fn refused(schema: &Value, value: &Value, place: &str) -> Option<String> {
    let any = |options: &Value| {
        options.as_array().unwrap().iter().any(|option| refused(option, value, place).is_none())
    };
    let ok = match schema.get("type").and_then(Value::as_str) {
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    let chosen = ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(key)).all(any);
    let named = schema.get("enum").is_none_or(|words| words.as_array().unwrap().contains(value));
    let constant = schema.get("const").is_none_or(|word| word == value);
    if !(ok && chosen && named && constant) {
        return Some(format!("{place} = {value} against {schema}"));
    }
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let properties = schema.get("properties").and_then(Value::as_object);
    let of_keys = value.as_object().into_iter().flatten().find_map(|(key, value)| {
        let place = format!("{place}.{key}");
        match properties?.get(key) {
            Some(schema) => refused(schema, value, &place),
            None => closed.then_some(place),
        }
    });
    let items = value.as_array().into_iter().flatten();
    of_keys.or_else(|| {
        items
            .into_iter()
            .find_map(|item| refused(schema.get("items")?, item, &format!("{place}[]")))
    })
}

#[test]
fn the_schema_accepts_the_recipes_and_refuses_slips() {
    let ended = bonfire(&["config", "schema"]).succeed();
    let schema: Value = serde_json::from_str(&ended.stdout).unwrap();
    for entry in fs::read_dir(repository().join("configs")).unwrap() {
        let path = entry.unwrap().path();
        let table: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        let recipe = serde_json::to_value(table).unwrap();
        assert_eq!(refused(&schema, &recipe, ""), None, "{}", path.display());
    }
    let slip = serde_json::json!({ "train": { "max_epoch": 3 } });
    assert_eq!(refused(&schema, &slip, ""), Some(".train.max_epoch".to_owned()));
    for brief in [serde_json::json!(4), serde_json::json!({ "padding": [4, 2] })] {
        let pad = serde_json::json!({ "data": { "transforms": { "pad": brief } } });
        assert_eq!(refused(&schema, &pad, ""), None);
    }
}
