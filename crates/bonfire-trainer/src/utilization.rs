//! How busy a rank keeps its processor and its device, and how much memory it has needed.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::time::Instant;

/// Tells how busy a rank's device is.
pub trait DeviceMeter: Send {
    /// The share of the time since this was last asked for in which the device has computed, from 0 to 1;
    /// `None` if that is not known.
    fn take_utilization(&mut self) -> Option<f64>;
}

/// What a rank has used in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Usage {
    /// Processor cores that this process has kept busy, on average.
    pub(crate) cpu_cores: f64,
    /// Share of the time in which its device has computed.
    pub(crate) device: Option<f64>,
}

/// Counts what a rank uses, from its creation on.
pub(crate) struct UsageMeter {
    device: Option<Box<dyn DeviceMeter>>,
    start: Mark,
    last: Mark,
    /// Seconds in which the device was looked at, and busy ones among them.
    looked: f64,
    busy: f64,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    cpu_seconds: f64,
}

impl Mark {
    fn now() -> Self {
        Self { at: Instant::now(), cpu_seconds: cpu_seconds() }
    }

    /// Cores that were busy between two marks.
    fn cores_until(self, end: Self) -> f64 {
        let seconds = (end.at - self.at).as_secs_f64();
        if seconds > 0.0 { (end.cpu_seconds - self.cpu_seconds) / seconds } else { 0.0 }
    }
}

impl UsageMeter {
    pub(crate) fn new(device: Option<Box<dyn DeviceMeter>>) -> Self {
        let now = Mark::now();
        Self { device, start: now, last: now, looked: 0.0, busy: 0.0 }
    }

    /// What was used since this was last asked for.
    pub(crate) fn take_interval(&mut self) -> Usage {
        let now = Mark::now();
        let last = std::mem::replace(&mut self.last, now);
        let device = self.device.as_mut().and_then(|meter| meter.take_utilization());
        if let Some(share) = device {
            let seconds = (now.at - last.at).as_secs_f64();
            self.looked += seconds;
            self.busy += seconds * share;
        }
        Usage { cpu_cores: last.cores_until(now), device }
    }

    /// What was used in all.
    pub(crate) fn total(&mut self) -> Usage {
        self.take_interval();
        let device = (self.looked > 0.0).then(|| self.busy / self.looked);
        Usage { cpu_cores: self.start.cores_until(Mark::now()), device }
    }
}

/// Seconds of all threads of this process on a core; 0 where the system does not say.
fn cpu_seconds() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        micros as f64 * 1e-6
    })
}

/// The most bytes of main memory that this process has had at a time; 0 where the system does not say.
pub(crate) fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Shares(Vec<Option<f64>>);

    impl DeviceMeter for Shares {
        fn take_utilization(&mut self) -> Option<f64> {
            self.0.pop().flatten()
        }
    }

    #[test]
    fn a_busy_thread_is_a_core() {
        let mut meter = UsageMeter::new(None);
        let start = Instant::now();
        let mut sum = 0u64;
        while start.elapsed() < Duration::from_millis(200) {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        let busy = meter.take_interval();
        // Other tests of this process may run meanwhile, and others may have the core.
        assert!(busy.cpu_cores > 0.2, "{busy:?} {sum}");
        assert_eq!(busy.device, None);
    }

    #[test]
    fn the_device_is_weighted_with_the_time() {
        let mut meter = UsageMeter::new(Some(Box::new(Shares(vec![None, Some(1.0), Some(0.5)]))));
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(meter.take_interval().device, Some(0.5));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(meter.take_interval().device, Some(1.0));
        let total = meter.total().device.unwrap();
        assert!(total > 0.5 && total < 0.75, "{total}");
    }

    #[test]
    fn memory_is_at_least_what_is_held() {
        let held = vec![1u8; 64 << 20];
        assert!(peak_memory_bytes() >= std::hint::black_box(&held).len() as u64);
    }
}
