//! `bonfire launch`, and `bonfire train` on several nodes.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;
use support::netns::Network;
use support::{Ended, Train, bonfire, digits, free_port, into, repository};

/// `bonfire launch OPTIONS -- sh -c SCRIPT`.
fn shell(options: &[&str], script: &str) -> Train {
    let arguments = [&["launch"], options, &["--", "sh", "-c", script]].concat();
    bonfire(&arguments)
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn any_program_is_started_once_a_rank_and_its_lines_are_labelled() {
    let script = "echo out $RANK of $WORLD_SIZE; echo err $LOCAL_RANK >&2";
    let ended = shell(&["--nproc_per_node=2"], script).succeed();
    assert_eq!(sorted(&ended.stdout), ["[rank 0] out 0 of 2", "[rank 1] out 1 of 2"]);
    ended.says_once(&["[rank 0] err 0"]);
    ended.says_once(&["[rank 1] err 1"]);
    ended.says_once(&["RAYON_NUM_THREADS=", "OMP_NUM_THREADS=", "each of 2 ranks"]);
    // The same by variables, and quietly.
    let by_variable = shell(&["--quiet"], script).env("BONFIRE_NPROC_PER_NODE", "2").succeed();
    assert_eq!(sorted(&by_variable.stdout), sorted(&ended.stdout));
    assert!(!by_variable.stderr.contains("THREADS"), "{}", by_variable.log());
}

#[test]
fn the_failure_is_told_with_what_to_do() {
    let script = "[ $RANK = 0 ] && exec sleep 60; echo 'bind: Address already in use' >&2; exit 3";
    let ended = shell(&["--nproc-per-node", "2"], script).fail();
    assert_eq!(ended.status.code(), Some(3), "{}", ended.log());
    ended.says_once(&["error: rank 1 exited with code 3", "bind: Address already in use"]);
    ended.says_once(&["hint:", "--master-port"]);
    let ended = shell(&["--nproc-per-node", "2"], "[ $RANK = 0 ] && kill -9 $$; sleep 60").fail();
    assert_eq!(ended.status.code(), Some(137), "{}", ended.log());
    ended.says_once(&["error: rank 0 was killed by signal 9 (SIGKILL)"]);
}

#[test]
fn wrong_options_are_told_before_anything_starts() {
    for (options, part) in [
        (&["--nproc-per-node", "0"][..], "1 to 4096, auto, gpu or cpu"),
        (&["--nnodes", "3:2"], "above the largest"),
        (&["--nnodes", "1:2"], "use --rdzv-endpoint"),
        (&["--rdzv-endpoint", "a:0"], "no port"),
        (&["--rdzv-endpoint", "a", "--master-addr", "b"], "cannot be used with"),
        (&["--rdzv-conf", "color=red"], "there is no key \"color\""),
        (&["--tee", "3"], "--log-dir"),
        (&["--nnodes", "2"], "BONFIRE_TOKEN"),
        (&["--nnodes", "2", "--standalone"], "it is for one node"),
        (&["--node-rank", "3"], "--node-rank 3: of --nnodes 1 the last is 0"),
        (&["--max-restarts=-1"], "--max-restarts"),
    ] {
        let ended = shell(options, "echo started").fail();
        ended.says(part);
        assert_eq!(ended.stdout, "", "{options:?}");
    }
    let ended = bonfire(&["launch", "--", "/no/such/program"]).fail();
    ended.says_once(&["cannot start /no/such/program", "No such file"]);
}

#[test]
fn hundreds_of_megabytes_of_output_end() {
    let script = "yes 'a line of a rank that says a lot' | head -c 100000000";
    let ended = shell(&["--nproc-per-node", "2"], script).succeed();
    let lines = ended.stdout.lines().count();
    assert!(ended.stdout.lines().all(|line| line.starts_with("[rank ")), "a line has no label");
    assert!(lines > 2 * 2_700_000, "{lines} lines");
}

#[test]
fn the_first_signal_reaches_the_ranks_and_nothing_is_left() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let folder = tempfile::tempdir().unwrap();
        let ready = |rank: usize| folder.path().join(format!("ready-{rank}"));
        let script = format!("cd {}; touch ready-$RANK; sleep 100 & wait", folder.path().display());
        let mut running = shell(&["--nproc-per-node", "2"], &script).start();
        running.until("both ranks run", |_| ready(0).exists() && ready(1).exists());
        running.signal(signal);
        let ended = running.wait();
        assert_eq!(ended.status.code(), Some(code), "{}", ended.log());
    }
}

#[test]
fn who_was_asked_to_stop_is_not_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!("trap 'exit 1' TERM; touch {}; sleep 100 & wait", ready.display());
    let mut running = shell(&["--max-restarts", "2"], &script).start();
    running.until("the rank runs", |_| ready.exists());
    running.signal(Signal::SIGTERM);
    let ended = running.wait();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.log());
    assert!(!ended.stderr.contains("restart"), "{}", ended.log());
}

#[test]
fn restarts_do_not_reach_into_the_folder_of_another_run() {
    let short = ["train.max_epochs=1", "schedule.warmup_epochs=0"];
    let first = digits().ranks(2).set(&short).succeed();
    let before = fs::read(first.run_folder().join("model.safetensors")).unwrap();
    let again = into(&repository().join("configs/digits.toml"), &first.run_folder())
        .ranks(2)
        .args(["--max-restarts", "2", "--restart-backoff", "0.1"])
        .fail();
    again.says("another run");
    assert!(!again.stderr.contains("restart 1"), "{}", again.log());
    assert_eq!(fs::read(first.run_folder().join("model.safetensors")).unwrap(), before);
}

/// One epoch of the digits, with all samples noted.
fn nodes(out: &Path, options: &[&str]) -> Train {
    let mut train = into(&repository().join("configs/digits.toml"), out)
        .env("BONFIRE_TOKEN", "secret")
        .set(&["train.max_epochs=2", "schedule.warmup_epochs=1", "log.samples=true"]);
    train.command().args(options);
    train.within(Duration::from_secs(120))
}

fn losses(out: &Path) -> Vec<String> {
    let text = fs::read_to_string(out.join("metrics.csv")).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = names.iter().position(|name| *name == "loss").unwrap();
    lines.map(|line| line.split(',').nth(column).unwrap().to_owned()).collect()
}

#[test]
fn two_nodes_of_two_ranks_train_as_four_ranks() {
    let whole = digits()
        .ranks(4)
        .args(["--transport", "tcp"])
        .set(&["train.max_epochs=2", "schedule.warmup_epochs=1", "log.samples=true"])
        .succeed();
    let Some(network) = Network::try_new(2, 11) else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let (host, port) = (network.address(0), free_port().to_string());
    let node = |rank: usize| {
        let place = rank.to_string();
        let options = ["--nnodes", "2", "--node-rank", &place, "--master-addr", &host];
        let more = ["--master-port", &port, "--nproc-per-node", "2"];
        network.on(rank, nodes(&out, &[&options[..], &more[..]].concat()))
    };
    let second = node(1).start();
    let first = node(0).succeed();
    let second = second.wait();
    assert!(second.status.success(), "{}\n{}", second.log(), first.log());
    let (ours, theirs) = (losses(&out), losses(&whole.run_folder()));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let (ours, theirs): (f64, f64) = (ours.parse().unwrap(), theirs.parse().unwrap());
        assert!((ours - theirs).abs() < 1e-5 * theirs.abs(), "{ours} {theirs}");
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn a_killed_rank_is_started_again_and_the_run_is_the_same() {
    let keys = ["checkpoint.every_n_steps=5", "data.batch_size=8", "train.max_epochs=2"];
    let whole = digits().ranks(2).set(&keys).succeed();
    let mut running = digits()
        .ranks(2)
        .set(&keys)
        .args(["--max-restarts", "2", "--restart-backoff", "0.1"])
        .start();
    let saved = running.run_folder().join("checkpoints");
    let has_saved = |_: &mut support::Running| {
        fs::read_dir(&saved).is_ok_and(|entries| {
            entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
        })
    };
    running.until("a checkpoint", has_saved);
    assert!(running.try_signal_rank(1, Signal::SIGKILL));
    let ended = running.wait();
    assert!(ended.status.success(), "{}", ended.log());
    ended.says_once(&["rank 1 was killed by signal 9 (SIGKILL); restart 1 of 2"]);
    assert_eq!(ended.fingerprint(), whole.fingerprint());
}

/// The samples of a rank by step, with the epoch.
fn samples(out: &Path, rank: usize) -> BTreeMap<u64, (u64, Vec<usize>)> {
    let text = fs::read_to_string(out.join(format!("samples-rank{rank}.csv"))).unwrap();
    let line = |line: &str| {
        let mut fields = line.split(',');
        let (epoch, step) = (fields.next().unwrap(), fields.next().unwrap());
        let indices = fields.next().unwrap().split(' ').map(|index| index.parse().unwrap());
        (step.parse().unwrap(), (epoch.parse().unwrap(), indices.collect()))
    };
    text.lines().map(line).collect()
}

/// How often each sample was seen, by epoch, in the steps that count: those of three ranks with two
/// samples each, up to the first of two ranks with three.
fn seen(out: &Path) -> BTreeMap<(u64, usize), u32> {
    let ranks = [0, 1, 2].map(|rank| samples(out, rank));
    let after = ranks[0].iter().find(|(_, (_, indices))| indices.len() == 3);
    let after = *after.unwrap().0;
    assert!(after > 1, "steps of three ranks");
    let mut seen = BTreeMap::new();
    for (rank, steps) in ranks.iter().enumerate() {
        for (_, (epoch, indices)) in steps.iter().filter(|(step, _)| rank < 2 || **step < after) {
            for index in indices {
                *seen.entry((*epoch, *index)).or_default() += 1;
            }
        }
    }
    seen
}

#[test]
fn nodes_that_are_left_finish_the_epoch() {
    let Some(network) = Network::try_new(3, 12) else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let endpoint = format!("{}:{}", network.address(0), free_port());
    let node = |machine: usize| {
        let options = ["--nnodes", "2:3", "--rdzv-endpoint", &endpoint, "--rdzv-id", "elastic"];
        let more = [
            "--rdzv-conf",
            "last_call_timeout=2",
            "--max-restarts",
            "1",
            "--restart-backoff",
            "0.1",
        ];
        let train = nodes(&out, &[&options[..], &more[..]].concat())
            .set(&["data.global_batch_size=6", "checkpoint.every_n_steps=5"]);
        network.on(machine, train)
    };
    let first = node(0).start();
    let mut others = [1, 2].map(|machine| node(machine).start());
    let saved = out.join("checkpoints/latest");
    others[0].until("a checkpoint", |_| saved.exists());
    // The launcher of a node, and with it its ranks.
    others[1].signal(Signal::SIGKILL);
    let [second, third] = others;
    let ended: [Ended; 2] = [first.wait(), second.wait()];
    drop(third);
    for node in &ended {
        assert!(node.status.success(), "{}", node.log());
        node.says("is gone");
    }
    let seen = seen(&out);
    for epoch in 0..2 {
        for index in 0..1438 {
            assert_eq!(seen.get(&(epoch, index)), Some(&1), "sample {index} of epoch {epoch}");
        }
    }
}
