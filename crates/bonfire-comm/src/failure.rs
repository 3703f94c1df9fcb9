//! The first failure of a session, as it is latched and told to every rank.

use crate::CommError;

/// Longest reason that travels, so that no error text fills a frame.
const MAX_REASON_BYTES: usize = 4096;

/// What happened to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// It ended without a goodbye.
    Died,
    /// It said goodbye while others needed it; the reason is the group, a newline, the call.
    Left,
    /// It reported an error.
    Failed,
    /// The store went away; the reason is its address.
    StoreLost,
}

/// The failure that ends a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rank: usize,
    pub(crate) kind: FailureKind,
    pub(crate) reason: String,
}

impl Failure {
    pub(crate) fn new(rank: usize, kind: FailureKind, reason: impl Into<String>) -> Self {
        let mut reason = reason.into();
        if reason.len() > MAX_REASON_BYTES {
            let cut = (0..=MAX_REASON_BYTES).rev().find(|&at| reason.is_char_boundary(at));
            reason.truncate(cut.unwrap_or(0));
        }
        Self { rank, kind, reason }
    }

    /// Tells `error`, met by `rank`, in the form that the other ranks hear.
    pub(crate) fn of(rank: usize, error: &CommError) -> Self {
        match error {
            CommError::Died { rank, detail } => Self::new(*rank, FailureKind::Died, detail.clone()),
            CommError::Left { rank, group, detail } => {
                Self::new(*rank, FailureKind::Left, format!("{group}\n{detail}"))
            }
            CommError::Poisoned { rank, reason } => {
                Self::new(*rank, FailureKind::Failed, reason.clone())
            }
            other => Self::new(rank, FailureKind::Failed, other.to_string()),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            FailureKind::Died => 0,
            FailureKind::Left => 1,
            FailureKind::Failed => 2,
            FailureKind::StoreLost => 3,
        };
        let mut bytes = (self.rank as u32).to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend_from_slice(self.reason.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (rank, rest) = bytes.split_first_chunk::<4>()?;
        let (kind, reason) = rest.split_first()?;
        let kind = match kind {
            0 => FailureKind::Died,
            1 => FailureKind::Left,
            2 => FailureKind::Failed,
            3 => FailureKind::StoreLost,
            _ => return None,
        };
        let reason = String::from_utf8_lossy(reason).into_owned();
        Some(Self::new(u32::from_le_bytes(*rank) as usize, kind, reason))
    }
}

impl From<Failure> for CommError {
    fn from(failure: Failure) -> Self {
        let Failure { rank, kind, reason } = failure;
        match kind {
            FailureKind::Died => Self::Died { rank, detail: reason },
            FailureKind::Failed => Self::Poisoned { rank, reason },
            FailureKind::StoreLost => Self::Store {
                address: reason,
                detail: "it closed the connection; the launcher or its machine ended".into(),
            },
            FailureKind::Left => {
                let (group, detail) = reason.split_once('\n').unwrap_or((&reason, "a call"));
                Self::Left { rank, group: group.into(), detail: detail.into() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_survives_the_wire() {
        let left = CommError::Left { rank: 3, group: "world".into(), detail: "in x".into() };
        let failure = Failure::of(0, &left);
        assert_eq!(Failure::decode(&failure.encode()), Some(failure.clone()));
        assert_eq!(CommError::from(failure), left);
        assert_eq!(Failure::decode(&[1, 2, 3]), None);
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let failure = Failure::new(0, FailureKind::Failed, "ü".repeat(MAX_REASON_BYTES));
        assert_eq!(failure.reason.len(), MAX_REASON_BYTES);
    }
}
