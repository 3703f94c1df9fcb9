//! Strangers on the ports of a run: it goes on, and its results are right.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::world::{AT_ONCE, Plan, Wiring, World, for_each};

/// How long the strangers go on.
const VISIT: Duration = Duration::from_millis(1500);
/// Size of the message with which a connection begins.
const HELLO_BYTES: usize = 56;

/// The ports on which a process listens.
fn listening_ports(process: u32) -> Vec<u16> {
    let folder = format!("/proc/{process}/fd");
    let own: HashSet<String> = fs::read_dir(folder)
        .unwrap()
        .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .map(|target| target.display().to_string())
        .collect();
    const LISTENS: &str = "0A";
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap();
    let port = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (address, state, inode) = (columns[1], columns[3], columns[9]);
        let listens = state == LISTENS && own.contains(&format!("socket:[{inode}]"));
        let (_, port) = address.split_once(':')?;
        listens.then(|| u16::from_str_radix(port, 16).unwrap())
    };
    table.lines().skip(1).filter_map(port).collect()
}

/// Garbage that is different every time and the same in every run.
fn garbage(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let len = 1 + next() % 5000;
    (0..len).map(|_| next() as u8).collect()
}

/// A hello as `README.md` describes it, with a token that is wrong.
fn hello_with_wrong_token(role: u8) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(b"BONFIRE\x01");
    hello[8] = role;
    hello[16..32].copy_from_slice(&[0xab; 16]);
    hello
}

/// Connects, says something, and hears what comes back until the other end closes.
fn talk(port: u16, words: &[u8]) -> Vec<u8> {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return Vec::new() };
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = stream.write_all(words);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Sends connections of each kind to a port, until the time is over.
fn visit(port: u16, limit: Instant) {
    let mut silent = Vec::new();
    for round in 0.. {
        if Instant::now() >= limit {
            return;
        }
        // Held open without a word, and in mid-hello.
        if silent.len() < 40 {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(&hello_with_wrong_token(0)[..(round % 2) * 20]).unwrap();
            silent.push(stream);
        }
        let answer = talk(port, &garbage(round as u64));
        assert!(answer.len() <= 1, "{} bytes for garbage", answer.len());
        const WRONG_TOKEN: u8 = 1;
        assert_eq!(talk(port, &hello_with_wrong_token((round % 3) as u8)), [WRONG_TOKEN]);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ports(world: &World) -> Vec<u16> {
    let ports: Vec<_> = (0..3).flat_map(|rank| listening_ports(world.id(rank))).collect();
    assert_eq!(ports.len(), 4, "the store and three meshes: {ports:?}");
    ports
}

#[test]
fn strangers_do_not_disturb() {
    for_each(Wiring::ALL, |wiring| {
        let mut world = Plan::new(wiring, "work and make groups until the cue").start();
        world.await_ready();
        let limit = Instant::now() + VISIT;
        std::thread::scope(|scope| {
            for port in ports(&world) {
                scope.spawn(move || visit(port, limit));
            }
        });
        world.cue(0);
        let texts = world.results(&[0, 1, 2], AT_ONCE);
        if !texts.iter().all(|text| text.starts_with("ok")) {
            world.fail("strangers disturbed the run");
        }
        world.finish(&[]);
    });
}

/// More silent connections than a listener admits, so that the ranks themselves find no place
/// until the time of a hello is over.
#[test]
fn a_crowd_delays_a_new_group_but_does_not_break_it() {
    const CROWD: usize = 300;
    for_each([Wiring::Tcp, Wiring::Mixed], |wiring| {
        let plan = Plan::new(wiring, "make a group at the cue").with("FAULT_TIMEOUT", "20");
        let mut world = plan.start();
        world.await_ready();
        let connect = |port| TcpStream::connect(("127.0.0.1", port)).unwrap();
        let crowd: Vec<_> = ports(&world)
            .into_iter()
            .flat_map(|port| (0..CROWD).map(move |_| connect(port)))
            .collect();
        (0..3).for_each(|rank| world.cue(rank));
        let texts = world.results(&[0, 1, 2], Duration::from_secs(15));
        if !texts.iter().all(|text| text.starts_with("ok")) {
            world.fail("a crowd broke a group");
        }
        drop(crowd);
        world.finish(&[]);
    });
}
