//! What the communication threads of a session tell each other, beside the data.

use crate::failure::Failure;

/// Size of a note on the wire; the longest is a failure with its reason.
pub(super) const NOTE_BYTES: usize = 4096 + 64;

/// A message of the control plane. `group` is the hash of a group's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Note {
    /// The session has failed.
    Failure(Failure),
    /// How many collectives have you entered?
    Query { group: u64 },
    /// The answer; none when the sender does not know the group.
    Progress { group: u64, entered: Option<u64> },
    /// The sender has dropped its handle of a group.
    Left { group: u64, departure: Departure },
    /// To rank 0: the sender wants to make a group of that many ranks.
    Ready { group: u64, size: u64 },
    /// From rank 0: all members are ready; make the group now.
    Go { group: u64 },
    /// The sender will say nothing more to the ranks of its world.
    Bye,
}

/// How far a rank had come in a group when it left it. The last two are the messages to and from
/// the receiver of the note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Departure {
    pub(super) entered: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Note {
    /// Writes `length:u32 sender:u32 kind:u8 payload`, little endian.
    pub(super) fn encode(&self, sender: usize) -> Vec<u8> {
        let words = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (kind, payload): (u8, Vec<u8>) = match self {
            Self::Failure(failure) => (0, failure.encode()),
            Self::Query { group } => (1, words(&[*group])),
            Self::Progress { group, entered } => (2, words(&[*group, entered.unwrap_or(u64::MAX)])),
            Self::Left { group, departure: Departure { entered, sent, received } } => {
                (3, words(&[*group, *entered, *sent, *received]))
            }
            Self::Ready { group, size } => (4, words(&[*group, *size])),
            Self::Go { group } => (5, words(&[*group])),
            Self::Bye => (6, Vec::new()),
        };
        let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&(sender as u32).to_le_bytes());
        bytes.push(kind);
        bytes.extend_from_slice(&payload);
        bytes
    }

    /// Reads a note and its sender from memory that may be longer.
    pub(super) fn decode(bytes: &[u8]) -> Option<(usize, Self)> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (sender, rest) = rest.split_first_chunk::<4>()?;
        let (&kind, rest) = rest.split_first()?;
        let payload = rest.get(..u32::from_le_bytes(*length) as usize)?;
        let word =
            |index: usize| Some(u64::from_le_bytes(*payload.get(8 * index..)?.first_chunk::<8>()?));
        let note = match kind {
            0 => Self::Failure(Failure::decode(payload)?),
            1 => Self::Query { group: word(0)? },
            2 => Self::Progress {
                group: word(0)?,
                entered: Some(word(1)?).filter(|&entered| entered != u64::MAX),
            },
            3 => Self::Left {
                group: word(0)?,
                departure: Departure { entered: word(1)?, sent: word(2)?, received: word(3)? },
            },
            4 => Self::Ready { group: word(0)?, size: word(1)? },
            5 => Self::Go { group: word(0)? },
            6 => Self::Bye,
            _ => return None,
        };
        Some((u32::from_le_bytes(*sender) as usize, note))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;

    #[test]
    fn notes_survive_the_wire() {
        let departure = Departure { entered: 3, sent: 4, received: 5 };
        let notes = [
            Note::Failure(Failure::new(2, FailureKind::Failed, "x".repeat(9999))),
            Note::Query { group: 7 },
            Note::Progress { group: 7, entered: None },
            Note::Progress { group: 7, entered: Some(0) },
            Note::Left { group: u64::MAX, departure },
            Note::Ready { group: 1, size: 2 },
            Note::Go { group: 1 },
            Note::Bye,
        ];
        for note in notes {
            let mut bytes = note.encode(5);
            assert!(bytes.len() <= NOTE_BYTES);
            bytes.resize(NOTE_BYTES, 0xee);
            assert_eq!(Note::decode(&bytes), Some((5, note)));
        }
    }

    #[test]
    fn garbage_is_no_note() {
        assert_eq!(Note::decode(&[]), None);
        assert_eq!(Note::decode(&[0xff; NOTE_BYTES]), None);
        let mut bytes = Note::Query { group: 7 }.encode(0);
        bytes.truncate(12);
        assert_eq!(Note::decode(&bytes), None);
    }
}
