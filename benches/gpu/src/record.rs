//! What was found, for machines and for people.

use crate::Result;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

#[derive(Default)]
pub(crate) struct Record {
    entries: Vec<Entry>,
}

struct Entry {
    name: String,
    outcome: std::result::Result<Value, String>,
    seconds: f64,
}

impl Record {
    pub(crate) fn add(
        &mut self,
        name: &str,
        outcome: std::result::Result<Value, String>,
        seconds: f64,
    ) {
        self.entries.push(Entry { name: name.to_owned(), outcome, seconds });
    }

    pub(crate) fn failures(&self) -> usize {
        self.entries.iter().filter(|entry| entry.outcome.is_err()).count()
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let all: Vec<Value> = self.entries.iter().map(Entry::json).collect();
        std::fs::write(folder.join("record.json"), serde_json::to_string_pretty(&all)?)?;
        std::fs::write(folder.join("record.md"), self.table())?;
        Ok(())
    }

    /// The findings as Markdown.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("| section | outcome | seconds | |\n|---|---|---|---|\n");
        for entry in &self.entries {
            let outcome = if entry.outcome.is_ok() { "passed" } else { "**failed**" };
            let _ = writeln!(
                text,
                "| {} | {outcome} | {:.1} | {} |",
                entry.name,
                entry.seconds,
                entry.summary().replace('|', "\\|").replace('\n', "<br>")
            );
        }
        let ratios = self.ratios();
        if !ratios.is_empty() {
            text.push_str("\n| images/s | ours | PyTorch | ratio |\n|---|---|---|---|\n");
            text.push_str(&ratios);
        }
        text
    }

    fn images_per_s(&self, name: &str) -> Option<f64> {
        let entry = self.entries.iter().find(|entry| entry.name == name)?;
        entry.outcome.as_ref().ok()?.get("images_per_s")?.as_f64()
    }

    fn ratios(&self) -> String {
        let mut text = String::new();
        // Burn's f32 is TF32 in matrix products.
        for (precision, torch) in
            [("bf16", "bf16"), ("fp16", "fp16"), ("f32", "tf32"), ("f32", "f32")]
        {
            for kind in ["", " compiled"] {
                let ours = self.images_per_s(&format!("throughput {precision}"));
                let theirs = self.images_per_s(&format!("torch {torch}{kind}"));
                if let (Some(ours), Some(theirs)) = (ours, theirs) {
                    let ratio = ours / theirs;
                    let name = if kind.is_empty() { " eager" } else { kind };
                    let _ = writeln!(
                        text,
                        "| ResNet-50 {precision}, PyTorch {torch}{name} | {ours:.0} | {theirs:.0} | {ratio:.3} |"
                    );
                }
            }
        }
        text
    }
}

impl Entry {
    fn json(&self) -> Value {
        let (outcome, findings) = match &self.outcome {
            Ok(findings) => ("passed", findings.clone()),
            Err(error) => ("failed", json!(error)),
        };
        let (section, seconds) = (&self.name, self.seconds);
        json!({ "section": section, "outcome": outcome, "seconds": seconds, "findings": findings })
    }

    /// What a person wants to know of it.
    fn summary(&self) -> String {
        let findings = match &self.outcome {
            Ok(findings) => findings,
            Err(error) => return error.clone(),
        };
        let number = |key: &str| findings.get(key).and_then(Value::as_f64);
        if let Some(rate) = number("images_per_s") {
            return format!("{rate:.0} images/s");
        }
        if let Some(count) = number("operations_on_the_device") {
            return format!("{count} operations on the device");
        }
        if let Some(ways) = findings.get("ways").and_then(Value::as_array) {
            let way = |way: &Value| {
                let name = way["way"].as_str().unwrap_or_default();
                format!("{name}: {:.1e}", way["largest_difference"].as_f64().unwrap_or(f64::NAN))
            };
            return ways.iter().map(way).collect::<Vec<_>>().join("\n");
        }
        if let Some(kernels) = findings.get("kernels").and_then(Value::as_array) {
            let kernel = |kernel: &Value| {
                let share = kernel["share"].as_f64().unwrap_or(0.0) * 100.0;
                format!("{share:.1} % {}", kernel["kernel"].as_str().unwrap_or_default())
            };
            return kernels.iter().take(8).map(kernel).collect::<Vec<_>>().join("\n");
        }
        findings.get("nvidia_smi").and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}
