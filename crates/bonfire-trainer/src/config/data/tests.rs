use super::super::{Plan, RunConfig};
use super::*;

/// Resolves a recipe with `data` as its section of that name.
fn plan(data: &str) -> Result<Plan, Vec<String>> {
    let text = format!("[model]\nkind = \"mlp\"\n[optimizer]\nkind = \"sgd\"\n[data]\n{data}");
    let config = RunConfig::from_toml_str(&text, "test.toml");
    let result = config.and_then(|config| Plan::resolve(&config, 2));
    result.map_err(|error| error.problems.into_iter().map(|problem| problem.message).collect())
}

#[test]
fn every_kind_has_its_defaults_and_is_written_as_it_was_read() {
    let options = FileOptions::default();
    let folder = PathBuf::from("d");
    let grey = FileOptions { channels: Channels::Grey, on_corrupt: OnCorrupt::Skip };
    let cases = [
        ("path = \"d\"", DataSource::Idx { folder: folder.clone() }),
        ("kind = \"cifar10\"\npath = \"d\"", DataSource::Cifar10 { folder: folder.clone() }),
        (
            "kind = \"cifar100\"\npath = \"d\"",
            DataSource::Cifar100 { folder: folder.clone(), label: CifarLabel::Fine },
        ),
        (
            "kind = \"folder\"\npath = \"d\"",
            DataSource::Folder {
                folder: folder.clone(),
                train: "train".into(),
                valid: None,
                options,
            },
        ),
        (
            "kind = \"folder\"\npath = \"d\"\nvalid = \"x\"\nchannels = 1\non_corrupt = \"skip\"",
            DataSource::Folder {
                folder: folder.clone(),
                train: "train".into(),
                valid: Some("x".into()),
                options: grey,
            },
        ),
        (
            "kind = \"csv\"\npath = \"d\"",
            DataSource::Csv {
                folder,
                train: "train.csv".into(),
                valid: "valid.csv".into(),
                options,
            },
        ),
        (
            "kind = \"synthetic\"",
            DataSource::Synthetic { num_samples: 1000, image: [32, 32, 3], num_classes: 10 },
        ),
        (
            "kind = \"stripes\"\npath = \"d\"\n[data.options]\nwidth = 3\n[data.options.more]\na = [1.5]",
            DataSource::Own {
                kind: "stripes".into(),
                path: Some("d".into()),
                options: "width = 3\nmore = { a = [1.5] }".parse().unwrap(),
            },
        ),
    ];
    for (text, source) in cases {
        let plan = plan(text).unwrap();
        assert_eq!(plan.data.source, source, "{text}");
        let written = RunConfig::from_toml_str(&plan.to_toml().unwrap(), "again").unwrap();
        assert_eq!(Plan::resolve(&written, 2).unwrap(), plan, "{text}");
    }
}

#[test]
fn keys_of_other_kinds_are_refused_by_name() {
    let cases = [
        (
            "path = \"d\"\nlabel = \"fine\"\nchannels = 3",
            vec![
                "data.label is a key of kind \"cifar100\", not of \"idx\"; remove it",
                "data.channels is a key of kind \"folder\" or \"csv\", not of \"idx\"; remove it",
            ],
        ),
        (
            "kind = \"synthetic\"\npath = \"d\"",
            vec![
                "data.path is a key of kind \"idx\" or \"cifar10\" or \"cifar100\" or \"folder\" or \
                 \"csv\", not of \"synthetic\"; remove it",
            ],
        ),
        (
            "kind = \"folder\"\npath = \"d\"\nnum_classes = 3",
            vec!["data.num_classes is a key of kind \"synthetic\", not of \"folder\"; remove it"],
        ),
        (
            "path = \"d\"\n[data.options]\nwidth = 3",
            vec!["data.options is for data sets of a program's own, not for \"idx\"; remove it"],
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(plan(text).unwrap_err(), expected, "{text}");
    }
}

#[test]
fn impossible_values_are_told_with_what_is_possible() {
    let cases = [
        ("kind = \"csv\"", "data.path is missing: set it to the folder of the data set"),
        (
            "kind = \"folder\"\npath = \"d\"\nchannels = 4",
            "data.channels = 4: must be 1 (grey) or 3 (colour)",
        ),
        ("kind = \"synthetic\"\nnum_samples = 0", "data.num_samples = 0: must be 1 or more"),
        ("kind = \"synthetic\"\nnum_classes = 1", "data.num_classes = 1: must be 2 or more"),
        (
            "kind = \"synthetic\"\nimage = [8, 0, 3]",
            "data.image = [8, 0, 3]: must be [height, width, channels], with sides from 1 to 16384 and \
             1 or 3 channels",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(plan(text).unwrap_err(), [expected], "{text}");
    }
}

#[test]
fn keys_of_a_data_set_of_ones_own_are_as_strict_as_all_others() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Stripes {
        width: usize,
    }
    let parse = |data: &str| {
        let text = format!("[data]\nkind = \"stripes\"\n{data}");
        let config = RunConfig::from_toml_str(&text, "test.toml").unwrap();
        config.parse_data::<Stripes>().map_err(|error| error.to_string())
    };
    assert_eq!(parse("[data.options]\nwidth = 3"), Ok(Stripes { width: 3 }));
    assert_eq!(
        parse("label = \"fine\"\n[data.options]\nwidth = -1\nwidht = 2").unwrap_err(),
        "test.toml:3: data.label is a key of kind \"cifar100\", not of \"stripes\"; remove it\n\
         test.toml:5: data.options.width: invalid value: integer `-1`, expected an integer, 0 or more\n\
         test.toml:6: unknown key \"data.options.widht\"; did you mean \"width\"?"
    );
}
