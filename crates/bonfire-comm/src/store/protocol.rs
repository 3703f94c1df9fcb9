//! Requests, answers and notes of the store.

use crate::failure::Failure;
use crate::header::Header;
use crate::wire::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// Prefix of all keys of one session: run, restart count and how often ranks have joined.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scope(pub(crate) String);

impl Scope {
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    /// Set by the server when it knows of the presence of a rank.
    pub(crate) fn present_key(&self, rank: usize) -> String {
        self.key(&format!("present/{rank}"))
    }
}

/// What a client asks of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Set {
        key: String,
        value: Vec<u8>,
    },
    Get {
        key: String,
        wait_ms: u64,
    },
    Add {
        key: String,
        delta: i64,
    },
    CompareSet {
        key: String,
        expected: Vec<u8>,
        desired: Vec<u8>,
    },
    Delete {
        key: String,
    },
    NumKeys,
    /// Sets a key that goes when the connection ends.
    Lease {
        key: String,
        value: Vec<u8>,
    },
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Value(Vec<u8>),
    Missing,
    Failed(Failure),
    Refused(String),
}

/// What goes over a presence connection, in either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// To the server, first: the session that the rank belongs to.
    Join(Scope),
    /// To the server: a failure; to the client: the first one of the session.
    Failure(Failure),
    /// To the server: the rank leaves in good order.
    Goodbye,
    /// To the client: a rank left in good order.
    Left(usize),
    /// Both ways: how far is everybody in this group?
    Query(String),
    /// To the server: the collective that this rank has entered last in a group, if any.
    Progress(String, Option<Header>),
    /// To the client: the store closes in good order.
    Closing,
}

/// Takes a string with its length before it.
fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let (text, rest) = rest.split_at_checked(len).filter(|_| len <= MAX_KEY_BYTES)?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

fn take_long(bytes: &mut &[u8]) -> Option<u64> {
    let (long, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*long))
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn bounded(value: &[u8]) -> Option<Vec<u8>> {
    (value.len() <= MAX_VALUE_BYTES).then(|| value.to_vec())
}

/// The last collective of a rank as it is stored: a header, or nothing.
pub(crate) fn encode_progress(last: Option<&Header>) -> Vec<u8> {
    last.map(|header| header.encode().to_vec()).unwrap_or_default()
}

/// Reads what [`encode_progress`] wrote; `None` for anything else.
pub(crate) fn decode_progress(bytes: &[u8]) -> Option<Option<Header>> {
    match bytes {
        [] => Some(None),
        bytes => Some(Some(Header::decode(bytes.try_into().ok()?)?)),
    }
}

impl Request {
    pub(crate) fn encode(&self) -> (u8, Vec<u8>) {
        let join = |key: &str, rest: &[u8]| [&text(key), rest].concat();
        match self {
            Self::Set { key, value } => (1, join(key, value)),
            Self::Get { key, wait_ms } => (2, join(key, &wait_ms.to_le_bytes())),
            Self::Add { key, delta } => (3, join(key, &delta.to_le_bytes())),
            Self::CompareSet { key, expected, desired } => {
                let len = (expected.len() as u64).to_le_bytes();
                (4, join(key, &[&len[..], expected, desired].concat()))
            }
            Self::Delete { key } => (5, join(key, &[])),
            Self::NumKeys => (6, Vec::new()),
            Self::Lease { key, value } => (7, join(key, value)),
        }
    }

    pub(crate) fn decode(kind: u8, mut bytes: &[u8]) -> Option<Self> {
        if kind == 6 {
            return Some(Self::NumKeys);
        }
        let rest = &mut bytes;
        let key = take_text(rest)?.to_owned();
        match kind {
            1 => Some(Self::Set { key, value: bounded(rest)? }),
            2 => Some(Self::Get { key, wait_ms: take_long(rest)? }),
            3 => Some(Self::Add { key, delta: take_long(rest)?.cast_signed() }),
            4 => {
                let len = usize::try_from(take_long(rest)?).ok()?;
                let (expected, desired) = rest.split_at_checked(len)?;
                let (expected, desired) = (bounded(expected)?, bounded(desired)?);
                Some(Self::CompareSet { key, expected, desired })
            }
            5 => Some(Self::Delete { key }),
            7 => Some(Self::Lease { key, value: bounded(rest)? }),
            _ => None,
        }
    }
}

impl Answer {
    pub(crate) fn encode(self) -> (u8, Vec<u8>) {
        match self {
            Self::Value(value) => (0, value),
            Self::Missing => (1, Vec::new()),
            Self::Failed(failure) => (2, failure.encode()),
            Self::Refused(reason) => (3, reason.into_bytes()),
        }
    }

    pub(crate) fn decode(kind: u8, bytes: Vec<u8>) -> Option<Self> {
        match kind {
            0 => Some(Self::Value(bytes)),
            1 => Some(Self::Missing),
            2 => Some(Self::Failed(Failure::decode(&bytes)?)),
            3 => Some(Self::Refused(String::from_utf8_lossy(&bytes).into_owned())),
            _ => None,
        }
    }
}

impl Note {
    pub(crate) fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            Self::Join(scope) => (16, text(&scope.0)),
            Self::Failure(failure) => (17, failure.encode()),
            Self::Goodbye => (18, Vec::new()),
            Self::Left(rank) => (19, (*rank as u64).to_le_bytes().to_vec()),
            Self::Query(group) => (20, text(group)),
            Self::Progress(group, last) => {
                (21, [text(group), encode_progress(last.as_ref())].concat())
            }
            Self::Closing => (22, Vec::new()),
        }
    }

    pub(crate) fn decode(kind: u8, mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        match kind {
            16 => Some(Self::Join(Scope(take_text(rest)?.to_owned()))),
            17 => Some(Self::Failure(Failure::decode(rest)?)),
            18 => Some(Self::Goodbye),
            19 => Some(Self::Left(usize::try_from(take_long(rest)?).ok()?)),
            20 => Some(Self::Query(take_text(rest)?.to_owned())),
            21 => Some(Self::Progress(take_text(rest)?.to_owned(), decode_progress(rest)?)),
            22 => Some(Self::Closing),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;

    #[test]
    fn messages_survive_the_wire() {
        let key = || "a/b".to_owned();
        let requests = [
            Request::Set { key: key(), value: vec![1, 2] },
            Request::Get { key: key(), wait_ms: 9 },
            Request::Add { key: key(), delta: -3 },
            Request::CompareSet { key: key(), expected: vec![], desired: vec![7] },
            Request::Delete { key: key() },
            Request::NumKeys,
        ];
        for request in requests {
            let (kind, bytes) = request.encode();
            assert_eq!(Request::decode(kind, &bytes), Some(request));
        }
        let header = Header::new(crate::Operation::AllGather, 0, crate::DType::F16, 3, 8, 1);
        let notes = [
            Note::Join(Scope(key())),
            Note::Failure(Failure::new(1, FailureKind::Died, "x")),
            Note::Goodbye,
            Note::Left(4),
            Note::Query(key()),
            Note::Progress(key(), None),
            Note::Progress(key(), Some(header)),
            Note::Closing,
        ];
        for note in notes {
            let (kind, bytes) = note.encode();
            assert_eq!(Note::decode(kind, &bytes), Some(note));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_garbage_panics(kind: u8, bytes: Vec<u8>) {
            let _ = Request::decode(kind, &bytes);
            let _ = Note::decode(kind, &bytes);
            let _ = Answer::decode(kind, bytes);
        }
    }
}
