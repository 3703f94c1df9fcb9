//! Figures over ranks equal those of scikit-learn over all samples, which
//! `tests/golden/classification.py` wrote.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_metrics::{
    Auroc, Average, ClassFigures, ConfusionMatrix, Figure, Figures, MetricError, Scored, TopK,
};
use serde_json::{Map, Value};
use std::ops::Range;

const TOLERANCE: f64 = 1e-12;
/// Sizes of batches, in turns.
const BATCHES: [usize; 4] = [7, 1, 0, 12];

struct Case {
    name: String,
    values: Value,
    classes: usize,
    scores: Vec<f64>,
    targets: Vec<usize>,
}

fn cases() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/classification.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let case = |(name, values): (&String, &Value)| Case {
        name: name.clone(),
        values: values.clone(),
        classes: size(&values["classes"]),
        scores: list(&values["scores"]).iter().map(number).collect(),
        targets: list(&values["targets"]).iter().map(size).collect(),
    };
    object(&file["cases"]).iter().map(case).collect()
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

impl Case {
    fn samples(&self, range: Range<usize>) -> Scored<'_> {
        let scores = &self.scores[range.start * self.classes..range.end * self.classes];
        Scored::new(scores, &self.targets[range], self.classes).unwrap()
    }

    /// The batches of 3 ranks: of a seventh of the samples, of none, and of all others.
    fn ranks(&self) -> [Vec<Scored<'_>>; 3] {
        let (all, first) = (self.targets.len(), self.targets.len() / 7);
        [0..first, first..first, first..all].map(|share| self.batches(share))
    }

    fn batches(&self, share: Range<usize>) -> Vec<Scored<'_>> {
        let (mut batches, mut start) = (Vec::new(), share.start);
        for size in BATCHES.into_iter().cycle() {
            let end = share.end.min(start + size);
            batches.push(self.samples(start..end));
            start = end;
            if start == share.end {
                break;
            }
        }
        batches
    }

    fn assert_close(&self, what: &str, got: f64, expected: &Value) {
        let expected = number(expected);
        let close = (got - expected).abs() <= TOLERANCE;
        assert!(close, "{}: {what} is {got}, scikit-learn's is {expected}", self.name);
    }
}

/// Updates an accumulator on every rank, and merges what the ranks send each other.
fn over_ranks<A>(
    case: &Case,
    new: impl Fn() -> A,
    update: impl Fn(&mut A, &Scored<'_>) -> Result<(), MetricError>,
    to_bytes: impl Fn(&A) -> Vec<u8>,
    merge_bytes: impl Fn(&mut A, &[u8]) -> Result<(), MetricError>,
) -> A {
    let gathered = case.ranks().map(|batches| {
        let mut own = new();
        batches.iter().for_each(|batch| update(&mut own, batch).unwrap());
        to_bytes(&own)
    });
    let mut total = new();
    gathered.iter().for_each(|bytes| merge_bytes(&mut total, bytes).unwrap());
    total
}

#[test]
fn confusion_matrices_are_scikit_learns() {
    for case in cases() {
        let matrix = over_ranks(
            &case,
            || ConfusionMatrix::new(case.classes),
            ConfusionMatrix::update,
            ConfusionMatrix::to_bytes,
            |total, bytes| total.merge(&ConfusionMatrix::from_bytes(bytes)?),
        );
        let mut counts = vec![0; case.classes * case.classes];
        for entry in list(&case.values["confusion"]) {
            counts[size(&entry[0]) * case.classes + size(&entry[1])] = size(&entry[2]) as u64;
        }
        assert_eq!(matrix.counts(), counts, "{}", case.name);
        assert_eq!(matrix.total(), case.targets.len() as u64);
        for (name, average) in
            [("macro", Average::Macro), ("micro", Average::Micro), ("weighted", Average::Weighted)]
        {
            let expected = &case.values["average"][name];
            case.assert_close(name, matrix.precision(average), &expected["precision"]);
            case.assert_close(name, matrix.recall(average), &expected["recall"]);
            case.assert_close(name, matrix.f1(average), &expected["f1"]);
        }
        let expected = &case.values["average"]["micro"]["f1"];
        case.assert_close("accuracy", matrix.accuracy().unwrap(), expected);
        assert_eq!(matrix.per_class().len(), case.classes);
        for (class, figures) in matrix.per_class().into_iter().enumerate() {
            let expected = |name: &str| &case.values["per_class"][name][class];
            let ClassFigures { precision, recall, f1, support } = figures;
            case.assert_close("precision", precision, expected("precision"));
            case.assert_close("recall", recall, expected("recall"));
            case.assert_close("f1", f1, expected("f1"));
            assert_eq!(support, size(expected("support")) as u64, "{} {class}", case.name);
        }
    }
}

#[test]
fn top_k_accuracies_are_scikit_learns() {
    for case in cases() {
        for (k, expected) in object(&case.values["top_k"]) {
            let top = over_ranks(
                &case,
                || TopK::new(k.parse().unwrap()),
                TopK::update,
                TopK::to_bytes,
                |total, bytes| total.merge(&TopK::from_bytes(bytes)?),
            );
            case.assert_close(&format!("top-{k}"), top.accuracy().unwrap(), expected);
        }
    }
}

#[test]
fn areas_under_the_curve_are_scikit_learns() {
    for case in cases() {
        let auroc = over_ranks(
            &case,
            || Auroc::new(case.classes),
            Auroc::update,
            Auroc::to_bytes,
            |total, bytes| total.merge(&Auroc::from_bytes(bytes)?),
        );
        case.assert_close("auroc", auroc.value().unwrap(), &case.values["auroc"]);
        let expected = list(&case.values["auroc_per_class"]);
        assert_eq!(auroc.per_class().len(), expected.len());
        for (area, expected) in auroc.per_class().into_iter().zip(expected) {
            match area {
                Some(area) => case.assert_close("auroc of a class", area, expected),
                None => assert!(expected.is_null(), "{}", case.name),
            }
        }
    }
}

#[test]
fn figures_of_a_run_are_scikit_learns_and_those_of_one_rank() {
    for case in cases() {
        let new = || Figures::new(&Figure::ALL);
        let total =
            over_ranks(&case, new, Figures::update, Figures::to_bytes, Figures::merge_bytes);
        let average = &case.values["average"]["macro"];
        let expected = [
            ("top5_accuracy", &case.values["top_k"]["5"]),
            ("precision", &average["precision"]),
            ("recall", &average["recall"]),
            ("f1", &average["f1"]),
            ("auroc", &case.values["auroc"]),
        ];
        let values = total.values();
        assert_eq!(values.len(), expected.len());
        for ((name, value), (expected_name, expected)) in values.iter().zip(expected) {
            assert_eq!(*name, expected_name);
            case.assert_close(name, *value, expected);
        }
        let mut one = new();
        one.update(&case.samples(0..case.targets.len())).unwrap();
        assert_eq!(total.values(), one.values(), "{}: to the last bit", case.name);
        assert_eq!(total.confusion_matrix(), one.confusion_matrix());
    }
}
