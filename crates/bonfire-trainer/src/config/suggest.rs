//! "Did you mean": the nearest of the words that would have been right.

/// Words less alike than this are no suggestion (Jaro-Winkler similarity, 1 is equal).
const ALIKE: f64 = 0.8;

/// Returns the candidate most like `word`, if one is alike enough to be a likely slip.
pub(super) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let word = word.to_lowercase();
    candidates
        .iter()
        .map(|&candidate| (strsim::jaro_winkler(&word, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_slips_and_leaves_strangers() {
        let known = ["max_epochs", "max_steps", "accumulate_grad_batches"];
        assert_eq!(nearest("max_epoch", &known), Some("max_epochs"));
        assert_eq!(nearest("MAX_STEPS", &known), Some("max_steps"));
        assert_eq!(nearest("acumulate_grad_batch", &known), Some("accumulate_grad_batches"));
        assert_eq!(nearest("zebra", &known), None);
        assert_eq!(nearest("zebra", &[]), None);
    }
}
