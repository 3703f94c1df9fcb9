//! Do all ranks hold the same model?

use crate::ParallelError;
use bonfire_comm::ProcessGroup;
use bonfire_tensor::parameters::ParameterSpec;
use xxhash_rust::xxh3::xxh3_64;

/// Checks that paths, shapes, types and roles are equal on all ranks.
///
/// # Collective
/// All ranks of the group.
///
/// # Errors
/// [`ParallelError::ModelsDiffer`] on every rank, with the same words.
pub(crate) fn check_models_agree(
    group: &ProcessGroup,
    specs: &[ParameterSpec],
) -> Result<(), ParallelError> {
    let lines: Vec<String> = specs.iter().map(describe).collect();
    let text = lines.join("\n");
    let digests = group.all_gather_bytes(&xxh3_64(text.as_bytes()).to_le_bytes())?;
    if digests.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    let texts = group.all_gather_bytes(text.as_bytes())?;
    let texts: Vec<String> =
        texts.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    match first_difference(&texts) {
        Some(difference) => Err(difference),
        None => Ok(()),
    }
}

fn describe(spec: &ParameterSpec) -> String {
    format!(
        "parameter \"{}\" of shape {:?} {:?} {:?}",
        spec.path, spec.shape, spec.dtype, spec.role
    )
}

fn first_difference(texts: &[String]) -> Option<ParallelError> {
    let zero: Vec<&str> = texts.first()?.lines().collect();
    let nothing = "no further parameter";
    for (rank, text) in texts.iter().enumerate().skip(1) {
        let other: Vec<&str> = text.lines().collect();
        for k in 0..zero.len().max(other.len()) {
            let (a, b) = (zero.get(k).unwrap_or(&nothing), other.get(k).unwrap_or(&nothing));
            if a != b {
                return Some(ParallelError::ModelsDiffer {
                    rank,
                    rank_has: b.to_string(),
                    zero_has: a.to_string(),
                });
            }
        }
    }
    None
}
