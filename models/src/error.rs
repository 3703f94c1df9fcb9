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
