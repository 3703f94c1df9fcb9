//! A rank that runs random collectives until one fails, for `cargo xtask soak kill-collectives`.
//!
//! Besides the variables of a rank it reads `KILL_ME_SEED`, the same on all ranks, and
//! `KILL_ME_ALGORITHM`. It prints `ready` when it is connected, and the error at its end.

use std::time::Duration;

use bonfire_comm::{
    CommError, InitOptions, Operation, ProcessGroup, RankEnv, ReduceOp, init_process_group,
};

/// Long, so that it is the death that ends a collective.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Of a rendezvous to which a killed rank cannot come.
const RENDEZVOUS: Duration = Duration::from_secs(3);
/// Smallest and largest buffer, as powers of two.
const MIN_BYTES_LOG2: u32 = 3;
const MAX_BYTES_LOG2: u32 = 22;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let env = RankEnv::detect()?.ok_or("start it by `cargo xtask soak kill-collectives`")?;
    let Err(error) = run(&env, std::env::var("KILL_ME_SEED")?.parse()?) else { return Ok(()) };
    say(&format!("error {error}"));
    std::process::exit(1);
}

fn run(env: &RankEnv, seed: u64) -> Result<(), Box<dyn std::error::Error>> {
    let options = InitOptions {
        rendezvous_timeout: Some(RENDEZVOUS),
        algorithm: std::env::var("KILL_ME_ALGORITHM")?.parse()?,
        ..InitOptions::default().with_timeout(TIMEOUT)
    };
    let group = init_process_group(env, options)?;
    say("ready");
    let mut random = seed;
    loop {
        random = next_random(random);
        run_one(&group, random)?;
    }
}

/// Runs the operation that a number stands for, and checks a result that all ranks know.
fn run_one(group: &ProcessGroup, random: u64) -> Result<(), CommError> {
    let (rank, size) = (group.rank(), group.world_size());
    let bits = MIN_BYTES_LOG2 + (random >> 8) as u32 % (MAX_BYTES_LOG2 - MIN_BYTES_LOG2 + 1);
    let part = (1 << bits) / 4 / size + 1;
    let root = (random >> 16) as usize % size;
    let operation = match random % 10 {
        0..=2 => Operation::AllReduce(ReduceOp::Sum),
        3 => Operation::Reduce { root, op: ReduceOp::Sum },
        4 => Operation::Broadcast { root },
        5 => Operation::AllGather,
        6 => Operation::ReduceScatter(ReduceOp::Sum),
        7 => Operation::AllToAll,
        8 => Operation::Gather { root },
        9 if random & (1 << 40) == 0 => Operation::Scatter { root },
        _ => Operation::Barrier,
    };
    let sum = (size * (size + 1) / 2) as f32;
    let (len, expected) = match operation {
        Operation::AllReduce(_) => (part * size, sum),
        Operation::Broadcast { root } => (part * size, (root + 1) as f32),
        Operation::Gather { root } | Operation::Scatter { root } if root != rank => (part, 0.0),
        Operation::Barrier => return group.barrier(),
        _ => (part * size, 0.0),
    };
    let mut data = vec![(rank + 1) as f32; len];
    group.run_in_place(operation, &mut data)?;
    if expected != 0.0 && (data[0], data[len - 1]) != (expected, expected) {
        let detail = format!("{operation} of {len} elements gave {}, not {expected}", data[0]);
        return Err(CommError::Internal { detail });
    }
    Ok(())
}

/// The generator xorshift64*.
fn next_random(mut state: u64) -> u64 {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

#[allow(clippy::print_stdout, reason = "its output is what the chore reads")]
fn say(text: &str) {
    println!("{text}");
}
