//! Ranks that call different operations, or the same with other lengths or types.
//!
//! One rank deviates in its second collective. Every rank must get an error that names both calls,
//! at the latest in the operations after it. The worlds of a table follow each other in the same
//! processes.

use std::fmt;
use std::time::Duration;

use bonfire_comm::{Algorithm, CommError, DType, Operation, ProcessGroup, ReduceOp};

use crate::rank::connect;
use crate::world::{AT_DEADLINE, AT_ONCE, Plan, START, Wiring, for_each};

/// A call of a rank, with the number of elements that its error tells.
#[derive(Clone, Copy)]
struct Call {
    operation: Operation,
    count: usize,
    dtype: DType,
}

const fn call(operation: Operation, count: usize, dtype: DType) -> Call {
    Call { operation, count, dtype }
}

/// As the errors tell it: the second collective of its group.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation {
            Operation::Barrier => f.write_str("barrier [sequence 1]"),
            other => write!(f, "{other} of {} {} [sequence 1]", self.count, self.dtype),
        }
    }
}

impl Call {
    fn run(&self, group: &ProcessGroup) -> Result<(), CommError> {
        let parts = match self.operation {
            Operation::Gather { root } | Operation::Scatter { root } if root == group.rank() => 3,
            _ => 1,
        };
        let len = self.count * parts;
        match self.dtype {
            DType::F64 => group.run_in_place(self.operation, &mut vec![0f64; len]),
            DType::I32 => group.run_in_place(self.operation, &mut vec![0i32; len]),
            DType::U8 if self.operation == Operation::Barrier => group.barrier(),
            DType::U8 => group.run_in_place(self.operation, &mut vec![0u8; len]),
            _ => group.run_in_place(self.operation, &mut vec![0f32; len]),
        }
    }
}

const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);
const MAX: Operation = Operation::AllReduce(ReduceOp::Max);
const SCATTERED: Operation = Operation::ReduceScatter(ReduceOp::Sum);
const BARRIER: Call = call(Operation::Barrier, 0, DType::U8);
const FROM: [Operation; 2] = [Operation::Broadcast { root: 0 }, Operation::Broadcast { root: 1 }];
const DEALT: [Operation; 2] = [Operation::Scatter { root: 0 }, Operation::Scatter { root: 2 }];
const GATHERED: [Operation; 2] = [Operation::Gather { root: 0 }, Operation::Gather { root: 2 }];
const REDUCED: Operation = Operation::Reduce { root: 0, op: ReduceOp::Sum };
const LARGE: usize = 600_000;

/// What two ranks call, and what the third does.
const PAIRS: [[Call; 2]; 21] = [
    // Other lengths, within a message and beyond.
    [call(SUM, 400, DType::F32), call(SUM, 401, DType::F32)],
    [call(SUM, LARGE, DType::F32), call(SUM, 7, DType::F32)],
    [call(SUM, 0, DType::F32), call(SUM, 3, DType::F32)],
    [call(FROM[0], 5, DType::F32), call(FROM[0], 6, DType::F32)],
    [call(FROM[0], 5, DType::F32), call(FROM[0], LARGE, DType::F32)],
    [call(Operation::AllGather, 300, DType::F32), call(Operation::AllGather, 600, DType::F32)],
    [call(GATHERED[0], 5, DType::F32), call(GATHERED[0], 9, DType::F32)],
    [call(DEALT[0], 5, DType::F32), call(DEALT[0], 9, DType::F32)],
    // Other types, also of the same size.
    [call(SUM, 400, DType::F32), call(SUM, 400, DType::F64)],
    [call(FROM[0], 400, DType::I32), call(FROM[0], 400, DType::F32)],
    // Other reductions and roots.
    [call(SUM, 400, DType::F32), call(MAX, 400, DType::F32)],
    [call(FROM[0], 400, DType::F32), call(FROM[1], 400, DType::F32)],
    [call(GATHERED[0], 400, DType::F32), call(GATHERED[1], 400, DType::F32)],
    [call(DEALT[0], 400, DType::F32), call(DEALT[1], 400, DType::F32)],
    // Other operations.
    [call(SUM, 400, DType::F32), call(FROM[1], 400, DType::F32)],
    [call(SUM, LARGE, DType::F32), call(GATHERED[0], 4, DType::F32)],
    [call(SUM, 400, DType::F32), BARRIER],
    [BARRIER, call(FROM[1], LARGE, DType::F32)],
    [call(Operation::AllGather, 600, DType::F32), call(SCATTERED, 600, DType::F32)],
    [call(Operation::AllToAll, 600, DType::F32), call(DEALT[0], 200, DType::F32)],
    [call(REDUCED, LARGE, DType::F32), call(SUM, LARGE, DType::F32)],
];

/// Operations after the one that differs, in which the last rank learns of it.
const AFTERWARDS: usize = 3;

/// A rank that goes through all pairs, with each rank as the one that deviates.
pub(crate) fn rank() {
    let algorithm: Algorithm = std::env::var("FAULT_ALGORITHM").unwrap().parse().unwrap();
    let own: usize = std::env::var("RANK").unwrap().parse().unwrap();
    for (index, deviating) in cases(algorithm) {
        let [usual, other] = PAIRS[index];
        let mine = if own == deviating { other } else { usual };
        let result = connect(algorithm).and_then(|group| {
            group.barrier()?;
            mine.run(&group)?;
            (0..AFTERWARDS).try_for_each(|_| group.barrier())
        });
        let text = result.map_or_else(|error| error.to_string(), |()| "no error".into());
        println!("RESULT {text}");
    }
    println!("RESULT end");
}

/// Pairs by number, and the rank that deviates: each in turn with the default, one otherwise.
fn cases(algorithm: Algorithm) -> impl Iterator<Item = (usize, usize)> {
    let is_default = algorithm == Algorithm::Auto;
    let all = (0..PAIRS.len()).flat_map(|index| (0..3).map(move |rank| (index, rank)));
    all.filter(move |(index, rank)| is_default || index % 3 == *rank)
}

#[test]
fn different_calls_are_named_by_every_rank() {
    let algorithms = [
        Algorithm::Auto,
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::DoubleTree,
        Algorithm::RecursiveDoubling,
    ];
    let tables = Wiring::ALL.iter().flat_map(|w| algorithms.iter().map(move |a| (*w, *a)));
    for_each(tables, |(wiring, algorithm)| {
        let plan = Plan::new(wiring, "mismatches")
            .with("FAULT_ALGORITHM", algorithm.name())
            .with("FAULT_TIMEOUT", "3");
        let mut world = plan.start();
        let mut wrong = String::new();
        for (index, deviating) in cases(algorithm) {
            let [usual, other] = PAIRS[index].map(|call| call.to_string());
            let texts = world.results(&[0, 1, 2], Duration::from_secs(8));
            let is_bad = |text: &&String| !text.contains(&usual) || !text.contains(&other);
            if let Some(text) = texts.iter().find(is_bad) {
                let case = format!("{usual} and, on rank {deviating}, {other}");
                wrong.push_str(&format!("\n{wiring:?} {algorithm}, {case}: {text}"));
            }
        }
        world.results(&[0, 1, 2], Duration::from_secs(5));
        world.finish(&[]);
        assert!(wrong.is_empty(), "{wrong}");
    });
}

#[test]
fn different_ends_of_a_message_are_named_by_every_rank() {
    let receivers = [("recv 6 f32", "of 6 f32"), ("recv 5 i32", "of 5 i32")];
    let cases = Wiring::ALL.iter().flat_map(|w| receivers.iter().map(move |r| (*w, *r)));
    for_each(cases, |(wiring, (receiver, said))| {
        let plan = Plan::new(wiring, "no message").but(1, "send 5 f32").but(2, receiver);
        let mut world = plan.start();
        for text in world.results(&[0, 1, 2], START + AT_ONCE) {
            let both =
                ["of 5 f32", said].map(|end| format!("send/recv(from 1) {end} [sequence 0]"));
            if !both.iter().all(|end| text.contains(end)) {
                world.fail(&text);
            }
        }
        world.finish(&[]);
    });
}

#[test]
fn a_message_that_does_not_come_is_named_at_the_deadline() {
    for_each(Wiring::ALL, |wiring| {
        let plan = Plan::new(wiring, "sleep").but(2, "recv 5 i32").but(0, "no message");
        let mut world = plan.start();
        for text in world.results(&[0, 2], START + AT_DEADLINE) {
            // The receiver misses the message, rank 0 both of the others in its barrier.
            let of_message =
                "send/recv(from 1) of 5 i32 [sequence 0]; rank(s) [1] did not take part";
            let of_barrier = "barrier [sequence 1]; rank(s) [1, 2] have not entered it";
            if !text.contains(of_message) && !text.contains(of_barrier) {
                world.fail(&text);
            }
        }
        world.finish(&[1]);
    });
}
