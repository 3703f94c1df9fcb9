//! Reductions and broadcasts along binary trees.
//!
//! Node i of a tree over W places has the children 2i+1 and 2i+2. A reduction runs up, a
//! broadcast down, both pipelined: a node passes on each byte as soon as it has it. The second tree
//! of the double tree is the first one read from the other end, so that with an even number of
//! ranks the inner nodes of one are leaves of the other; each carries half of the data.
//!
//! Determinism: a node reduces its own bytes, then its first child's, then its second child's; the
//! second child's bytes wait for the first child's.

use std::ops::Range;

use super::{Collective, Halt, segments};
use crate::ReduceOp;
use crate::flow::{self, FlowId, Fold, Gate, Incoming, Outgoing};
use crate::header::Header;
use crate::reduce::Reduction;

/// One rank's place in a tree.
struct Node {
    parent: Option<usize>,
    children: Vec<usize>,
}

impl Node {
    /// The node at `place` of a heap over `size` places; `rank_at` tells who is where.
    fn new(place: usize, size: usize, rank_at: impl Fn(usize) -> usize) -> Self {
        let children = [2 * place + 1, 2 * place + 2];
        Self {
            parent: (place > 0).then(|| rank_at((place - 1) / 2)),
            children: children.into_iter().filter(|c| *c < size).map(rank_at).collect(),
        }
    }
}

/// The flows of one tree, put together with those of another.
#[derive(Default)]
struct Flows {
    outs: Vec<Outgoing>,
    ins: Vec<Incoming>,
}

impl Flows {
    fn receive(&mut self, incoming: Incoming) -> FlowId {
        self.ins.push(incoming);
        FlowId::In(self.ins.len() - 1)
    }

    /// The way up. Returns the flow after which this node's bytes are complete, if any.
    fn up(
        &mut self,
        node: &Node,
        header: Header,
        span: &Range<usize>,
        op: ReduceOp,
        ranks: usize,
    ) -> Option<FlowId> {
        let mut last = None;
        for (index, &child) in node.children.iter().enumerate() {
            let completes = node.parent.is_none() && index + 1 == node.children.len();
            let reduction = match completes {
                true => Reduction::last(op, ranks),
                false => Reduction::partial(op),
            };
            let gate = last.map_or_else(Gate::open, Gate::behind);
            let spans = vec![(span.clone(), Fold::Reduce(reduction))];
            last = Some(self.receive(Incoming::new(child, header, spans, gate)));
        }
        if let Some(parent) = node.parent {
            let gate = last.map_or_else(Gate::open, Gate::behind);
            self.outs.push(Outgoing::new(parent, header, vec![span.clone()], gate));
        }
        last
    }

    /// The way down; `complete` is the flow after which the root has its bytes.
    fn down(&mut self, node: &Node, header: Header, span: &Range<usize>, complete: Option<FlowId>) {
        let mut source = complete;
        if let Some(parent) = node.parent {
            let spans = vec![(span.clone(), Fold::Store)];
            source = Some(self.receive(Incoming::new(parent, header, spans, Gate::open())));
        }
        for &child in &node.children {
            let gate = source.map_or_else(Gate::open, Gate::behind);
            self.outs.push(Outgoing::new(child, header, vec![span.clone()], gate));
        }
    }
}

impl Collective<'_> {
    pub(super) fn all_reduce_tree(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let node = self.node(0, false);
        let all = 0..data.len();
        let mut flows = Flows::default();
        let complete = flows.up(&node, header, &all, op, self.size);
        flows.down(&node, header.with_round(1), &all, complete);
        flow::run(self, data, flows.outs, flows.ins)
    }

    /// ORDER: flows between two ranks share a stream. Both list the ways up before the ways down, and
    /// the first tree before the second, so no flow waits for one that waits for it.
    pub(super) fn all_reduce_double_tree(
        &mut self,
        header: Header,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let nodes = [self.node(0, false), self.node(0, true)];
        let halves = segments(data.len(), header.dtype, 2);
        let mut flows = Flows::default();
        let mut complete = [None, None];
        for tree in 0..2 {
            let header = header.with_round(tree as u8);
            complete[tree] = flows.up(&nodes[tree], header, &halves[tree], op, self.size);
        }
        for tree in 0..2 {
            let header = header.with_round(2 + tree as u8);
            flows.down(&nodes[tree], header, &halves[tree], complete[tree]);
        }
        flow::run(self, data, flows.outs, flows.ins)
    }

    pub(super) fn reduce_tree(
        &mut self,
        header: Header,
        data: &mut [u8],
        root: usize,
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let node = self.node(root, false);
        let mut flows = Flows::default();
        flows.up(&node, header, &(0..data.len()), op, self.size);
        flow::run(self, data, flows.outs, flows.ins)
    }

    pub(super) fn broadcast_tree(
        &mut self,
        header: Header,
        data: &mut [u8],
        root: usize,
    ) -> Result<(), Halt> {
        let node = self.node(root, false);
        let mut flows = Flows::default();
        flows.down(&node, header, &(0..data.len()), None);
        flow::run(self, data, flows.outs, flows.ins)
    }

    /// This rank's node of the tree with that root, over the ring's order or against it.
    fn node(&self, root: usize, mirrored: bool) -> Node {
        let (size, start) = (self.size, self.topology.position(root));
        let own = (self.topology.position(self.rank) + size - start) % size;
        let turn = |place: usize| if mirrored { size - 1 - place } else { place };
        Node::new(turn(own), size, |place| self.topology.at(start + turn(place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_but_the_root_is_the_child_of_its_parent() {
        for size in 1..20 {
            for place in 0..size {
                let node = Node::new(place, size, |place| place);
                assert_eq!(node.parent.is_none(), place == 0);
                for child in node.children {
                    assert_eq!(Node::new(child, size, |place| place).parent, Some(place));
                }
            }
        }
    }

    #[test]
    fn inner_nodes_of_one_tree_are_leaves_of_the_other() {
        for size in [2, 4, 6, 8, 16] {
            for place in 0..size {
                let one = Node::new(place, size, |place| place);
                let other = Node::new(size - 1 - place, size, |place| place);
                let inner = |node: &Node| usize::from(!node.children.is_empty());
                assert!(inner(&one) + inner(&other) <= 1, "{place} of {size}");
            }
        }
    }
}
