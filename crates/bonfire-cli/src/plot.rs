//! The learning rate over a run, as a picture.

use bonfire_report::chart::{Chart, Mark, Series, Theme};
use bonfire_trainer::config::Schedule;

/// Most points of the curve; more could not be told apart.
const POINTS: u64 = 1600;

/// Draws the rate of every step, or of evenly spaced ones in a long run, as SVG.
pub(crate) fn svg(name: &str, schedule: &Schedule) -> String {
    let chart = Chart {
        title: format!("{name}: learning rate"),
        x_label: "optimizer step".into(),
        y_label: "learning rate".into(),
        from_zero: true,
        series: vec![Series::line("learning rate", points(schedule))],
        marks: marks(schedule),
        ..Chart::default()
    };
    chart.to_svg(Theme::StandAlone)
}

/// The steps within the run at which something changes.
fn marks(schedule: &Schedule) -> Vec<Mark> {
    let changes = schedule.landmarks().into_iter();
    let changes = changes.filter(|mark| !["first", "middle", "last"].contains(&mark.what));
    changes.map(|mark| Mark { x: mark.step as f64, label: mark.what.to_string() }).collect()
}

/// Steps with their rates, those at which something changes and the ones before them included.
fn points(schedule: &Schedule) -> Vec<(f64, f64)> {
    let last = schedule.total_steps().saturating_sub(1);
    let stride = schedule.total_steps().div_ceil(POINTS).max(1);
    let marks = schedule.landmarks().into_iter().map(|mark| mark.step);
    let around = marks.flat_map(|step| [step.saturating_sub(1), step]);
    let mut steps: Vec<u64> =
        (0..POINTS).map(|index| index.saturating_mul(stride).min(last)).chain(around).collect();
    steps.sort_unstable();
    steps.dedup();
    steps.into_iter().map(|step| (step as f64, schedule.lr(step))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_trainer::config::{Course, RunLength, SchedulePlan, StepUnit};

    fn schedule(course: Course, total_steps: u64) -> Schedule {
        let length = RunLength { steps_per_epoch: 10, total_steps };
        Schedule::new(&SchedulePlan::new(course), 0.5, length)
    }

    #[test]
    fn a_fall_is_upright_and_named_however_few_of_the_steps_are_drawn() {
        let course =
            Course::MultiStep { milestones: vec![500_000], gamma: 0.5, unit: StepUnit::Step };
        let schedule = schedule(course, 1_000_001);
        let points = points(&schedule);
        assert_eq!((points[0], points[points.len() - 1]), ((0.0, 0.5), (1_000_000.0, 0.25)));
        let fall = points.windows(2).find(|pair| pair[0].1 != pair[1].1).unwrap();
        assert_eq!((fall[0].0, fall[1].0), (499_999.0, 500_000.0));
        assert_eq!(marks(&schedule), [Mark { x: 500_000.0, label: "fall".to_string() }]);
        let svg = svg("a & b", &schedule);
        assert!(svg.contains("a &amp; b: learning rate"), "{svg}");
    }

    #[test]
    fn runs_of_one_step_and_rates_of_zero_are_drawn() {
        for steps in [1, 2] {
            let svg = svg("short", &schedule(Course::Constant, steps));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let length = RunLength { steps_per_epoch: 1, total_steps: 5 };
        let zero = Schedule::new(&SchedulePlan::default(), 0.0, length);
        assert!(!svg("zero", &zero).contains("NaN"));
    }
}
