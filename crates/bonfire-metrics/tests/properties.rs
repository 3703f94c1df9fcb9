//! What holds for all figures, whatever the samples and the bytes.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_metrics::{Auroc, ConfusionMatrix, Figure, Figures, Scored, TopK};
use proptest::prelude::*;

/// Scores and targets of a few batches, with many ties.
#[derive(Debug, Clone)]
struct Batches {
    classes: usize,
    batches: Vec<(Vec<f64>, Vec<usize>)>,
}

impl Batches {
    fn scored(&self) -> Vec<Scored<'_>> {
        let batches = self.batches.iter();
        batches
            .map(|(scores, targets)| Scored::new(scores, targets, self.classes).unwrap())
            .collect()
    }

    /// What each batch adds.
    fn figures(&self) -> Vec<Figures> {
        let figures = |scored: &Scored<'_>| {
            let mut figures = Figures::new(&Figure::ALL);
            figures.update(scored).unwrap();
            figures
        };
        self.scored().iter().map(figures).collect()
    }
}

fn batches() -> impl Strategy<Value = Batches> {
    let of = |classes: usize| {
        let sample = (prop::collection::vec(-3i32..4, classes), 0..classes);
        let batch = prop::collection::vec(sample, 0..9);
        let batches = prop::collection::vec(batch, 1..5);
        batches.prop_map(move |batches| Batches {
            classes,
            batches: batches
                .into_iter()
                .map(|batch| {
                    let (scores, targets): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                    (scores.into_iter().flatten().map(f64::from).collect(), targets)
                })
                .collect(),
        })
    };
    (1usize..8).prop_flat_map(of)
}

/// Bits, so that NaN equals NaN and no rounding goes unseen.
fn bits(figures: &Figures) -> Vec<(&'static str, u64)> {
    figures.values().into_iter().map(|(name, value)| (name, value.to_bits())).collect()
}

fn sum<'a>(parts: impl Iterator<Item = &'a Figures>) -> Figures {
    let mut total = Figures::new(&Figure::ALL);
    parts.for_each(|part| total.merge_bytes(&part.to_bytes()).unwrap());
    total
}

/// Reads bytes as everything; whatever can be read must also be of use.
fn read_all(bytes: &[u8]) {
    if let Ok(matrix) = ConfusionMatrix::from_bytes(bytes) {
        assert_eq!(matrix.to_bytes(), bytes);
        let _ = (matrix.per_class(), matrix.clone().merge(&matrix));
    }
    if let Ok(top) = TopK::from_bytes(bytes) {
        assert_eq!(top.to_bytes(), bytes);
        let _ = (top.accuracy(), top.clone().merge(&top));
    }
    if let Ok(auroc) = Auroc::from_bytes(bytes) {
        assert_eq!(auroc.to_bytes(), bytes);
        let _ = (auroc.num_samples() < 100).then(|| auroc.value());
    }
    if let Ok(figures) = Figures::from_bytes(bytes) {
        assert_eq!(figures.to_bytes(), bytes);
        let _ = (figures.values(), figures.clone().merge(&figures));
    }
}

proptest! {
    #[test]
    fn neither_the_order_nor_the_number_of_batches_matters(batches in batches()) {
        let parts = batches.figures();
        let (forward, backward) = (sum(parts.iter()), sum(parts.iter().rev()));
        prop_assert_eq!(bits(&forward), bits(&backward));
        prop_assert_eq!(forward.confusion_matrix(), backward.confusion_matrix());
        let mut one = Figures::new(&Figure::ALL);
        batches.scored().iter().for_each(|scored| one.update(scored).unwrap());
        prop_assert_eq!(&forward, &one);
        // Sums of sums, as of batches on ranks.
        let (left, right) = parts.split_at(parts.len() / 2);
        let nested = sum([sum(left.iter()), sum(right.iter())].iter());
        prop_assert_eq!(nested, forward);
    }

    #[test]
    fn areas_are_what_their_definition_says(batches in batches()) {
        let (mut auroc, mut samples) = (Auroc::new(batches.classes), Vec::new());
        for scored in batches.scored() {
            auroc.update(&scored).unwrap();
            samples.extend(scored.samples());
        }
        let probability = |scores: &[f64], class: usize| {
            let highest = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - highest).exp()).sum();
            (scores[class] - highest).exp() / sum
        };
        for (class, area) in auroc.per_class().into_iter().enumerate() {
            // Two classes share the second one's.
            let class = if batches.classes == 2 { 1 } else { class };
            let (mut in_order, mut pairs) = (0.0, 0.0);
            for (positive, _) in samples.iter().filter(|(_, target)| *target == class) {
                for (negative, _) in samples.iter().filter(|(_, target)| *target != class) {
                    let (p, n) = (probability(positive, class), probability(negative, class));
                    in_order += if p > n { 1.0 } else if p == n { 0.5 } else { 0.0 };
                    pairs += 1.0;
                }
            }
            prop_assert_eq!(area, (pairs > 0.0).then(|| in_order / pairs));
        }
    }

    #[test]
    fn a_target_is_right_if_a_reversed_stable_sort_has_it_among_the_first(
        batches in batches(),
        k in 1usize..8,
    ) {
        let (mut top, mut correct) = (TopK::new(k), 0);
        for scored in batches.scored() {
            top.update(&scored).unwrap();
            for (scores, target) in scored.samples() {
                let mut order: Vec<usize> = (0..scores.len()).collect();
                order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
                correct += u64::from(order.iter().rev().take(k).any(|class| *class == target));
            }
        }
        prop_assert_eq!(top.correct(), correct);
    }

    #[test]
    fn garbage_is_refused_without_a_panic(
        body in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..200),
        tag in prop_oneof![Just(b"BMcm\x01"), Just(b"BMtk\x01"), Just(b"BMau\x01"), Just(b"BMfi\x01")],
    ) {
        read_all(&body);
        read_all(&[&tag[..], &body].concat());
    }

    #[test]
    fn spoilt_bytes_are_read_or_refused_without_a_panic(
        batches in batches(),
        place: prop::sample::Index,
        byte: u8,
        end: prop::sample::Index,
    ) {
        let mut bytes = sum(batches.figures().iter()).to_bytes();
        read_all(&bytes);
        read_all(&bytes[..end.index(bytes.len())]);
        let place = place.index(bytes.len());
        bytes[place] = byte;
        read_all(&bytes);
    }
}
