//! The fingerprint that goes before the data of every transfer.

use std::fmt;

use crate::{DType, Operation, ReduceOp};

/// Size of a header on the wire.
pub(crate) const HEADER_BYTES: usize = 32;

/// First bytes of a header: a byte stream out of step is noticed at once.
const MAGIC: u32 = 0x4246_4331;

/// What a rank is about to do, as told to the peer that takes part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    kind: u8,
    reduce: u8,
    pub(crate) dtype: DType,
    round: u8,
    sequence: u64,
    count: u64,
    root: u32,
    group: u32,
}

/// Names of the kinds, by their codes.
const KINDS: [&str; 10] = [
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
    "send/recv",
];
const BARRIER: u8 = 8;
const POINT_TO_POINT: u8 = 9;

impl Header {
    /// Describes `operation` of rank `rank`. Both ends of a send and receive describe the sender.
    pub(crate) fn new(
        operation: Operation,
        rank: usize,
        dtype: DType,
        count: usize,
        sequence: u64,
        group: u32,
    ) -> Self {
        let (kind, reduce, root) = match operation {
            Operation::AllReduce(op) => (0, op as u8, 0),
            Operation::Reduce { root, op } => (1, op as u8, root),
            Operation::Broadcast { root } => (2, 0, root),
            Operation::AllGather => (3, 0, 0),
            Operation::ReduceScatter(op) => (4, op as u8, 0),
            Operation::AllToAll => (5, 0, 0),
            Operation::Gather { root } => (6, 0, root),
            Operation::Scatter { root } => (7, 0, root),
            Operation::Barrier => (BARRIER, 0, 0),
            Operation::Send { .. } => (POINT_TO_POINT, 0, rank),
            Operation::Recv { from } => (POINT_TO_POINT, 0, from),
        };
        let (count, root) = (count as u64, root as u32);
        Self { kind, reduce, dtype, round: 0, sequence, count, root, group }
    }

    /// The header of a later round of the same operation.
    pub(crate) fn with_round(mut self, round: u8) -> Self {
        self.round = round;
        self
    }

    fn reduce_op(&self) -> ReduceOp {
        ReduceOp::ALL[usize::from(self.reduce)]
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether both are collectives with the same sequence number.
    pub(crate) fn is_at(&self, other: &Self) -> bool {
        let is_collective = |header: &Self| header.kind != POINT_TO_POINT;
        is_collective(self) && is_collective(other) && self.sequence == other.sequence
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&[self.kind, self.reduce, self.dtype.code(), self.round]);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.count.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.root.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.group.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let known = word(0)? == MAGIC
            && usize::from(bytes[4]) < KINDS.len()
            && usize::from(bytes[5]) < ReduceOp::ALL.len();
        known.then_some(Self {
            kind: bytes[4],
            reduce: bytes[5],
            dtype: DType::from_code(bytes[6])?,
            round: bytes[7],
            sequence: long(8)?,
            count: long(16)?,
            root: word(24)?,
            group: word(28)?,
        })
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KINDS[usize::from(self.kind)])?;
        match self.kind {
            0 | 4 => write!(f, "({})", self.reduce_op())?,
            1 => write!(f, "({}, root {})", self.reduce_op(), self.root)?,
            2 | 6 | 7 => write!(f, "(root {})", self.root)?,
            POINT_TO_POINT => write!(f, "(from {})", self.root)?,
            _ => {}
        }
        if self.kind != BARRIER {
            write!(f, " of {} {}", self.count, self.dtype)?;
        }
        write!(f, " [sequence {}]", self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire_and_reads_well() {
        let operation = Operation::AllReduce(ReduceOp::Mean);
        let header = Header::new(operation, 1, DType::BF16, 7, 12, 99);
        assert_eq!(Header::decode(&header.encode()), Some(header));
        assert_eq!(header.to_string(), "all_reduce(mean) of 7 bf16 [sequence 12]");
    }

    #[test]
    fn garbage_is_no_header() {
        let mut bytes = Header::new(Operation::Barrier, 0, DType::U8, 0, 0, 0).encode();
        bytes[4] = 200;
        assert_eq!(Header::decode(&bytes), None);
        assert_eq!(Header::decode(&[0xff; HEADER_BYTES]), None);
    }
}
