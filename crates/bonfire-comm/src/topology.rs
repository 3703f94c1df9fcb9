//! Which ranks of a group are on which machine, and the order in which a ring visits them.

use std::collections::HashMap;

/// The ranks of a group by machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    /// Ranks in the order of the ring: those of a machine are adjacent, whatever their numbers.
    order: Vec<usize>,
    /// Place of each rank in `order`.
    position: Vec<usize>,
    /// Ranks of each machine in ascending order; the machines by their first rank.
    machines: Vec<Vec<usize>>,
    /// Index into `machines` of each rank.
    machine_of: Vec<usize>,
    /// Whether ranks of a machine share memory.
    shares_memory: bool,
}

impl Topology {
    /// `machines` holds a number per rank, equal on the same machine.
    pub(crate) fn new(machines: &[u64], shares_memory: bool) -> Self {
        let mut index: HashMap<u64, usize> = HashMap::new();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut machine_of = Vec::with_capacity(machines.len());
        for (rank, machine) in machines.iter().enumerate() {
            let place = *index.entry(*machine).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[place].push(rank);
            machine_of.push(place);
        }
        let order: Vec<usize> = groups.iter().flatten().copied().collect();
        let mut position = vec![0; order.len()];
        for (place, rank) in order.iter().enumerate() {
            position[*rank] = place;
        }
        Self { order, position, machines: groups, machine_of, shares_memory }
    }

    pub(crate) fn position(&self, rank: usize) -> usize {
        self.position[rank]
    }

    /// The rank at a place of the ring, which goes round.
    pub(crate) fn at(&self, position: usize) -> usize {
        self.order[position % self.order.len()]
    }

    /// Ranks of each machine.
    pub(crate) fn machines(&self) -> &[Vec<usize>] {
        &self.machines
    }

    /// The machine of a rank, as an index into [`Self::machines`].
    pub(crate) fn machine_of(&self, rank: usize) -> usize {
        self.machine_of[rank]
    }

    /// Whether all ranks share memory.
    pub(crate) fn is_one_machine(&self) -> bool {
        self.shares_memory && self.machines.len() == 1
    }

    /// Whether some ranks share memory.
    pub(crate) fn has_neighbours(&self) -> bool {
        self.shares_memory && self.machines.len() < self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_machine_are_adjacent_in_the_ring() {
        let topology = Topology::new(&[7, 9, 7, 9, 7], true);
        assert_eq!(topology.order, [0, 2, 4, 1, 3]);
        assert_eq!(topology.machines(), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!((topology.position(1), topology.at(3), topology.at(5)), (3, 1, 0));
        assert!(topology.has_neighbours() && !topology.is_one_machine());
        assert!(!Topology::new(&[7, 7], false).is_one_machine());
        assert!(!Topology::new(&[1, 2, 3], true).has_neighbours());
    }
}
