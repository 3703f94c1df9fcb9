/// Why a layer cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NnError {
    /// Happens when a layer is asked to normalise no channels.
    #[error("a normalisation needs at least 1 channel, got 0")]
    NoChannels,
    /// Happens when the channels of a layer cannot be dealt out evenly to its groups.
    #[error(
        "{channels} channels cannot be divided into {num_groups} groups of equal size; \
         choose a number of groups that divides {channels}"
    )]
    UnevenGroups {
        /// Channels of the layer.
        channels: usize,
        /// Groups that were asked for.
        num_groups: usize,
    },
}
