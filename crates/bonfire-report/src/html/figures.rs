//! The charts of a run.

use super::ranks;
use crate::chart::{Chart, Mark, Scale, Series, Theme};
use crate::history::{Phase, Row};
use crate::xml::escaped;

/// Ratio between the greatest and the least value from which a logarithmic axis shows more.
const WIDE: f64 = 100.0;

/// The charts that have anything to show.
pub(super) fn html(rows: &[Row]) -> String {
    let training =
        [loss(rows), scores(rows), learning_rate(rows), gradient_norm(rows), loss_scale(rows)];
    let speed = [
        throughput(rows),
        ranks::throughput(rows),
        ranks::busy(rows),
        ranks::time_shares(rows),
        ranks::devices(rows),
        ranks::cores(rows),
    ];
    section("Training", &training) + &section("Speed", &speed)
}

fn section(title: &str, charts: &[Chart]) -> String {
    let shown = charts.iter().filter(|chart| !chart.series.is_empty());
    let figures: String = shown.map(figure).collect();
    if figures.is_empty() {
        return figures;
    }
    format!("<h2>{title}</h2>\n<section class=\"charts\">\n{figures}</section>\n")
}

fn figure(chart: &Chart) -> String {
    let (title, svg) = (escaped(&chart.title), chart.to_svg(Theme::Inline));
    format!("<figure><figcaption>{title}</figcaption>\n{svg}</figure>\n")
}

/// A chart over the steps of a run.
pub(super) fn over_steps(title: &str, y_label: &str, series: Vec<Series>) -> Chart {
    Chart {
        title: title.to_string(),
        x_label: "optimizer step".to_string(),
        y_label: y_label.to_string(),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        ..Chart::default()
    }
}

/// A value of each row that has it, over the steps.
fn points(rows: &[Row], value: impl Fn(&Row) -> Option<f64>) -> Vec<(f64, f64)> {
    rows.iter().filter_map(|row| Some((row.step as f64, value(row)?))).collect()
}

fn figures(rows: &[Row], phase: Phase, name: &str) -> Vec<(f64, f64)> {
    points(rows, |row| if row.phase == phase { row.figure(name) } else { None })
}

fn loss(rows: &[Row]) -> Chart {
    let train = smoothed(Series::line("training", figures(rows, Phase::Train, "loss")));
    let valid = Series::line("validation", figures(rows, Phase::Valid, "loss"));
    let ema = Series::line("validation, averages", figures(rows, Phase::Valid, "ema_loss"));
    let best = lowest(&valid.points).map(|x| Mark { x, label: "best validation".to_string() });
    let chart = over_steps("Loss", "loss", vec![train, valid, ema]);
    Chart { y_scale: scale_for(&chart.series), marks: best.into_iter().collect(), ..chart }
}

/// Where the least value is, if there are several.
fn lowest(points: &[(f64, f64)]) -> Option<f64> {
    let finite = points.iter().filter(|(_, value)| value.is_finite());
    let least = finite.min_by(|one, other| one.1.total_cmp(&other.1))?;
    (points.len() > 1).then_some(least.0)
}

/// Accuracy, and other scores that lie between 0 and 1.
fn scores(rows: &[Row]) -> Chart {
    let of = |phase, key: &str, name: &str| Series::line(name, figures(rows, phase, key));
    let valid = |key: &str, name: &str| of(Phase::Valid, key, name);
    let series = vec![
        smoothed(of(Phase::Train, "accuracy", "training")),
        valid("accuracy", "validation"),
        valid("top5_accuracy", "validation, top 5"),
        valid("f1", "F1"),
        valid("auroc", "AUROC"),
        valid("ema_accuracy", "validation, averages"),
    ];
    over_steps("Accuracy", "share", series)
}

fn learning_rate(rows: &[Row]) -> Chart {
    let rate = Series::line("learning rate", points(rows, |row| row.learning_rate));
    Chart { from_zero: true, ..over_steps("Learning rate", "learning rate", vec![rate]) }
}

fn gradient_norm(rows: &[Row]) -> Chart {
    let norm = Series::line("gradient norm", figures(rows, Phase::Train, "grad_norm"));
    let chart = over_steps("Gradient norm", "L2 norm", vec![smoothed(norm)]);
    Chart { y_scale: scale_for(&chart.series), ..chart }
}

fn loss_scale(rows: &[Row]) -> Chart {
    let scale = Series::line("loss scale", figures(rows, Phase::Train, "loss_scale"));
    Chart { y_scale: Scale::Log, ..over_steps("Loss scale", "factor", vec![scale]) }
}

fn throughput(rows: &[Row]) -> Chart {
    let total = Series::line("all ranks", points(rows, |row| row.images_per_s));
    Chart {
        from_zero: true,
        ..over_steps("Throughput of all ranks", "images/s", vec![smoothed(total)])
    }
}

/// A logarithmic scale if all values have a place on it and lie far apart.
fn scale_for(series: &[Series]) -> Scale {
    let values = || {
        let all = series.iter().flat_map(|series| &series.points).map(|(_, value)| *value);
        all.filter(|value| value.is_finite())
    };
    let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    if low > 0.0 && high / low >= WIDE { Scale::Log } else { Scale::Linear }
}

/// Lets a moving average tell the course of a series that goes up and down: if its way is several times as
/// long as the distance between its extremes.
pub(super) fn smoothed(series: Series) -> Series {
    let values: Vec<f64> =
        series.points.iter().map(|(_, value)| *value).filter(|value| value.is_finite()).collect();
    let way: f64 = values.windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum();
    let (low, high) = values
        .iter()
        .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    if values.len() < 20 || way.is_nan() || way < 3.0 * (high - low) || high <= low {
        return series;
    }
    // The average reaches back over a hundredth of the run: enough to calm it, and not so much that it lags.
    let span = (values.len() as f64 / 100.0).max(5.0);
    series.with_smoothing(1.0 - 1.0 / span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_smoothed_and_a_clean_course_is_not() {
        let series = |value: fn(i32) -> f64| {
            smoothed(Series::line("s", (0..100).map(|x| (f64::from(x), value(x))).collect()))
        };
        assert_eq!(series(|x| 1.0 / f64::from(x + 1)).smoothing, 0.0);
        assert_eq!(series(|_| 2.0).smoothing, 0.0);
        assert!(series(|x| f64::from(x % 2)).smoothing > 0.5);
    }

    #[test]
    fn a_wide_range_is_logarithmic() {
        let scale = |values: &[f64]| {
            let points = values.iter().map(|value| (0.0, *value)).collect();
            scale_for(&[Series::line("s", points)])
        };
        assert_eq!(scale(&[0.01, 5.0, f64::NAN]), Scale::Log);
        assert_eq!(scale(&[0.5, 5.0]), Scale::Linear);
        assert_eq!(scale(&[0.0, 5000.0]), Scale::Linear);
        assert_eq!(scale(&[]), Scale::Linear);
    }
}
