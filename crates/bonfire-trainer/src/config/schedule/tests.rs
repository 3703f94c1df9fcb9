use super::{
    Course, LrScaling, OneCycle, ReduceOnPlateau, RunLength, Schedule, SchedulePlan, WarmupLength,
    WarmupStart,
};
use crate::config::StepUnit;
use bonfire_tensor::state::Stateful;

/// A run of 11 epochs around the rate 2.
const LENGTH: RunLength = RunLength { steps_per_epoch: 10, total_steps: 110 };

fn schedule(course: Course, warmup_steps: u64) -> Schedule {
    Schedule::new(&SchedulePlan::new(course).with_warmup_steps(warmup_steps), 2.0, LENGTH)
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-12, "{a} is not {b}");
}

#[test]
fn warms_up_linearly_from_the_start_factor() {
    let schedule = schedule(Course::Constant, 10);
    near(schedule.lr(0), 0.2);
    near(schedule.lr(5), 1.1);
    near(schedule.lr(10), 2.0);
    near(schedule.lr(1_000_000), 2.0);
}

#[test]
fn a_warm_up_from_the_base_rate_starts_before_scaling() {
    for (global_batch_size, first, last) in [(2048, 2.0, 16.0), (256, 2.0, 2.0), (64, 0.5, 0.5)] {
        let mut plan = SchedulePlan::default().with_warmup_steps(10);
        plan.scaling = LrScaling::Linear { global_batch_size, base_batch_size: 256 };
        plan.warmup.start = WarmupStart::Base;
        let schedule = Schedule::new(&plan, 2.0, LENGTH);
        near(schedule.lr(0), first);
        near(schedule.lr(5), (first + last) / 2.0);
        near(schedule.lr(10), last);
    }
}

#[test]
fn a_warm_up_of_epochs_rises_with_every_step() {
    let mut plan = SchedulePlan::default();
    plan.warmup.length = WarmupLength::Epochs(1.5);
    let schedule = Schedule::new(&plan, 2.0, LENGTH);
    assert_eq!(schedule.warmup_steps(), 15);
    near(schedule.lr(5), 2.0 * 0.4);
    near(schedule.lr(15), 2.0);
}

#[test]
fn cosine_falls_from_the_base_rate_to_the_minimum() {
    let schedule = schedule(Course::Cosine { min_lr: 0.2 }, 10);
    near(schedule.lr(10), 2.0);
    near(schedule.lr(60), 1.1);
    near(schedule.lr(110), 0.2);
    near(schedule.lr(u64::MAX), 0.2);
}

#[test]
fn a_warm_up_as_long_as_the_run_or_longer_is_no_division_by_zero() {
    for course in [Course::Cosine { min_lr: 0.2 }, Course::Polynomial { power: 1.0, min_lr: 0.2 }] {
        for warmup_steps in [110, 500] {
            let schedule = schedule(course.clone(), warmup_steps);
            near(schedule.lr(0), 0.2);
            near(schedule.lr(warmup_steps), 0.2);
        }
    }
}

#[test]
fn falls_come_at_epochs_of_the_run_whatever_the_warm_up() {
    let course = Course::MultiStep { milestones: vec![3, 6], gamma: 0.1, unit: StepUnit::Epoch };
    let schedule = schedule(course, 10);
    for (step, expected) in [(0, 0.2), (29, 2.0), (30, 0.2), (59, 0.2), (60, 0.02)] {
        near(schedule.lr(step), expected);
    }
    let course = Course::Step { size: 25, gamma: 0.5, unit: StepUnit::Step };
    let schedule = self::schedule(course, 0);
    for (step, expected) in [(24, 2.0), (25, 1.0), (75, 0.25)] {
        near(schedule.lr(step), expected);
    }
}

#[test]
fn one_cycle_of_any_length_stays_within_its_rates() {
    for total_steps in 1..12 {
        for pct_start in [0.0, 0.3, 1.0] {
            let cycle = OneCycle { pct_start, ..OneCycle::default() };
            let length = RunLength { steps_per_epoch: 1, total_steps };
            let schedule = Schedule::new(&SchedulePlan::new(Course::OneCycle(cycle)), 2.0, length);
            for step in 0..total_steps + 3 {
                let lr = schedule.lr(step);
                assert!((2.0 / 25e4..=2.0).contains(&lr), "{total_steps} {pct_start}: {lr}");
                let momentum = schedule.momentum(step).unwrap();
                assert!((0.85..=0.95).contains(&momentum), "{momentum}");
            }
        }
    }
}

#[test]
fn a_plateau_goes_on_from_its_state() {
    let settings = ReduceOnPlateau { patience: 1, cooldown: 1, ..ReduceOnPlateau::default() };
    let course = Course::ReduceOnPlateau(settings);
    let mut whole = schedule(course.clone(), 10);
    let losses = [3.0, 2.0, 2.0, 2.0, f64::NAN, 2.0, 2.0];
    losses.iter().take(3).for_each(|loss| whole.observe(*loss));
    let mut resumed = schedule(course, 10);
    resumed.load_state(whole.state().unwrap()).unwrap();
    for (index, loss) in losses.iter().enumerate().skip(3) {
        whole.observe(*loss);
        resumed.observe(*loss);
        assert_eq!(whole, resumed);
        // Two bad ones, one that does not count, two bad ones.
        near(whole.lr(50), if index == 6 { 0.02 } else { 0.2 });
    }
    near(whole.lr(0), 0.002);
}

#[test]
fn landmarks_are_in_order_and_within_the_run() {
    let course =
        Course::MultiStep { milestones: vec![3, 6, 60], gamma: 0.1, unit: StepUnit::Epoch };
    let marks = schedule(course, 10).landmarks();
    let found: Vec<(u64, &str)> = marks.iter().map(|mark| (mark.step, mark.what)).collect();
    let expected = [
        (0, "first"),
        (10, "end of warm-up"),
        (30, "fall"),
        (55, "middle"),
        (60, "fall"),
        (109, "last"),
    ];
    assert_eq!(found, expected);
}
