//! Do all ranks run the same configuration on the same data?

use crate::{BatchSource, TrainError};
use bonfire_comm::ProcessGroup;
use bonfire_data::Shard;
use xxhash_rust::xxh3::xxh3_64;

/// Checks that all ranks hold the same entries.
///
/// # Collective
/// All ranks of the group.
///
/// # Errors
/// [`TrainError::RanksDisagree`] on every rank, naming the first differing key.
pub(crate) fn check(
    group: &ProcessGroup,
    what: &'static str,
    entries: &[(String, String)],
) -> Result<(), TrainError> {
    let text = encode(entries);
    let digests = group.all_gather_bytes(&xxh3_64(text.as_bytes()).to_le_bytes())?;
    if digests.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    let texts = group.all_gather_bytes(text.as_bytes())?;
    let all: Vec<Vec<(String, String)>> =
        texts.iter().map(|text| decode(&String::from_utf8_lossy(text))).collect();
    let Some((zero, others)) = all.split_first() else { return Ok(()) };
    for (index, other) in others.iter().enumerate() {
        if let Some((key, zero_has, rank_has)) = first_difference(zero, other) {
            return Err(TrainError::RanksDisagree {
                rank: index + 1,
                what,
                key,
                rank_has,
                zero_has,
            });
        }
    }
    Ok(())
}

/// What ranks compare of a data set and its order.
pub(crate) fn data_entries<B: Send + 'static>(
    split: &str,
    data: &dyn BatchSource<Batch = B>,
    shard: Shard,
) -> Vec<(String, String)> {
    let digest = data.digest();
    vec![
        (format!("{split}.samples"), digest.num_samples.to_string()),
        (format!("{split}.class_names"), digest.class_names.join(", ")),
        (format!("{split}.content"), format!("{:016x}", digest.content)),
        (format!("{split}.batch_size"), data.batch_size().to_string()),
        (format!("{split}.batches_per_rank"), data.num_batches(shard).to_string()),
        (format!("{split}.order"), data.order()),
    ]
}

fn encode(entries: &[(String, String)]) -> String {
    let lines = entries.iter().map(|(key, value)| format!("{key}\t{}", value.escape_debug()));
    lines.collect::<Vec<_>>().join("\n")
}

fn decode(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect()
}

fn first_difference(
    zero: &[(String, String)],
    other: &[(String, String)],
) -> Option<(String, String, String)> {
    let unset = || "not set".to_string();
    let find = |list: &[(String, String)], key: &str| {
        list.iter().find(|(name, _)| name == key).map_or_else(unset, |(_, value)| value.clone())
    };
    zero.iter().chain(other).map(|(key, _)| key).find_map(|key| {
        let (a, b) = (find(zero, key), find(other, key));
        (a != b).then(|| (key.clone(), a, b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_comm::local;

    #[test]
    fn the_first_differing_key_is_named_on_every_rank() {
        let errors = local::spawn(3, |group| {
            let batch = if group.rank() == 2 { "64" } else { "32" };
            let entries =
                [("a".to_string(), "1".to_string()), ("data.batch_size".into(), batch.into())];
            check(&group, "configuration", &entries).unwrap_err().to_string()
        });
        for error in errors {
            assert!(error.contains("rank 2 and rank 0"), "{error}");
            assert!(error.contains("\"data.batch_size\": 64 and 32"), "{error}");
        }
    }

    #[test]
    fn equal_entries_agree() {
        let entries = [("name".to_string(), "tab\tand\nline".to_string())];
        for result in local::spawn(2, |group| check(&group, "configuration", &entries)) {
            result.unwrap();
        }
    }
}
