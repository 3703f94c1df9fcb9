//! A rank that all others always wait for.

use super::merge::{GroupView, Member};
use super::{Entry, State, Straggler};

/// Less is ordinary scheduling.
const LEAST_LATENESS: u64 = 1_000_000;
/// The latest rank must be this many times as late as the next.
const OUTSTANDING: u64 = 3;
/// Of fewer collectives a median says nothing.
const LEAST_COLLECTIVES: usize = 10;

/// Finds the rank that calls the collectives of `group` much later than every other, by the
/// median over those that all ranks have finished.
pub(super) fn find(group: &GroupView<'_>) -> Option<Straggler> {
    let [first, _, ..] = group.members.as_slice() else { return None };
    let mut lateness: Vec<Vec<u64>> = vec![Vec::new(); group.members.len()];
    for sequence in first.collectives.keys() {
        let entries = group.members.iter().map(|member| finished(member, *sequence));
        let Some(entries) = entries.collect::<Option<Vec<_>>>() else { continue };
        let earliest = entries.iter().map(|entry| entry.created).min().unwrap_or(0);
        for (late, entry) in lateness.iter_mut().zip(entries) {
            late.push(entry.created - earliest);
        }
    }
    let num_collectives = lateness.first().map_or(0, Vec::len);
    let mut medians: Vec<(u64, usize)> = lateness
        .into_iter()
        .zip(&group.members)
        .map(|(late, member)| (median(late), member.rank()))
        .collect();
    medians.sort_unstable();
    let [.., (next_late, _), (late, rank)] = *medians.as_slice() else { return None };
    let stands_out = num_collectives >= LEAST_COLLECTIVES
        && late > LEAST_LATENESS
        && late > next_late.saturating_mul(OUTSTANDING);
    let several_hosts = group.members.iter().any(|member| member.dump.host != first.dump.host);
    let group = group.identity.to_owned();
    stands_out.then_some(Straggler { group, rank, late, next_late, num_collectives, several_hosts })
}

fn finished<'a>(member: &Member<'a>, sequence: u64) -> Option<&'a Entry> {
    member.collectives.get(&sequence).copied().filter(|entry| entry.state == State::Finished)
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}
