//! Which batch sizes are tried.

/// What a batch size came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trial {
    pub(super) images_per_s: f64,
    pub(super) seconds_per_step: f64,
    /// Of all ranks.
    pub(super) peak_memory_bytes: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Attempt {
    Fits(Trial),
    /// It needs more memory than there is, in the words of whoever noticed.
    TooLarge(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    pub(super) first: usize,
    pub(super) last: usize,
    /// Main memory that may be used.
    pub(super) memory_bytes: Option<f64>,
    /// Whether to go on while larger batches are no faster.
    pub(super) largest: bool,
}

/// Why no larger batch size was tried.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum End {
    Last,
    NoFaster,
    Memory { batch_size: usize, needed: f64 },
    TooLarge { batch_size: usize, reason: String },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    /// Ascending.
    pub(super) trials: Vec<(usize, Trial)>,
    pub(super) end: End,
}

/// Gain of speed below which a larger batch is no faster.
const GAIN: f64 = 0.03;
/// Share of the best speed that is as good as the best.
const ENOUGH: f64 = 0.95;
/// Share of the memory that may be used: what is predicted is not exact.
const FILLED: f64 = 0.9;
/// Steps of the search between the last size that fits and the first that does not.
const REFINEMENTS: usize = 3;

/// Doubles the batch size until memory or data end, or until two sizes in a row bring no speed; then, if the
/// largest is asked for, looks between the last that fits and the first that does not.
pub(super) fn run<E>(
    limits: &Limits,
    mut attempt: impl FnMut(usize) -> Result<Attempt, E>,
) -> Result<Found, E> {
    let mut trials: Vec<(usize, Trial)> = Vec::new();
    let mut batch_size = limits.first;
    let end = loop {
        if let Some(needed) = lacking(&trials, batch_size, limits.memory_bytes) {
            break End::Memory { batch_size, needed };
        }
        match attempt(batch_size)? {
            Attempt::Fits(trial) => trials.push((batch_size, trial)),
            Attempt::TooLarge(reason) => break End::TooLarge { batch_size, reason },
        }
        if !limits.largest && is_flat(&trials) {
            break End::NoFaster;
        }
        if batch_size >= limits.last {
            break End::Last;
        }
        batch_size = batch_size.saturating_mul(2).min(limits.last);
    };
    let mut found = Found { trials, end };
    if limits.largest && found.end != End::Last {
        refine(&mut found, batch_size, limits, attempt)?;
    }
    Ok(found)
}

/// Halves the distance to the first size that does not fit.
fn refine<E>(
    found: &mut Found,
    mut too_large: usize,
    limits: &Limits,
    mut attempt: impl FnMut(usize) -> Result<Attempt, E>,
) -> Result<(), E> {
    for _ in 0..REFINEMENTS {
        let Some((fits, _)) = found.trials.last().copied() else { return Ok(()) };
        let middle = fits + (too_large - fits) / 2;
        if middle == fits {
            return Ok(());
        }
        if lacking(&found.trials, middle, limits.memory_bytes).is_some() {
            too_large = middle;
            continue;
        }
        match attempt(middle)? {
            Attempt::Fits(trial) => found.trials.push((middle, trial)),
            Attempt::TooLarge(_) => too_large = middle,
        }
    }
    Ok(())
}

/// Bytes that a batch size would need, if that is more than there are: memory grows like a line.
fn lacking(trials: &[(usize, Trial)], batch_size: usize, memory: Option<f64>) -> Option<f64> {
    let [.., (first, one), (second, other)] = trials else { return None };
    let slope = (other.peak_memory_bytes - one.peak_memory_bytes) / (second - first) as f64;
    let needed = other.peak_memory_bytes + slope * (batch_size as f64 - *second as f64);
    memory.is_some_and(|memory| needed > FILLED * memory).then_some(needed)
}

/// Whether the last two sizes were no faster than the best before them.
fn is_flat(trials: &[(usize, Trial)]) -> bool {
    let [before @ .., one, other] = trials else { return false };
    let speed = |(_, trial): &(usize, Trial)| trial.images_per_s;
    let best = before.iter().map(speed).fold(0.0, f64::max);
    best > 0.0 && speed(one).max(speed(other)) < best * (1.0 + GAIN)
}

impl Found {
    /// The size to take, and the share of the best speed that it has: the smallest that is as good as the
    /// best, or the largest that fits.
    pub(super) fn suggestion(&self, largest: bool) -> Option<(usize, f64)> {
        let best = self.trials.iter().map(|(_, trial)| trial.images_per_s).fold(0.0, f64::max);
        let share = |trial: &Trial| trial.images_per_s / best;
        let found = match largest {
            true => self.trials.last(),
            false => self.trials.iter().find(|(_, trial)| share(trial) >= ENOUGH),
        };
        found.map(|(batch_size, trial)| (*batch_size, share(trial)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    const LIMITS: Limits =
        Limits { first: 8, last: 4096, memory_bytes: Some(1000.0), largest: false };

    /// A machine whose steps take a time of their own beside that of the images, and that has room for some.
    fn machine(fits: usize) -> impl FnMut(usize) -> Result<Attempt, Infallible> {
        move |batch_size| {
            Ok(if batch_size > fits {
                Attempt::TooLarge("out of memory".to_owned())
            } else {
                let seconds = 0.01 + batch_size as f64 * 1e-4;
                Attempt::Fits(Trial {
                    images_per_s: batch_size as f64 / seconds,
                    seconds_per_step: seconds,
                    peak_memory_bytes: 100.0 + batch_size as f64,
                })
            })
        }
    }

    fn sizes(found: &Found) -> Vec<usize> {
        found.trials.iter().map(|(size, _)| *size).collect()
    }

    fn search(limits: &Limits, fits: usize) -> Found {
        match run(limits, machine(fits)) {
            Ok(found) => found,
        }
    }

    #[test]
    fn it_ends_where_larger_batches_are_no_faster() {
        let limits = Limits { memory_bytes: None, last: 1 << 20, ..LIMITS };
        let found = search(&limits, usize::MAX);
        assert_eq!(found.end, End::NoFaster);
        let (suggested, share) = found.suggestion(false).unwrap();
        // 95 % of the limit of 10,000 images/s is reached at 1900.
        assert_eq!(suggested, 2048, "{found:?}");
        assert!(share >= 0.95);
    }

    #[test]
    fn memory_that_would_not_do_is_not_tried() {
        let found = search(&LIMITS, usize::MAX);
        // 100 + 1024 bytes would not go into nine tenths of 1000.
        assert_eq!(found.end, End::Memory { batch_size: 1024, needed: 1124.0 });
        assert_eq!(sizes(&found), [8, 16, 32, 64, 128, 256, 512]);
    }

    #[test]
    fn a_size_that_fails_is_the_end_and_the_largest_is_looked_for_below_it() {
        let found = search(&LIMITS, 100);
        assert_eq!(
            found.end,
            End::TooLarge { batch_size: 128, reason: "out of memory".to_owned() }
        );
        assert_eq!(sizes(&found), [8, 16, 32, 64]);
        let found = search(&Limits { largest: true, ..LIMITS }, 100);
        assert_eq!(sizes(&found), [8, 16, 32, 64, 96]);
        assert_eq!(found.suggestion(true).map(|(size, _)| size), Some(96));
    }

    #[test]
    fn the_data_are_the_end_and_nothing_that_fits_is_no_suggestion() {
        let found = search(&Limits { last: 50, ..LIMITS }, usize::MAX);
        assert_eq!((sizes(&found), found.end.clone()), (vec![8, 16, 32, 50], End::Last));
        let found = search(&LIMITS, 4);
        assert_eq!((found.suggestion(false), found.suggestion(true)), (None, None));
    }
}
