//! How far the clocks of other machines are from that of rank 0.

use crate::TrainError;
use bonfire_comm::ProcessGroup;
use std::time::{SystemTime, UNIX_EPOCH};

/// Questions to each rank; the one that was answered soonest counts.
const ROUNDS: usize = 8;

/// By how many nanoseconds the clock of each rank is ahead of rank 0's, as rank 0 finds it. Ranks of its
/// machine have the same clock. Of another machine it is known to half of a message's way there and back.
///
/// # Collective
/// All ranks of the group.
pub(super) fn offsets(group: &ProcessGroup) -> Result<Vec<i64>, TrainError> {
    let machines = group.machines();
    let mut offsets = vec![0; group.world_size()];
    let elsewhere = (1..group.world_size()).filter(|rank| machines.get(*rank) != machines.first());
    for rank in elsewhere {
        if group.rank() == 0 {
            offsets[rank] = ask(group, rank)?;
        } else if group.rank() == rank {
            answer(group)?;
        }
    }
    Ok(offsets)
}

fn ask(group: &ProcessGroup, rank: usize) -> Result<i64, TrainError> {
    let mut best = (i64::MAX, 0);
    for _ in 0..ROUNDS {
        let asked = now();
        group.send(&[asked], rank)?;
        let mut answer = [0i64];
        group.recv(&mut answer, rank)?;
        let heard = now();
        // The answer was given halfway.
        best = best.min((heard - asked, answer[0] - (asked + (heard - asked) / 2)));
    }
    Ok(best.1)
}

fn answer(group: &ProcessGroup) -> Result<(), TrainError> {
    for _ in 0..ROUNDS {
        group.recv(&mut [0i64], 0)?;
        group.send(&[now()], 0)?;
    }
    Ok(())
}

/// Nanoseconds since 1970.
fn now() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX)
}
