//! What becomes of an operation that did not end in time.

use std::fmt;
use std::time::Duration;

use crate::CommError;
use crate::header::Header;
use crate::membership::{Membership, Progress};

/// Time for other ranks to notice the same deadline before the missing ones are named.
const GRACE: Duration = Duration::from_millis(300);

/// A rank that has waited for too long in a group.
pub(crate) struct Late<'a> {
    pub(crate) membership: &'a dyn Membership,
    pub(crate) identity: &'a str,
    /// Under which name the ranks' progress is known.
    pub(crate) key: &'a str,
    /// In the group.
    pub(crate) rank: usize,
    /// World rank of each rank of the group.
    pub(crate) members: &'a [usize],
    pub(crate) timeout: Duration,
}

impl Late<'_> {
    /// Finds out which ranks do not answer, have not entered a collective, or are in another.
    ///
    /// `peers` are the ranks that were waited for; `counterpart` returns this rank's call that a
    /// remote one should have matched.
    pub(crate) fn explain(
        &self,
        header: &Header,
        peers: &[usize],
        counterpart: impl Fn(&Header) -> Header,
    ) -> CommError {
        std::thread::sleep(GRACE);
        let progress = self.membership.progress(self.key, self.members);
        if let Some(failure) = self.membership.failure() {
            return failure.heard_in(self.membership.rank(), header);
        }
        let progress = match progress {
            Ok(progress) => progress,
            Err(reason) => return self.error(header, reason),
        };
        for (peer, answer) in progress.iter().enumerate() {
            if let Progress::Entered(Some(remote)) = answer
                && let Some((local, remote)) = counterpart(remote).parting(remote)
            {
                let group = self.identity.to_owned();
                return CommError::Mismatch { group, rank: self.rank, peer, local, remote };
            }
        }
        let silent = self.ranks_where(|rank| progress[rank] == Progress::Silent);
        let is_late = |rank: usize| header.is_collective() && progress[rank].is_before(header);
        let late = self.ranks_where(is_late);
        self.error(header, describe_missing(&late, &silent, peers, header.is_collective()))
    }

    fn ranks_where(&self, wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        (0..self.members.len()).filter(|rank| *rank != self.rank && wanted(*rank)).collect()
    }

    /// The error, when it is known who is missing.
    pub(crate) fn error(&self, call: impl fmt::Display, missing: String) -> CommError {
        let operation = call.to_string();
        tracing::error!(
            group = self.identity,
            rank = self.rank,
            call = operation,
            missing,
            "timed out"
        );
        CommError::Timeout {
            group: self.identity.to_owned(),
            rank: self.rank,
            operation,
            timeout: self.timeout,
            missing,
        }
    }
}

/// Names the ranks that have not entered a collective or do not answer; else the `peers` that are
/// waited for.
fn describe_missing(late: &[usize], silent: &[usize], peers: &[usize], collective: bool) -> String {
    match (late.is_empty(), silent.is_empty()) {
        (true, true) if collective => format!(
            "all ranks have entered it, but nothing comes from or gets to rank(s) {peers:?}: the \
             network or the ranks are slow"
        ),
        (true, true) => format!("rank(s) {peers:?} did not take part"),
        (false, true) => format!("rank(s) {late:?} have not entered it"),
        (true, false) => format!("rank(s) {silent:?} do not answer (stopped or unreachable)"),
        (false, false) => {
            let silent = format!("rank(s) {silent:?} do not answer (stopped or unreachable)");
            // They may wait for the silent ones.
            format!("{silent}, {late:?} have not entered it")
        }
    }
}
