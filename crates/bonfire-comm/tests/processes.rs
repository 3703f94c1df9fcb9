//! Ranks that are real processes: this test re-executes itself.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bonfire_comm::{InitOptions, RankEnv, ReduceOp, flight, init_process_group};

/// What a rank process does, when this program was started as one.
#[test]
fn rank_process() {
    let Ok(case) = std::env::var("COMM_TEST_CASE") else { return };
    let env = RankEnv::detect().unwrap().unwrap();
    let timeout = std::env::var("COMM_TEST_TIMEOUT").unwrap().parse().unwrap();
    let options = InitOptions::default().with_timeout(Duration::from_secs(timeout));
    let group = init_process_group(&env, options).unwrap();
    let mut data = vec![group.rank() as f32; 1000];
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    group.barrier().unwrap();
    let victim = case.parse().unwrap_or(usize::MAX);
    if group.rank() == victim {
        std::thread::sleep(Duration::from_secs(30));
    }
    let rounds = if victim == usize::MAX { 10 } else { usize::MAX };
    let result = (0..rounds).try_for_each(|_| group.all_reduce(&mut data, ReduceOp::Max));
    match result {
        Err(error) => println!("RESULT {error}"),
        Ok(()) => println!("RESULT ok {}", data[0]),
    }
}

/// Starts the ranks; they leave their flight recorders in `folder` when they fail.
fn start(case: &str, size: usize, timeout_seconds: u64, folder: &Path) -> Vec<Child> {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args(["rank_process", "--exact", "--nocapture"])
            .env("COMM_TEST_CASE", case)
            .env("COMM_TEST_TIMEOUT", timeout_seconds.to_string())
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("BONFIRE_RUN_ID", "processes")
            .env(flight::FOLDER_VARIABLE, folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (0..size).map(start).collect()
}

fn kill_one(victim: usize) {
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = start(&victim.to_string(), 3, 20, folder.path());
    std::thread::sleep(Duration::from_millis(1500));
    ranks[victim].kill().unwrap();
    ranks[victim].wait().unwrap();
    let start = Instant::now();
    for (rank, child) in ranks.into_iter().enumerate().filter(|(rank, _)| *rank != victim) {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&format!("RESULT rank {victim} died")), "rank {rank}: {text}");
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let report = flight::analyze(folder.path()).unwrap();
    let text = report.to_string();
    assert_eq!((report.run_id.as_str(), &report.missing), ("processes", &vec![victim]), "{text}");
    let wait = " waited in all_reduce(max) of 1000 f32 [sequence 2] (called at ";
    assert!(text.contains(wait), "{text}");
    assert!(text.contains(&format!(": rank {victim} died (")), "{text}");
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    kill_one(1);
}

#[test]
fn a_killed_host_of_the_store_is_named_by_all_others() {
    kill_one(0);
}

#[test]
fn a_stopped_rank_is_named_after_the_deadline() {
    for victim in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        let mut ranks = start(&victim.to_string(), 3, 3, folder.path());
        std::thread::sleep(Duration::from_millis(1500));
        signal(&ranks[victim], "STOP");
        let start = Instant::now();
        let mut stopped = ranks.remove(victim);
        for child in ranks {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("all_reduce(max) of 1000 f32 [sequence "), "{text}");
            let missing = match victim {
                0 => "; rank 0, which hosts the store, does not answer; ",
                _ => "; rank(s) [1] do not answer (stopped or unreachable); ",
            };
            assert!(text.contains(missing), "{text}");
        }
        assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
        stopped.kill().unwrap();
        stopped.wait().unwrap();
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn ranks_that_agree_end_well() {
    let folder = tempfile::tempdir().unwrap();
    for child in start("none", 3, 20, folder.path()) {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("RESULT ok 3"), "{text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
