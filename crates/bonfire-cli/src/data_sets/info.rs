//! `bonfire data info`.

use super::args::InfoArgs;
use super::statistics::Statistics;
use super::{kind, sheet};
use crate::CliError;
use crate::exit::Outcome;
use crate::output::print;
use bonfire_data::{ImageDataset, Split};
use bonfire_trainer::config::DataSource;
use bonfire_trainer::open_images;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// Unreadable images that are told one by one.
const TOLD: usize = 5;

pub(super) fn info(args: &InfoArgs) -> Result<Outcome, CliError> {
    let source = kind::source(args)?;
    let train = open_images(&source, Split::Train)?;
    let valid = open_images(&source, Split::Test);
    let train_figures = Statistics::of(train.as_ref(), args.sheet.is_some());
    let valid_figures = valid.as_ref().map(|valid| Statistics::of(valid.as_ref(), false));
    let report = Report {
        names: class_names(&train),
        train: &train_figures,
        valid: valid_figures.as_ref().map_err(ToString::to_string),
    };
    print(format_args!("{}: {}\n{}", args.path.display(), describe(&source), report.text()))?;
    if let Some(path) = &args.sheet {
        write_sheet(path, &train_figures)?;
    }
    Ok(Outcome::Done)
}

fn describe(source: &DataSource) -> String {
    match source {
        DataSource::Cifar100 { label, .. } => format!("{}, {label} labels", source.kind()),
        _ => source.kind().to_string(),
    }
}

fn class_names(images: &Arc<dyn ImageDataset>) -> Vec<String> {
    images.digest().class_names
}

fn write_sheet(path: &Path, figures: &Statistics) -> Result<(), CliError> {
    sheet::draw(&figures.thumbnails).save_with_format(path, image::ImageFormat::Png).map_err(
        |error| CliError::Io {
            action: "writing",
            path: path.to_path_buf(),
            source: std::io::Error::other(error.to_string()),
        },
    )
}

/// What is told of a data set.
struct Report<'a> {
    names: Vec<String>,
    train: &'a Statistics,
    valid: Result<&'a Statistics, String>,
}

impl Report<'_> {
    fn text(&self) -> String {
        let mut lines = vec![format!("size       {}", size(self.train))];
        let figures = self.train.mean_and_deviation();
        let listed = |which: usize| {
            let numbers: Vec<String> =
                figures.iter().map(|figure| format!("{:.4}", figure[which])).collect();
            numbers.join("  ")
        };
        lines.push(format!("mean       {}  (of training pixels, in 0..1)", listed(0)));
        lines.push(format!("deviation  {}", listed(1)));
        lines.push(String::new());
        lines.extend(self.table());
        lines.extend(self.unreadable());
        lines.iter().fold(String::new(), |mut text, line| {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{}", line.trim_end());
            text
        })
    }

    /// A line a class, and one for all.
    fn table(&self) -> Vec<String> {
        let width = self.names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(5);
        let row = |name: &str, train: String, valid: String| {
            format!("{name:<width$}  {train:>10}  {valid:>10}")
        };
        let of_valid = |count: &dyn Fn(&Statistics) -> u64| {
            self.valid.as_ref().map_or_else(|_| "-".to_owned(), |valid| count(valid).to_string())
        };
        let mut lines = vec![row("class", "train".into(), "valid".into())];
        for (class, name) in self.names.iter().enumerate() {
            let count = |figures: &Statistics| figures.counts.get(class).copied().unwrap_or(0);
            lines.push(row(name, count(self.train).to_string(), of_valid(&count)));
        }
        let all = |figures: &Statistics| figures.counts.iter().sum();
        let train: u64 = all(self.train);
        lines.push(row("all", train.to_string(), of_valid(&all)));
        lines
    }

    fn unreadable(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let splits =
            [("training", Some(self.train)), ("validation", self.valid.as_ref().ok().copied())];
        for (split, figures) in splits {
            let unreadable = figures.map_or(&[][..], |figures| &figures.unreadable);
            if unreadable.is_empty() {
                continue;
            }
            lines.push(String::new());
            lines.push(format!("{} {split} image(s) cannot be read:", unreadable.len()));
            lines.extend(unreadable.iter().take(TOLD).map(|(_, reason)| format!("  {reason}")));
        }
        if let Err(error) = &self.valid {
            lines.push(String::new());
            lines.push(format!("the validation split cannot be opened: {error}"));
        }
        lines
    }
}

/// The size of all images, or the range of sizes.
fn size(figures: &Statistics) -> String {
    let channels = figures.mean_and_deviation().len();
    match figures.sizes {
        None => "no image can be read".to_owned(),
        Some([least, most]) if least == most => {
            format!("{} x {}, {channels} channel(s)  (height x width)", least[0], least[1])
        }
        Some([least, most]) => format!(
            "{} x {} to {} x {}, {channels} channel(s)  (height x width, each least and most)",
            least[0], least[1], most[0], most[1]
        ),
    }
}
