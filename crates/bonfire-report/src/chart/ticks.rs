//! Round numbers along an axis.

/// Multiples of 1, 2 or 5 times a power of 10, about `count` of them, and the significant digits that
/// tell them apart.
pub(super) fn linear(low: f64, high: f64, count: usize) -> (Vec<f64>, usize) {
    let count = count.max(1) as f64;
    let raw = high / count - low / count;
    let power = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= raw * 0.999);
    let distance = factor.unwrap_or(10.0) * power;
    let (first, last) = ((low / distance - 1e-9).ceil(), (high / distance + 1e-9).floor());
    if !(distance > 0.0 && first.is_finite() && last - first < 100.0) {
        return (vec![low], 3);
    }
    let values: Vec<f64> = (0..=(last - first) as u32)
        .map(|index| rounded((first + f64::from(index)) * distance, distance))
        .collect();
    let greatest = low.abs().max(high.abs());
    let digits = greatest.log10().floor() - distance.log10().floor() + 1.0;
    (values, digits.clamp(1.0, 17.0) as usize)
}

/// Powers of 10, with 2 and 5 times them where there are few.
pub(super) fn logarithmic(low: f64, high: f64, count: usize) -> (Vec<f64>, usize) {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decades = (last - first).max(1) as usize;
    let stride = decades.div_ceil(count.max(1)).max(1);
    let factors: &[f64] = if decades * 3 <= count + 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    // Multiples of the stride, so that 1 is among them.
    let powers = (first..=last).filter(|power| power.rem_euclid(stride as i32) == 0);
    let all = powers.flat_map(|power| factors.iter().map(move |factor| scaled(*factor, power)));
    let values: Vec<f64> =
        all.filter(|value| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(value)).collect();
    if values.len() < 2 {
        return linear(low, high, count);
    }
    (values, 3)
}

/// A factor times a power of 10, as exactly as if it were written out.
fn scaled(factor: f64, power: i32) -> f64 {
    format!("{factor}e{power}").parse().unwrap_or(f64::NAN)
}

/// The nearest number that is written with the digits of the distance, so that 0.1 * 3 is 0.3.
fn rounded(value: f64, distance: f64) -> f64 {
    let decimals = -distance.log10().floor();
    if !(0.0..=15.0).contains(&decimals) {
        return value;
    }
    format!("{value:.*}", decimals as usize).parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(linear(0.0, 449.0, 8).0, [0.0, 100.0, 200.0, 300.0, 400.0]);
        assert_eq!(linear(0.0, 1.0, 6).0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(linear(-3.0, 3.0, 3).0, [-2.0, 0.0, 2.0]);
        assert_eq!(linear(0.9901, 0.9909, 4), (vec![0.9902, 0.9904, 0.9906, 0.9908], 4));
        assert_eq!(linear(0.0, 1e300, 5).0.len(), 6);
        assert_eq!(linear(f64::MIN, f64::MAX, 6).0, [-1e308, 0.0, 1e308]);
        assert!(linear(1e-300, 2e-300, 5).0.len() >= 5);
    }

    #[test]
    fn logarithmic_ticks_are_powers() {
        let few = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
        assert_eq!(logarithmic(0.1, 100.0, 6).0, few);
        assert_eq!(logarithmic(1e-9, 1.0, 5).0, [1e-8, 1e-6, 1e-4, 1e-2, 1.0]);
        assert_eq!(logarithmic(0.31, 0.38, 4).0, [0.32, 0.34, 0.36, 0.38], "no power is inside");
        let (all, _) = logarithmic(1e-300, 1e300, 6);
        assert!(all.len() <= 7 && all.contains(&1.0), "{all:?}");
    }
}
