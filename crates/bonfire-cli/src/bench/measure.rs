use super::plan::Case;
use super::subject::Subject;
use crate::CliError;
use bonfire_comm::{Algorithm, DType, Element, ProcessGroup, ReduceOp};
use half::{bf16, f16};
use serde::Serialize;
use std::time::Instant;

/// A measurement, as the JSON file has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) op: &'static str,
    pub(super) algorithm: &'static str,
    pub(super) engine: &'static str,
    pub(super) dtype: &'static str,
    /// Of the buffer, all parts together.
    pub(super) bytes: usize,
    pub(super) world_size: usize,
    pub(super) iterations: usize,
    /// Median over the iterations of the time of the slowest rank.
    pub(super) time_us: f64,
    pub(super) algbw_gbps: f64,
    pub(super) busbw_gbps: f64,
    /// Wrong elements over all ranks.
    pub(super) wrong: usize,
}

/// What the ranks found together.
struct Found {
    seconds: f64,
    wrong: usize,
}

/// Measures a case in `group`; the ranks compare notes in `world`.
pub(super) fn measure(
    world: &ProcessGroup,
    group: &ProcessGroup,
    algorithm: Algorithm,
    case: &Case,
) -> Result<Row, CliError> {
    let found = match case.dtype {
        DType::F32 => run::<f32>(world, group, case),
        DType::F64 => run::<f64>(world, group, case),
        DType::F16 => run::<f16>(world, group, case),
        DType::BF16 => run::<bf16>(world, group, case),
        DType::I32 => run::<i32>(world, group, case),
        DType::I64 => run::<i64>(world, group, case),
        DType::U8 => run::<u8>(world, group, case),
    }?;
    let (bytes, world_size) = (case.bytes(), world.world_size());
    let algbw_gbps = bytes as f64 / found.seconds / 1e9;
    Ok(Row {
        op: case.op.name(),
        algorithm: algorithm.name(),
        engine: group.engine_name(),
        dtype: case.dtype.name(),
        bytes,
        world_size,
        iterations: case.iterations,
        time_us: found.seconds * 1e6,
        algbw_gbps,
        busbw_gbps: algbw_gbps * case.op.bus_factor(world_size),
        wrong: found.wrong,
    })
}

fn run<T: Element + PartialEq + From<u8>>(
    world: &ProcessGroup,
    group: &ProcessGroup,
    case: &Case,
) -> Result<Found, CliError> {
    let mut subject = Subject::<T>::new(group, case.op, case.count)?;
    let mut seconds = vec![0f64; case.iterations];
    subject.fill();
    subject.run()?;
    // What sums grow to here costs no time: they are never subnormal.
    group.barrier()?;
    // As nccl-tests: no barrier between the iterations, which would measure how ranks leave it.
    for seconds in &mut seconds {
        let start = Instant::now();
        subject.run()?;
        *seconds = start.elapsed().as_secs_f64();
    }
    subject.fill();
    subject.run()?;
    let mut wrong = [subject.num_wrong() as i64];
    // Of each iteration the slowest rank.
    world.all_reduce(&mut seconds, ReduceOp::Max)?;
    world.all_reduce(&mut wrong, ReduceOp::Sum)?;
    // A time of zero would make a bandwidth that is no number.
    let seconds = median(&mut seconds).max(1e-9);
    Ok(Found { seconds, wrong: usize::try_from(wrong[0]).unwrap_or(usize::MAX) })
}

/// The middle one, or the mean of the two in the middle.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::op::Op;
    use bonfire_comm::local;

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert_eq!(median(&mut [3.0, 100.0, 1.0]), 3.0);
        assert_eq!(median(&mut [4.0, 1.0, 100.0, 2.0]), 3.0);
        assert_eq!(median(&mut [7.0]), 7.0);
    }

    #[test]
    fn every_rank_has_the_same_row() {
        let case = Case { op: Op::AllGather, dtype: DType::U8, count: 3000, iterations: 4 };
        let rows =
            local::spawn(3, |world| measure(&world, &world, Algorithm::Ring, &case).unwrap());
        assert!(rows.iter().all(|row| *row == rows[0]), "{rows:?}");
        let row = &rows[0];
        assert_eq!((row.bytes, row.world_size, row.iterations, row.wrong), (3000, 3, 4, 0));
        assert_eq!((row.engine, row.algorithm, row.dtype), ("local", "ring", "u8"));
        let algbw = 3000.0 / (row.time_us * 1e3);
        assert!((row.algbw_gbps / algbw - 1.0).abs() < 1e-9, "{row:?}");
        assert!((row.busbw_gbps / algbw - 2.0 / 3.0).abs() < 1e-9, "{row:?}");
    }
}
