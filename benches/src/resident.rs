//! What this process weighs.

use std::io::{Error, Result};

const STATUS: &str = "/proc/self/status";

/// Resident memory now, in bytes.
pub(crate) fn now() -> Result<u64> {
    status_bytes("VmRSS")
}

/// The most resident memory since the start, or the last [`forget_peak`], in bytes.
pub(crate) fn peak() -> Result<u64> {
    status_bytes("VmHWM")
}

/// Lets the peak begin anew from what is resident now.
///
/// # Reference
/// `proc_pid_clear_refs(5)`, value 5.
pub(crate) fn forget_peak() -> Result<()> {
    std::fs::write("/proc/self/clear_refs", "5")
}

fn status_bytes(key: &str) -> Result<u64> {
    let status = std::fs::read_to_string(STATUS)?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let kilobytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    match kilobytes {
        Some(kilobytes) => Ok(kilobytes * 1024),
        None => Err(Error::other(format!("{STATUS} has no {key} in kB"))),
    }
}
