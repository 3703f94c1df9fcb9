//! What a child does between fork and exec: it ties its life to its parent's.

#![allow(unsafe_code)] // `pre_exec` is the only place between fork and exec.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{Pid, getpid, getppid};

/// Makes the kernel kill the child when the thread that starts it ends, and lets the child write
/// to a terminal of whose foreground group it is no part. With `cores` it keeps to those.
pub(crate) fn die_with_parent(command: &mut Command, cores: Option<CpuSet>) {
    let parent = getpid();
    // SAFETY: between fork and exec only async-signal-safe calls are allowed, and no allocation.
    // `prepare` makes system calls only (prctl, getppid, sigaction, sched_setaffinity)
    // and builds errors from numbers; what it captures is plain memory.
    unsafe { command.pre_exec(move || prepare(parent, cores.as_ref())) };
}

fn prepare(parent: Pid, cores: Option<&CpuSet>) -> io::Result<()> {
    // A sandbox may refuse it. Then only a launcher that is killed leaves its workers behind, for as
    // long as they do not miss the store that ends with it.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    // A parent that died before the line above sends no signal any more.
    if getppid() != parent {
        return Err(io::Error::from_raw_os_error(nix::libc::ESRCH));
    }
    // SAFETY: ignoring a signal installs no handler that could run in a wrong state.
    unsafe { signal(Signal::SIGTTOU, SigHandler::SigIgn) }?;
    // A shell has what it starts in the background ignore these; a worker gets them from its
    // launcher only.
    for ignored in [Signal::SIGINT, Signal::SIGQUIT] {
        // SAFETY: as above.
        unsafe { signal(ignored, SigHandler::SigDfl) }?;
    }
    if let Some(cores) = cores {
        // A wish: a core may have gone since.
        let _ = sched_setaffinity(Pid::from_raw(0), cores);
    }
    Ok(())
}
