//! Connections that are closed under a rank.

use std::fs;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;

use socket2::SockRef;

use crate::rank::names_operation;
use crate::world::{AT_ONCE, Plan, Wiring, for_each};

/// Shuts connections of this process down: those to other ranks, or those to the store.
pub(crate) fn close(what: &str) {
    let store: u16 = std::env::var("MASTER_PORT").unwrap().parse().unwrap();
    let mut closed = 0;
    for file in fs::read_dir("/proc/self/fd").unwrap() {
        let number = file.unwrap().file_name().into_string().unwrap().parse().unwrap();
        // SAFETY: nothing is done to a descriptor that is not a connection; one that was closed
        // since the listing gives an error.
        #[allow(unsafe_code, reason = "descriptors of the library under test have no owner here")]
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let socket = SockRef::from(&descriptor);
        let port = |address: std::io::Result<socket2::SockAddr>| {
            address.ok().and_then(|address| Some(address.as_socket()?.port()))
        };
        let (Some(own), Some(peer)) = (port(socket.local_addr()), port(socket.peer_addr())) else {
            continue;
        };
        let is_of_store = own == store || peer == store;
        if is_of_store == (what == "close store") {
            socket.shutdown(Shutdown::Both).unwrap();
            closed += 1;
        }
    }
    assert!(closed > 0, "there was no connection to close");
}

#[test]
fn a_closed_link_is_named_with_its_operation() {
    let wirings = [Wiring::Tcp, Wiring::Mixed];
    let cases = wirings.iter().flat_map(|wiring| (0..3).map(move |victim| (*wiring, victim)));
    for_each(cases, |(wiring, victim)| {
        let mut world = Plan::new(wiring, "work").but(victim, "close links").start();
        world.await_ready();
        world.cue(victim);
        for (rank, text) in world.results(&[0, 1, 2], AT_ONCE).iter().enumerate() {
            // Either end may be the first to notice, and names the other.
            let broke = text.contains("the connection to rank ") && text.contains(" broke during ");
            let ends = [format!("rank {victim} failed"), format!("to rank {victim} broke")];
            let names_victim = rank == victim || ends.iter().any(|end| text.contains(end));
            if !broke || !names_victim || !names_operation(text) {
                world.fail(text);
            }
        }
        world.finish(&[]);
    });
}

#[test]
fn a_rank_that_loses_the_store_is_named_by_the_others() {
    let cases = Wiring::ALL.iter().flat_map(|wiring| (0..3).map(move |victim| (*wiring, victim)));
    for_each(cases, |(wiring, victim)| {
        let mut world = Plan::new(wiring, "work").but(victim, "close store").start();
        world.await_ready();
        world.cue(victim);
        for (rank, text) in world.results(&[0, 1, 2], AT_ONCE).iter().enumerate() {
            let lost = "connection to the store, which it hosts, closed without goodbye";
            let left = "connection to the store closed without goodbye";
            let told = match victim {
                // It hosts the store: whose connection to it is seen to end first is chance.
                0 => "rank ".to_owned(),
                victim if victim == rank => format!("rank 0 died ({lost}"),
                victim => format!("rank {victim} died ({left}"),
            };
            let is_told =
                text.starts_with(&told) && text.contains(" died (connection to the store");
            if !is_told || !names_operation(text) {
                world.fail(text);
            }
        }
        world.finish(&[]);
    });
}
