use bonfire_launch::is_ignored;
use bonfire_trainer::StopFlag;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Turns the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 into a request to stop, and a second SIGINT
/// into the end.
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Installs the handlers for the whole process.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub(crate) fn install() -> std::io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let signal = Arc::new(AtomicUsize::new(0));
        // ORDER: the end is registered first, so that it sees only earlier requests.
        signal_hook::flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, asked.clone())?;
        // Asks for a report in other programs: it must not end this one.
        signal_hook::flag::register(SIGUSR2, Arc::new(AtomicBool::new(false)))?;
        let stops = [SIGINT, SIGTERM, SIGHUP, SIGUSR1];
        // What nohup has the process ignore stays ignored.
        for number in stops.into_iter().filter(|number| *number != SIGHUP || !is_ignored(SIGHUP)) {
            signal_hook::flag::register_usize(number, signal.clone(), number as usize)?;
            signal_hook::flag::register(number, asked.clone())?;
        }
        Ok(Self { asked, signal })
    }

    /// A flag that is set when the process is asked to stop.
    pub(crate) fn stop_flag(&self) -> StopFlag {
        StopFlag::from_atomic(self.asked.clone())
    }

    /// The signal that asked, SIGINT if another rank was asked.
    pub(crate) fn signal(&self) -> i32 {
        match self.signal.load(Ordering::Relaxed) {
            0 => SIGINT,
            number => i32::try_from(number).unwrap_or(SIGINT),
        }
    }
}
