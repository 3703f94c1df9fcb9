//! `cargo xtask soak mnist` and `soak cifar`: recipes on images that are not in this repository, found through
//! BONFIRE_DATA_DIR.

use crate::bonfire::Train;
use crate::cargo::{build_release, root};
use crate::{Result, record};
use std::path::{Path, PathBuf};

/// A recipe, where its images lie, and what is to come out.
struct Case {
    name: &'static str,
    config: &'static str,
    /// Folder in BONFIRE_DATA_DIR, which takes the place of the recipe's.
    data: &'static str,
    overrides: &'static [&'static str],
    ranks: &'static [usize],
    /// Least accuracy, if there is a goal.
    goal: Option<f64>,
    what: &'static str,
}

const MNIST: Case = Case {
    name: "soak-mnist",
    config: "configs/mnist.toml",
    data: "mnist15k-idx",
    overrides: &[],
    ranks: &[1, 2],
    goal: Some(0.985),
    what: "The recipe as it is, on 10,000 training and 5,000 test images of MNIST, a split that is not MNIST's own: 10 \
           epochs of LeNet, 64 images a rank, the rate in proportion to the batch.",
};

const CIFAR: Case = Case {
    name: "soak-cifar",
    config: "configs/cifar10_resnet8.toml",
    data: "cifar10-bin-small",
    overrides: &["train.max_epochs=3"],
    ranks: &[2],
    goal: None,
    what: "ResNet-8 for 3 epochs on 10,000 training and 2,000 test images of CIFAR-10, once compressed by JPEG.",
};

pub(crate) fn mnist() -> Result<()> {
    run(&MNIST)
}

pub(crate) fn cifar() -> Result<()> {
    run(&CIFAR)
}

fn run(case: &Case) -> Result<()> {
    let data = data_folder(case)?;
    let program = build_release()?.bonfire;
    let folder = tempfile::tempdir()?;
    let mut text = format!(
        "{}\n\n| ranks | epoch | training loss | test loss | test accuracy |\n|---|---|---|---|---|\n",
        case.what
    );
    let mut failed = Vec::new();
    for ranks in case.ranks {
        let path = format!("data.path={}", data.display());
        let overrides: Vec<&str> = case.overrides.iter().copied().chain([path.as_str()]).collect();
        let out = folder.path().join(format!("run-{ranks}"));
        let config = root().join(case.config);
        let train = Train {
            program: &program,
            config: &config,
            ranks: *ranks,
            overrides: &overrides,
            resume: None,
            out,
        };
        let accuracy = train.run()?.number("valid_accuracy")?;
        println!("{ranks} rank(s): accuracy {accuracy:.4}");
        text.push_str(&curve(&train.out, *ranks)?);
        if case.goal.is_some_and(|goal| accuracy < goal) {
            failed.push(format!("{ranks} rank(s): {accuracy:.4}"));
        }
    }
    if let Some(goal) = case.goal {
        let verdict = if failed.is_empty() { "reached".to_string() } else { failed.join(", ") };
        text.push_str(&format!("\nGoal: at least {goal}: {verdict}\n"));
    }
    print!("\n{text}");
    record::write(case.name, &text)?;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("accuracy below the goal: {}", failed.join(", ")).into()),
    }
}

fn data_folder(case: &Case) -> Result<PathBuf> {
    let Some(all) = std::env::var_os("BONFIRE_DATA_DIR") else {
        return Err("set BONFIRE_DATA_DIR to the folder of larger data sets".into());
    };
    let folder = Path::new(&all).join(case.data);
    match folder.is_dir() {
        true => Ok(folder.canonicalize()?),
        false => Err(format!("{} is no folder", folder.display()).into()),
    }
}

/// The epochs of a run, from its metrics.csv.
fn curve(run: &Path, ranks: usize) -> Result<String> {
    let text = std::fs::read_to_string(run.join("metrics.csv"))?;
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().ok_or("metrics.csv is empty")?;
    let column = |name: &str| {
        let found = head.iter().position(|column| *column == name);
        found.ok_or_else(|| format!("metrics.csv has no column {name}"))
    };
    let (loss, accuracy) = (column("loss")?, column("accuracy")?);
    let (mut rows, mut training) = (String::new(), "");
    for line in lines {
        match line.first() {
            Some(&"train") => training = line.get(loss).copied().unwrap_or_default(),
            _ => rows.push_str(&format!(
                "| {ranks} | {} | {training} | {} | {} |\n",
                line.get(1)
                    .and_then(|epoch| epoch.parse::<u64>().ok())
                    .map_or(0, |epoch| epoch + 1),
                line.get(loss).unwrap_or(&""),
                line.get(accuracy).unwrap_or(&""),
            )),
        }
    }
    Ok(rows)
}
