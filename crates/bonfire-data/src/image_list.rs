//! A list of images: a CSV file with a path and a label a line.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use csv::StringRecord;

use crate::image_files::ImageFile;
use crate::image_folder::is_image;
use crate::image_set_problem::suffixes;
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
    /// When all labels of the training list are whole numbers, they are the labels themselves, and the
    /// classes are called by number up to the highest. Otherwise they are names of classes, which get
    /// their labels in sorted order. The validation list has the classes of the training list.
    ///
    /// # Errors
    ///
    /// - [`DataError::ImageSet`] when a line has no path or label, names no image, or names one that
    ///   does not exist; when a list is empty; when there are fewer than two classes; when validation
    ///   has a class that training lacks.
    /// - [`DataError::Io`] when a list cannot be read.
    pub fn open_list(
        train: impl AsRef<Path>,
        valid: impl AsRef<Path>,
        split: Split,
        options: FileOptions,
    ) -> Result<Self, DataError> {
        let train = train.as_ref();
        let mut rows = read(train)?;
        let classes = classes(&rows);
        class_names::check(train, &classes)?;
        let list = match split {
            Split::Train => train,
            Split::Test => {
                rows = read(valid.as_ref())?;
                valid.as_ref()
            }
        };
        let folder = list.parent().unwrap_or(Path::new(""));
        let file = |row: Row| {
            let path = folder.join(&row.path);
            let metadata = fs::metadata(&path)
                .map_err(|error| row.wrong(list, format!("{}: {error}", path.display())))?;
            let label = class_names::label(list, &row.label, &classes)?;
            Ok(ImageFile { path, name: row.path, label, bytes: metadata.len() })
        };
        let files = rows.into_iter().map(file).collect::<Result<_, DataError>>()?;
        Self::new(list, files, classes, options)
    }
}

/// A line of a list.
struct Row {
    /// Counted from 1.
    line: u64,
    path: String,
    label: String,
}

impl Row {
    fn wrong(&self, list: &Path, problem: String) -> DataError {
        DataError::image_set(list, ImageSetProblem::Line { line: self.line, problem })
    }
}

fn read(list: &Path) -> Result<Vec<Row>, DataError> {
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
        let wrong =
            |line, problem| DataError::image_set(list, ImageSetProblem::Line { line, problem });
        let record = record.map_err(|error| wrong(line_of(error.position()), error.to_string()))?;
        let line = line_of(record.position());
        if number == 0 && !record.get(0).is_some_and(|first| is_image(Path::new(first))) {
            columns = header(&record).map_err(|problem| wrong(line, problem))?;
        } else {
            rows.push(row(&record, columns, line).map_err(|problem| wrong(line, problem))?);
        }
    }
    match rows.is_empty() {
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

/// The names of the classes in the order of their labels.
fn classes(rows: &[Row]) -> Vec<String> {
    // A number as it would be written: "01" is a name, or else it and "1" would be one class.
    let number =
        |label: &str| label.parse::<u16>().ok().filter(|number| number.to_string() == label);
    let numbers: Option<Vec<u16>> = rows.iter().map(|row| number(&row.label)).collect();
    match numbers.and_then(|numbers| numbers.into_iter().max()) {
        Some(highest) => (0..=highest).map(|class| class.to_string()).collect(),
        None => {
            let names: BTreeSet<&str> = rows.iter().map(|row| row.label.as_str()).collect();
            names.into_iter().map(str::to_owned).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_files::tests::folder_with;
    use crate::{Dataset, ImageDataset, SampleContext};

    /// Opens lists beside the images a.png, b.JPG and c/d.webp.
    fn open(train: &str, valid: &str, split: Split) -> Result<ImageFiles, String> {
        let small = Some([3, 2]);
        let folder = folder_with(&[("a.png", small), ("b.JPG", small), ("c/d.webp", small)]);
        let lists = ["train.csv", "valid.csv"].map(|name| folder.path().join(name));
        fs::write(&lists[0], train).unwrap();
        fs::write(&lists[1], valid).unwrap();
        let result = ImageFiles::open_list(&lists[0], &lists[1], split, FileOptions::default());
        let data = result.map_err(|error| {
            error.to_string().replace(&folder.path().display().to_string(), "DIR")
        })?;
        for index in 0..data.len() {
            data.get(&SampleContext { seed: 0, epoch: 0, index }).unwrap();
        }
        Ok(data)
    }

    fn labels(data: &ImageFiles) -> Vec<u32> {
        data.files().map(|file| file.label).collect()
    }

    #[test]
    fn lists_with_and_without_a_header_mean_the_same() {
        for train in [
            "a.png,dog\nb.JPG,cat\n\"c/d.webp\",dog\n",
            "path,label\na.png,dog\nb.JPG,cat\nc/d.webp,dog",
            "Label , weight, PATH\r\ndog,1,a.png\r\ncat,2, b.JPG\r\ndog,3,c/d.webp\r\n",
        ] {
            let data = open(train, "", Split::Train).unwrap();
            assert_eq!(data.class_names(), ["cat", "dog"], "{train}");
            assert_eq!(labels(&data), [1, 0, 1], "{train}");
        }
    }

    #[test]
    fn whole_numbers_are_the_labels_themselves() {
        let data = open("a.png,3\nb.JPG,0\n", "c/d.webp,2\n", Split::Test).unwrap();
        assert_eq!((labels(&data), data.num_classes()), (vec![2], 4));
        // One that is none makes names of all.
        let data = open("a.png,3\nb.JPG,03\n", "", Split::Train).unwrap();
        assert_eq!(data.class_names(), ["03", "3"]);
    }

    #[test]
    fn wrong_lines_are_named() {
        let pair = "a.png,x\nb.JPG,y\n";
        for (train, valid, expected) in [
            ("", "", "DIR/train.csv: has no images; nothing can be learned from an empty data set"),
            ("path,label\n", "", "has no images"),
            ("file,class\na.png,x\n", "", "line 1: \"file,class\" is neither an image"),
            ("a.png,x\nb.JPG\n", "", "line 2: column 2 (label) is empty"),
            ("a.png,x\nb.gif,y\n", "", "line 2: \"b.gif\" is no image; its name has to end in"),
            ("a.png,x\nno.png,y\n", "", "line 2: DIR/no.png: No such file"),
            ("a.png,x\nb.JPG,x\n", "", "1 class(es) (x) are too few"),
            (pair, "a.png,z\n", "valid.csv: class \"z\" is unknown"),
        ] {
            let split = if valid.is_empty() { Split::Train } else { Split::Test };
            let error = open(train, valid, split).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
