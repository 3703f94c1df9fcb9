//! `cargo xtask soak kill-collectives`: a rank is killed in the middle of whatever it does, and all
//! others must say so.

mod round;

use super::random::Random;
use crate::cargo::build_example;
use crate::{Result, record};
use round::{Draw, Outcome, WIRINGS};
use std::time::{Duration, SystemTime};

/// How often, and from where.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Worlds of which a rank is killed.
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// Where the random numbers begin; a new place every time when it is not given.
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = build_example("bonfire-comm", "kill_me")?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let seed = args.seed.unwrap_or(now.as_nanos() as u64);
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut outcomes = Vec::with_capacity(args.rounds);
    for number in 1..=args.rounds {
        let draw = Draw::new(&mut random);
        let outcome = draw.run(&program)?;
        println!("round {number}: {draw}: {outcome}");
        outcomes.push((draw, outcome));
    }
    let text = report(seed, &outcomes);
    print!("\n{text}");
    record::write("soak-kill-collectives", &text)?;
    match outcomes.iter().filter(|(_, outcome)| !outcome.failures.is_empty()).count() {
        0 => Ok(()),
        bad => Err(format!("{bad} of {} rounds did not end as they should", args.rounds).into()),
    }
}

/// The figures as a Markdown table.
fn report(seed: u64, outcomes: &[(Draw, Outcome)]) -> String {
    let mut text = format!(
        "2 to 4 ranks, every algorithm, every collective, 8 B to 4 MiB; one rank is killed 0 to 300 ms \
         after the start of the processes, in every fourth world on average 0 to 30 ms. Seed {seed}. A hang is a survivor that has not ended 5 s after \
         the kill; the times are from the kill to the last survivor's error. Who is killed before it has come to the store \
         is missed at the deadline of the rendezvous, 3 s.\n\n\
         | transport | rounds | killed on its way in | hangs | other failures | median ms | slowest ms \
         | slowest ms, once connected |\n|---|---|---|---|---|---|---|---|\n"
    );
    let all = WIRINGS.iter().map(|wiring| (wiring.name(), Some(*wiring))).chain([("all", None)]);
    for (name, wiring) in all {
        let of_wiring = |one: &&(Draw, Outcome)| wiring.is_none_or(|wiring| one.0.wiring == wiring);
        let outcomes: Vec<&Outcome> =
            outcomes.iter().filter(of_wiring).map(|(_, outcome)| outcome).collect();
        let count = |holds: &dyn Fn(&Outcome) -> bool| {
            outcomes.iter().filter(|outcome| holds(outcome)).count()
        };
        let times = |connected: bool| {
            let taken = outcomes.iter().filter(|outcome| outcome.was_connected || !connected);
            let mut times: Vec<Duration> = taken.map(|outcome| outcome.detection).collect();
            times.sort_unstable();
            times
        };
        let milliseconds = |time: Option<&Duration>| match time {
            Some(time) => format!("{:.1}", time.as_secs_f64() * 1e3),
            None => "-".to_owned(),
        };
        text.push_str(&format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} |\n",
            outcomes.len(),
            count(&|outcome| !outcome.was_connected),
            count(&|outcome| outcome.hung),
            count(&|outcome| !outcome.hung && !outcome.failures.is_empty()),
            milliseconds(times(false).get(times(false).len() / 2)),
            milliseconds(times(false).last()),
            milliseconds(times(true).last()),
        ));
    }
    for (draw, outcome) in outcomes.iter().filter(|(_, outcome)| !outcome.failures.is_empty()) {
        text.push_str(&format!("\nFAILED: {draw}: {}\n", outcome.failures.join("; ")));
    }
    text
}
