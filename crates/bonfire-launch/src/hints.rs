//! What to do about common failures.

use crate::cause::Exit;
use nix::sys::signal::Signal;

/// What the launcher knows beside how a rank has ended.
pub(crate) struct Clues {
    oom_kills_before: Option<u64>,
    /// The ends of what the ranks of this node have printed.
    pub(crate) last_words: Vec<String>,
}

/// A text that a failing program prints, and what to do about it.
const KNOWN: [(&[&str], &str); 5] = [
    (
        &["Address already in use", "EADDRINUSE"],
        "another program, or an earlier run, has a port that is needed: end it, or choose another with \
         --master-port or --rdzv-endpoint",
    ),
    (
        &["libnccl"],
        "NCCL's library was not found or is too old: pip install nvidia-nccl-cu13, or set \
         BONFIRE_NCCL_PATH to its file",
    ),
    (
        &["CUDA_ERROR_OUT_OF_MEMORY", "CUDA out of memory", "out of memory on device"],
        "the GPU's memory is used up: a smaller data.batch_size with more train.accumulate_grad_batches, \
         precision.mode = \"bf16\", or distributed.zero_stage = 1",
    ),
    (
        &["No space left on device"],
        "a disk or /dev/shm is full: df -h shows which; BONFIRE_TRANSPORT=tcp does without shared memory",
    ),
    (
        &["Too many open files"],
        "the limit of open files is too low: ulimit -n 65536 before the start",
    ),
];

impl Clues {
    /// Looks before anything can have failed.
    pub(crate) fn new() -> Self {
        Self { oom_kills_before: oom_kills(), last_words: Vec::new() }
    }

    /// The last line that a rank has printed, if it has printed any.
    pub(crate) fn last_line(&self, local_rank: usize) -> Option<String> {
        let lines = self.last_words.get(local_rank)?.lines().rev();
        lines.map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    }

    /// What to do about a failure.
    pub(crate) fn hint(
        &self,
        exit: Exit,
        local_rank: usize,
        message: Option<&str>,
    ) -> Option<String> {
        let killed = exit == Exit::Signal(Signal::SIGKILL as i32) || exit == Exit::Code(137);
        if killed && self.oom_kills_before.zip(oom_kills()).is_some_and(|(old, new)| new > old) {
            return Some(
                "the kernel has killed a process for want of memory meanwhile: a smaller \
                 data.batch_size, fewer data.workers, or fewer ranks on this machine"
                    .to_owned(),
            );
        }
        let printed = self.last_words.get(local_rank).map_or("", String::as_str);
        let texts = [message.unwrap_or_default(), printed];
        let is_in = |sign: &&str| texts.iter().any(|text| text.contains(*sign));
        let known = KNOWN.iter().find(|(signs, _)| signs.iter().any(&is_in));
        if let Some((_, remedy)) = known {
            return Some((*remedy).to_owned());
        }
        match exit {
            Exit::Signal(number) if number == Signal::SIGSEGV as i32 => Some(
                "a segmentation fault: ulimit -c unlimited before the start leaves a core dump"
                    .into(),
            ),
            Exit::Signal(number) if number == Signal::SIGKILL as i32 => Some(
                "somebody has killed it: a scheduler at its limit of time or memory, or a person"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// Processes that the kernel has killed for want of memory since it started.
fn oom_kills() -> Option<u64> {
    let counters = std::fs::read_to_string("/proc/vmstat").ok()?;
    counters.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_failures_come_with_a_remedy() {
        let mut clues = Clues::new();
        clues.last_words = vec![String::new(), "bind: Address already in use (os error 98)".into()];
        let hint = |exit, rank, message| clues.hint(exit, rank, message).unwrap_or_default();
        assert!(hint(Exit::Code(1), 1, None).contains("--master-port"));
        assert!(hint(Exit::Code(1), 0, Some("libnccl.so.2: cannot open")).contains("NCCL"));
        assert!(hint(Exit::Signal(9), 0, None).contains("scheduler"));
        assert_eq!(hint(Exit::Code(1), 0, Some("no data")), "");
    }
}
