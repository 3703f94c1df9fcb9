//! Tests with several nodes: a launcher is a thread here, and a node that is lost a process.

use crate::launch::launch_with;
use crate::tests::until;
use crate::{Launch, LaunchError, LaunchOutcome, Meet, NodeCount, WorkerSpec};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn node(nodes: &str, node_rank: Option<usize>, port: u16, nproc: usize, script: &str) -> Launch {
    let mut spec = WorkerSpec::new("/bin/sh");
    spec.args = vec!["-c".into(), script.into()];
    spec.peer_pause = Duration::from_millis(200);
    spec.shutdown_timeout = Duration::from_millis(500);
    let mut launch = Launch::new(spec, nproc);
    launch.backoff = Duration::from_millis(20);
    launch.meet = Some(Meet {
        nodes: nodes.parse().unwrap(),
        node_rank,
        host: "127.0.0.1".into(),
        port,
        run_id: "run".into(),
        token: Some("secret".into()),
        insecure: false,
        join_timeout: Duration::from_secs(20),
        last_call: Duration::from_millis(500),
    });
    launch
}

type Ended = Result<LaunchOutcome, LaunchError>;

fn start(launch: Launch) -> Receiver<Ended> {
    start_with(launch, Vec::new)
}

fn start_with(
    launch: Launch,
    mut signals: impl FnMut() -> Vec<i32> + Send + 'static,
) -> Receiver<Ended> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || drop(sender.send(launch_with(&launch, &mut signals))));
    receiver
}

/// SIGTERM, once, when both ranks have said in `folder` that they are ready.
fn term_when_ready(folder: &Path) -> impl FnMut() -> Vec<i32> + Send + 'static {
    let ready = [0, 1].map(|rank| folder.join(format!("ready-{rank}")));
    let mut sent = false;
    move || {
        let now = !sent && ready.iter().all(|file| file.exists());
        sent |= now;
        if now { vec![15] } else { Vec::new() }
    }
}

fn end(node: &Receiver<Ended>) -> Ended {
    node.recv_timeout(DEADLINE).expect("the launcher did not return in time")
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn given_places_give_the_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "echo $RANK $LOCAL_RANK $GROUP_RANK $GROUP_WORLD_SIZE $WORLD_SIZE $LOCAL_WORLD_SIZE \
         $BONFIRE_RUN_ID $BONFIRE_TOKEN > {}/$RANK",
        folder.path().display()
    );
    let port = free_port();
    // The second comes first, and they differ in the number of ranks.
    let second = start(node("2", Some(1), port, 1, &script));
    let first = start(node("2", Some(0), port, 2, &script));
    for node in [&first, &second] {
        assert_eq!(end(node).unwrap().summary, "all 3 ranks finished");
    }
    let told = |rank: usize| fs::read_to_string(folder.path().join(rank.to_string())).unwrap();
    assert_eq!(told(0), "0 0 0 2 3 2 run secret\n");
    assert_eq!(told(1), "1 1 0 2 3 2 run secret\n");
    assert_eq!(told(2), "2 0 1 2 3 1 run secret\n");
}

#[test]
fn ranks_hear_how_they_may_meet() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        format!("echo ${{#BONFIRE_TOKEN}} $BONFIRE_INSECURE > {}/told", folder.path().display());
    let told = |nodes: &str, places: usize| {
        let port = free_port();
        let launch = |rank: usize| {
            let mut launch = node(nodes, Some(rank), port, 1, &script);
            let meet = launch.meet.as_mut().unwrap();
            (meet.token, meet.insecure) = (None, true);
            launch
        };
        let nodes: Vec<_> = (0..places).map(|rank| start(launch(rank))).collect();
        for node in &nodes {
            assert_eq!(end(node).unwrap().exit_code, 0);
        }
        fs::read_to_string(folder.path().join("told")).unwrap()
    };
    assert_eq!(told("1", 1), "32\n", "a node alone draws a token of its own");
    assert_eq!(told("2", 2), "0 1\n");
}

#[test]
fn places_are_taken_by_arrival_and_kept_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let script = |name: &str| {
        format!(
            "cd {}; echo $RANK $WORLD_SIZE >> {name}; [ $BONFIRE_RESTART_COUNT = 2 ] || exit 1",
            folder.path().display()
        )
    };
    let port = free_port();
    let launch = |name| {
        let mut launch = node("3", None, port, 1, &script(name));
        launch.max_restarts = 2;
        start(launch)
    };
    let nodes = ["a", "b", "c"].map(launch);
    for node in &nodes {
        assert_eq!(end(node).unwrap().exit_code, 0);
    }
    let mut ranks: Vec<String> = ["a", "b", "c"]
        .map(|name| {
            let seen = lines(&folder.path().join(name));
            assert_eq!(seen.len(), 3, "{seen:?}");
            assert!(seen.iter().all(|line| *line == seen[0]), "{seen:?}");
            seen[0].clone()
        })
        .to_vec();
    ranks.sort();
    assert_eq!(ranks, ["0 3", "1 3", "2 3"]);
}

#[test]
fn a_failure_on_one_node_ends_all_with_its_exit_code() {
    let port = free_port();
    let start_all =
        |nodes: [&str; 2]| [0, 1].map(|rank| start(node("2", Some(rank), port, 1, nodes[rank])));
    let nodes =
        start_all(["exec sleep 100", "sleep 0.2; echo 'no data' > $BONFIRE_ERROR_FILE; exit 3"]);
    for node in &nodes {
        let outcome = end(node).unwrap();
        assert_eq!(
            (outcome.exit_code, outcome.summary.as_str()),
            (3, "rank 1 exited with code 3: no data")
        );
    }
    // A killed rank goes before the one that reports its loss first.
    let port = free_port();
    let first = start(node("2", Some(0), port, 1, "sleep 0.3; exit 1"));
    let second = start(node("2", Some(1), port, 1, "sleep 0.4; kill -9 $$"));
    for node in [&first, &second] {
        assert_eq!(end(node).unwrap().exit_code, 137);
    }
}

#[test]
fn nodes_that_do_not_fit_together_are_told_why() {
    let error = |nodes: [Launch; 2]| {
        let nodes = nodes.map(start);
        nodes.map(|node| end(&node).unwrap_err().to_string())
    };
    let port = free_port();
    let told = error([0, 0].map(|rank| {
        let mut launch = node("3", Some(rank), port, 1, "");
        launch.meet.as_mut().unwrap().join_timeout = Duration::from_secs(1);
        launch
    }));
    assert!(
        told.iter().any(|text| text.contains("another program or run has the port")),
        "{told:?}"
    );
    let port = free_port();
    let mut late = node("2", Some(1), port, 1, "");
    late.meet.as_mut().unwrap().token = Some("other".into());
    let mut first = node("2", Some(0), port, 1, "");
    first.meet.as_mut().unwrap().join_timeout = Duration::from_secs(1);
    let told = error([first, late]);
    assert!(told[1].contains("the tokens differ"), "{told:?}");
    assert!(
        told[0].contains("1 of 2 nodes came") && told[0].contains("missing: --node-rank 1"),
        "{told:?}"
    );
    let port = free_port();
    let mut other = node("2", Some(1), port, 1, "");
    other.meet.as_mut().unwrap().run_id = "second".into();
    let mut first = node("2", Some(0), port, 1, "");
    first.meet.as_mut().unwrap().join_timeout = Duration::from_secs(1);
    let told = error([first, other]);
    assert!(told[1].contains("belongs to run \"run\""), "{told:?}");
    let mut open = node("2", Some(0), free_port(), 1, "");
    open.meet.as_mut().unwrap().token = None;
    let error = launch_with(&open, &mut Vec::new).unwrap_err().to_string();
    assert!(error.contains("BONFIRE_TOKEN"), "{error}");
}

#[test]
fn a_signal_at_one_node_reaches_the_ranks_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; trap 'touch stopped-$RANK; exit 143' TERM; touch ready-$RANK; \
         while :; do sleep 0.05; done",
        folder.path().display()
    );
    let port = free_port();
    let first = start_with(node("2", Some(0), port, 1, &script), term_when_ready(folder.path()));
    let second = start(node("2", Some(1), port, 1, &script));
    for node in [&first, &second] {
        let outcome = end(node).unwrap();
        assert_eq!((outcome.exit_code, outcome.failure), (143, None));
    }
    assert!(folder.path().join("stopped-0").exists() && folder.path().join("stopped-1").exists());
}

#[test]
fn a_run_grows_when_a_node_comes() {
    let folder = tempfile::tempdir().unwrap();
    let script = |name: &str| {
        format!(
            "cd {}; echo $RANK $WORLD_SIZE >> {name}; [ $WORLD_SIZE = 2 ] || exec sleep 100",
            folder.path().display()
        )
    };
    let port = free_port();
    let first = start(node("1:2", None, port, 1, &script("a")));
    until("the first node runs", || lines(&folder.path().join("a")).len() == 1);
    let second = start(node("1:2", None, port, 1, &script("b")));
    for node in [&first, &second] {
        assert_eq!(end(node).unwrap().exit_code, 0);
    }
    assert_eq!(lines(&folder.path().join("a")), ["0 1", "0 2"]);
    assert_eq!(lines(&folder.path().join("b")), ["1 2"]);
}

#[test]
fn waiting_for_nodes_ends_with_a_signal() {
    let launch = node("2", Some(0), free_port(), 1, "");
    let began = Instant::now();
    let error = launch_with(&launch, &mut || match began.elapsed().as_millis() {
        0..300 => Vec::new(),
        _ => vec![2],
    });
    assert!(matches!(error, Err(LaunchError::Interrupted { .. })), "{error:?}");
}

#[test]
fn a_node_that_does_not_fit_is_refused_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; echo $WORLD_SIZE >> a; while [ ! -e go ]; do sleep 0.05; done",
        folder.path().display()
    );
    let port = free_port();
    let first = start(node("1:2", None, port, 1, &script));
    until("the first node runs", || lines(&folder.path().join("a")).len() == 1);
    let error = end(&start(node("1:3", None, port, 1, "exit 0"))).unwrap_err().to_string();
    assert!(
        error.contains("--nnodes 1:3, the host of the rendezvous with --nnodes 1:2"),
        "{error}"
    );
    fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(end(&first).unwrap().exit_code, 0);
    assert_eq!(lines(&folder.path().join("a")), ["1"]);
}

#[test]
fn a_spare_does_not_start_a_run_that_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; echo run >> a; while [ ! -e go ]; do sleep 0.05; done",
        folder.path().display()
    );
    let port = free_port();
    let first = start(node("1", None, port, 1, &script));
    until("the first node runs", || lines(&folder.path().join("a")).len() == 1);
    let spare = start(node("1", None, port, 1, &script));
    std::thread::sleep(Duration::from_millis(500));
    fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(end(&first).unwrap().exit_code, 0);
    let error = end(&spare).unwrap_err().to_string();
    assert_eq!(error, "the run has ended");
    assert_eq!(lines(&folder.path().join("a")), ["run"]);
}

#[test]
fn a_slow_save_on_another_node_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; trap '[ $RANK = 0 ] || sleep 7; touch saved-$RANK; exit 143' TERM; touch ready-$RANK; \
         while :; do sleep 0.05; done",
        folder.path().display()
    );
    // One node alone is signalled; or both are, as schedulers do, and the slow one only once.
    for both in [false, true] {
        for file in fs::read_dir(folder.path()).unwrap().flatten() {
            fs::remove_file(file.path()).unwrap();
        }
        let port = free_port();
        let term = || term_when_ready(folder.path());
        let first = start_with(node("2", Some(0), port, 1, &script), term());
        let second = node("2", Some(1), port, 1, &script);
        let second = if both { start_with(second, term()) } else { start(second) };
        for node in [&first, &second] {
            let outcome = end(node).unwrap();
            assert_eq!((outcome.exit_code, outcome.failure), (143, None), "both: {both}");
        }
        assert!(folder.path().join("saved-1").exists(), "both: {both}");
    }
}

#[test]
fn nodes_that_were_asked_to_stop_are_not_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; echo run >> runs-$RANK; trap 'exit 1' TERM; touch ready-$RANK; \
         while :; do sleep 0.05; done",
        folder.path().display()
    );
    let port = free_port();
    let launch = |rank| {
        let mut launch = node("2", Some(rank), port, 1, &script);
        launch.max_restarts = 3;
        launch
    };
    let first = start_with(launch(0), term_when_ready(folder.path()));
    let second = start(launch(1));
    for node in [&first, &second] {
        assert_eq!(end(node).unwrap().exit_code, 1);
    }
    for rank in 0..2 {
        assert_eq!(lines(&folder.path().join(format!("runs-{rank}"))), ["run"]);
    }
}

#[test]
fn a_node_that_cannot_start_its_ranks_says_so_to_all() {
    let port = free_port();
    let first = start(node("2", Some(0), port, 1, "exec sleep 100"));
    let mut launch = node("2", Some(1), port, 1, "");
    launch.spec.program = "/no/such/program".into();
    let second = start(launch);
    assert!(matches!(end(&second), Err(LaunchError::Spawn { .. })));
    let summary = end(&first).unwrap().summary;
    assert!(
        summary.contains("node 1 could not start its ranks") && summary.contains("/no/such"),
        "{summary}"
    );
}

/// Names the variables through which a test tells [`as_node`] what to run.
const SCRIPT: &str = "NODE_TEST_SCRIPT";
const PORT: &str = "NODE_TEST_PORT";

/// Not a test by itself: a node in a process of its own, for the test below.
#[test]
fn as_node() {
    let (Ok(script), Ok(port)) = (std::env::var(SCRIPT), std::env::var(PORT)) else { return };
    let launch = node("1:2", None, port.parse().unwrap(), 1, &script);
    std::process::exit(crate::launch(&launch).unwrap().exit_code);
}

#[test]
fn the_others_go_on_when_a_node_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let script = |name: &str| {
        format!(
            "cd {}; echo $RANK $WORLD_SIZE >> {name}; [ $WORLD_SIZE = 1 ] || exec sleep 100",
            folder.path().display()
        )
    };
    let port = free_port();
    let mut launch = node("1:2", None, port, 1, &script("a"));
    launch.meet.as_mut().unwrap().nodes = NodeCount { min: 1, max: 2 };
    launch.meet.as_mut().unwrap().last_call = Duration::from_secs(3);
    launch.max_restarts = 1;
    let first = start(launch);
    std::thread::sleep(Duration::from_millis(200));
    let mut process = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["node_tests::as_node", "--exact", "--nocapture"])
        .env(SCRIPT, script("b"))
        .env(PORT, port.to_string())
        .spawn()
        .unwrap();
    until("both run", || ["a", "b"].iter().all(|name| lines(&folder.path().join(name)).len() == 1));
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(end(&first).unwrap().exit_code, 0);
    assert_eq!(lines(&folder.path().join("a")), ["0 2", "0 1"]);
}
