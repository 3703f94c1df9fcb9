//! The rows of `metrics.jsonl`: what a run reports while it trains, one JSON object a line.
//!
//! ```text
//! {"phase":"train","epoch":0,"step":50,"time_s":1769860800.5,"learning_rate":0.1,"images_per_s":5210.0,
//!  "figures":{"loss":1.9,"accuracy":0.31},"ranks":[{"rank":0,"images_per_s":1302.0, ..}]}
//! ```
//!
//! JSON has no numbers for what is infinite or not a number: such values are the strings `"NaN"`, `"inf"`
//! and `"-inf"`. Fields that a reader does not know are passed over, so that older readers read newer runs.

mod figures;
mod float;

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// A report of training, or a validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What the figures are of.
    pub phase: Phase,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Optimizer steps taken, from 1.
    pub step: u64,
    /// When it was written, in seconds since 1970.
    #[serde(with = "float")]
    pub time_s: f64,
    /// Learning rate of the step.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "float::optional")]
    pub learning_rate: Option<f64>,
    /// Training images per second over all ranks, since the row before.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "float::optional")]
    pub images_per_s: Option<f64>,
    /// Loss and metrics by name, in the order in which they were reported.
    #[serde(with = "figures")]
    pub figures: Vec<(String, f64)>,
    /// What each rank did, where that is measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankRow>,
}

/// What the figures of a row are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Training batches since the row before.
    Train,
    /// The validation set.
    Valid,
}

/// What a rank did since the row before. The times are shares of this rank's time, between 0 and 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankRow {
    /// The rank.
    pub rank: usize,
    /// Its training images per second.
    #[serde(with = "float")]
    pub images_per_s: f64,
    /// The same without the time in which it waited for others.
    #[serde(with = "float")]
    pub busy_images_per_s: f64,
    /// Waiting for batches.
    #[serde(with = "float")]
    pub data: f64,
    /// Forward passes.
    #[serde(with = "float")]
    pub forward: f64,
    /// Backward passes.
    #[serde(with = "float")]
    pub backward: f64,
    /// Waiting for communication that backward passes did not hide.
    #[serde(with = "float")]
    pub comm_wait: f64,
    /// Optimizer steps.
    #[serde(with = "float")]
    pub optimizer: f64,
    /// Processor cores that its process has kept busy on average.
    #[serde(default, with = "float")]
    pub cpu_cores: f64,
    /// Share of the time in which its device has computed, between 0 and 1, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "float::optional")]
    pub device_utilization: Option<f64>,
    /// The most bytes of main memory that its process has had at a time, so far.
    #[serde(default)]
    pub peak_memory_bytes: u64,
}

impl Row {
    /// A figure by its name.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// The row as a line of the file, its end included.
    ///
    /// # Errors
    /// Those of the encoder, which has no reason to fail.
    pub fn to_line(&self) -> io::Result<String> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        Ok(line)
    }
}

/// Reads the rows of a file. A last line that its writer was killed over is left out.
///
/// # Errors
/// Those of reading, and [`io::ErrorKind::InvalidData`] naming the line that is not a row.
pub fn read(path: &Path) -> io::Result<Vec<Row>> {
    let mut lines = BufReader::new(File::open(path)?);
    let (mut rows, mut line) = (Vec::new(), Vec::new());
    for number in 1.. {
        line.clear();
        if lines.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(row) => rows.push(row),
            // Only a line that was not written to its end lacks it, and no line comes behind it.
            Err(_) if !line.ends_with(b"\n") => break,
            Err(error) => {
                let said = format!("{}, line {number} is not a row: {error}", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, said));
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64) -> Row {
        let figures = [("loss", 0.5), ("accuracy", f64::NAN), ("a b", f64::NEG_INFINITY)];
        Row {
            phase: Phase::Train,
            epoch: 3,
            step,
            time_s: 1.5,
            learning_rate: Some(f64::INFINITY),
            images_per_s: None,
            figures: figures.map(|(name, value)| (name.to_string(), value)).to_vec(),
            ranks: Vec::new(),
        }
    }

    fn written(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let line = row(7).to_line().unwrap();
        let expected = concat!(
            r#"{"phase":"train","epoch":3,"step":7,"time_s":1.5,"learning_rate":"inf","#,
            r#""figures":{"loss":0.5,"accuracy":"NaN","a b":"-inf"}}"#,
            "\n"
        );
        assert_eq!(line, expected);
        let shares = |rank| RankRow {
            rank,
            images_per_s: 10.0,
            busy_images_per_s: f64::INFINITY,
            data: 0.1,
            forward: 0.2,
            backward: 0.3,
            comm_wait: 0.4,
            optimizer: 0.0,
            cpu_cores: 0.75,
            device_utilization: Some(0.5),
            peak_memory_bytes: 1 << 28,
        };
        let valid = Row {
            phase: Phase::Valid,
            images_per_s: Some(12.0),
            learning_rate: None,
            figures: vec![("loss".to_string(), 1e-300)],
            ranks: vec![shares(0), shares(1)],
            ..row(8)
        };
        let (_folder, path) = written(&(line + "\n" + &valid.to_line().unwrap()));
        let rows = read(&path).unwrap();
        assert_eq!(rows[1], valid);
        assert_eq!(rows[0].learning_rate, Some(f64::INFINITY));
        assert!(rows[0].figure("accuracy").unwrap().is_nan() && rows[0].figure("f1").is_none());
        assert_eq!(rows[0].figures[2], ("a b".to_string(), f64::NEG_INFINITY));
    }

    #[test]
    fn a_line_that_was_cut_off_is_left_out_at_the_end_only() {
        let line = row(1).to_line().unwrap();
        for cut in 1..line.len() - 1 {
            let (_folder, path) = written(&format!("{line}{}", &line[..cut]));
            assert_eq!(read(&path).unwrap().len(), 1, "cut at {cut}");
        }
        let (_folder, path) = written(&format!("{line}{line}{}\n{line}", &line[..20]));
        let error = read(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("metrics.jsonl, line 3 is not a row"), "{error}");
        let (_folder, path) = written(line.trim_end());
        assert_eq!(read(&path).unwrap().len(), 1, "only the end of the line is missing");
    }

    #[test]
    fn readers_pass_over_fields_that_they_do_not_know() {
        let text =
            r#"{"later":[1],"phase":"valid","epoch":0,"step":1,"time_s":2,"figures":{"n":3}}"#;
        let row: Row = serde_json::from_str(text).unwrap();
        assert_eq!((row.time_s, row.figure("n")), (2.0, Some(3.0)));
        let wrong = text.replace(":3}", ":\"three\"}");
        let error = serde_json::from_str::<Row>(&wrong).unwrap_err().to_string();
        assert!(error.contains("\"three\"") && error.contains("\"NaN\""), "{error}");
    }
}
