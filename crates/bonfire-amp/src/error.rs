/// Why mixed precision or clipping is impossible.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AmpError {
    /// Happens when the device cannot compute in a 16-bit type.
    #[error(
        "the device {device} has no arithmetic in {mode}; use precision.mode = \"fp32\"{or_other}"
    )]
    DeviceLacks {
        /// The device.
        device: String,
        /// The mode asked for.
        mode: &'static str,
        /// The other 16-bit mode, if the device has that one.
        or_other: &'static str,
    },
    /// Happens when the model has a layer of Burn that cannot run in a 16-bit type.
    #[error(
        "\"{path}\" is Burn's BatchNorm, which cannot run in {mode}: its f32 statistics and its \
         input would have different types; make it a bonfire_nn::Norm, which has the same fields \
         and casts inside, or use precision.mode = \"fp32\""
    )]
    BatchNorm {
        /// Module path of the first one.
        path: String,
        /// The mode asked for.
        mode: &'static str,
    },
    /// Happens when a setting of the scaler or of clipping is impossible.
    #[error("{name} = {value}: {reason}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// The value given.
        value: f64,
        /// What is wrong with it.
        reason: &'static str,
    },
}
