//! The table that every engine passes: operation x type x length, against a serial oracle.
//!
//! Run [`check`] at world sizes 1, 2, 3 and 4. Inputs are small whole numbers, so that sums are
//! exact in every type and the comparison is of bits.

#![allow(clippy::panic, reason = "a test reports by panicking")]

use half::{bf16, f16};

use crate::{
    Algorithm, Buffer, DType, Element, HostBuffer, Operation, PeerOp, ProcessGroup, ReduceOp,
    Result,
};

/// Lengths of a buffer, or of one rank's part: nothing, one, less than one for each rank, not
/// divisible.
const LENGTHS: [usize; 4] = [0, 1, 7, 1023];
/// A length that takes several turns of every buffer on the way.
const LONG: usize = 1 << 20;
/// Types checked at the long length by [`check`]: aligned, unaligned, and converted ones.
const LONG_DTYPES: [DType; 3] = [DType::F32, DType::U8, DType::BF16];

/// Runs one operation in place on the memory of an engine.
pub type Runner<'a> = &'a dyn Fn(&ProcessGroup, Operation, HostBuffer) -> Result<HostBuffer>;

/// Checks the blocking and the asynchronous calls on host memory, at the short lengths, and one
/// reduction of some types at the long one.
///
/// # Collective
/// Called by all ranks.
///
/// # Panics
/// On the first difference from the oracle, and on any error.
pub fn check(group: &ProcessGroup) {
    check_with(group, &run_blocking);
    check_with(group, &|group, operation, buffer| {
        group.start(operation, Buffer::Host(buffer))?.wait()?.into_host()
    });
    for dtype in LONG_DTYPES {
        check_length(group, &run_blocking, dtype, LONG, &[ReduceOp::Mean]);
    }
    check_batch(group);
}

/// Checks the blocking calls with every algorithm that a group can be given: at the short lengths,
/// and at the long one as [`check`] does.
///
/// # Panics
/// As [`check`].
pub fn check_algorithms(group: &ProcessGroup) {
    for &algorithm in Algorithm::ALL {
        let group = group.with_algorithm(algorithm);
        let group = group.unwrap_or_else(|error| panic!("with_algorithm({algorithm}): {error}"));
        check_with(&group, &run_blocking);
        check_length(&group, &run_blocking, DType::F32, LONG, &[ReduceOp::Sum]);
    }
}

/// Checks the whole table: every operation, type and length, with every algorithm.
///
/// # Panics
/// As [`check`].
pub fn check_everything(group: &ProcessGroup) {
    for &algorithm in Algorithm::ALL {
        let group = group.with_algorithm(algorithm);
        let group = group.unwrap_or_else(|error| panic!("with_algorithm({algorithm}): {error}"));
        check_with(&group, &run_blocking);
        for dtype in DType::ALL {
            check_length(&group, &run_blocking, dtype, LONG, &ReduceOp::ALL);
        }
    }
}

/// Checks the operations at the short lengths as `runner` runs them, for engines with memory of
/// their own.
///
/// # Panics
/// As [`check`].
pub fn check_with(group: &ProcessGroup, runner: Runner<'_>) {
    for dtype in DType::ALL {
        for len in LENGTHS {
            check_length(group, runner, dtype, len, &ReduceOp::ALL);
        }
    }
}

fn check_length(
    group: &ProcessGroup,
    runner: Runner<'_>,
    dtype: DType,
    len: usize,
    reductions: &[ReduceOp],
) {
    let size = group.world_size();
    check_one(group, runner, Operation::Barrier, dtype, 0);
    check_one(group, runner, Operation::AllGather, dtype, len * size);
    check_one(group, runner, Operation::AllToAll, dtype, len * size);
    for &op in reductions {
        check_one(group, runner, Operation::AllReduce(op), dtype, len);
        check_one(group, runner, Operation::ReduceScatter(op), dtype, len * size);
    }
    // One root will do where a check takes long.
    for root in if len == LONG { size - 1 } else { 0 }..size {
        check_one(group, runner, Operation::Broadcast { root }, dtype, len);
        for &op in reductions {
            check_one(group, runner, Operation::Reduce { root, op }, dtype, len);
        }
        let parts = if root == group.rank() { size } else { 1 };
        check_one(group, runner, Operation::Gather { root }, dtype, len * parts);
        check_one(group, runner, Operation::Scatter { root }, dtype, len * parts);
    }
    check_point_to_point(group, runner, dtype, len);
}

/// Every rank sends to every other before it receives, two messages each.
fn check_batch(group: &ProcessGroup) {
    let (rank, size) = (group.rank(), group.world_size());
    for len in [0, 1, 1023, 300_000] {
        let content = |from: usize, to: usize, number: usize| {
            (0..len)
                .map(|index| (from * 31 + to * 7 + number * 3 + index) as i32)
                .collect::<Vec<_>>()
        };
        let pairs: Vec<_> = (0..size)
            .filter(|peer| *peer != rank)
            .flat_map(|peer| [(peer, 0), (peer, 1)])
            .collect();
        let sent: Vec<_> = pairs.iter().map(|&(to, number)| content(rank, to, number)).collect();
        let mut got: Vec<_> = pairs.iter().map(|_| vec![0i32; len]).collect();
        let mut messages = Vec::new();
        for ((peer, _), data) in pairs.iter().zip(&sent) {
            messages.push(PeerOp::Send { data, to: *peer });
        }
        for ((peer, _), data) in pairs.iter().zip(&mut got) {
            messages.push(PeerOp::Recv { data, from: *peer });
        }
        let result = group.batch_send_recv(messages);
        result.unwrap_or_else(|error| panic!("batch of {len} i32: {error}"));
        for ((peer, number), data) in pairs.iter().zip(got) {
            assert_eq!(data, content(*peer, rank, *number), "message {number} of {len} i32");
        }
    }
}

fn check_one(
    group: &ProcessGroup,
    runner: Runner<'_>,
    operation: Operation,
    dtype: DType,
    len: usize,
) {
    let (rank, size) = (group.rank(), group.world_size());
    let input = fill(dtype, len, |index| match operation {
        // The root has filled its own part.
        Operation::Gather { root } if root == rank => value(rank, index % (len / size).max(1)),
        Operation::AllReduce(ReduceOp::Product)
        | Operation::Reduce { op: ReduceOp::Product, .. }
        | Operation::ReduceScatter(ReduceOp::Product) => factor(rank, index),
        _ => value(rank, index),
    });
    let got = unwrap(runner(group, operation, input), operation, dtype, len);
    let part = (len / size).max(1);
    let expected = fill(dtype, len, |index| match operation {
        Operation::AllReduce(op) | Operation::ReduceScatter(op) => reduced(op, size, index),
        Operation::Broadcast { root } => value(root, index),
        Operation::AllGather => value(index / part, index),
        Operation::Reduce { root, op } if root == rank => reduced(op, size, index),
        Operation::AllToAll => value(index / part, rank * part + index % part),
        Operation::Gather { root } if root == rank => value(index / part, index % part),
        Operation::Scatter { root } if root != rank => value(root, rank * len + index),
        _ => value(rank, index),
    });
    let part = len / size;
    let width = dtype.size_bytes();
    let span = match operation {
        Operation::Reduce { root, .. } if root != rank => 0..0,
        Operation::ReduceScatter(_) => rank * part * width..(rank + 1) * part * width,
        _ => 0..len * width,
    };
    let same = got.as_bytes()[span.clone()] == expected.as_bytes()[span];
    assert!(same, "rank {rank} of {size}: {operation} of {len} {dtype} differs from the oracle");
}

/// Sends around the ring; rank 0 receives first, so that it ends at any length.
fn check_point_to_point(group: &ProcessGroup, runner: Runner<'_>, dtype: DType, len: usize) {
    let (rank, size) = (group.rank(), group.world_size());
    if size == 1 {
        return;
    }
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let own = fill(dtype, len, |index| value(rank, index));
    let send = |own| unwrap(runner(group, Operation::Send { to }, own), "send", dtype, len);
    let recv = || {
        let empty = HostBuffer::zeros(dtype, len);
        unwrap(runner(group, Operation::Recv { from }, empty), "recv", dtype, len)
    };
    let got = if rank == 0 {
        let got = recv();
        send(own);
        got
    } else {
        send(own);
        recv()
    };
    assert_eq!(got, fill(dtype, len, |index| value(from, index)), "recv of {len} {dtype}");
}

fn unwrap<T>(result: Result<T>, what: impl std::fmt::Display, dtype: DType, len: usize) -> T {
    result.unwrap_or_else(|error| panic!("{what} of {len} {dtype}: {error}"))
}

/// The input of a rank.
fn value(rank: usize, index: usize) -> f64 {
    ((rank * 5 + index * 3) % 13) as f64
}

/// The input of a rank for products, which must be exact in every type.
fn factor(rank: usize, index: usize) -> f64 {
    ((rank + index) % 3) as f64
}

/// The serial oracle.
fn reduced(op: ReduceOp, size: usize, index: usize) -> f64 {
    let values = (0..size).map(|rank| value(rank, index));
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Mean => values.sum::<f64>() / size as f64,
        ReduceOp::Product => (0..size).map(|rank| factor(rank, index)).product(),
        ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
        ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
    }
}

fn fill(dtype: DType, len: usize, value: impl Fn(usize) -> f64) -> HostBuffer {
    let values = (0..len).map(value);
    match dtype {
        DType::F64 => values.collect::<Vec<_>>().into(),
        DType::F32 => values.map(|v| v as f32).collect::<Vec<_>>().into(),
        DType::F16 => values.map(|v| f16::from_f32(v as f32)).collect::<Vec<_>>().into(),
        DType::BF16 => values.map(|v| bf16::from_f32(v as f32)).collect::<Vec<_>>().into(),
        DType::I32 => values.map(|v| v as i32).collect::<Vec<_>>().into(),
        DType::I64 => values.map(|v| v as i64).collect::<Vec<_>>().into(),
        DType::U8 => values.map(|v| v as u8).collect::<Vec<_>>().into(),
    }
}

/// Runs an operation through the blocking calls on borrowed slices.
fn run_blocking(
    group: &ProcessGroup,
    operation: Operation,
    buffer: HostBuffer,
) -> Result<HostBuffer> {
    fn run<T: Element>(
        group: &ProcessGroup,
        operation: Operation,
        mut data: Vec<T>,
    ) -> Result<HostBuffer> {
        let part = data.len() / group.world_size();
        let own = group.rank() * part..(group.rank() + 1) * part;
        match operation {
            Operation::AllReduce(op) => group.all_reduce(&mut data, op)?,
            Operation::Broadcast { root } => group.broadcast(&mut data, root)?,
            Operation::AllGather => {
                let input = data[own].to_vec();
                group.all_gather(&input, &mut data)?;
            }
            Operation::ReduceScatter(op) => {
                let input = data.clone();
                group.reduce_scatter(&input, &mut data[own], op)?;
            }
            Operation::Reduce { root, op } => group.reduce(&mut data, root, op)?,
            Operation::AllToAll => {
                let input = data.clone();
                group.all_to_all(&input, &mut data)?;
            }
            Operation::Gather { root } if root == group.rank() => {
                let input = data[own].to_vec();
                group.gather(&input, &mut data, root)?;
            }
            Operation::Gather { root } => group.gather(&data, &mut [], root)?,
            Operation::Scatter { root } if root == group.rank() => {
                let mut output = data[own.clone()].to_vec();
                group.scatter(&data, &mut output, root)?;
                assert_eq!(
                    bytemuck::cast_slice::<T, u8>(&output),
                    bytemuck::cast_slice::<T, u8>(&data[own])
                );
            }
            Operation::Scatter { root } => group.scatter(&[], &mut data, root)?,
            Operation::Barrier => group.barrier()?,
            Operation::Send { to } => group.send(&data, to)?,
            Operation::Recv { from } => group.recv(&mut data, from)?,
        }
        Ok(data.into())
    }
    match buffer {
        HostBuffer::F32(data) => run(group, operation, data),
        HostBuffer::F64(data) => run(group, operation, data),
        HostBuffer::F16(data) => run(group, operation, data),
        HostBuffer::BF16(data) => run(group, operation, data),
        HostBuffer::I32(data) => run(group, operation, data),
        HostBuffer::I64(data) => run(group, operation, data),
        HostBuffer::U8(data) => run(group, operation, data),
    }
}
