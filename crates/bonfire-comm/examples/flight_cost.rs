//! Measures what the flight recorder adds to a collective.
//!
//! `cargo run --release -p bonfire-comm --example flight_cost`

#![allow(clippy::print_stdout, reason = "a benchmark prints its figure")]

use std::panic::Location;
use std::sync::Arc;
use std::time::Instant;

use bonfire_comm::flight::{Record, Recorder};
use bonfire_comm::{DType, Operation, ReduceOp};

const CALLS: u64 = 10_000;
const ROUNDS: usize = 300;

fn main() {
    let recorder = Arc::new(Recorder::new(0, 1));
    let group = recorder.register("world", 0, 1);
    let (operation, site) = (Operation::AllReduce(ReduceOp::Sum), Location::caller());
    let record = fastest(|sequence| {
        let record = Record::begin(&recorder, group, operation, DType::F32, 1000, site);
        record.started(sequence);
        record.finished(None);
    });
    let clock = fastest(|_| {
        std::hint::black_box(Instant::now());
    });
    println!("{record:.0} ns for begin, started and finished; {clock:.0} ns a look at the clock");
}

/// Nanoseconds a call in the fastest round.
fn fastest(call: impl Fn(u64)) -> f64 {
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(&call);
        start.elapsed().as_nanos() as f64 / CALLS as f64
    };
    (0..ROUNDS).map(round).fold(f64::MAX, f64::min)
}
