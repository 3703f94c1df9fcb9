//! Ranks that are killed, stopped, end early, or never come.

use std::time::Duration;

use crate::rank::names_operation;
use crate::world::{AT_DEADLINE, AT_ONCE, Plan, Wiring, for_each};

/// Deadline of a rendezvous that cannot end well.
const RENDEZVOUS: Duration = Duration::from_secs(2);

/// Every wiring with every rank as the victim.
fn victims() -> Vec<(Wiring, usize)> {
    Wiring::ALL.iter().flat_map(|&wiring| (0..3).map(move |victim| (wiring, victim))).collect()
}

fn others(victim: usize) -> Vec<usize> {
    (0..3).filter(|rank| *rank != victim).collect()
}

#[test]
fn a_killed_rank_is_named_at_once() {
    for_each(victims(), |(wiring, victim)| {
        let mut world = Plan::new(wiring, "work").start();
        world.await_ready();
        world.signal(victim, "KILL");
        for text in world.results(&others(victim), AT_ONCE) {
            if !text.starts_with(&format!("rank {victim} died (")) || !names_operation(&text) {
                world.fail(&text);
            }
        }
        world.finish(&[victim]);
    });
}

/// The moments are spread over start, rendezvous, connection and first operations.
#[test]
fn a_rank_killed_on_its_way_in_is_named() {
    let delays = [4, 8, 12, 16, 20, 25, 30, 40, 60];
    let cases = delays.into_iter().flat_map(|delay| victims().into_iter().map(move |v| (delay, v)));
    for_each(cases, |(delay, (wiring, victim))| {
        let plan = Plan::new(wiring, "work").with("BONFIRE_TOKEN", "secret");
        let mut world = plan.with("FAULT_RENDEZVOUS", RENDEZVOUS.as_secs().to_string()).start();
        std::thread::sleep(Duration::from_millis(delay));
        world.signal(victim, "KILL");
        for text in world.results(&others(victim), RENDEZVOUS + AT_DEADLINE) {
            let died = text.starts_with(&format!("rank {victim} died ("));
            let missing = text.contains(&format!("for rank(s) [{victim}]; check that they"));
            let absent = victim == 0 && text.contains("is rank 0 running?");
            if !died && !missing && !absent {
                world.fail(&format!("killed after {delay} ms: {text}"));
            }
        }
        world.finish(&[victim]);
    });
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline() {
    for_each(victims(), |(wiring, victim)| {
        let mut world = Plan::new(wiring, "work").start();
        world.await_ready();
        world.signal(victim, "STOP");
        let missing = match victim {
            0 => "rank 0, which hosts the store, does not answer".to_owned(),
            _ => format!("rank(s) [{victim}] do not answer (stopped or unreachable)"),
        };
        for text in world.results(&others(victim), AT_DEADLINE) {
            if !text.contains(&missing) || !names_operation(&text) {
                world.fail(&text);
            }
        }
        // A rank that goes on hears that the world is over.
        world.signal(victim, "CONT");
        let text = world.results(&[victim], AT_ONCE).remove(0);
        if text.starts_with("ok") {
            world.fail(&text);
        }
        world.finish(&[]);
    });
}

#[test]
fn a_rank_that_ends_early_is_named_at_once() {
    let endings = [
        ("leave", "left the group \"world\" ("),
        ("exit", "died (connection to the store"),
        ("panic", "died (its thread panicked"),
    ];
    let cases = endings.iter().flat_map(|ending| victims().into_iter().map(move |v| (ending, v)));
    for_each(cases, |(&(action, said), (wiring, victim))| {
        let mut world = Plan::new(wiring, "work").but(victim, action).start();
        world.await_ready();
        world.cue(victim);
        for text in world.results(&others(victim), AT_ONCE) {
            let names = text.starts_with(&format!("rank {victim} {said}"));
            if !names || !names_operation(&text) {
                world.fail(&text);
            }
        }
        world.finish(&[]);
    });
}

#[test]
fn a_rank_that_never_joins_is_named() {
    let with_token = victims().into_iter().map(|case| (case, Some("secret")));
    let cases = victims().into_iter().map(|case| (case, None)).chain(with_token);
    for_each(cases, |((wiring, victim), token)| {
        let plan = Plan::new(wiring, "work").but(victim, "never join");
        let port = plan.port;
        let plan = token.into_iter().fold(plan, |plan, token| plan.with("BONFIRE_TOKEN", token));
        let mut world = plan.with("FAULT_RENDEZVOUS", RENDEZVOUS.as_secs().to_string()).start();
        let said = match victim {
            0 => format!("store at 127.0.0.1:{port}: "),
            _ => format!("at the rendezvous on 127.0.0.1:{port} for rank(s) [{victim}]"),
        };
        for text in world.results(&others(victim), RENDEZVOUS + AT_DEADLINE) {
            let hint = if victim == 0 { "is rank 0 running?" } else { "" };
            if !text.contains(&said) || !text.contains(hint) {
                world.fail(&text);
            }
        }
        world.finish(&[]);
    });
}

#[test]
fn a_rank_that_does_not_come_to_a_collective_is_named() {
    for_each(victims(), |(wiring, victim)| {
        let mut world = Plan::new(wiring, "make a group").but(victim, "sleep").start();
        world.await_ready();
        for text in world.results(&others(victim), AT_DEADLINE) {
            let said = format!("rank(s) [{victim}] have not entered it");
            if !text.contains(&said) || !names_operation(&text) {
                world.fail(&text);
            }
        }
        world.finish(&[victim]);
    });
}
