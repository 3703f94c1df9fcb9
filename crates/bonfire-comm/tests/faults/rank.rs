//! What a rank process does.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bonfire_comm::{
    Algorithm, CommError, InitOptions, PeerOp, ProcessGroup, RankEnv, ReduceOp, init_process_group,
};

use crate::world::TIMEOUT;
use crate::{mismatches, network, sockets};

/// Does what `FAULT_ACTION` says, if this process is a rank.
pub(crate) fn main() {
    let Ok(action) = std::env::var("FAULT_ACTION") else { return };
    match action.as_str() {
        "never join" => return,
        "mismatches" => return mismatches::rank(),
        _ => {}
    }
    let connected = connect(algorithm()).and_then(|group| group.barrier().map(|()| group));
    let group = match connected {
        Ok(group) => group,
        Err(error) => return println!("RESULT {error}"),
    };
    println!("READY and connected");
    match act(&action, &group) {
        Ok(text) => println!("RESULT ok {text}"),
        Err(error) => println!("RESULT {error}"),
    }
}

pub(crate) fn connect(algorithm: Algorithm) -> Result<ProcessGroup, CommError> {
    let env = RankEnv::detect()?.unwrap();
    let seconds =
        |name: &str| Some(Duration::from_secs(std::env::var(name).ok()?.parse().unwrap()));
    let options = InitOptions {
        timeout: seconds("FAULT_TIMEOUT").unwrap_or(TIMEOUT),
        rendezvous_timeout: seconds("FAULT_RENDEZVOUS").or(Some(Duration::from_secs(30))),
        algorithm,
        ..Default::default()
    };
    init_process_group(&env, options)
}

fn algorithm() -> Algorithm {
    std::env::var("FAULT_ALGORITHM").map_or(Algorithm::Auto, |name| name.parse().unwrap())
}

fn act(action: &str, group: &ProcessGroup) -> Result<String, CommError> {
    match action {
        "work" => work_until(group, || false).map(|_| String::new()),
        "work and make groups until the cue" => work_and_make_groups(group),
        "make a group at the cue" => {
            await_cue();
            work(&group.duplicate("another")?, 50).map(|()| String::new())
        }
        "sleep" => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        "send 5 f32" => message(group, || group.send(&[1f32; 5], 2)),
        "recv 6 f32" => message(group, || group.recv(&mut [0f32; 6], 1)),
        "recv 5 i32" => message(group, || group.recv(&mut [0i32; 5], 1)),
        "no message" => message(group, || Ok(())),
        "make a group" => group.duplicate("another").map(|_| String::new()),
        "leave" => {
            await_cue();
            Ok("left".into())
        }
        "exit" => {
            await_cue();
            std::process::exit(7);
        }
        "panic" => {
            await_cue();
            panic!("the disk is full");
        }
        "close links" | "close store" => {
            let what = action.to_owned();
            std::thread::spawn(move || {
                await_cue();
                sockets::close(&what);
            });
            work_until(group, || false).map(|_| String::new())
        }
        "every operation" => network::every_operation(group).map(|()| String::new()),
        other => panic!("no action {other:?}"),
    }
}

/// A message, and operations in which the others learn of its error.
fn message(
    group: &ProcessGroup,
    run: impl FnOnce() -> Result<(), CommError>,
) -> Result<String, CommError> {
    run()?;
    (0..3).try_for_each(|_| group.barrier())?;
    Ok(String::new())
}

fn await_cue() {
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
}

/// Becomes true at the cue of the test.
fn cue() -> impl Fn() -> bool {
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    std::thread::spawn(move || {
        await_cue();
        set.store(true, Ordering::Release);
    });
    move || flag.load(Ordering::Acquire)
}

/// Runs all kinds of operations and checks what they bring, until rank 0 is at its end; returns
/// how often.
fn work_until(group: &ProcessGroup, is_end: impl Fn() -> bool) -> Result<usize, CommError> {
    for round in 0.. {
        let mut ends = [i32::from(group.rank() == 0 && is_end())];
        group.all_reduce(&mut ends, ReduceOp::Max)?;
        if ends == [1] {
            return Ok(round);
        }
        work(group, if round % 8 == 0 { 300_000 } else { 50 })?;
    }
    Ok(0)
}

/// Works in the world and in groups that are made for a while.
fn work_and_make_groups(group: &ProcessGroup) -> Result<String, CommError> {
    let is_end = cue();
    let mut rounds = 0;
    for number in 0.. {
        let part = group.duplicate("part")?;
        let start = Instant::now();
        let is_over = || is_end() || start.elapsed() > Duration::from_millis(50);
        rounds += work_until(&part, is_over)?;
        let mut ends = [i32::from(group.rank() == 0 && is_end())];
        group.all_reduce(&mut ends, ReduceOp::Max)?;
        if ends == [1] {
            return Ok(format!("{rounds} rounds in {number} groups"));
        }
    }
    Ok(String::new())
}

/// Runs each operation once, with buffers of `len` elements for each rank.
pub(crate) fn work(group: &ProcessGroup, len: usize) -> Result<(), CommError> {
    let (rank, size) = (group.rank(), group.world_size());
    let sum = (size * (size - 1) / 2) as f32;
    let own = vec![rank as f32; len];
    let is_sum = |data: &[f32]| assert!(data.iter().all(|one| *one == sum));
    let is_from = |data: &[f32], from: usize| assert!(data.iter().all(|one| *one == from as f32));

    let mut data = own.clone();
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    is_sum(&data);
    let started = group.start_all_reduce(own.clone(), ReduceOp::Sum)?;
    is_sum(&started.wait()?.into_vec::<f32>()?);
    let root = size - 1;
    let mut data = own.clone();
    group.broadcast(&mut data, root)?;
    is_from(&data, root);
    let mut all = vec![0f32; len * size];
    group.all_gather(&own, &mut all)?;
    all.chunks(len).enumerate().for_each(|(from, part)| is_from(part, from));
    let mut data = own.clone();
    group.reduce_scatter(&vec![rank as f32; len * size], &mut data, ReduceOp::Sum)?;
    is_sum(&data);
    let mut data = own.clone();
    group.reduce(&mut data, root, ReduceOp::Sum)?;
    if rank == root {
        is_sum(&data);
    }
    group.all_to_all(&vec![rank as f32; len * size], &mut all)?;
    all.chunks(len).enumerate().for_each(|(from, part)| is_from(part, from));
    group.gather(&own, if rank == root { &mut all } else { &mut [] }, root)?;
    let mut data = own.clone();
    group.scatter(if rank == root { &all } else { &[] }, &mut data, root)?;
    is_from(&data, rank);
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let sends = PeerOp::Send { data: &own, to: next };
    group.batch_send_recv(vec![sends, PeerOp::Recv { data: &mut data, from: previous }])?;
    is_from(&data, previous);
    group.barrier()
}

/// Whether an error says in which operation a rank was.
pub(crate) fn names_operation(text: &str) -> bool {
    const NAMES: [&str; 9] = [
        "all_reduce(",
        "broadcast(root ",
        "all_gather",
        "reduce_scatter(",
        "reduce(",
        "all_to_all",
        "gather(root ",
        "scatter(root ",
        "barrier",
    ];
    NAMES.iter().any(|name| text.contains(name)) || text.contains("send") || text.contains("recv")
}
