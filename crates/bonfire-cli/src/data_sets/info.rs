//! `bonfire data info`.

use super::args::InfoArgs;
use super::kind;
use super::sheet::{self, MOST_CLASSES};
use super::statistics::Statistics;
use super::untrained::Untrained;
use crate::CliError;
use crate::data::both;
use crate::exit::Outcome;
use crate::output::print;
use bonfire_data::{DataError, ImageDataset};
use bonfire_trainer::config::DataSource;
use bonfire_trainer::open_images;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

pub(super) fn info(args: &InfoArgs) -> Result<Outcome, CliError> {
    args.sheet.as_deref().map_or(Ok(()), check_sheet)?;
    let source = kind::source(args)?;
    let splits = open(&source)?;
    let mut thumbnails = args.sheet.is_some();
    let names = splits.iter().find_map(|split| split.1.as_ref().ok()).map(class_names);
    let columns = splits.into_iter().map(|(name, images)| {
        let figures = images.map(|images| Statistics::of(images.as_ref(), thumbnails));
        // The sheet shows the first split that there is.
        thumbnails &= figures.is_err();
        Column { name, figures: figures.map_err(|error| error.to_string()) }
    });
    let report = Report { columns: columns.collect(), names: names.unwrap_or_default() };
    let mut text = format!("{}: {}\n{}", args.path.display(), describe(&source), report.text());
    if let (Some(path), Some(figures)) = (&args.sheet, report.first()) {
        write_sheet(path, figures)?;
        text.push_str(&of_sheet(path, figures.thumbnails.len()));
    }
    print(text)?;
    Ok(Outcome::Done)
}

/// A split and its images, or why it cannot be opened.
type Split = (&'static str, Result<Arc<dyn ImageDataset>, DataError>);

/// Opens both splits, or the images of a data set without splits; at least one must open.
fn open(source: &DataSource) -> Result<Vec<Split>, CliError> {
    let untrained = Untrained::find(source);
    if let Some(whole) = untrained.as_ref().filter(|untrained| untrained.whole) {
        return Ok(vec![("images", Ok(whole.open(None)?))]);
    }
    let train = open_images(source, bonfire_data::Split::Train);
    let valid = match untrained {
        Some(untrained) => untrained.open(None),
        None => open_images(source, bonfire_data::Split::Test),
    };
    match (train, valid) {
        (Err(train), Err(valid)) => Err(both(train, valid).into()),
        (train, valid) => Ok(vec![("train", train), ("valid", valid)]),
    }
}

/// Refuses a name that says another format than the one that is written.
fn check_sheet(path: &Path) -> Result<(), CliError> {
    match path.extension() {
        Some(suffix) if suffix.eq_ignore_ascii_case("png") => Ok(()),
        _ => Err(CliError::Option {
            option: format!("--sheet {}", path.display()),
            problem: "a sheet is a PNG file; give it a name that ends in .png".into(),
        }),
    }
}

/// What is on a sheet, and what is not.
fn of_sheet(path: &Path, num_classes: usize) -> String {
    let mut text = format!("\n{}: a row for each class, in the order above", path.display());
    if num_classes > MOST_CLASSES {
        let left_out = num_classes - MOST_CLASSES;
        text.push_str(&format!("; {left_out} more class(es) do not fit and are left out"));
    }
    text.push('\n');
    text
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

/// A split and its figures, or why there are none.
struct Column {
    name: &'static str,
    figures: Result<Statistics, String>,
}

impl Column {
    /// The split as an adjective, with a space.
    fn in_words(&self) -> &'static str {
        match self.name {
            "train" => "training ",
            "valid" => "validation ",
            _ => "",
        }
    }
}

/// What is told of a data set.
struct Report {
    names: Vec<String>,
    columns: Vec<Column>,
}

impl Report {
    /// The figures of the first split that there is.
    fn first(&self) -> Option<&Statistics> {
        self.columns.iter().find_map(|column| column.figures.as_ref().ok())
    }

    fn text(&self) -> String {
        let mut lines = self.first().map(|figures| self.pixels(figures)).unwrap_or_default();
        lines.push(String::new());
        lines.extend(self.table());
        lines.extend(self.columns.iter().flat_map(unreadable));
        lines.iter().fold(String::new(), |mut text, line| {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{}", line.trim_end());
            text
        })
    }

    /// Sizes and figures of the pixels of the first split that there is.
    fn pixels(&self, figures: &Statistics) -> Vec<String> {
        let of_channels = figures.mean_and_deviation();
        let listed = |which: usize| {
            let numbers: Vec<String> =
                of_channels.iter().map(|figure| format!("{:.4}", figure[which])).collect();
            numbers.join("  ")
        };
        let opened = self.columns.iter().find(|column| column.figures.is_ok());
        let of = opened.map_or("", Column::in_words);
        vec![
            format!("size       {}", size(figures)),
            format!("mean       {}  (of {of}pixels, in 0..1)", listed(0)),
            format!("deviation  {}", listed(1)),
        ]
    }

    /// A line a class, and one for all.
    fn table(&self) -> Vec<String> {
        let width = self.names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(5);
        let row = |name: &str, cell: &dyn Fn(&Column) -> String| {
            let cells = self.columns.iter().map(|column| format!("  {:>10}", cell(column)));
            format!("{name:<width$}{}", cells.collect::<String>())
        };
        let count = |column: &Column, count: &dyn Fn(&Statistics) -> u64| {
            column.figures.as_ref().map_or_else(|_| "-".to_owned(), |it| count(it).to_string())
        };
        let mut lines = vec![row("class", &|column| column.name.to_owned())];
        for (class, name) in self.names.iter().enumerate() {
            let of_class = |figures: &Statistics| figures.counts.get(class).copied().unwrap_or(0);
            lines.push(row(name, &|column| count(column, &of_class)));
        }
        lines.push(row("all", &|column| count(column, &|figures| figures.counts.iter().sum())));
        lines
    }
}

/// Images of a split that cannot be read, or why all of it cannot.
fn unreadable(column: &Column) -> Vec<String> {
    let split = column.in_words();
    match &column.figures {
        Err(error) => vec![String::new(), format!("the {split}split cannot be opened: {error}")],
        Ok(figures) if figures.num_unreadable == 0 => Vec::new(),
        Ok(figures) => {
            let head = format!("{} {split}image(s) cannot be read:", figures.num_unreadable);
            let reasons = figures.unreadable.iter().map(|(_, reason)| format!("  {reason}"));
            [String::new(), head].into_iter().chain(reasons).collect()
        }
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
