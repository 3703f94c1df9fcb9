//! What the documentation shows in TOML can be read: as a recipe, as a part of one, or as a model.toml.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod support;

use bonfire_trainer::config::{Plan, RunConfig};
use std::fs;
use std::path::{Path, PathBuf};
use support::{bonfire, repository};

/// What a part of a recipe leaves to the rest of it.
const REST: [(&str, &str, &str); 3] = [
    ("model", "kind", "[model]\nkind = \"resnet\"\n"),
    ("optimizer", "kind", "[optimizer]\nkind = \"sgd\"\n"),
    ("data", "path", "[data]\npath = \".\"\n"),
];

/// A block between fences, with where it stands.
struct Block {
    place: String,
    text: String,
}

fn documents() -> Vec<PathBuf> {
    let root = repository();
    let mut paths = vec![root.join("README.md")];
    let docs = fs::read_dir(root.join("docs")).unwrap();
    paths.extend(
        docs.map(|file| file.unwrap().path()).filter(|path| path.extension().unwrap() == "md"),
    );
    paths
}

fn blocks(path: &Path) -> Vec<Block> {
    let text = fs::read_to_string(path).unwrap();
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.trim() == "```toml" {
            let lines = lines.by_ref().map(|(_, line)| line);
            let text: Vec<&str> = lines.take_while(|line| line.trim() != "```").collect();
            blocks.push(Block {
                place: format!("{}:{}", path.display(), number + 1),
                text: text.join("\n"),
            });
        }
    }
    blocks
}

#[test]
fn every_block_of_toml_is_read_as_what_it_is() {
    let blocks: Vec<Block> = documents().iter().flat_map(|path| blocks(path)).collect();
    assert!(blocks.len() >= 5, "{}", blocks.len());
    let mut models = 0;
    for Block { place, text } in &blocks {
        let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{place}: {error}"));
        if table.contains_key("package") || table.contains_key("dependencies") {
            continue;
        }
        // Only a model.toml says how many classes there are outside of any section.
        if table.contains_key("num_classes") {
            models += 1;
            check_model(place, text);
            continue;
        }
        let lacks =
            |section: &str, key: &str| table.get(section).is_none_or(|it| it.get(key).is_none());
        let mut whole = table.clone();
        for (section, key, rest) in REST {
            if lacks(section, key) {
                let rest: toml::Table = rest.parse().unwrap();
                let own = whole.entry(section).or_insert_with(|| toml::Table::new().into());
                own.as_table_mut().unwrap().extend(rest[section].as_table().unwrap().clone());
            }
        }
        let config = RunConfig::from_toml_str(&whole.to_string(), place)
            .unwrap_or_else(|error| panic!("{place}: {error}"));
        Plan::resolve(&config, 1).unwrap_or_else(|error| panic!("{place}: {error}"));
    }
    assert_eq!(models, 1);
}

/// Takes it for what it is copied for: to say what model a file of weights is of. The file here is of a narrow network of
/// ten classes, which the text is made to be.
fn check_model(place: &str, text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let description = folder.path().join("model.toml");
    let narrow = text.replace("num_classes = 1000", "num_classes = 10");
    fs::write(&description, narrow.replace("depth = 50", "depth = 50\nwidth = 2")).unwrap();
    let file = repository().join("tests/golden/resnet50_narrow.safetensors");
    let model = folder.path().join("model");
    let mut import = bonfire(&["weights", "import"]);
    import.command().arg(file).arg("--model").arg(description).arg("--out").arg(&model);
    let ended = import.run();
    assert!(ended.status.success(), "{place}: {}", ended.log());
    let picture = repository().join("examples/infer/seven.png");
    let model = model.display().to_string();
    bonfire(&["predict", &model, &picture.display().to_string()]).succeed();
}
