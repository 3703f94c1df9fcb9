//! The host engine with its ranks in threads: each has a session of its own over TCP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::Algorithm;
use crate::conformance;
use crate::testing::{Case, run_failure_cases};

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn env(rank: usize, size: usize, port: u16) -> RankEnv {
    RankEnv { run_id: "test".into(), ..RankEnv::on_loopback(rank, size, port) }
}

fn options(timeout: Duration) -> InitOptions {
    InitOptions { timeout, rendezvous_timeout: Some(INIT), ..Default::default() }
}

fn spawn_with(
    port: u16,
    size: usize,
    options: &(dyn Fn(usize) -> InitOptions + Sync),
    f: Case<'_>,
) {
    std::thread::scope(|scope| {
        for rank in 0..size {
            scope.spawn(move || {
                f(init_process_group(&env(rank, size, port), options(rank)).unwrap());
            });
        }
    });
}

fn spawn_on(port: u16, size: usize, timeout: Duration, f: Case<'_>) {
    spawn_with(port, size, &|_| options(timeout), f);
}

/// The rendezvous must not suffer from a short deadline of the collectives under test.
const INIT: Duration = Duration::from_secs(30);

fn spawn(size: usize, timeout: Duration, f: Case<'_>) {
    spawn_on(free_port(), size, timeout, f);
}

/// Ranks that use TCP within the machine too.
fn spawn_tcp(size: usize, timeout: Duration, f: Case<'_>) {
    let options = options(timeout).with_transport(Transport::Tcp);
    spawn_with(free_port(), size, &|_| options.clone(), f);
}

/// Ranks on machines as `machines` says.
fn spawn_mixed(machines: &[u64], timeout: Duration, f: Case<'_>) {
    let options = |rank: usize| options(timeout).with_machine(machines[rank]);
    spawn_with(free_port(), machines.len(), &options, f);
}

/// Odd numbers of ranks, interleaved, and different numbers of ranks on the machines.
const MIXED: [&[u64]; 4] = [&[1, 1, 2], &[1, 2, 1, 2], &[1, 2, 2, 2], &[3, 1, 3, 2]];

#[test]
fn the_conformance_table_holds() {
    for size in 1..=4 {
        spawn(size, INIT, &|group| conformance::check(&group));
        spawn_tcp(size, INIT, &|group| conformance::check(&group));
    }
    for machines in MIXED {
        spawn_mixed(machines, INIT, &|group| conformance::check(&group));
    }
}

#[test]
fn the_conformance_table_holds_for_every_algorithm() {
    for size in 2..=4 {
        spawn(size, INIT, &|group| conformance::check_algorithms(&group));
        spawn_tcp(size, INIT, &|group| conformance::check_algorithms(&group));
    }
    for machines in MIXED {
        spawn_mixed(machines, INIT, &|group| conformance::check_algorithms(&group));
    }
}

#[test]
#[ignore = "takes minutes: cargo xtask soak conformance"]
fn the_whole_conformance_table_holds() {
    for size in 1..=4 {
        spawn(size, INIT, &|group| conformance::check_everything(&group));
        spawn_tcp(size, INIT, &|group| conformance::check_everything(&group));
    }
    for machines in MIXED {
        spawn_mixed(machines, INIT, &|group| conformance::check_everything(&group));
    }
}

#[test]
fn failures_reach_every_rank() {
    run_failure_cases(&spawn);
    run_failure_cases(&spawn_tcp);
    run_failure_cases(&|size, timeout, f| spawn_mixed(&[1, 2, 1, 2][..size], timeout, f));
}

#[test]
fn a_world_follows_another_on_the_same_port() {
    let port = free_port();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                for round in 0..4 {
                    let options = InitOptions::default().with_timeout(INIT);
                    let group = init_process_group(&env(rank, 3, port), options).unwrap();
                    let mut data = [rank as i32 + round];
                    group.all_reduce(&mut data, crate::ReduceOp::Sum).unwrap();
                    assert_eq!(data, [3 + 3 * round]);
                }
            });
        }
    });
}

#[test]
fn a_launcher_may_host_the_store_for_several_worlds() {
    let options =
        StoreOptions { token: Some("t".into()), run_id: "test".into(), restart_count: None };
    let server = StoreServer::bind(SocketAddr::from(([127, 0, 0, 1], 0)), &options).unwrap();
    let port = server.address().port();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                for restart_count in [0, 0, 1] {
                    let env = RankEnv {
                        store_hosted: true,
                        token: Some("t".into()),
                        restart_count,
                        ..env(rank, 2, port)
                    };
                    let group = init_process_group(&env, InitOptions::default()).unwrap();
                    group.barrier().unwrap();
                }
            });
        }
    });
}

#[test]
fn a_missing_rank_is_named() {
    let options = InitOptions::default().with_timeout(Duration::from_millis(500));
    let error = init_process_group(&env(0, 3, free_port()), options).unwrap_err();
    assert!(matches!(&error, CommError::RendezvousTimeout { missing, .. } if missing == &[1, 2]));
}

#[test]
fn different_world_sizes_are_an_error() {
    let port = free_port();
    std::thread::scope(|scope| {
        let join = |rank, size| {
            scope.spawn(move || {
                let options = InitOptions::default().with_timeout(Duration::from_secs(5));
                init_process_group(&env(rank, size, port), options).unwrap_err().to_string()
            })
        };
        for thread in [join(0, 2), join(1, 3)] {
            let error = thread.join().unwrap();
            assert!(error.contains("has a world of"), "{error}");
        }
    });
}

#[test]
fn different_ways_to_communicate_are_an_error_on_every_rank() {
    let others = [
        options(INIT).with_transport(Transport::Tcp),
        options(INIT).with_algorithm(Algorithm::Tree),
    ];
    for other in others {
        let port = free_port();
        std::thread::scope(|scope| {
            let join = |rank, options| {
                scope.spawn(move || {
                    init_process_group(&env(rank, 3, port), options).unwrap_err().to_string()
                })
            };
            let usual = || options(INIT).with_transport(Transport::Auto);
            for thread in [join(0, usual()), join(1, other), join(2, usual())] {
                let error = thread.join().unwrap();
                assert!(error.contains("was started with engine host, transport "), "{error}");
                assert!(
                    error.contains("engine host, transport auto and algorithm auto"),
                    "{error}"
                );
            }
        });
    }
}

#[test]
fn another_token_is_refused_at_once() {
    let options =
        StoreOptions { token: Some("right".into()), run_id: "test".into(), restart_count: Some(0) };
    let server = StoreServer::bind(SocketAddr::from(([127, 0, 0, 1], 0)), &options).unwrap();
    let port = server.address().port();
    let env = RankEnv { token: Some("wrong".into()), store_hosted: true, ..env(1, 2, port) };
    let error = init_process_group(&env, InitOptions::default()).unwrap_err();
    assert!(error.to_string().contains("the tokens differ"), "{error}");
}

#[test]
fn several_machines_need_a_token() {
    let env = RankEnv { master_addr: "192.0.2.1".into(), local_world_size: 1, ..env(1, 2, 1) };
    let error = init_process_group(&env, InitOptions::default()).unwrap_err();
    assert_eq!(error, CommError::NoToken);
    assert!(error.to_string().contains("export BONFIRE_TOKEN="));
}

#[test]
fn garbage_on_the_ports_does_not_disturb() {
    let port = free_port();
    spawn_on(port, 2, INIT, &|group| {
        if group.rank() == 0 {
            for garbage in [&[0xff; 4096][..], b"GET / HTTP/1.1\r\n\r\n", b"x"] {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                stream.write_all(garbage).unwrap();
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                assert!(answer.len() <= 1);
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_group_may_be_dropped_at_once() {
    let make_many = |group: ProcessGroup| {
        for _ in 0..100 {
            drop(group.duplicate("short").unwrap());
        }
    };
    spawn(3, INIT, &make_many);
    spawn_tcp(3, INIT, &make_many);
    spawn_mixed(&[1, 2, 1], INIT, &make_many);
}
