//! What ends a wait: success, the session's failure, a departure, the deadline.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::lane::Lane;
use super::progress::describe_missing;
use super::runtime::sleep;
use super::sys::Pending;
use crate::header::Header;
use crate::{CommError, Result};

/// Time for other ranks to notice the same deadline before the missing ones are named.
const TIMEOUT_GRACE: Duration = Duration::from_millis(300);

/// Why an operation stopped.
pub(super) enum Halt {
    /// The session has failed, or MPI has.
    Failed(CommError),
    /// The deadline passed.
    Deadline,
    /// A rank of the group has left it before it came to this operation.
    Left { peer: usize },
    /// The peer's header is another one.
    Mismatch { peer: usize, remote: Header },
    /// The peer's bytes are no header.
    Malformed { peer: usize },
}

impl From<CommError> for Halt {
    fn from(error: CommError) -> Self {
        Self::Failed(error)
    }
}

/// What a rank waits for, which tells whose departure would end it.
#[derive(Clone, Copy)]
pub(super) enum Wait {
    /// For all to enter the collective of this number.
    Enter(u64),
    /// For `peer` to send the message of this number to this rank.
    SendOf { peer: usize, index: u64 },
    /// For `peer` to receive the message of this number from this rank.
    ReceiptOf { peer: usize, index: u64 },
    /// For data of ranks that have all entered.
    Data,
}

impl Lane {
    /// Waits for a call of MPI, the failure of the session, a departure or the deadline.
    pub(super) async fn until<M: Unpin>(
        &self,
        deadline: Instant,
        wait: Wait,
        pending: Result<Pending<M>>,
    ) -> Result<M, Halt> {
        let mut pending = pin!(pending?);
        poll_fn(|context| {
            if let Poll::Ready(result) = pending.as_mut().poll(context) {
                self.session.context.pace.news();
                return Poll::Ready(result.map_err(Halt::Failed));
            }
            match self.interruption(deadline, wait) {
                Some(halt) => Poll::Ready(Err(halt)),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn interruption(&self, deadline: Instant, wait: Wait) -> Option<Halt> {
        if let Some(error) = self.session.shared.failure() {
            return Some(Halt::Failed(error));
        }
        if let Some(peer) = self.absent(wait) {
            return Some(Halt::Left { peer });
        }
        (Instant::now() >= deadline).then_some(Halt::Deadline)
    }

    /// Returns a rank that is waited for in vain, because it has left the group.
    fn absent(&self, wait: Wait) -> Option<usize> {
        if !self.session.has_departures() {
            return None;
        }
        let departure = |peer: usize| self.session.departure(self.group, self.members[peer]);
        match wait {
            Wait::Enter(sequence) => (0..self.members.len())
                .find(|&peer| departure(peer).is_some_and(|left| left.entered <= sequence)),
            Wait::SendOf { peer, index } => {
                departure(peer).filter(|left| left.sent <= index).map(|_| peer)
            }
            Wait::ReceiptOf { peer, index } => {
                departure(peer).filter(|left| left.received <= index).map(|_| peer)
            }
            Wait::Data => None,
        }
    }

    /// Says in words why an operation stopped.
    pub(super) async fn explain(
        &self,
        halt: Halt,
        header: &Header,
        wait: Wait,
        timeout: Duration,
    ) -> CommError {
        let (group, rank) = (self.identity.clone(), self.comm.rank());
        match halt {
            Halt::Failed(error) => error,
            Halt::Mismatch { peer, remote } => CommError::Mismatch {
                group,
                rank,
                peer,
                local: header.to_string(),
                remote: remote.to_string(),
            },
            Halt::Malformed { peer } => {
                CommError::Malformed { group, peer, detail: "no header of a collective".into() }
            }
            Halt::Left { peer } => CommError::Left {
                rank: self.members[peer],
                group,
                detail: format!("rank {} is still in {header}", self.session.shared.rank),
            },
            Halt::Deadline => self.explain_timeout(header, wait, timeout).await,
        }
    }

    /// Finds out which ranks have not entered the operation.
    async fn explain_timeout(&self, header: &Header, wait: Wait, timeout: Duration) -> CommError {
        let missing = match wait {
            Wait::Enter(sequence) => {
                sleep(TIMEOUT_GRACE).await;
                let answers = self.session.ask(self.group, &self.members).await;
                if let Some(failure) = self.session.shared.failure() {
                    return failure;
                }
                describe_missing(&answers, sequence + 1)
            }
            _ => "the other side did not come".to_owned(),
        };
        let (group, rank) = (self.identity.clone(), self.comm.rank());
        tracing::error!(group, rank, call = %header, missing, "timed out");
        let operation = header.to_string();
        CommError::Timeout { group, rank, operation, timeout, missing }
    }
}
