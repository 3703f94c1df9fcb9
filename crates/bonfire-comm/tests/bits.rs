//! An all-reduce gives the same bits on every rank, in every run, in every world.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::{Algorithm, ProcessGroup, ReduceOp, local};

const RANKS: usize = 4;
/// Less than one for each rank but one, a message, and several turns of every buffer on the way.
const LENGTHS: [usize; 3] = [5, 5000, 200_000];
/// Each world measures for itself which way is the fastest.
const WORLDS: usize = 10;
const RUNS_PER_WORLD: usize = 5;
/// Those that reduce in the same order within one machine.
const SAME_ORDER: [Algorithm; 3] = [Algorithm::Auto, Algorithm::Ring, Algorithm::Hierarchical];

/// Numbers of all magnitudes and both signs, so that the order of additions shows in the bits.
fn input(rank: usize, len: usize) -> Vec<f32> {
    let mut state = (rank as u32 + 1).wrapping_mul(0x9e37_79b9);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let number =
        |bits: u32| (f32::from(bits as u16) - 32768.0) * 2f32.powi((bits >> 16) as i32 % 24);
    (0..len).map(|_| number(next())).collect()
}

fn sum_bits(group: &ProcessGroup, len: usize) -> Vec<u32> {
    let mut data = input(group.rank(), len);
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    data.into_iter().map(f32::to_bits).collect()
}

#[test]
fn fifty_runs_have_the_same_bits_with_every_algorithm() {
    // By algorithm and length: the bits of the first run.
    let mut first: Vec<Option<Vec<u32>>> = vec![None; Algorithm::ALL.len() * LENGTHS.len()];
    for _ in 0..WORLDS {
        let known = first.clone();
        let worlds = local::spawn(RANKS, |world| {
            let mut place = 0;
            let mut seen = Vec::new();
            for &algorithm in Algorithm::ALL {
                let group = world.with_algorithm(algorithm).unwrap();
                for len in LENGTHS {
                    let bits = known[place].clone().unwrap_or_else(|| sum_bits(&group, len));
                    for _ in 0..RUNS_PER_WORLD {
                        assert!(sum_bits(&group, len) == bits, "{algorithm} of {len} f32 differs");
                    }
                    seen.push(bits);
                    place += 1;
                }
            }
            seen
        });
        assert!(worlds.windows(2).all(|pair| pair[0] == pair[1]), "ranks differ");
        first = worlds[0].iter().cloned().map(Some).collect();
    }
    let place = |algorithm: Algorithm| {
        let index = Algorithm::ALL.iter().position(|other| *other == algorithm).unwrap();
        index * LENGTHS.len()..(index + 1) * LENGTHS.len()
    };
    for algorithm in SAME_ORDER {
        let same = first[place(algorithm)] == first[place(Algorithm::Auto)];
        assert!(same, "{algorithm} adds in another order than auto");
    }
    // Were this equal too, the numbers would not show the order at all.
    assert!(first[place(Algorithm::Tree)] != first[place(Algorithm::Ring)]);
}
