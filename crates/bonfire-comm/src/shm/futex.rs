//! Sleeping until a word of shared memory changes.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` holds `value`, at most for `timeout`. May return early without a reason.
#[cfg(target_os = "linux")]
pub(super) fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the word and the time live through the call; the kernel only reads them. The
    // operation is the shared one, since the word may be seen by other processes.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const timeout);
    }
}

/// Wakes everybody who sleeps on `word`.
#[cfg(target_os = "linux")]
pub(super) fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a key only.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, libc::c_int::MAX);
    }
}

/// Time between two looks at a word where the system has no futex.
#[cfg(not(target_os = "linux"))]
const NAP: Duration = Duration::from_micros(50);

#[cfg(not(target_os = "linux"))]
pub(super) fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
    if word.load(std::sync::atomic::Ordering::Acquire) == value {
        std::thread::sleep(timeout.min(NAP));
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn wake(_word: &AtomicU32) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    #[test]
    fn a_sleeper_is_woken_and_a_changed_word_lets_nobody_sleep() {
        let word = AtomicU32::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                word.store(1, Ordering::Release);
                wake(&word);
            });
            while word.load(Ordering::Acquire) == 0 {
                wait(&word, 0, Duration::from_secs(20));
            }
        });
        wait(&word, 0, Duration::from_secs(20));
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
