//! What ranks compare before step 1.

use toml::{Table, Value};

use super::plan::Plan;
use super::source::join;

/// Keys that may differ between ranks: paths and what each rank does by itself. A name stands for
/// all keys beneath it.
const PER_RANK: [&str; 4] = ["data.path", "data.workers", "data.prefetch_factor", "log"];

impl Plan {
    /// Lists the resolved configuration as `(key, value)`, sorted by key, without paths and
    /// without values that each rank may choose.
    ///
    /// Ranks that hold the same list train the same way; on a difference, the first differing
    /// entry names the key and both values.
    pub fn agreement_entries(&self) -> Vec<(String, String)> {
        let mut entries = vec![("world_size".to_owned(), self.world_size.to_string())];
        let mut config = self.to_run_config();
        config.data.path = None;
        // That there are weights is for all ranks to know, where they lie only for rank 0.
        config.model.weights = config.model.weights.map(|_| "a file that rank 0 reads".into());
        match config.to_table() {
            Ok(table) => flatten("", &table, &mut entries),
            // A resolved plan without its path can always be written; should that ever change,
            // the entry keeps a rank that cannot from agreeing with one that can.
            Err(error) => entries.push(("configuration".to_owned(), error.to_string())),
        }
        let global = ("data.global_batch_size".to_owned(), self.data.global_batch_size.to_string());
        entries.push(global);
        entries.retain(|(key, _)| !is_per_rank(key));
        entries.sort();
        entries
    }
}

fn flatten(prefix: &str, table: &Table, entries: &mut Vec<(String, String)>) {
    for (key, value) in table {
        let path = join(prefix, key);
        match value {
            Value::Table(table) => flatten(&path, table, entries),
            other => entries.push((path, other.to_string())),
        }
    }
}

fn is_per_rank(key: &str) -> bool {
    let beneath = |parent: &str| key.strip_prefix(parent).is_some_and(|rest| rest.starts_with('.'));
    PER_RANK.iter().any(|parent| key == *parent || beneath(parent))
}
