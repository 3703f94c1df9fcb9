//! Buffers beyond the range of 31 bits.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{ReduceOp, local};

const LEN: usize = (1 << 31) + 5;
/// Both ends of both ranks' parts, and both sides of the limit.
const PLACES: [usize; 8] =
    [0, LEN / 2 - 1, LEN / 2, LEN / 2 + 1, (1 << 31) - 1, 1 << 31, LEN - 2, LEN - 1];

/// By name: `cargo test -p bonfire-comm --test large -- --ignored`.
#[test]
#[ignore = "needs 5 GiB"]
fn more_than_2_to_the_31_elements_are_reduced_and_broadcast() {
    local::spawn(2, |group| {
        let rank = group.rank();
        let mut data = vec![0u8; LEN];
        for (number, place) in PLACES.into_iter().enumerate() {
            data[place] = (number + 10 * rank) as u8;
        }
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        for (number, place) in PLACES.into_iter().enumerate() {
            assert_eq!(usize::from(data[place]), 2 * number + 10, "element {place} of the sum");
        }
        let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
        assert_eq!(sum, (0..8).map(|number| 2 * number + 10).sum::<u64>());

        for (number, place) in PLACES.into_iter().enumerate() {
            data[place] = (number + 100 * rank) as u8;
        }
        group.broadcast(&mut data, 1).unwrap();
        for (number, place) in PLACES.into_iter().enumerate() {
            assert_eq!(usize::from(data[place]), number + 100, "element {place} of the broadcast");
        }
    });
}
