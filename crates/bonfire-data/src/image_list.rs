//! A list of images: a CSV file with a path and a label a line.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use csv::StringRecord;

use crate::image_files::Listing;
use crate::image_folder::is_image;
use crate::image_set_problem::suffixes;
use crate::problems::Problems;
use crate::{DataError, FileOptions, ImageFiles, ImageSetProblem, Split, class_names};

/// What the columns are called in a header.
const PATH_COLUMN: &str = "path";
const LABEL_COLUMN: &str = "label";

impl ImageFiles {
    /// Lists one split of two CSV files with the paths and labels of images.
    ///
    /// The first line is a header when its first field does not end as images do; then the columns
    /// `path` and `label` count, wherever they stand. Without a header the first two columns do.
    /// Paths are relative to the folder of their list.
    ///
    /// When all labels of the training list are whole numbers, they are the labels themselves, from 0
    /// without gaps. Otherwise they are names of classes, which get their labels in sorted order. The
    /// validation list has the classes of the training list.
    ///
    /// # Errors
    ///
    /// - [`DataError::ImageSet`] with the first ten lines that have no path or label, name no image, or
    ///   name one that is no regular file (but see [`OnCorrupt`](crate::OnCorrupt)), or in validation a
    ///   class that training lacks; when a list is empty; when there are fewer than two classes, or
    ///   numbers of classes with gaps.
    /// - [`DataError::MissingFiles`] when the training list does not exist.
    /// - [`DataError::Io`] when a list cannot be read.
    pub fn open_list(
        train: impl AsRef<Path>,
        valid: impl AsRef<Path>,
        split: Split,
        options: FileOptions,
    ) -> Result<Self, DataError> {
        let (train, valid) = (train.as_ref(), valid.as_ref());
        if !train.exists() {
            return Err(missing([train, valid]));
        }
        let mut problems = Problems::default();
        let mut rows = read(train, &mut problems)?;
        let classes = classes(&rows).unwrap_or_else(|problem| {
            problems.add(problem);
            Vec::new()
        });
        let list = match split {
            Split::Train => train,
            Split::Test => {
                // What is wrong with the training list is told when that is opened.
                std::mem::take(&mut problems).check(train)?;
                rows = read(valid, &mut problems)?;
                valid
            }
        };
        let folder = list.parent().unwrap_or(Path::new(""));
        let mut listing = Listing::default();
        for Row { line, path, label } in rows {
            let label = match class_names::label(&label, &classes) {
                Ok(label) => label,
                // Without classes that problem is told already.
                Err(_) if classes.is_empty() => 0,
                Err(problem) => {
                    problems.add(format!("line {line}: {problem}"));
                    continue;
                }
            };
            let file = folder.join(&path);
            let added = listing.add(file.clone(), path, label, options.on_corrupt);
            if let Err(problem) = added {
                problems.add(format!("line {line}: {}: {problem}", file.display()));
            }
        }
        problems.check(list)?;
        class_names::check(train, &classes)?;
        Self::new(list, listing, classes, split, options)
    }
}

/// Names the lists that do not exist.
fn missing(lists: [&Path; 2]) -> DataError {
    let folder = lists[0].parent().unwrap_or(Path::new("")).to_owned();
    let mut looked_for: Vec<String> = lists
        .iter()
        .filter(|list| !list.exists())
        .map(|list| list.strip_prefix(&folder).unwrap_or(list).display().to_string())
        .collect();
    looked_for.dedup();
    DataError::MissingFiles { folder_exists: folder.is_dir(), folder, looked_for }
}

/// A line of a list.
struct Row {
    /// Counted from 1.
    line: u64,
    path: String,
    label: String,
}

/// Reads the lines that can be used; what is wrong with the others goes to the problems.
fn read(list: &Path, problems: &mut Problems) -> Result<Vec<Row>, DataError> {
    let text = fs::read(list).map_err(|source| DataError::Io { path: list.to_owned(), source })?;
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(text.as_slice());
    let mut columns = [0, 1];
    let mut rows = Vec::new();
    for (number, record) in reader.records().enumerate() {
        let line_of = |position: Option<&csv::Position>| position.map_or(0, csv::Position::line);
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                problems.add(format!("line {}: {error}", line_of(error.position())));
                continue;
            }
        };
        let line = line_of(record.position());
        if number == 0 && !record.get(0).is_some_and(|first| is_image(Path::new(first))) {
            match header(&record) {
                Ok(found) => columns = found,
                Err(problem) => {
                    // Nothing is known of the other lines then.
                    problems.add(format!("line {line}: {problem}"));
                    return Ok(rows);
                }
            }
        } else {
            match row(&record, columns, line) {
                Ok(row) => rows.push(row),
                Err(problem) => problems.add(format!("line {line}: {problem}")),
            }
        }
    }
    match rows.is_empty() && problems.count() == 0 {
        true => Err(DataError::image_set(list, ImageSetProblem::NoImages)),
        false => Ok(rows),
    }
}

/// Finds the columns by their names.
fn header(record: &StringRecord) -> Result<[usize; 2], String> {
    let find = |name: &str| {
        let found = record.iter().position(|field| field.eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            let fields = record.iter().collect::<Vec<_>>().join(",");
            format!(
                "\"{fields}\" is neither an image ({}) with its label nor a header with the columns \
                 {PATH_COLUMN} and {LABEL_COLUMN}",
                suffixes()
            )
        })
    };
    Ok([find(PATH_COLUMN)?, find(LABEL_COLUMN)?])
}

fn row(record: &StringRecord, [path, label]: [usize; 2], line: u64) -> Result<Row, String> {
    let field = |column: usize, what: &str| {
        let value = record.get(column).filter(|value| !value.is_empty());
        value.map(str::to_owned).ok_or_else(|| format!("column {} ({what}) is empty", column + 1))
    };
    let (path, label) = (field(path, PATH_COLUMN)?, field(label, LABEL_COLUMN)?);
    match is_image(Path::new(&path)) {
        true => Ok(Row { line, path, label }),
        false => Err(format!("\"{path}\" is no image; its name has to end in {}", suffixes())),
    }
}

/// The names of the classes in the order of their labels, or what is wrong with the labels.
fn classes(rows: &[Row]) -> Result<Vec<String>, String> {
    let names: BTreeSet<&str> = rows.iter().map(|row| row.label.as_str()).collect();
    // A number as it would be written: "01" is a name, or else it and "1" would be one class.
    let number =
        |name: &&str| name.parse::<u64>().ok().filter(|number| number.to_string() == *name);
    let numbers: Option<BTreeSet<u64>> = names.iter().map(number).collect();
    if let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) {
        return classes_by_number(&numbers);
    }
    let is_number = |name: &&str| name.parse::<f64>().is_ok_and(f64::is_finite);
    let is_whole = |name: &&str| name.bytes().all(|byte| byte.is_ascii_digit());
    match names.iter().find(|name| !is_whole(name)) {
        Some(name) if names.iter().all(is_number) => Err(format!(
            "all labels are numbers, but \"{name}\" cannot be one of a class; number classes from 0 \
             without gaps, or give them names"
        )),
        _ => Ok(names.into_iter().map(str::to_owned).collect()),
    }
}

/// Classes that are called by number, all of which must have an image.
fn classes_by_number(numbers: &BTreeSet<u64>) -> Result<Vec<String>, String> {
    let highest = numbers.last().copied().unwrap_or_default();
    match (0..=highest).find(|number| !numbers.contains(number)) {
        None => Ok(numbers.iter().map(u64::to_string).collect()),
        Some(first) => Err(format!(
            "labels that are whole numbers stand for the classes 0 to {highest}, and {} of these have \
             no image, the first is {first}; number classes from 0 without gaps, or give them names",
            u128::from(highest) + 1 - numbers.len() as u128
        )),
    }
}

#[cfg(test)]
mod tests;
