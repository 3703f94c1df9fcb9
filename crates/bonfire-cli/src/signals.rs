//! Signals that this process was started to ignore.

/// Whether the process ignores a signal now, as after `nohup` (SIGHUP).
pub(crate) fn is_ignored(number: i32) -> bool {
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
