//! What a group measures when it starts.

use std::time::{Duration, Instant};

use crate::collectives::{Collective, Halt};
use crate::header::Header;
use crate::topology::Topology;
use crate::{Algorithm, DType, HostView, Operation, ReduceOp};

/// Sizes at which the two ways of an all-reduce are compared.
const SIZES: [usize; 6] = [256, 1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Repetitions, of which the fastest counts.
const ROUNDS: usize = 5;
/// Tries before a rank sleeps, when every rank has a core; some 300 us, each after giving way to other
/// threads. To be woken costs a rank tens of microseconds, and in training ranks come to a collective
/// some 100 us apart: a perceptron of 203,530 parameters on 2 ranks made 71,900 images/s with 60 tries
/// and 85,200 with 600 (shared memory; 62,800 and 64,400 over TCP; medians of 8 runs in turns).
const PATIENCE: u32 = 600;
/// The same when ranks share cores: the rank that is waited for may need this one's.
const SHORT_PATIENCE: u32 = 4;

/// Choices of a group that do not change results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// Largest all-reduce in which everybody gets everything.
    pub(crate) direct_bytes: usize,
    /// Tries before a rank sleeps.
    pub(crate) patience: u32,
}

impl Tuning {
    pub(crate) fn before_measuring(topology: &Topology) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let ranks = topology.machines().iter().map(Vec::len).max().unwrap_or(1);
        let patience = if ranks <= cores { PATIENCE } else { SHORT_PATIENCE };
        Self { direct_bytes: 0, patience }
    }
}

/// Finds the size up to which the exchange of everything is faster. All ranks come to the same,
/// because they compare the times of the slowest.
///
/// # Collective
/// Called by all ranks of a group, before anything else.
pub(crate) fn measure(
    collective: &mut Collective<'_>,
    tuning: Tuning,
    header: impl Fn(usize, u64) -> Header,
) -> Result<Tuning, Halt> {
    let mut sequence = 0;
    let mut all_reduce = |collective: &mut Collective<'_>, data: &mut [f64], direct| {
        collective.direct_bytes = direct;
        sequence += 1;
        let header = header(data.len(), sequence);
        let view = HostView::Exclusive { bytes: bytemuck::cast_slice_mut(data), dtype: DType::F64 };
        collective.run(Algorithm::Auto, Operation::AllReduce(ReduceOp::Max), header, view)
    };
    let mut times = [0f64; 2 * SIZES.len()];
    for (index, size) in SIZES.into_iter().enumerate() {
        let mut data = vec![0f64; size / 8];
        for (way, direct) in [usize::MAX, 0].into_iter().enumerate() {
            let mut fastest = Duration::MAX;
            for _ in 0..ROUNDS {
                let start = Instant::now();
                all_reduce(collective, &mut data, direct)?;
                fastest = fastest.min(start.elapsed());
            }
            times[2 * index + way] = fastest.as_secs_f64();
        }
    }
    all_reduce(collective, &mut times, 0)?;
    let is_faster = |index: &usize| times[2 * index] <= times[2 * index + 1];
    let last = (0..SIZES.len()).rev().find(is_faster);
    Ok(Tuning { direct_bytes: last.map_or(0, |index| SIZES[index]), ..tuning })
}
