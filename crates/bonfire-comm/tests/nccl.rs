//! What can be known of engine `nccl` without a GPU: this test re-executes itself as the ranks.
//!
//! Needs `libnccl.so.2` (`pip install nvidia-nccl-cu13`), and says SKIPPED without it, unless
//! BONFIRE_REQUIRE_NCCL is set.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "the log of a rank")]

use std::process::{Command, Stdio};
use std::time::Duration;

use bonfire_comm::{EngineKind, InitOptions, RankEnv, cuda, init_process_group, nccl};

/// What a rank process does, when this program was started as one.
#[test]
fn rank_process() {
    let Ok(case) = std::env::var("COMM_TEST_CASE") else { return };
    let env = RankEnv::detect().unwrap().unwrap();
    let options = InitOptions::default().with_timeout(Duration::from_secs(20));
    let result = match case.as_str() {
        "id" => {
            let id = nccl::exchange_id(&env, &options).map_err(|error| error.to_string());
            id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect())
        }
        "engine" => {
            let options = options.with_engine(EngineKind::Nccl).with_gpu(env.local_rank);
            init_process_group(&env, options).map(|_| "met".to_owned()).map_err(|e| e.to_string())
        }
        "version" => nccl::version().map(|v| format!("{v:?}")).map_err(|e| e.to_string()),
        "gpu" => cuda::check(0).map(|()| "there is one".to_owned()).map_err(|e| e.to_string()),
        other => panic!("unknown case {other}"),
    };
    println!("RESULT {result:?}");
}

/// Runs a case on two ranks, and returns what each has said. `hide` keeps the libraries of
/// NVIDIA from being found.
fn run(case: &str, hide: bool) -> Vec<String> {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["rank_process", "--exact", "--nocapture"])
            .env("COMM_TEST_CASE", case)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("BONFIRE_RUN_ID", "nccl")
            .stdout(Stdio::piped());
        if hide {
            for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "BONFIRE_NCCL_PATH"] {
                command.env_remove(name);
            }
            command.env("PATH", "/nowhere");
        }
        command.spawn().unwrap()
    };
    let ranks: Vec<_> = (0..2).map(start).collect();
    let said = |child: std::process::Child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find_map(|line| line.split_once("RESULT "));
        line.unwrap_or_else(|| panic!("no result: {text}")).1.to_owned()
    };
    ranks.into_iter().map(said).collect()
}

fn has_nccl() -> bool {
    match nccl::version() {
        Ok(version) => {
            println!("NCCL {version:?}");
            true
        }
        Err(error) if std::env::var_os("BONFIRE_REQUIRE_NCCL").is_some() => panic!("{error}"),
        Err(error) => {
            println!("SKIPPED: {error}");
            false
        }
    }
}

#[test]
fn the_id_of_rank_0_reaches_the_other() {
    if !has_nccl() {
        return;
    }
    let ids = run("id", false);
    assert_eq!(ids[0], ids[1]);
    // Ok("..."), two digits a byte.
    assert!(ids[0].starts_with("Ok(") && ids[0].len() == 256 + 6, "{}", ids[0]);
    assert!(ids[0].contains(|digit: char| digit.is_ascii_digit() && digit != '0'), "{}", ids[0]);
    assert_ne!(ids, run("id", false), "an id names one group");
}

#[test]
fn without_the_library_every_rank_is_told_what_to_install() {
    for said in run("version", true) {
        // A machine may have it where every process finds it.
        if said.starts_with("Ok(") {
            println!("SKIPPED: the system has NCCL");
            return;
        }
        assert!(said.contains("engine \\\"nccl\\\" cannot be used: no libnccl.so.2 in"), "{said}");
        assert!(said.contains("pip install nvidia-nccl-cu13"), "{said}");
    }
}

#[test]
fn without_a_driver_every_rank_is_told_so() {
    if cuda::count_devices(0).is_ok() {
        println!("SKIPPED: there is a GPU");
        return;
    }
    for said in run("gpu", false) {
        assert!(said.contains("there is no driver here (libcuda.so.1)"), "{said}");
        assert!(said.contains("install NVIDIA's driver"), "{said}");
    }
    if !has_nccl() {
        return;
    }
    for said in run("engine", false) {
        assert!(said.contains("there is no driver here (libcuda.so.1)"), "{said}");
    }
}
