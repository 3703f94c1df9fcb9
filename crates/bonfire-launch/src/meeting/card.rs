//! What nodes and their host tell each other, and how cards become a run.

use crate::count::NodeCount;
use serde::{Deserialize, Serialize};

/// A node as it comes to the meeting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Card {
    /// A number that no other node of the run has, by arrival.
    pub(crate) id: u64,
    /// Its place, where the user has given one.
    pub(crate) node_rank: Option<usize>,
    /// Ranks that it will start.
    pub(crate) nproc: usize,
    /// Nodes that it was told the run has.
    pub(crate) nodes: String,
    pub(crate) machine: String,
    pub(crate) pid: u32,
    pub(crate) version: String,
}

impl Card {
    /// Machine and process, for people.
    fn name(&self) -> String {
        format!("{} (process {})", self.machine, self.pid)
    }
}

/// The nodes of an attempt in their order, or why there will be none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    Formed(Vec<Card>),
    Refused(String),
}

/// Why an attempt is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Over {
    /// All ranks of all nodes have finished.
    Finished,
    /// A rank has failed; which one the nodes find out together.
    Failed,
    /// A node has gone without a word.
    Lost { node: usize, machine: String },
    /// A node could not start its ranks.
    NotStarted { node: usize, reason: String },
    /// A node has come for which there is room.
    Grows,
    /// The ranks were asked to stop, and did.
    Stopped { signal: Option<i32>, code: i32 },
}

/// Checks a node by itself and beside those before it.
///
/// # Errors
/// In words: what does not fit, and whose it is.
pub(crate) fn check(card: &Card, others: &[Card], nodes: NodeCount) -> Result<(), String> {
    if let Some(first) = others.first()
        && first.version != card.version
    {
        return Err(format!(
            "{} has bonfire {}, {} has {}: install the same version on all nodes",
            card.name(),
            card.version,
            first.name(),
            first.version
        ));
    }
    if card.nodes != nodes.to_string() {
        return Err(format!(
            "{} was started with --nnodes {}, the host of the rendezvous with --nnodes {nodes}: start \
             all alike",
            card.name(),
            card.nodes
        ));
    }
    let Some(rank) = card.node_rank else { return Ok(()) };
    if rank >= nodes.max {
        return Err(format!(
            "{} has --node-rank {rank}, and of {nodes} nodes the last is {}",
            card.name(),
            nodes.max - 1
        ));
    }
    match others.iter().find(|other| other.node_rank == Some(rank)) {
        None => Ok(()),
        Some(other) => Err(format!(
            "--node-rank {rank} was given to {} and to {}: give each node its own",
            other.name(),
            card.name()
        )),
    }
}

/// Brings nodes in their order: by given place, then those that were together before in the order that
/// they had, then by arrival.
pub(crate) fn arrange(mut cards: Vec<Card>, before: &[Card], max: usize) -> Vec<Card> {
    let place = |card: &Card| before.iter().position(|old| old.id == card.id);
    cards.sort_by_key(|card| {
        let given = card.node_rank.map_or((true, 0), |rank| (false, rank));
        (given, place(card).unwrap_or(usize::MAX), card.id)
    });
    cards.truncate(max);
    cards
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(id: u64, node_rank: Option<usize>) -> Card {
        Card {
            id,
            node_rank,
            nproc: 2,
            nodes: "2".into(),
            machine: format!("m{id}"),
            pid: 7,
            version: "1.0".into(),
        }
    }

    const TWO: NodeCount = NodeCount { min: 2, max: 2 };

    #[test]
    fn nodes_that_do_not_fit_are_named() {
        let first = card(1, Some(0));
        let refused = |card: Card| check(&card, std::slice::from_ref(&first), TWO).unwrap_err();
        assert_eq!(
            refused(card(2, Some(0))),
            "--node-rank 0 was given to m1 (process 7) and to m2 (process 7): give each node its own"
        );
        assert!(refused(card(2, Some(2))).contains("--node-rank 2, and of 2 nodes the last is 1"));
        let other = Card { version: "1.1".into(), ..card(2, Some(1)) };
        assert_eq!(
            refused(other),
            "m2 (process 7) has bonfire 1.1, m1 (process 7) has 1.0: install the same version on all nodes"
        );
        let other = Card { nodes: "3".into(), ..card(2, Some(1)) };
        assert!(refused(other).contains("--nnodes 3, the host of the rendezvous with --nnodes 2"));
        assert_eq!(check(&card(2, Some(1)), &[first], TWO), Ok(()));
    }

    #[test]
    fn nodes_keep_their_order() {
        let ids = |cards: Vec<Card>| cards.iter().map(|card| card.id).collect::<Vec<_>>();
        let given = vec![card(1, Some(1)), card(2, Some(0))];
        assert_eq!(ids(arrange(given, &[], 2)), [2, 1]);
        let before = [card(4, None), card(2, None)];
        let coming = || vec![card(1, None), card(2, None), card(4, None)];
        assert_eq!(ids(arrange(coming(), &before, 3)), [4, 2, 1]);
        assert_eq!(ids(arrange(coming(), &before, 2)), [4, 2]);
    }
}
