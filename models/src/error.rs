/// Why a model cannot be made from its configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model.{key} = {value}: {remedy}")]
pub struct ModelError {
    /// The key in the `[model]` section.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What to do.
    pub remedy: String,
}

/// Weights of a layer that no machine would be asked for on purpose: 4 GiB in f32.
const MOST_WEIGHTS: usize = 1 << 30;

impl ModelError {
    /// Checks that a layer has no more weights than memory can be asked for: a failing allocation would
    /// end the process without a word about the key. The weights are the product of `sizes`.
    pub(crate) fn check_layer(
        key: &'static str,
        value: impl std::fmt::Display,
        sizes: &[usize],
    ) -> Result<(), Self> {
        let weights = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        if weights.is_some_and(|weights| weights <= MOST_WEIGHTS) {
            return Ok(());
        }
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let remedy = format!(
            "a layer would have {} weights, and {MOST_WEIGHTS} is the most; make it smaller",
            sizes.join(" x ")
        );
        Err(Self { key, value: value.to_string(), remedy })
    }
}
