//! Engine `mpi` under `mpirun`: this test re-executes itself as the ranks.
//!
//! A rank runs all cases of its world's size, each in a world of its own, so that the recovery
//! from failures is tested by the way. It reports by panicking, which `mpirun` passes on.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "the log of a rank")]

use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bonfire_comm::{
    Algorithm, CommError, EngineKind, InitOptions, PeerOp, ProcessGroup, RankEnv, ReduceOp,
    conformance, init_mpi, init_process_group,
};
use half::{bf16, f16};

/// After this time `mpirun` is killed; a rank ends itself a little earlier.
const LIMIT: Duration = Duration::from_secs(120);
/// What a rank says at its end.
const DONE: &str = "THIS RANK IS DONE";
const LONG: Duration = Duration::from_secs(60);

// ---- What a rank does ----

type Case = (&'static str, fn());

const TWO: &[Case] = &[
    ("lengths that differ", different_lengths_are_an_error_on_every_rank),
    ("groups in different orders", groups_do_not_order_each_other),
    ("groups made in different orders", groups_are_made_in_any_order),
    ("order of blocking and started calls", blocking_and_started_calls_keep_their_order),
    ("messages in both directions", batches_do_not_wait_for_themselves),
    ("a message of another length", a_message_of_another_length_is_an_error),
    ("rank from the environment", mpirun_tells_the_rank),
    ("special values", half_types_and_nans_follow_our_rules),
];

const THREE: &[Case] = &[
    ("calls that differ", different_calls_are_an_error_on_every_rank),
    ("a missing rank", a_deadline_names_the_missing_rank),
    ("a missing member", a_member_that_does_not_make_a_group_is_named),
    ("abort", an_abort_reaches_pending_and_later_calls),
    ("a rank that leaves", a_rank_that_leaves_is_named),
    ("a message that never comes", a_message_of_a_rank_that_left_is_not_waited_for),
    ("the same bits", results_have_the_same_bits_everywhere_and_again),
];

const FOUR: &[Case] = &[("split", split_makes_the_groups_of_mpi)];

#[test]
fn rank_process() {
    let Ok(task) = std::env::var("COMM_TEST_TASK") else { return };
    std::thread::spawn(|| {
        std::thread::sleep(LIMIT - Duration::from_secs(5));
        println!("a rank takes too long");
        std::process::abort();
    });
    match task.as_str() {
        "conformance" => {
            conformance::check(&world(LONG));
            println!("{DONE}");
        }
        "killed" => end_badly(|| std::process::abort()),
        "stopped" => end_badly(|| signal_self("STOP")),
        _ => run_cases(),
    }
}

fn run_cases() {
    let cases = match world(LONG).world_size() {
        2 => TWO,
        3 => THREE,
        _ => FOUR,
    };
    for (name, case) in cases {
        let start = Instant::now();
        case();
        println!("case {name}: {:.2} s", start.elapsed().as_secs_f64());
    }
    println!("{DONE}");
}

fn world(timeout: Duration) -> ProcessGroup {
    let options = InitOptions::default().with_timeout(timeout);
    let options = InitOptions { rendezvous_timeout: Some(LONG), ..options };
    init_mpi(&options).unwrap()
}

/// Rank 1 ends in the middle of everything; the others say what they see.
fn end_badly(end: impl Fn()) {
    let group = world(Duration::from_secs(2));
    group.barrier().unwrap();
    if group.rank() == 1 {
        end();
    }
    let error = group.all_reduce(&mut [1f32; 7], ReduceOp::Sum).unwrap_err();
    println!("RESULT {error}");
}

fn signal_self(name: &str) {
    let id = std::process::id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
}

fn different_calls_are_an_error_on_every_rank() {
    let group = world(LONG);
    let mut data = [1f32; 4000];
    let result = match group.rank() {
        1 => group.broadcast(&mut data, 1),
        _ => group.all_reduce(&mut data, ReduceOp::Sum),
    };
    let text = result.unwrap_err().to_string();
    assert!(text.contains("rank 1 called broadcast(root 1) of 4000 f32 [sequence 0]"), "{text}");
    assert!(text.contains("called all_reduce(sum) of 4000 f32 [sequence 0]"), "{text}");
    assert!(group.barrier().is_err() && group.failure().is_some());
}

fn different_lengths_are_an_error_on_every_rank() {
    for lengths in [[3usize, 4], [50_000, 40_000]] {
        let group = world(LONG);
        group.barrier().unwrap();
        let mut data = vec![0f64; lengths[group.rank()]];
        let text = group.all_reduce(&mut data, ReduceOp::Mean).unwrap_err().to_string();
        for (rank, length) in lengths.iter().enumerate() {
            let call = format!("rank {rank} called all_reduce(mean) of {length} f64 [sequence 1]");
            assert!(text.contains(&call), "{text}");
        }
    }
}

fn a_deadline_names_the_missing_rank() {
    let group = world(Duration::from_secs(2));
    group.barrier().unwrap();
    let start = Instant::now();
    if group.rank() == 2 {
        std::thread::sleep(Duration::from_secs(4));
    }
    let text = group.all_reduce(&mut [0i64; 10], ReduceOp::Max).unwrap_err().to_string();
    assert!(text.contains("all_reduce(max) of 10 i64 [sequence 1]"), "{text}");
    assert!(text.contains("rank(s) [2] have not entered it"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

fn a_member_that_does_not_make_a_group_is_named() {
    let group = world(Duration::from_secs(2));
    if group.rank() == 0 {
        // What `duplicate` does first, and then nothing.
        group.all_gather_bytes(b"side").unwrap();
        std::thread::sleep(Duration::from_secs(4));
        let text = group.barrier().unwrap_err().to_string();
        assert!(text.contains("creation of the group"), "{text}");
    } else {
        let text = group.duplicate("side").unwrap_err().to_string();
        assert!(text.contains("in creation of the group; rank(s) [0] have not"), "{text}");
    }
}

fn an_abort_reaches_pending_and_later_calls() {
    let group = world(LONG);
    let side = group.duplicate("side").unwrap();
    if group.rank() == 0 {
        std::thread::sleep(Duration::from_millis(300));
        group.abort("the disk is full");
    } else {
        let start = Instant::now();
        side.start_all_reduce(vec![1u8; 5], ReduceOp::Sum).unwrap().wait().unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    let text = group.barrier().unwrap_err().to_string();
    assert_eq!(text, "rank 0 failed: the disk is full");
}

fn a_rank_that_leaves_is_named() {
    for leaver in [0, 1] {
        let group = world(LONG);
        group.barrier().unwrap();
        let start = Instant::now();
        if group.rank() != leaver {
            let text = group.barrier().unwrap_err().to_string();
            assert!(text.starts_with(&format!("rank {leaver} left the group \"world\"")), "{text}");
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        }
    }
}

fn a_message_of_a_rank_that_left_is_not_waited_for() {
    let group = world(LONG);
    group.barrier().unwrap();
    match group.rank() {
        0 => group.send(&[5i32], 1).unwrap(),
        1 => {
            let mut data = [0i32];
            group.recv(&mut data, 0).unwrap();
            assert_eq!(data, [5]);
            let text = group.recv(&mut data, 0).unwrap_err().to_string();
            assert!(text.starts_with("rank 0 left the group \"world\""), "{text}");
        }
        _ => {}
    }
}

fn groups_do_not_order_each_other() {
    let group = world(LONG);
    let (a, b) = (group.duplicate("a").unwrap(), group.duplicate("b").unwrap());
    let start = |on: &ProcessGroup, n| on.start_all_reduce(vec![1f32; n], ReduceOp::Sum).unwrap();
    for _ in 0..20 {
        let (x, y) = if group.rank() == 0 {
            let x = start(&a, 70_000);
            (x, start(&b, 100))
        } else {
            let y = start(&b, 100);
            (start(&a, 70_000), y)
        };
        assert_eq!(y.wait().unwrap().into_vec::<f32>().unwrap(), [2.0; 100]);
        assert_eq!(x.wait().unwrap().into_vec::<f32>().unwrap(), [2.0; 70_000]);
        // A blocking call of one group, while the other rank is in one of the other group.
        let (first, second) = if group.rank() == 0 { (&a, &b) } else { (&b, &a) };
        let work = start(second, 10);
        let mut data = [1f32; 30];
        std::thread::scope(|scope| {
            scope.spawn(|| first.all_reduce(&mut data[..10], ReduceOp::Sum).unwrap());
        });
        assert_eq!(work.wait().unwrap().into_vec::<f32>().unwrap(), [2.0; 10]);
        assert_eq!(data[..10], [2.0; 10]);
    }
}

fn groups_are_made_in_any_order() {
    let group = world(LONG);
    let parents = ["a", "b"].map(|name| group.duplicate(name).unwrap());
    for round in 0..4 {
        // Two threads make groups at the same time, on each rank another one first.
        let late = |index: usize| (index + group.rank() + round) % 2 == 1;
        std::thread::scope(|scope| {
            for (index, parent) in parents.iter().enumerate() {
                scope.spawn(move || {
                    if late(index) {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    let child = parent.duplicate("child").unwrap();
                    let mut data = [index as i32 + 1];
                    child.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                    assert_eq!(data, [2 * (index as i32 + 1)]);
                });
            }
        });
    }
}

fn blocking_and_started_calls_keep_their_order() {
    let group = world(LONG);
    // More than the queue holds.
    let work: Vec<_> = (0..200)
        .map(|i| group.start_all_reduce(vec![i as f32; 3 + 40 * i], ReduceOp::Sum).unwrap())
        .collect();
    let mut data = [1i32; 11];
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    assert_eq!(data, [2; 11]);
    for (i, work) in work.into_iter().enumerate() {
        assert!(work.is_done() && work.fence().is_err());
        assert_eq!(work.wait().unwrap().into_vec::<f32>().unwrap()[2], 2.0 * i as f32);
    }
    assert!(group.bytes_sent() > 0);
    let work = group.start_barrier().unwrap();
    while !work.is_done() {
        std::thread::yield_now();
    }
    work.wait().unwrap();
}

fn batches_do_not_wait_for_themselves() {
    let group = world(LONG);
    let peer = 1 - group.rank();
    let own = group.rank() as f32;
    // Both send first, more than any buffer between them holds; twice, to see the order.
    let (first, second) = (vec![own; 1_500_000], vec![own + 10.0; 3]);
    let (mut got_first, mut got_second) = (vec![0f32; 1_500_000], vec![0f32; 3]);
    let messages = vec![
        PeerOp::Send { data: &first, to: peer },
        PeerOp::Send { data: &second, to: peer },
        PeerOp::Recv { data: &mut got_first, from: peer },
        PeerOp::Recv { data: &mut got_second, from: peer },
    ];
    group.batch_send_recv(messages).unwrap();
    assert!(got_first.iter().all(|&value| value == peer as f32));
    assert_eq!(got_second, [peer as f32 + 10.0; 3]);
    group.batch_send_recv::<f32>(Vec::new()).unwrap();
    group.barrier().unwrap();
}

fn a_message_of_another_length_is_an_error() {
    let group = world(LONG);
    let result = match group.rank() {
        0 => group.send(&[1f64; 5], 1).and_then(|()| group.barrier()),
        _ => group.recv(&mut [0f64; 6], 0),
    };
    let text = result.unwrap_err().to_string();
    assert!(text.contains("send/recv(from 0) of 5 f64 [sequence 0]"), "{text}");
    assert!(text.contains("send/recv(from 0) of 6 f64 [sequence 0]"), "{text}");
}

fn mpirun_tells_the_rank() {
    let env = RankEnv::detect().unwrap().unwrap();
    let options = InitOptions::default().with_timeout(LONG).with_engine(EngineKind::Mpi);
    let group = init_process_group(&env, options.clone()).unwrap();
    assert_eq!((group.rank(), group.world_size()), (env.rank, env.world_size));
    assert_eq!((env.local_rank, env.local_world_size), (env.rank, env.world_size));
    assert_eq!((group.engine_name(), group.num_machines()), ("mpi", 1));

    let other = RankEnv { rank: 1 - env.rank, ..env };
    let error = init_process_group(&other, options.clone()).unwrap_err();
    assert!(error.to_string().contains("MPI says rank"), "{error}");
    let error = init_mpi(&options.clone().with_algorithm(Algorithm::Ring)).unwrap_err();
    assert!(matches!(error, CommError::Unsupported { .. }), "{error}");

    let machines = InitOptions { machine: Some(group.rank() as u64), ..options };
    assert_eq!(init_mpi(&machines).unwrap().num_machines(), 2);
}

fn half_types_and_nans_follow_our_rules() {
    let group = world(LONG);
    let own = group.rank();
    for op in ReduceOp::ALL {
        let mut data = [[f32::NAN, 1.0, 2.0], [1.0, f32::NAN, 2.0]][own];
        group.all_reduce(&mut data, op).unwrap();
        assert!(data[0].is_nan() && data[1].is_nan() && !data[2].is_nan(), "{op}: {data:?}");
        let mut data = vec![[f64::NAN, 3.0][own]; 30_000];
        group.reduce(&mut data, 1, op).unwrap();
        assert!(own == 0 || data.iter().all(|value| value.is_nan()), "{op}");
    }
    // 2048 + 1 is not a number of f16; in f32 it is rounded once.
    let mut data = vec![[f16::from_f32(2048.0), f16::from_f32(3.0)][own]; 40_000];
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    assert!(data.iter().all(|value| value.to_f32() == 2052.0), "{}", data[0]);
    let mut data = [[bf16::from_f32(256.0), bf16::from_f32(4.0)][own]];
    group.all_reduce(&mut data, ReduceOp::Mean).unwrap();
    assert_eq!(data[0].to_f32(), 130.0);
    let mut data = [[200u8, 100][own]];
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    assert_eq!(data, [44]);
}

fn results_have_the_same_bits_everywhere_and_again() {
    for length in [500usize, 30_011, 700_001] {
        let mut seen: Option<Vec<u32>> = None;
        for _ in 0..3 {
            let group = world(LONG);
            let noise = |i: usize| ((i * 7919 + group.rank() * 104_729) % 9973) as f32 / 977.0;
            let data: Vec<f32> = (0..length).map(noise).collect();
            let mut reduced = data.clone();
            group.all_reduce(&mut reduced, ReduceOp::Mean).unwrap();
            let bits: Vec<u32> = reduced.iter().map(|value| value.to_bits()).collect();
            let bytes: Vec<u8> = bits.iter().flat_map(|value| value.to_le_bytes()).collect();
            let all = group.all_gather_bytes(&bytes).unwrap();
            assert!(all.iter().all(|other| *other == bytes), "ranks differ");
            assert!(seen.as_ref().is_none_or(|seen| *seen == bits), "runs differ");
            seen = Some(bits);
            let mut at_root = data;
            group.reduce(&mut at_root, 2, ReduceOp::Mean).unwrap();
            assert!(group.rank() != 2 || at_root == reduced, "reduce differs from all_reduce");
        }
    }
}

fn split_makes_the_groups_of_mpi() {
    let group = world(LONG);
    let rank = group.rank();
    let color = (rank != 3).then_some(u64::from(rank == 1));
    let Some(part) = group.split(color, -(rank as i64)).unwrap() else {
        assert_eq!(rank, 3);
        return group.barrier().unwrap();
    };
    assert_eq!((part.rank(), part.world_size()), [(1, 2), (0, 1), (0, 2)][rank]);
    let ranks = part.all_gather_bytes(&vec![rank as u8; rank]).unwrap();
    if rank != 1 {
        assert_eq!(ranks, [vec![2, 2], vec![]]);
    }
    assert_eq!(part.broadcast_bytes(vec![7; rank], 0).unwrap().len(), [2, 1, 2][rank]);
    group.barrier().unwrap();
}

// ---- What starts the ranks ----

/// One world at a time: they are timed, and there may be few cores.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Tells whether there is an `mpirun`; without it the test is skipped, or fails if it must run.
fn has_mpirun() -> bool {
    let version = Command::new("mpirun").arg("--version").output();
    if version.is_ok_and(|output| output.status.success()) {
        return true;
    }
    let required = std::env::var("BONFIRE_REQUIRE_MPI").is_ok_and(|value| value == "1");
    assert!(!required, "needs mpirun, and BONFIRE_REQUIRE_MPI=1");
    println!("SKIPPED: needs mpirun");
    false
}

fn is_open_mpi() -> bool {
    let output = Command::new("mpirun").arg("--version").output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("Open MPI")
}

/// Runs this program as ranks and returns its output; none without `mpirun`.
fn mpirun(task: &str, ranks: usize) -> Option<Output> {
    if !has_mpirun() {
        return None;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let mut command = Command::new("mpirun");
    if is_open_mpi() {
        command.args(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]);
    }
    let start = Instant::now();
    let child = command
        .args(["-n", &ranks.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["rank_process", "--exact", "--nocapture"])
        .env("COMM_TEST_TASK", task)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id().to_string();
    let (ended, is_ended) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        // An interrupted mpirun ends its ranks; a killed one would leave them behind.
        for signal in ["-INT", "-KILL"] {
            let limit = if signal == "-INT" { LIMIT } else { Duration::from_secs(5) };
            if is_ended.recv_timeout(limit) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                return;
            }
            let _ = Command::new("kill").args([signal, &id]).status();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watchdog.join().unwrap();
    println!("{task} of {ranks} ranks: {:.1} s", start.elapsed().as_secs_f64());
    Some(output)
}

fn text_of(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}\n{err}")
}

fn expect_success(task: &str, ranks: usize) {
    let Some(output) = mpirun(task, ranks) else { return };
    let text = text_of(&output);
    assert!(output.status.success(), "{task} of {ranks} ranks: {}\n{text}", output.status);
    assert_eq!(text.matches(DONE).count(), ranks, "{text}");
}

#[test]
fn the_conformance_table_holds() {
    (1..=4).for_each(|ranks| expect_success("conformance", ranks));
}

#[test]
fn the_cases_of_two_ranks_hold() {
    expect_success("cases", 2);
}

#[test]
fn the_cases_of_three_ranks_hold() {
    expect_success("cases", 3);
}

#[test]
fn the_cases_of_four_ranks_hold() {
    expect_success("cases", 4);
}

#[test]
fn a_job_ends_when_a_rank_dies() {
    let Some(output) = mpirun("killed", 3) else { return };
    assert!(!output.status.success(), "{}", text_of(&output));
}

#[test]
fn a_stopped_rank_is_named_after_the_deadline_and_does_not_hold_the_others() {
    let Some(output) = mpirun("stopped", 3) else { return };
    let text = text_of(&output);
    // mpirun lets the stopped rank go on when the others have ended, so that it may say it too.
    assert!(text.matches("rank(s) [1] do not answer").count() >= 2, "{text}");
    assert!(!is_open_mpi() || !output.status.success(), "{text}");
}
