use super::Scale;

/// The exponential moving average of values, corrected for its start at 0 like Adam's moments: the first
/// is the first value itself. On a logarithmic axis it is that of the logarithms, or a single spike would
/// lift it for long. What has no place on the axis stays as it is and leaves no trace behind it.
pub(super) fn averages(points: &[(f64, f64)], weight: f64, scale: Scale) -> Vec<(f64, f64)> {
    let weight = weight.clamp(0.0, 0.999_999);
    let (mut sum, mut norm) = (0.0, 0.0);
    let average = |&(x, value): &(f64, f64)| {
        let height = if scale == Scale::Log { value.ln() } else { value };
        if !height.is_finite() {
            return (x, value);
        }
        sum = weight * sum + (1.0 - weight) * height;
        norm = weight * norm + (1.0 - weight);
        let mean = sum / norm;
        (x, if scale == Scale::Log { mean.exp() } else { mean })
    };
    points.iter().map(average).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_begin_at_the_first_value_and_survive_what_is_not_a_number() {
        let points = [(0.0, 4.0), (1.0, f64::NAN), (2.0, 4.0), (3.0, 1.0)];
        let smooth = averages(&points, 0.5, Scale::Linear);
        assert_eq!((smooth[0].1, smooth[2].1), (4.0, 4.0));
        assert!(smooth[1].1.is_nan() && (2.0..3.0).contains(&smooth[3].1), "{smooth:?}");
    }

    #[test]
    fn ratios_are_averaged_on_a_logarithmic_axis() {
        let smooth = averages(&[(0.0, 1.0), (1.0, 0.0), (2.0, 100.0)], 0.999_999, Scale::Log);
        assert!((smooth[2].1 - 10.0).abs() < 0.01 && smooth[1].1 == 0.0, "{smooth:?}");
    }
}
