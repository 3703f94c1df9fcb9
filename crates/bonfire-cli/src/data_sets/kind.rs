//! Which kind of data set lies in a folder.

use super::args::InfoArgs;
use crate::CliError;
use bonfire_data::{TRAIN_FOLDER, VALID_FOLDERS, holds_classes};
use bonfire_trainer::config::{DataSource, Plan, RunConfig};
use std::path::Path;
use toml::{Table, Value};

/// Makes a source of what the command line says, with the defaults and the checks of recipes.
pub(super) fn source(args: &InfoArgs) -> Result<DataSource, CliError> {
    let kind = match &args.kind {
        Some(kind) => kind.as_str(),
        None => kind_of(&args.path).ok_or_else(|| unknown(&args.path))?,
    };
    let mut data = Table::new();
    let path = args.path.to_string_lossy();
    let options = [
        ("kind", Some(kind)),
        ("path", Some(path.as_ref())),
        ("label", args.label.as_deref()),
        ("train", args.train.as_deref()),
        ("valid", args.valid.as_deref()),
    ];
    for (key, value) in options {
        data.extend(value.map(|value| (key.to_owned(), Value::from(value))));
    }
    let channels = args.channels.as_ref().and_then(|channels| channels.parse::<i64>().ok());
    data.extend(channels.map(|channels| ("channels".to_owned(), Value::from(channels))));
    // A recipe needs a model and an optimizer; no more is made of them here.
    let recipe = [("model", "mlp"), ("optimizer", "sgd")].map(|(section, kind)| {
        (
            section.to_owned(),
            Value::from(Table::from_iter([("kind".to_owned(), Value::from(kind))])),
        )
    });
    let mut recipe = Table::from_iter(recipe);
    recipe.insert("data".to_owned(), Value::from(data));
    let config = RunConfig::from_toml_str(&recipe.to_string(), "command line")?;
    Ok(Plan::resolve(&config, 1)?.data.source)
}

/// Tells the kind by the names of files and folders.
pub(crate) fn kind_of(folder: &Path) -> Option<&'static str> {
    let holds = |name: &str| folder.join(name).exists();
    let names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let any = |part: &str| names.iter().any(|name| name.contains(part));
    if any("idx3-ubyte") || any("idx1-ubyte") {
        Some("idx")
    } else if any("data_batch_") || any("test_batch") || any("cifar-10-batches") {
        Some("cifar10")
    } else if holds("train.bin") || holds("test.bin") || any("cifar-100-") {
        Some("cifar100")
    } else if holds("train.csv") || holds("valid.csv") {
        Some("csv")
    } else if [TRAIN_FOLDER].iter().chain(&VALID_FOLDERS).any(|name| folder.join(name).is_dir())
        || holds_classes(folder)
    {
        Some("folder")
    } else {
        None
    }
}

fn unknown(folder: &Path) -> CliError {
    let what =
        if folder.is_dir() { "holds no data set of a known kind" } else { "is not a folder" };
    CliError::Option {
        option: folder.display().to_string(),
        problem: format!(
            "{what}; looked for MNIST's files (train-images-idx3-ubyte), CIFAR-10's \
             (data_batch_1.bin), CIFAR-100's (train.bin), a list (train.csv) and folders of \
             classes (train/<class>/ or <class>/, with images); --kind says what it is"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn kinds_are_told_by_names() {
        for (name, expected) in [
            ("t10k-images-idx3-ubyte.gz", Some("idx")),
            ("data_batch_3.bin", Some("cifar10")),
            // The wrong version is told from CIFAR's own reader.
            ("data_batch_1", Some("cifar10")),
            ("test.bin", Some("cifar100")),
            ("train.csv", Some("csv")),
            ("train/cat", Some("folder")),
            ("validation/cat", Some("folder")),
            ("valid.csv", Some("csv")),
            ("cat/1.png", Some("folder")),
            ("cat/notes.txt", None),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match path.extension() {
                Some(_) => fs::write(path, "").unwrap(),
                None => fs::create_dir_all(path).unwrap(),
            }
            assert_eq!(kind_of(folder.path()), expected, "{name}");
        }
    }
}
