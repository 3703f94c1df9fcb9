//! Signals that a launcher passes on, and those that it was started to ignore.

use crate::error::LaunchError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// The signals that are passed on to ranks, as they arrive.
pub(crate) struct Forwarded(Signals);

impl Forwarded {
    /// Takes them over from the system.
    pub(crate) fn install() -> Result<Self, LaunchError> {
        let mut forwarded = vec![SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2];
        if !is_ignored(SIGHUP) {
            forwarded.push(SIGHUP);
        }
        let signals = Signals::new(forwarded);
        Ok(Self(signals.map_err(|source| LaunchError::Signals { source })?))
    }

    /// Those that arrived since this was last asked.
    pub(crate) fn pending(&mut self) -> Vec<i32> {
        self.0.pending().collect()
    }
}

/// Whether the process ignores a signal now, as after `nohup` (SIGHUP).
pub fn is_ignored(number: i32) -> bool {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| ignored_in(&status, number))
        .unwrap_or(false)
}

/// Reads the mask of ignored signals, bit n-1 for signal n.
fn ignored_in(status: &str, number: i32) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    let bit = u32::try_from(number).ok()?.checked_sub(1)?;
    Some(mask.checked_shr(bit)? & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::ignored_in;

    #[test]
    fn the_mask_counts_from_signal_one() {
        let status = "Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_eq!(ignored_in(status, 1), Some(true));
        assert_eq!(ignored_in(status, 2), Some(false));
        assert_eq!(ignored_in(status, 13), Some(true));
        assert_eq!(ignored_in("Name:\tx\n", 1), None);
    }
}
