//! Ranks that called different collectives at the same place.

use std::collections::BTreeSet;

use super::merge::{GroupView, Member};
use super::{Entry, Mismatch, RecordedCall, Side};

/// Finds the first collective of `group` that its ranks called differently. Those behind it are
/// shifted against each other and say nothing.
pub(super) fn find(group: &GroupView<'_>) -> Option<Mismatch> {
    let numbers = group.members.iter().flat_map(|member| member.collectives.keys().copied());
    let numbers: BTreeSet<u64> = numbers.collect();
    numbers.into_iter().find_map(|sequence| compare(group, sequence))
}

fn compare(group: &GroupView<'_>, sequence: u64) -> Option<Mismatch> {
    let mut sides: Vec<((&str, &str, usize), Side)> = Vec::new();
    for member in &group.members {
        let Some(entry) = member.collectives.get(&sequence) else { continue };
        let what = (entry.operation.as_str(), entry.dtype.as_str(), part(member, entry));
        match sides.iter_mut().find(|(other, _)| *other == what) {
            Some((_, side)) => side.ranks.push(member.rank()),
            None => {
                let side = Side { ranks: vec![member.rank()], call: RecordedCall::from(*entry) };
                sides.push((what, side));
            }
        }
    }
    let group = group.identity.to_owned();
    let sides: Vec<_> = sides.into_iter().map(|(_, side)| side).collect();
    (sides.len() > 1).then_some(Mismatch { group, sequence, sides })
}

/// Number of elements that must be equal on all ranks: of `gather` and `scatter` only the root
/// has the whole.
fn part(member: &Member<'_>, entry: &Entry) -> usize {
    let root = entry
        .operation
        .strip_prefix("gather(root ")
        .or_else(|| entry.operation.strip_prefix("scatter(root "))
        .and_then(|rest| rest.strip_suffix(')'))
        .and_then(|root| root.parse::<usize>().ok());
    let is_whole = root == Some(member.progress.rank);
    if is_whole { entry.count / member.progress.world_size.max(1) } else { entry.count }
}
