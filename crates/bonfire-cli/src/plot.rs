//! The learning rate over a run, as a picture.

use crate::dry_run::significant;
use bonfire_trainer::config::Schedule;
use std::fmt::Write as _;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 420.0;
/// Space around the curve for titles and numbers.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 52.0;
/// Most points of the curve; more could not be told apart.
const POINTS: u64 = 1600;

/// Draws the rate of every step, or of evenly spaced ones in a long run, as SVG.
pub(crate) fn svg(name: &str, schedule: &Schedule) -> String {
    let points = points(schedule);
    let highest = points.iter().fold(0.0f64, |most, (_, lr)| most.max(*lr));
    let scale =
        Scale { steps: schedule.total_steps().max(2) as f64 - 1.0, lr: above_zero(highest) };
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let title = format!("{}: learning rate", escaped(name));
    label(&mut text, (WIDTH / 2.0, TOP / 2.0 + 4.0), "middle", &title);
    label(&mut text, (WIDTH / 2.0, HEIGHT - 10.0), "middle", "optimizer step");
    for step in ticks(scale.steps, 8.0) {
        let (x, y) = scale.place(step, 0.0);
        line(&mut text, (x, TOP), (x, y));
        label(&mut text, (x, y + 18.0), "middle", &significant(step));
    }
    for lr in ticks(scale.lr, 6.0) {
        let (x, y) = scale.place(0.0, lr);
        line(&mut text, (x, y), (WIDTH - RIGHT, y));
        label(&mut text, (x - 8.0, y + 4.0), "end", &significant(lr));
    }
    let places = points.iter().map(|(step, lr)| scale.place(*step as f64, *lr));
    let places: Vec<String> = places.map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
    // Writing into a string cannot fail, here and below.
    let _ = writeln!(
        text,
        "<polyline fill=\"none\" stroke=\"#1f5fbf\" stroke-width=\"2\" points=\"{}\"/>",
        places.join(" ")
    );
    text.push_str("</svg>\n");
    text
}

/// Steps with their rates, those at which something changes and the ones before them included.
fn points(schedule: &Schedule) -> Vec<(u64, f64)> {
    let last = schedule.total_steps().saturating_sub(1);
    let stride = schedule.total_steps().div_ceil(POINTS).max(1);
    let marks = schedule.landmarks().into_iter().map(|mark| mark.step);
    let around = marks.flat_map(|step| [step.saturating_sub(1), step]);
    let mut steps: Vec<u64> =
        (0..POINTS).map(|index| index.saturating_mul(stride).min(last)).chain(around).collect();
    steps.sort_unstable();
    steps.dedup();
    steps.into_iter().map(|step| (step, schedule.lr(step))).collect()
}

/// From steps and rates to places in the picture.
struct Scale {
    /// The last step.
    steps: f64,
    /// The highest rate.
    lr: f64,
}

impl Scale {
    fn place(&self, step: f64, lr: f64) -> (f64, f64) {
        let x = LEFT + step / self.steps * (WIDTH - LEFT - RIGHT);
        let y = HEIGHT - BOTTOM - lr / self.lr * (HEIGHT - TOP - BOTTOM);
        (x, y)
    }
}

/// Round numbers from 0 to `end`, about `count` of them: multiples of 1, 2 or 5 times a power of 10.
fn ticks(end: f64, count: f64) -> Vec<f64> {
    let raw = end / count;
    let power = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= raw);
    let distance = factor.unwrap_or(10.0) * power;
    let most = (end / distance * (1.0 + 1e-9)).floor() as u32;
    (0..=most).map(|index| f64::from(index) * distance).collect()
}

fn above_zero(value: f64) -> f64 {
    if value > 0.0 && value.is_finite() { value } else { 1.0 }
}

fn line(text: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        text,
        "<line x1=\"{x1:.2}\" y1=\"{y1:.2}\" x2=\"{x2:.2}\" y2=\"{y2:.2}\" stroke=\"#dddddd\"/>"
    );
}

fn label(text: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let _ = writeln!(
        text,
        "<text x=\"{x:.2}\" y=\"{y:.2}\" text-anchor=\"{anchor}\" fill=\"#333333\">{words}</text>"
    );
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_trainer::config::{Course, RunLength, SchedulePlan, StepUnit};

    fn schedule(course: Course, total_steps: u64) -> Schedule {
        let length = RunLength { steps_per_epoch: 10, total_steps };
        Schedule::new(&SchedulePlan::new(course), 0.5, length)
    }

    /// The places of the curve.
    fn places(svg: &str) -> Vec<(f64, f64)> {
        let curve = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let number = |text: &str| text.parse::<f64>().unwrap();
        let place = |pair: &str| pair.split_once(',').map(|(x, y)| (number(x), number(y)));
        curve.split(' ').map(|pair| place(pair).unwrap()).collect()
    }

    #[test]
    fn the_curve_goes_through_the_rates_from_end_to_end() {
        let course =
            Course::MultiStep { milestones: vec![500_000], gamma: 0.5, unit: StepUnit::Step };
        let svg = svg("a & b", &schedule(course, 1_000_001));
        assert!(svg.contains("a &amp; b: learning rate") && svg.ends_with("</svg>\n"));
        let places = places(&svg);
        let (bottom, middle) = (HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2.0);
        assert_eq!(places[0], (LEFT, TOP));
        assert_eq!(*places.last().unwrap(), (WIDTH - RIGHT, middle));
        assert!(places.iter().all(|(_, y)| (TOP..=bottom).contains(y)));
        // The fall is upright, however few of the steps are drawn.
        let fall = places.windows(2).find(|pair| pair[0].1 != pair[1].1).unwrap();
        assert!((fall[1].0 - fall[0].0).abs() < 0.02, "{fall:?}");
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

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks(449.0, 8.0), [0.0, 100.0, 200.0, 300.0, 400.0]);
        assert_eq!(ticks(0.5, 5.0).len(), 6);
        assert_eq!(ticks(1.0, 6.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
    }
}
