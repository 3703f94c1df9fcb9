//! What a profile shows: where the time of steps goes, and whose fault it is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod support;

use bonfire_report::trace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use support::netns::Network;
use support::{Train, digits, free_port, into, repository};

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Seconds of every kind of span of a rank in the lane of the training loop.
fn totals(trace: &Value, rank: u64) -> BTreeMap<String, f64> {
    let mut totals = BTreeMap::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        if event["ph"] == "X" && event["pid"] == rank && event["tid"] == 1 {
            let name = event["name"].as_str().unwrap().to_owned();
            *totals.entry(name).or_default() += event["dur"].as_f64().unwrap() / 1e6;
        }
    }
    totals
}

#[test]
fn a_trace_of_the_whole_run_adds_up_to_its_summary() {
    let set = ["train.max_epochs=3", "train.log_every_n_steps=10", "profile.steps=0..90"];
    let ended = digits().ranks(2).set(&set).succeed();
    let run = ended.run_folder();
    let whole = json(&run.join("profile/all.trace.json"));
    let events = trace::validate(&whole).unwrap();
    for rank in 0..2 {
        let own = json(&run.join(format!("profile/rank{rank}.trace.json")));
        assert!(trace::validate(&own).unwrap() < events);
    }
    let summary = ended.summary();
    for rank in 0..2 {
        let totals = totals(&whole, rank);
        let all = totals["step"] + totals["figures"];
        let share = &summary["time_share_by_rank"][rank as usize];
        for (span, key) in [
            ("data", "data"),
            ("forward", "forward"),
            ("backward", "backward"),
            ("wait for gradients", "comm_wait"),
            ("optimizer", "optimizer"),
        ] {
            let (traced, told) = (totals[span] / all, share[key].as_f64().unwrap());
            assert!((traced - told).abs() < 0.02, "rank {rank}: {span} {traced} against {told}");
        }
    }
    let text = whole.to_string();
    for part in ["bucket 0: all_reduce(mean)", "checkpoint", "rank 1"] {
        assert!(text.contains(part), "{part:?} is missing");
    }
    assert!(!json(&run.join("profile/verdict.json"))["findings"].as_array().unwrap().is_empty());
    assert!(
        fs::read_to_string(run.join("report.html")).unwrap().contains("What the profiler found")
    );
}

/// A rank of two that are started by hand; rank 0's run folder is `out`.
fn rank(recipe: &Path, out: &Path, rank: usize, port: u16) -> Train {
    let train = into(recipe, out).with_rank(rank, 2, port);
    if rank == 0 { train } else { train.args(["--quiet"]) }
}

/// The verdict of a run of two ranks.
fn verdict(zero: Train, one: Train, out: &Path) -> Value {
    let (zero, one) = (zero.start(), one.start());
    let ended = zero.wait();
    assert!(ended.status.success(), "{}", ended.log());
    let other = one.wait();
    assert!(other.status.success(), "{}", other.log());
    let verdict = json(&out.join("profile/verdict.json"));
    // What is told is what is written.
    let first = verdict["findings"][0]["text"].as_str().unwrap().to_owned();
    ended.says(&first);
    verdict
}

#[test]
fn a_slow_link_is_nobody_s_fault() {
    let Some(network) = Network::try_new(2, 7) else { return };
    network.slow_down().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let recipe = folder.path().join("recipe.toml");
    let data = repository().join("data/digits");
    let text = format!(
        "[model]\nkind = \"mlp\"\nhidden = [256]\n[data]\npath = \"{}\"\n[train]\nmax_steps = 25\n\
         [optimizer]\nkind = \"sgd\"\n[profile]\nsteps = \"5..25\"\n",
        data.display()
    );
    fs::write(&recipe, text).unwrap();
    let port = free_port();
    let on = |number: usize| {
        let rank = rank(&recipe, &out, number, port)
            .env("MASTER_ADDR", &network.address(0))
            .env("BONFIRE_TOKEN", "secret")
            .env("LOCAL_RANK", "0")
            .env("LOCAL_WORLD_SIZE", "1");
        network.on(number, rank)
    };
    let verdict = verdict(on(0), on(1), &out);
    let finding = &verdict["findings"][0];
    assert_eq!(finding["kind"], "communication", "{verdict}");
    assert!(finding["share"].as_f64().unwrap() > 0.5, "{verdict}");
}
