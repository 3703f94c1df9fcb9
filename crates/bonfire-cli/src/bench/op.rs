use bonfire_comm::DType;

/// The rank that sends or receives in an operation with a root.
pub(super) const ROOT: usize = 0;

/// An operation that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Barrier,
    /// Every rank sends to the next and receives from the one before.
    SendRecv,
}

impl Op {
    pub(super) const ALL: &[Self] = &[
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::Barrier,
        Self::SendRecv,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Barrier => "barrier",
            Self::SendRecv => "send_recv",
        }
    }

    /// Whether its buffer has a part for every rank.
    pub(super) fn has_parts(self) -> bool {
        match self {
            Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::Gather
            | Self::Scatter => true,
            Self::AllReduce | Self::Reduce | Self::Broadcast | Self::Barrier | Self::SendRecv => {
                false
            }
        }
    }

    /// The elements of a buffer of at most `bytes`: all of it, or as many as have equal parts.
    pub(super) fn count(self, bytes: usize, dtype: DType, world_size: usize) -> usize {
        let count = bytes / dtype.size_bytes();
        match self {
            Self::Barrier => 0,
            _ if self.has_parts() => count - count % world_size,
            _ => count,
        }
    }

    /// By what the bandwidth of the algorithm is multiplied to get that of a link.
    ///
    /// # Reference
    /// nccl-tests, `doc/PERFORMANCE.md`, and `gather.cu`, `scatter.cu` and `sendrecv.cu` for what
    /// it leaves out.
    pub(super) fn bus_factor(self, world_size: usize) -> f64 {
        let n = world_size as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::Reduce | Self::Broadcast | Self::Barrier | Self::SendRecv => 1.0,
            Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::Gather
            | Self::Scatter => (n - 1.0) / n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        let factors = Op::ALL.iter().map(|op| op.bus_factor(4)).collect::<Vec<_>>();
        assert_eq!(factors, [1.5, 1.0, 1.0, 0.75, 0.75, 0.75, 0.75, 0.75, 1.0, 1.0]);
    }

    #[test]
    fn only_buffers_of_parts_are_rounded_down() {
        let count = |op: Op| op.count(1000, DType::F32, 3);
        assert_eq!([Op::AllReduce, Op::Broadcast, Op::SendRecv].map(count), [250; 3]);
        assert_eq!([Op::AllGather, Op::AllToAll, Op::Scatter].map(count), [249; 3]);
        assert_eq!(count(Op::Barrier), 0);
    }
}
