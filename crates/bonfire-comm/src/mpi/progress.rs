//! How far the ranks are in their groups, and who has left one.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::note::{Departure, Note};
use super::runtime::turn;
use super::session::Session;

/// Time for the other ranks to tell how far they are.
const ANSWERS: Duration = Duration::from_millis(700);

impl Session {
    /// How far this rank is in a group, as others may ask; none when it does not know it.
    pub(super) fn entered(&self, group: u64) -> Option<u64> {
        let state = self.state.borrow();
        let waits = state.wanted.contains_key(&group) || state.created.contains_key(&group);
        state.entered.get(&group).map(|entered| entered.get()).or(waits.then_some(0))
    }

    /// Asks the other members of a group how far they are.
    pub(super) async fn ask(&self, group: u64, members: &[usize]) -> Vec<Answer> {
        let others = || members.iter().copied().filter(|&rank| rank != self.shared.rank);
        for rank in others() {
            self.state.borrow_mut().progress.remove(&(group, rank));
            self.tell(rank, &Note::Query { group });
        }
        let limit = Instant::now() + ANSWERS;
        let has_answered = |rank| self.state.borrow().progress.contains_key(&(group, rank));
        while !others().all(has_answered) && Instant::now() < limit {
            turn().await;
        }
        let state = self.state.borrow();
        let answer = |rank: &usize| match state.progress.get(&(group, *rank)) {
            _ if *rank == self.shared.rank => Answer::Own,
            None => Answer::Silent,
            Some(None) => Answer::Unknown,
            Some(Some(entered)) => Answer::Entered(*entered),
        };
        members.iter().map(answer).collect()
    }

    /// Makes the progress of this rank in a group visible to the others.
    pub(super) fn register(&self, group: u64, entered: Rc<Cell<u64>>) {
        self.state.borrow_mut().entered.insert(group, entered);
    }

    /// Tells whether anybody has left any group; the cheap question before [`Self::departure`].
    pub(super) fn has_departures(&self) -> bool {
        !self.state.borrow().departures.is_empty()
    }

    /// Returns how far a rank had come when it left a group, if it has.
    pub(super) fn departure(&self, group: u64, rank: usize) -> Option<Departure> {
        self.state.borrow().departures.get(&(group, rank)).copied()
    }

    /// Tells the members of a group that this rank has left it; `counts` are the messages sent to
    /// and received from each of them.
    pub(super) fn leave(&self, group: u64, members: &[usize], counts: &[(u64, u64)]) {
        // ORDER: a rank that leaves because of a failure must not be taken for its cause.
        self.tell_failure();
        let entered = self.state.borrow_mut().entered.remove(&group);
        let entered = entered.map_or(0, |entered| entered.get());
        for (&rank, &(sent, received)) in members.iter().zip(counts) {
            if rank != self.shared.rank {
                let departure = Departure { entered, sent, received };
                self.tell(rank, &Note::Left { group, departure });
            }
        }
    }
}

/// What a rank says of its progress in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The rank that asks.
    Own,
    /// It has entered that many collectives.
    Entered(u64),
    /// It does not know the group.
    Unknown,
    /// It said nothing.
    Silent,
}

/// Names the ranks that have not entered `needed` collectives.
pub(super) fn describe_missing(answers: &[Answer], needed: u64) -> String {
    let ranks_where = |wanted: &dyn Fn(Answer) -> bool| -> Vec<usize> {
        (0..answers.len()).filter(|&rank| wanted(answers[rank])).collect()
    };
    let late = ranks_where(&|answer| match answer {
        Answer::Entered(entered) => entered < needed,
        Answer::Unknown => true,
        Answer::Own | Answer::Silent => false,
    });
    let silent = ranks_where(&|answer| answer == Answer::Silent);
    match (late.is_empty(), silent.is_empty()) {
        (true, true) => "all ranks have entered it: the network or the ranks are slow".to_owned(),
        (false, true) => format!("rank(s) {late:?} have not entered it"),
        (true, false) => format!("rank(s) {silent:?} do not answer (stopped or unreachable)"),
        (false, false) => {
            format!("rank(s) {late:?} have not entered it, {silent:?} do not answer")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_are_named() {
        let answers = [Answer::Own, Answer::Entered(3), Answer::Unknown, Answer::Silent];
        let text = describe_missing(&answers, 4);
        assert_eq!(text, "rank(s) [1, 2] have not entered it, [3] do not answer");
        assert_eq!(describe_missing(&answers[..3], 0), "rank(s) [2] have not entered it");
        assert!(describe_missing(&answers[..2], 3).starts_with("all ranks have entered it"));
    }
}
