//! The collectives of the `host` and `local` engines, written once for all kinds of links.
//!
//! | file | what |
//! |---|---|
//! | `ring` | every collective by talking to neighbours |
//! | `tree` | reductions and broadcasts along one or two binary trees |
//! | `doubling` | all-reduce by exchanges at distance 1, 2, 4, ... |
//! | `direct` | small all-reduces: everybody gets everything |
//! | `pairs` | what goes between two ranks: all-to-all, gather, scatter, barrier, messages |
//! | `shared` | every collective through the slots of shared memory |
//! | `hierarchical` | shared memory within each machine, a ring between machines |
//!
//! Determinism: each says in which order it reduces; none depends on timing. The all-reduces of `ring`,
//! `direct` and `shared` reduce segment s of a buffer in the order s, s+1, ... of the ring's ranks.
//! They give the same bits, but for the payload of NaNs, and for 16-bit types, which `shared` rounds
//! once and the other two after each rank.

mod direct;
mod doubling;
mod hierarchical;
mod pairs;
mod ring;
mod shared;
mod tree;

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::flow::Scratch;
use crate::header::Header;
use crate::links::Links;
use crate::membership::{LATCH_PERIOD, Membership};
use crate::topology::Topology;
use crate::{Algorithm, CommError, DType, HostView, Operation, Result};

pub(crate) use shared::Turns;

/// Why a collective stopped.
pub(crate) enum Halt {
    /// The session has failed.
    Failed(CommError),
    /// The deadline passed while waiting for peers.
    Deadline { peers: Vec<usize> },
    /// The connection to `peer` broke.
    Lost { peer: usize, detail: String },
    /// The peer's header is another one than this rank's.
    Mismatch { peer: usize, local: Header, remote: Header },
    /// The peer's bytes are no header.
    Malformed { peer: usize },
}

impl From<CommError> for Halt {
    fn from(error: CommError) -> Self {
        Self::Failed(error)
    }
}

/// A collective under way on one rank.
pub(crate) struct Collective<'a> {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) topology: &'a Topology,
    pub(crate) links: &'a mut Links,
    pub(crate) turns: &'a mut Turns,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) membership: &'a dyn Membership,
    pub(crate) deadline: Instant,
    /// Tries, each after giving way to other threads, before the rank sleeps in the kernel.
    pub(crate) patience: u32,
    /// Largest all-reduce in which everybody gets everything.
    pub(crate) direct_bytes: usize,
    /// Payload bytes given to links.
    pub(crate) sent: u64,
}

impl Collective<'_> {
    /// Carries `operation` out.
    pub(crate) fn run(
        &mut self,
        algorithm: Algorithm,
        operation: Operation,
        header: Header,
        view: HostView<'_>,
    ) -> Result<(), Halt> {
        match (operation, view) {
            (Operation::Send { to }, view) => self.send(header, view.bytes(), to),
            (Operation::Gather { root }, HostView::Shared { bytes, .. }) if root != self.rank => {
                self.give_part(algorithm, header, bytes, root)
            }
            (Operation::Scatter { root }, HostView::Shared { bytes, .. }) if root == self.rank => {
                self.scatter_from_here(algorithm, header, bytes)
            }
            (operation, HostView::Exclusive { bytes, .. }) => {
                self.run_in_place(algorithm, operation, header, bytes)
            }
            (operation, HostView::Shared { .. }) => {
                let detail = format!("{operation} on read-only memory");
                Err(CommError::Internal { detail }.into())
            }
        }
    }

    fn run_in_place(
        &mut self,
        algorithm: Algorithm,
        operation: Operation,
        header: Header,
        data: &mut [u8],
    ) -> Result<(), Halt> {
        let way = self.way(algorithm);
        match (operation, way) {
            (Operation::Send { to }, _) => self.send(header, data, to),
            (Operation::Recv { from }, _) => self.recv(header, data, from),
            (operation, Way::Shared) => self.run_shared(operation, header, data),

            (Operation::AllReduce(op), Way::Hierarchical) => {
                self.all_reduce_hierarchical(header, data, op)
            }
            (Operation::AllReduce(op), Way::Tree) => self.all_reduce_tree(header, data, op),
            (Operation::AllReduce(op), Way::DoubleTree) => {
                self.all_reduce_double_tree(header, data, op)
            }
            (Operation::AllReduce(op), Way::Doubling) => self.all_reduce_doubling(header, data, op),
            (Operation::AllReduce(op), Way::Flat) if data.len() <= self.direct_bytes => {
                self.all_reduce_direct(header, data, op)
            }
            (Operation::AllReduce(op), Way::Ring | Way::Flat) => {
                self.all_reduce_ring(header, data, op)
            }

            (Operation::Reduce { root, op }, way) if way.is_shallow() => {
                self.reduce_tree(header, data, root, op)
            }
            (Operation::Reduce { root, op }, _) => self.reduce_chain(header, data, root, op),
            (Operation::Broadcast { root }, way) if way.is_shallow() => {
                self.broadcast_tree(header, data, root)
            }
            (Operation::Broadcast { root }, _) => self.broadcast_chain(header, data, root),
            (Operation::AllGather, _) => self.all_gather_ring(header, data),
            (Operation::ReduceScatter(op), _) => self.reduce_scatter_ring(header, data, op),
            (Operation::AllToAll, _) => self.all_to_all(header, data),
            (Operation::Gather { root }, _) => self.gather(header, data, root),
            (Operation::Scatter { root }, _) => self.scatter(header, data, root),
            (Operation::Barrier, _) => self.barrier(header),
        }
    }

    /// Chooses the code for an algorithm.
    fn way(&self, algorithm: Algorithm) -> Way {
        match algorithm {
            Algorithm::Auto | Algorithm::Hierarchical if self.topology.is_one_machine() => {
                Way::Shared
            }
            Algorithm::Auto | Algorithm::Hierarchical if self.topology.has_neighbours() => {
                Way::Hierarchical
            }
            Algorithm::Auto => Way::Flat,
            Algorithm::Hierarchical | Algorithm::Ring => Way::Ring,
            Algorithm::Tree => Way::Tree,
            Algorithm::DoubleTree => Way::DoubleTree,
            Algorithm::RecursiveDoubling => Way::Doubling,
        }
    }

    /// Sleeps until a link may be ready, the session has failed, or the deadline has passed.
    pub(crate) fn pause(&mut self, sends: &[usize], receives: &[usize]) -> Result<(), Halt> {
        let left = self.check(|| [receives, sends].concat())?;
        let peer = receives.first().or(sends.first()).copied().unwrap_or(self.rank);
        let waited = self.links.wait(sends, receives, left.min(LATCH_PERIOD));
        waited.map_err(|error| crate::flow::lost(peer, &error))
    }

    /// Returns the time that is left for `peers`, unless the session has failed or a neighbour is
    /// in another operation.
    pub(crate) fn check(&self, peers: impl FnOnce() -> Vec<usize>) -> Result<Duration, Halt> {
        if let Some(failure) = self.membership.failure() {
            return Err(Halt::Failed(failure));
        }
        self.turns.compare_boards(self.links)?;
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Halt::Deadline { peers: peers() }) } else { Ok(left) }
    }
}

/// The code that carries an operation out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The ring, but small all-reduces at once.
    Flat,
    Ring,
    Tree,
    DoubleTree,
    Doubling,
    Shared,
    Hierarchical,
}

impl Way {
    /// Whether it prefers few latencies.
    fn is_shallow(self) -> bool {
        matches!(self, Self::Tree | Self::DoubleTree | Self::Doubling)
    }
}

/// Cuts `bytes` into one span of whole elements per rank, as equal as possible.
fn segments(bytes: usize, dtype: DType, size: usize) -> Vec<Range<usize>> {
    let width = dtype.size_bytes();
    let elements = bytes / width;
    // Wide arithmetic is not needed: base and rest stay below `elements`.
    let (base, rest) = (elements / size, elements % size);
    let start = |rank: usize| (base * rank + rest.min(rank)) * width;
    (0..size).map(|rank| start(rank)..start(rank + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_everything_once() {
        for size in 1..6 {
            for elements in [0usize, 1, 2, 7, 64, 101] {
                let spans = segments(elements * 4, DType::F32, size);
                assert_eq!(spans.len(), size);
                assert_eq!((spans[0].start, spans[size - 1].end), (0, elements * 4));
                assert!(spans.windows(2).all(|pair| pair[0].end == pair[1].start));
                let lens: Vec<usize> = spans.iter().map(Range::len).collect();
                assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 4);
            }
        }
    }
}
