//! The port of the store is taken by another program.

use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::world::{AT_DEADLINE, AT_ONCE, Plan, Wiring, World, for_each};

/// Deadline of a rendezvous that cannot end well.
const RENDEZVOUS: Duration = Duration::from_secs(3);

/// What the other program does with those who connect to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Silent,
    Closes,
    SpeaksHttp,
}

impl Other {
    const ALL: [Self; 3] = [Self::Silent, Self::Closes, Self::SpeaksHttp];

    fn serve(self, listener: &TcpListener) {
        let mut silent = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            match self {
                Self::Silent => silent.push(stream),
                Self::Closes => {}
                Self::SpeaksHttp => {
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                }
            }
        }
    }

    /// What a rank says that finds this program in place of the store.
    fn told(self) -> &'static str {
        match self {
            Self::Silent => "does not answer; has another program the port?",
            Self::Closes => "closes the connection; has another program the port?",
            Self::SpeaksHttp => "it speaks another version of the protocol, or is no Bonfire",
        }
    }
}

/// Listens on a port that is free, but may have been looked at just before: a process that is
/// being started elsewhere can keep it for a moment.
fn take(port: u16) -> TcpListener {
    let limit = Instant::now() + AT_ONCE;
    loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => return listener,
            Err(error) if Instant::now() >= limit => panic!("port {port}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[test]
fn a_taken_port_is_named_by_every_rank() {
    let cases = Other::ALL.iter().flat_map(|other| [None, Some("secret")].map(|t| (*other, t)));
    let cases: Vec<_> = Wiring::ALL.iter().flat_map(|w| cases.clone().map(|c| (*w, c))).collect();
    for_each(cases, |(wiring, (other, token))| {
        let plan = Plan::new(wiring, "work").with("FAULT_RENDEZVOUS", "3");
        let plan = token.into_iter().fold(plan, |plan, token| plan.with("BONFIRE_TOKEN", token));
        let port = plan.port;
        let listener = take(port);
        std::thread::spawn(move || other.serve(&listener));
        let mut world = plan.start();
        let texts = world.results(&[0, 1, 2], RENDEZVOUS + AT_DEADLINE);
        let host =
            format!("cannot listen on 127.0.0.1:{port} for the store: Address already in use");
        expect(&mut world, &texts[0], &[&host, "another MASTER_PORT or BONFIRE_STORE_PORT"]);
        for text in &texts[1..] {
            // Without a token of their own, the others may find that of the host, and lose it.
            let told = [other.told(), "the store's host has made no token; is rank 0 running?"];
            let told = if text.contains(told[0]) || token.is_some() { told[0] } else { told[1] };
            expect(&mut world, text, &[&format!("127.0.0.1:{port}"), told]);
        }
        world.finish(&[]);
    });
}

fn expect(world: &mut World, text: &str, parts: &[&str]) {
    if parts.iter().any(|part| !text.contains(part)) {
        world.fail(&format!("{text:?} does not contain {parts:?}"));
    }
}
