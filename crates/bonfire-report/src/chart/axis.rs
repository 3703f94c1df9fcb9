use super::{Scale, ticks};
use crate::number;

/// A range of values and the pixels on which it lies.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Pixels of `low` and `high`.
    pub(super) pixels: (f64, f64),
}

impl Axis {
    /// An axis for all values that have a place on the scale; the same with 1 if none has.
    pub(super) fn around(values: impl Iterator<Item = f64>, scale: Scale) -> Self {
        let usable = values.filter(|value| has_place(scale, *value));
        let range = usable.fold(None, |range: Option<(f64, f64)>, value| {
            Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        });
        let (low, high) = range.unwrap_or((1.0, 1.0));
        let (low, high) = if constant(low, high) { widened(low, scale) } else { (low, high) };
        Self { scale, low, high, pixels: (0.0, 1.0) }
    }

    /// Lets a linear axis begin or end at 0, on the side that is nearer.
    pub(super) fn with_zero(self) -> Self {
        match self.scale {
            Scale::Linear if self.low > 0.0 => Self { low: 0.0, ..self },
            Scale::Linear if self.high < 0.0 => Self { high: 0.0, ..self },
            _ => self,
        }
    }

    /// Makes room beyond the extremes, so that curves do not run along the border; 0 stays an end.
    pub(super) fn with_room(self) -> Self {
        let room = |value: f64, toward: f64| match self.scale {
            Scale::Linear if value == 0.0 => value,
            Scale::Linear => (value + (value * 0.04 - toward * 0.04)).clamp(f64::MIN, f64::MAX),
            Scale::Log => {
                let roomy = value.ln() * 1.04 - toward.ln() * 0.04;
                roomy.exp().clamp(f64::MIN_POSITIVE, f64::MAX)
            }
        };
        Self { low: room(self.low, self.high), high: room(self.high, self.low), ..self }
    }

    pub(super) fn on(self, first: f64, last: f64) -> Self {
        Self { pixels: (first, last), ..self }
    }

    /// The pixel of a value, if it has one.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        if !has_place(self.scale, value) {
            return None;
        }
        let share = match self.scale {
            // In units of the greatest, since differences of huge numbers overflow.
            Scale::Linear => {
                let unit = self.low.abs().max(self.high.abs());
                (value / unit - self.low / unit) / (self.high / unit - self.low / unit)
            }
            Scale::Log => (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln()),
        };
        Some(self.pixels.0 + share * (self.pixels.1 - self.pixels.0))
    }

    /// Round values on the axis, about `count` of them, with their words.
    pub(super) fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        let (values, digits) = match self.scale {
            Scale::Linear => ticks::linear(self.low, self.high, count),
            Scale::Log => ticks::logarithmic(self.low, self.high, count),
        };
        values.into_iter().map(|value| (value, number::significant(value, digits))).collect()
    }

    /// The axis in figures, from which a page's script finds values.
    pub(super) fn described(&self) -> String {
        let scale = if self.scale == Scale::Log { "log" } else { "linear" };
        let (first, last) = self.pixels;
        format!("{scale} {first} {last} {:e} {:e}", self.low, self.high)
    }
}

/// Whether the scale has a place for a value. The numbers just above 0 that have fewer digits than others
/// count as 0 on a logarithmic one.
fn has_place(scale: Scale, value: f64) -> bool {
    value.is_finite() && (scale == Scale::Linear || value >= f64::MIN_POSITIVE)
}

/// Whether two values are too near each other to be told apart on an axis.
fn constant(low: f64, high: f64) -> bool {
    let greatest = low.abs().max(high.abs());
    greatest < f64::MIN_POSITIVE * 1e6 || high / greatest - low / greatest < 1e-12
}

/// A range with the value in its middle.
fn widened(value: f64, scale: Scale) -> (f64, f64) {
    match scale {
        Scale::Log => (
            (value / 2.0).max(f64::MIN_POSITIVE),
            (value * 2.0).clamp(f64::MIN_POSITIVE * 4.0, f64::MAX),
        ),
        Scale::Linear if value.abs() < f64::MIN_POSITIVE * 1e6 => (-1.0, 1.0),
        Scale::Linear => {
            let room = value.abs() * 0.1;
            ((value - room).max(f64::MIN), (value + room).min(f64::MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(values: &[f64], scale: Scale) -> Axis {
        Axis::around(values.iter().copied(), scale).on(0.0, 100.0)
    }

    #[test]
    fn values_lie_between_the_ends() {
        let linear = around(&[-1e308, 0.0, f64::NAN, 1e308], Scale::Linear);
        assert_eq!(
            [-1e308, 0.0, 1e308].map(|value| linear.place(value)),
            [0.0, 50.0, 100.0].map(Some)
        );
        assert_eq!(linear.place(f64::INFINITY), None);
        let log = around(&[0.0, 1e-300, 1e300, -1.0], Scale::Log);
        assert_eq!(log.place(0.0), None);
        assert!((log.place(1.0).unwrap() - 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_single_value_lies_in_the_middle() {
        for value in [0.0, 5e-324, 1e-300, -3.0, 1e300, f64::MAX] {
            let place = around(&[value, value], Scale::Linear).place(value).unwrap();
            assert!((1.0..=100.0).contains(&place), "{value:e}: {place}");
        }
        assert!((around(&[7.0], Scale::Log).place(7.0).unwrap() - 50.0).abs() < 1e-9);
        let all = around(&[5e-324, f64::MIN_POSITIVE, f64::MAX], Scale::Log);
        assert!(all.place(5e-324).is_none() && all.place(f64::MIN_POSITIVE).unwrap().abs() < 1e-9);
    }

    #[test]
    fn room_and_zero_widen_the_range() {
        let axis = around(&[10.0, 20.0], Scale::Linear).with_zero();
        assert_eq!(axis.place(0.0), Some(0.0));
        let roomy = axis.with_room();
        assert_eq!(roomy.place(0.0), Some(0.0), "zero is the end");
        assert!((90.0..99.0).contains(&roomy.place(20.0).unwrap()));
        let ends = around(&[f64::MIN, f64::MAX], Scale::Linear).with_room();
        assert_eq!(ends.place(f64::MAX), Some(100.0));
    }
}
