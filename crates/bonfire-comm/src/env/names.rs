//! The variables in which launchers tell a process its rank.

use super::{REQUIRED, parse};
use crate::{CommError, Result};

/// Names of the variables in which a launcher tells a process its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) rank: &'static str,
    pub(super) world_size: &'static str,
    pub(super) local_rank: &'static str,
    pub(super) local_world_size: &'static str,
}

pub(super) const TORCHRUN: Names = Names {
    rank: "RANK",
    world_size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_world_size: "LOCAL_WORLD_SIZE",
};
const OPEN_MPI: Names = Names {
    rank: "OMPI_COMM_WORLD_RANK",
    world_size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};
const HYDRA: Names = Names {
    rank: "PMI_RANK",
    world_size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_world_size: "MPI_LOCALNRANKS",
};
const SLURM: Names = Names {
    rank: "SLURM_PROCID",
    world_size: "SLURM_NTASKS",
    local_rank: "SLURM_LOCALID",
    // Slurm tells the numbers of all nodes in one variable.
    local_world_size: "SLURM_STEP_TASKS_PER_NODE",
};

/// Finds out which launcher has started this process.
pub(super) fn find(lookup: &impl Fn(&str) -> Option<String>) -> Result<Option<Names>> {
    let has = |name: &str| lookup(name).is_some();
    if has(TORCHRUN.rank) || has(TORCHRUN.world_size) {
        return Ok(Some(TORCHRUN));
    }
    let open_mpi = [OPEN_MPI.rank, OPEN_MPI.world_size];
    let (present, missing): (Vec<_>, Vec<_>) = open_mpi.into_iter().partition(|name| has(name));
    if missing.is_empty() {
        return Ok(Some(OPEN_MPI));
    }
    if !present.is_empty() {
        return Err(CommError::MissingVariables { missing, present });
    }
    // A world of one is no world here: it is a batch script, or the task in which a launcher runs.
    let is_world = |names: Names| {
        let size = lookup(names.world_size).and_then(|size| size.trim().parse::<usize>().ok());
        has(names.rank) && size.is_some_and(|size| size > 1)
    };
    if is_world(HYDRA) {
        return Ok(Some(HYDRA));
    }
    // Slurm sets the others in a batch script, too, where no process is a rank; the step is set
    // by `srun` alone.
    if is_world(SLURM) && has(SLURM.local_rank) && has("SLURM_STEP_ID") {
        return Ok(Some(SLURM));
    }
    Ok(REQUIRED.into_iter().any(has).then_some(TORCHRUN))
}

impl Names {
    /// Returns the number of ranks on this machine, if it is told.
    pub(super) fn local_world_size(
        self,
        lookup: &impl Fn(&str) -> Option<String>,
    ) -> Result<Option<usize>> {
        if self != SLURM {
            return parse(lookup, self.local_world_size);
        }
        let Some(tasks) = lookup(self.local_world_size) else { return Ok(None) };
        let node = parse(lookup, "SLURM_NODEID")?.unwrap_or(0);
        tasks_of_node(&tasks, node).map(Some).ok_or_else(|| CommError::InvalidVariable {
            name: self.local_world_size,
            value: tasks,
            expected: format!("numbers like 4(x2),3 with one for node {node}"),
        })
    }

    /// Returns the machine of rank 0, if it is told.
    pub(super) fn first_machine(self, lookup: &impl Fn(&str) -> Option<String>) -> Option<String> {
        let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
        (self == SLURM).then(|| lists.into_iter().find_map(lookup)).flatten().map(first_of_nodes)
    }
}

/// Reads how many tasks run on a node from Slurm's list: `4(x2),3` is 4, 4 and 3.
fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut nodes = 0usize;
    for entry in list.split(',') {
        let (tasks, repeated) = match entry.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (entry, 1usize),
        };
        nodes = nodes.checked_add(repeated)?;
        if node < nodes {
            return tasks.trim().parse().ok();
        }
    }
    None
}

/// Reads the first name of Slurm's list: `gpu[03-07,9],head` is gpu03, ...
fn first_of_nodes(list: String) -> String {
    let until = |text: &str, ends: &[char]| text.split(ends).next().unwrap_or_default().to_owned();
    match list.split_once('[') {
        Some((prefix, numbers)) if !prefix.contains(',') => {
            format!("{prefix}{}", until(numbers, &['-', ',', ']']))
        }
        _ => until(&list, &[',']),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_slurm_are_read() {
        assert_eq!(tasks_of_node("4(x2),3", 1), Some(4));
        assert_eq!(tasks_of_node("4(x2),3", 2), Some(3));
        assert_eq!(tasks_of_node("4(x2),3", 3), None);
        assert_eq!(tasks_of_node("4(x", 0), None);
        let first = |list: &str| first_of_nodes(list.to_owned());
        assert_eq!(first("gpu[03-07,9],head"), "gpu03");
        assert_eq!(first("a[2]"), "a2");
        assert_eq!((first("head,gpu[1-2]"), first("one")), ("head".into(), "one".into()));
    }
}
