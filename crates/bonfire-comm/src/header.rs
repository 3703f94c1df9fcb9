//! The fingerprint that goes before the data of every transfer.

use std::fmt;

use crate::{DType, Operation, ReduceOp};

/// Size of a header on the wire.
pub(crate) const HEADER_BYTES: usize = 48;

/// First bytes of a header: a byte stream out of step is noticed at once.
const MAGIC: u32 = 0x4246_4332;

/// A call without its place in the order of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signature {
    kind: u8,
    reduce: u8,
    dtype: DType,
    root: u32,
    count: u64,
}

/// What a rank is about to do, as told to the peer that takes part in it.
///
/// It tells of the collective before, too: in some, like two broadcasts from different roots, no
/// rank need hear from the one that is wrong, and whoever hears from it next learns what it did.
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
    previous: Option<Signature>,
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
/// Stands for the kind of a call before the first.
const NONE: u8 = 255;

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
        Self { kind, reduce, dtype, round: 0, sequence, count, root, group, previous: None }
    }

    /// The header of a call that comes after another collective.
    pub(crate) fn after(mut self, previous: Option<&Self>) -> Self {
        self.previous = previous.map(Self::signature);
        self
    }

    /// The header of a later round of the same operation.
    pub(crate) fn with_round(mut self, round: u8) -> Self {
        self.round = round;
        self
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    fn signature(&self) -> Signature {
        let Self { kind, reduce, dtype, root, count, .. } = *self;
        Signature { kind, reduce, dtype, root, count }
    }

    /// The earliest collective of a group in which two headers show different calls: this one's
    /// and the remote one's, in words.
    pub(crate) fn parting(&self, remote: &Self) -> Option<(String, String)> {
        if !self.is_collective() || !remote.is_collective() || self.group != remote.group {
            return None;
        }
        let own = (self.sequence, Some(self.signature()));
        let other = (remote.sequence, Some(remote.signature()));
        let before = |header: &Self| (header.sequence.wrapping_sub(1), header.previous);
        let pairs = [
            (before(self), before(remote)),
            (own, before(remote)),
            (before(self), other),
            (own, other),
        ];
        let tell = |call: Signature, sequence: u64| format!("{call} [sequence {sequence}]");
        pairs.into_iter().find_map(|((sequence, own), (at, other))| {
            let (own, other) = (own?, other?);
            let parted = sequence == at && own != other;
            parted.then(|| (tell(own, sequence), tell(other, sequence)))
        })
    }

    /// Whether all ranks of the group take part.
    pub(crate) fn is_collective(&self) -> bool {
        self.kind != POINT_TO_POINT
    }

    /// Whether both are of the same group.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.group == other.group
    }

    /// Whether both are collectives with the same sequence number.
    pub(crate) fn is_at(&self, other: &Self) -> bool {
        self.is_collective() && other.is_collective() && self.sequence == other.sequence
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&[self.kind, self.reduce, self.dtype.code(), self.round]);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.count.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.root.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.group.to_le_bytes());
        bytes[32] = NONE;
        if let Some(previous) = self.previous {
            let codes = [previous.kind, previous.reduce, previous.dtype.code()];
            bytes[32..35].copy_from_slice(&codes);
            bytes[36..40].copy_from_slice(&previous.root.to_le_bytes());
            bytes[40..48].copy_from_slice(&previous.count.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let signature = |at: usize, root: usize, count: usize| {
            let (kind, reduce) = (bytes[at], bytes[at + 1]);
            let known =
                usize::from(kind) < KINDS.len() && usize::from(reduce) < ReduceOp::ALL.len();
            let dtype = DType::from_code(bytes[at + 2])?;
            known.then_some(Signature {
                kind,
                reduce,
                dtype,
                root: word(root)?,
                count: long(count)?,
            })
        };
        let Signature { kind, reduce, dtype, root, count } =
            signature(4, 24, 16).filter(|_| word(0) == Some(MAGIC))?;
        let previous = match bytes[32] {
            NONE => None,
            _ => Some(signature(32, 36, 40)?),
        };
        let (round, sequence, group) = (bytes[7], long(8)?, word(28)?);
        Some(Self { kind, reduce, dtype, round, sequence, count, root, group, previous })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, root) = (ReduceOp::ALL[usize::from(self.reduce)], self.root);
        f.write_str(KINDS[usize::from(self.kind)])?;
        match self.kind {
            0 | 4 => write!(f, "({op})")?,
            1 => write!(f, "({op}, root {root})")?,
            2 | 6 | 7 => write!(f, "(root {root})")?,
            POINT_TO_POINT => write!(f, "(from {root})")?,
            _ => {}
        }
        match self.kind {
            BARRIER => Ok(()),
            _ => write!(f, " of {} {}", self.count, self.dtype),
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [sequence {}]", self.signature(), self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn broadcast(root: usize, sequence: u64) -> Header {
        Header::new(Operation::Broadcast { root }, 0, DType::F32, 5, sequence, 9)
    }

    #[test]
    fn a_header_survives_the_wire_and_reads_well() {
        let operation = Operation::AllReduce(ReduceOp::Mean);
        let header = Header::new(operation, 1, DType::BF16, 7, 12, 99);
        assert_eq!(Header::decode(&header.encode()), Some(header));
        assert_eq!(header.to_string(), "all_reduce(mean) of 7 bf16 [sequence 12]");
    }

    #[test]
    fn the_call_before_travels_too_and_tells_where_two_ranks_parted() {
        let barrier = |sequence| Header::new(Operation::Barrier, 0, DType::U8, 0, sequence, 9);
        let own = barrier(4).after(Some(&broadcast(1, 3)));
        let remote = barrier(4).after(Some(&broadcast(2, 3)));
        assert_eq!(Header::decode(&own.encode()), Some(own));
        assert_ne!(own, remote);
        let tell = |root| format!("broadcast(root {root}) of 5 f32 [sequence 3]");
        assert_eq!(own.parting(&remote), Some((tell(1), tell(2))));
        assert_eq!(broadcast(1, 3).parting(&remote), Some((tell(1), tell(2))));
        assert_eq!(own.parting(&broadcast(2, 3)), Some((tell(1), tell(2))));
        assert_eq!(own.parting(&own), None);
        assert_eq!(broadcast(2, 2).parting(&remote), None);
        let other = (broadcast(0, 4).to_string(), barrier(4).to_string());
        assert_eq!(broadcast(0, 4).parting(&own), Some(other));
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_alike(mut bytes: [u8; HEADER_BYTES], codes: [u8; 6]) {
            let _ = Header::decode(&bytes);
            // Most garbage fails at the first word; this does not.
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[4..7].copy_from_slice(&[codes[0] % 10, codes[1] % 5, codes[2] % 7]);
            bytes[32..36].copy_from_slice(&[codes[3] % 10, codes[4] % 5, codes[5] % 7, 0]);
            let header = Header::decode(&bytes).unwrap();
            prop_assert_eq!(header.encode(), bytes);
            prop_assert!(!header.to_string().is_empty());
        }
    }

    #[test]
    fn garbage_is_no_header() {
        let mut bytes = Header::new(Operation::Barrier, 0, DType::U8, 0, 0, 0).encode();
        bytes[4] = 200;
        assert_eq!(Header::decode(&bytes), None);
        assert_eq!(Header::decode(&[0xff; HEADER_BYTES]), None);
    }
}
