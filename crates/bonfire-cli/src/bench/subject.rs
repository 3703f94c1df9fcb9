//! One operation on the memory of one rank: known contents, the call, and the check.

use super::op::{Op, ROOT};
use crate::CliError;
use bonfire_comm::{Element, Operation, PeerOp, ProcessGroup, ReduceOp};

/// What an element holds that an operation has to overwrite; no contents and no sum equal it.
const UNSET: u8 = 255;

/// Most contents that are added up for one element, so that every type holds the sum exactly:
/// 64 times 3 is below 255, the largest `u8`, and 256, up to where `bf16` has all whole numbers.
const ADDENDS: usize = 64;

/// An operation and its memory.
pub(super) struct Subject<'a, T> {
    group: &'a ProcessGroup,
    op: Op,
    /// Elements of one rank's part, where the buffer has parts.
    part: usize,
    data: Vec<T>,
    /// Where `send_recv`, which is never in place, receives.
    received: Vec<T>,
}

impl<'a, T: Element + PartialEq + From<u8>> Subject<'a, T> {
    /// Gets the memory for a buffer of `count` elements.
    pub(super) fn new(group: &'a ProcessGroup, op: Op, count: usize) -> Result<Self, CliError> {
        let part = count / group.world_size();
        let len = match op {
            Op::Gather | Op::Scatter if group.rank() != ROOT => part,
            _ => count,
        };
        let received = if op == Op::SendRecv { count } else { 0 };
        Ok(Self { group, op, part, data: allocate(len)?, received: allocate(received)? })
    }

    /// Runs the operation once.
    pub(super) fn run(&mut self) -> Result<(), CliError> {
        let operation = match self.op {
            Op::AllReduce => Operation::AllReduce(ReduceOp::Sum),
            Op::Reduce => Operation::Reduce { root: ROOT, op: ReduceOp::Sum },
            Op::Broadcast => Operation::Broadcast { root: ROOT },
            Op::AllGather => Operation::AllGather,
            Op::ReduceScatter => Operation::ReduceScatter(ReduceOp::Sum),
            Op::AllToAll => Operation::AllToAll,
            Op::Gather => Operation::Gather { root: ROOT },
            Op::Scatter => Operation::Scatter { root: ROOT },
            Op::Barrier => Operation::Barrier,
            Op::SendRecv => return self.send_recv(),
        };
        Ok(self.group.run_in_place(operation, &mut self.data)?)
    }

    fn send_recv(&mut self) -> Result<(), CliError> {
        let (to, from) = (self.next(), self.previous());
        Ok(self.group.batch_send_recv(vec![
            PeerOp::Send { data: &self.data, to },
            PeerOp::Recv { data: &mut self.received, from },
        ])?)
    }

    /// Puts the known contents in, and elsewhere what is to be overwritten.
    pub(super) fn fill(&mut self) {
        let (rank, contents) = (self.group.rank(), self.contents());
        let own_part = rank * self.part..(rank + 1) * self.part;
        let own = match self.op {
            Op::Broadcast | Op::Scatter if rank != ROOT => 0..0,
            Op::AllGather => own_part,
            Op::Gather if rank == ROOT => own_part,
            _ => 0..self.data.len(),
        };
        self.data.fill(T::from(UNSET));
        self.received.fill(T::from(UNSET));
        for (index, element) in self.data[own].iter_mut().enumerate() {
            *element = T::from(contents.of(rank, index));
        }
    }

    /// Counts the elements that differ from what [`Self::fill`] and one [`Self::run`] must give.
    pub(super) fn num_wrong(&self) -> usize {
        let (rank, part) = (self.group.rank(), self.part);
        let contents = self.contents();
        match self.op {
            Op::Barrier => 0,
            // What it holds elsewhere is unspecified.
            Op::Reduce if rank != ROOT => 0,
            Op::AllReduce | Op::Reduce => wrong(&self.data, |index| contents.sum(index)),
            Op::Broadcast => wrong(&self.data, |index| contents.of(ROOT, index)),
            Op::Gather if rank != ROOT => wrong(&self.data, |index| contents.of(rank, index)),
            Op::AllGather | Op::Gather => {
                wrong(&self.data, |index| contents.of(index / part, index % part))
            }
            // Only its own part of the buffer is specified.
            Op::ReduceScatter => {
                let own = rank * part;
                wrong(&self.data[own..own + part], |index| contents.sum(own + index))
            }
            Op::AllToAll => {
                wrong(&self.data, |index| contents.of(index / part, rank * part + index % part))
            }
            // The root keeps the parts of all, another rank has its own.
            Op::Scatter => wrong(&self.data, |index| contents.of(ROOT, rank * part + index)),
            Op::SendRecv => {
                let from = self.previous();
                wrong(&self.received, |index| contents.of(from, index))
            }
        }
    }

    fn contents(&self) -> Contents {
        Contents { world_size: self.group.world_size() }
    }

    fn next(&self) -> usize {
        (self.group.rank() + 1) % self.group.world_size()
    }

    fn previous(&self) -> usize {
        (self.group.rank() + self.group.world_size() - 1) % self.group.world_size()
    }
}

fn allocate<T: Copy + From<u8>>(len: usize) -> Result<Vec<T>, CliError> {
    let mut data = Vec::new();
    data.try_reserve_exact(len).map_err(|_| CliError::Option {
        option: format!("--sizes {}", len * size_of::<T>()),
        problem: "a rank cannot get this much memory; give a smaller size".into(),
    })?;
    data.resize(len, T::from(UNSET));
    Ok(data)
}

fn wrong<T: PartialEq + From<u8>>(data: &[T], expected: impl Fn(usize) -> u8) -> usize {
    let is_wrong = |(index, element): &(usize, &T)| **element != T::from(expected(*index));
    data.iter().enumerate().filter(is_wrong).count()
}

/// The known contents of all ranks: small whole numbers without a pattern, so that an element in
/// the wrong place or added twice is noticed, and sums are exact in every type and any order.
struct Contents {
    world_size: usize,
}

impl Contents {
    /// What element `index` of the buffer (or part) of `rank` holds: 0 to 3.
    fn of(&self, rank: usize, index: usize) -> u8 {
        // In a large world most ranks hold zero, others at every element.
        let stride = self.world_size.div_ceil(ADDENDS);
        if !(rank + index).is_multiple_of(stride) {
            return 0;
        }
        let mixed = (index as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add((rank as u64).wrapping_mul(0xd1b5_4a32_d192_ed03));
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 62) as u8
    }

    /// The sum over all ranks.
    fn sum(&self, index: usize) -> u8 {
        (0..self.world_size).map(|rank| self.of(rank, index)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_comm::local;

    const COUNT: usize = 3 * 41;

    /// Untouched memory is wrong, and the operation puts it right.
    fn check(op: Op) {
        let wrong = local::spawn(3, |group| {
            let mut subject = Subject::<f32>::new(&group, op, COUNT).unwrap();
            subject.fill();
            let before = subject.num_wrong();
            subject.run().unwrap();
            (before, subject.num_wrong())
        });
        let before: usize = wrong.iter().map(|(before, _)| before).sum();
        assert!(before > COUNT / 2 || op == Op::Barrier, "{op:?}: {wrong:?}");
        assert!(wrong.iter().all(|(_, after)| *after == 0), "{op:?}: {wrong:?}");
    }

    #[test]
    fn right_results_have_no_wrong_elements_and_untouched_memory_has() {
        for op in [Op::AllReduce, Op::Broadcast, Op::AllGather, Op::ReduceScatter] {
            check(op);
        }
    }

    #[test]
    fn right_results_of_all_operations_have_no_wrong_elements() {
        Op::ALL.iter().copied().for_each(check);
    }

    #[test]
    fn a_wrong_element_is_counted() {
        let wrong = local::spawn(2, |group| {
            let mut subject = Subject::<half::bf16>::new(&group, Op::AllReduce, COUNT).unwrap();
            subject.fill();
            subject.run().unwrap();
            subject.data[5 + group.rank()] = half::bf16::NAN;
            subject.num_wrong()
        });
        assert_eq!(wrong, [1, 1]);
    }

    #[test]
    fn sums_fit_into_every_type_in_any_world() {
        for world_size in [1, 2, 63, 64, 65, 1000, 4096] {
            let contents = Contents { world_size };
            let sum = |index| (0..world_size).map(|rank| u32::from(contents.of(rank, index))).sum();
            let sums: Vec<u32> = (0..200).map(sum).collect();
            assert!(sums.iter().all(|&sum| sum < u32::from(UNSET)), "{world_size}");
            assert!(sums.iter().any(|&sum| sum > 0), "{world_size}");
        }
    }
}
