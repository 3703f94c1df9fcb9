use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{ConnectError, Endpoint, Note, Scope, Store, StoreOptions, StoreServer};
use crate::CommError;
use crate::wire::{Credentials, Role, read_frame, write_frame};

fn server() -> (StoreServer, StoreOptions) {
    let options =
        StoreOptions { token: Some("secret".into()), run_id: "r".into(), restart_count: Some(1) };
    (StoreServer::bind(SocketAddr::from(([127, 0, 0, 1], 0)), &options).unwrap(), options)
}

fn client(server: &StoreServer, options: &StoreOptions) -> Store {
    let limit = Duration::from_secs(5);
    Store::connect("127.0.0.1", server.address().port(), options, limit).unwrap()
}

fn endpoint(server: &StoreServer, rank: usize) -> Endpoint {
    let credentials = Credentials::new(Some("secret"), "r", 1);
    Endpoint { host: "127.0.0.1".into(), port: server.address().port(), credentials, rank }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

#[test]
fn keys_are_set_read_counted_and_removed() {
    let (server, options) = server();
    let store = client(&server, &options);
    let scoped = store.with_prefix("a").with_prefix("b");
    scoped.set("k", b"v").unwrap();
    assert_eq!(store.get("a/b/k", Duration::ZERO).unwrap(), b"v");
    assert_eq!(store.try_get("k").unwrap(), None);
    assert_eq!((store.add("n", 5).unwrap(), store.add("n", -7).unwrap()), (5, -2));
    assert_eq!(store.compare_set("c", b"", b"one").unwrap(), b"one");
    assert_eq!(store.compare_set("c", b"x", b"two").unwrap(), b"one");
    assert_eq!(store.num_keys().unwrap(), 3);
    assert!(store.delete("c").unwrap() && !store.delete("c").unwrap());
    assert!(store.add("a/b/k", 1).unwrap_err().to_string().contains("holds no counter"));
    assert!(store.set("big", &vec![0; 2 << 20]).unwrap_err().to_string().contains("too long"));
}

#[test]
fn get_waits_for_the_key_and_not_beyond_its_deadline() {
    let (server, options) = server();
    let (a, b) = (client(&server, &options), client(&server, &options));
    let waiter = std::thread::spawn(move || a.get("late", Duration::from_secs(5)).map(|v| (v, a)));
    std::thread::sleep(Duration::from_millis(50));
    b.set("late", b"1").unwrap();
    let (value, a) = waiter.join().unwrap().unwrap();
    assert_eq!(value, b"1");
    let start = Instant::now();
    let error = a.get("never", Duration::from_millis(80)).unwrap_err();
    assert!(matches!(&error, CommError::StoreTimeout { key, .. } if key == "never"), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(80) && start.elapsed().as_secs() < 2);
}

#[test]
fn a_client_of_another_run_or_token_is_refused() {
    let (server, options) = server();
    let port = server.address().port();
    for (other, reason) in [
        (StoreOptions { token: None, ..options.clone() }, "the tokens differ"),
        (StoreOptions { run_id: "s".into(), ..options.clone() }, "another run"),
        (StoreOptions { restart_count: Some(2), ..options.clone() }, "another run"),
    ] {
        let error = Store::connect("127.0.0.1", port, &other, Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn a_garbage_frame_closes_its_connection_only() {
    let (server, options) = server();
    let store = client(&server, &options);
    let Ok(mut stream) = endpoint(&server, 0).dial(Role::Store, 0, soon()) else { panic!() };
    stream.write_all(&u64::MAX.to_le_bytes()).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    store.set("still", b"there").unwrap();
}

fn join(server: &StoreServer, rank: usize, scope: &str) -> TcpStream {
    let dialled = endpoint(server, rank).dial(Role::Presence, 0, soon());
    let mut stream = dialled.map_err(|_: ConnectError| ()).unwrap();
    say(&mut stream, &Note::Join(Scope(scope.into())));
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    stream
}

fn say(stream: &mut TcpStream, note: &Note) {
    let (kind, payload) = note.encode();
    write_frame(stream, kind, &[&payload]).unwrap();
}

fn hear(stream: &mut TcpStream) -> Note {
    let (kind, payload) = read_frame(stream).unwrap();
    Note::decode(kind, &payload).unwrap()
}

#[test]
fn a_death_is_told_to_its_session_and_ends_waits() {
    let (server, options) = server();
    let store = client(&server, &options);
    let (mut a, b, mut c) = (join(&server, 0, "s"), join(&server, 1, "s"), join(&server, 2, "s"));
    let mut other = join(&server, 0, "t");
    let waiter = std::thread::spawn(move || store.get("s/key", Duration::from_secs(20)));
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    drop(b);
    for stream in [&mut a, &mut c] {
        let Note::Failure(failure) = hear(stream) else { panic!("no failure") };
        let text = "rank 1 died (connection to the store closed without goodbye)";
        assert!(CommError::from(failure).to_string().starts_with(text));
    }
    let error = waiter.join().unwrap().unwrap_err();
    assert!(matches!(error, CommError::Died { rank: 1, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1));
    // A second failure changes nothing, another session hears nothing.
    drop(a);
    say(&mut c, &Note::Query("g".into()));
    assert_eq!(hear(&mut c), Note::Query("g".into()));
    say(&mut other, &Note::Query("h".into()));
    assert_eq!(hear(&mut other), Note::Query("h".into()));
    say(&mut c, &Note::Goodbye);
    say(&mut other, &Note::Goodbye);
}

#[test]
fn a_goodbye_is_no_death() {
    let (server, _) = server();
    let (mut a, mut b) = (join(&server, 0, "s"), join(&server, 1, "s"));
    std::thread::sleep(Duration::from_millis(50));
    say(&mut b, &Note::Goodbye);
    assert_eq!(hear(&mut a), Note::Left(1));
    say(&mut a, &Note::Goodbye);
    let start = Instant::now();
    drop(server);
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_leased_key_goes_with_the_connection_that_set_it() {
    let (server, options) = server();
    let (holder, other) = (client(&server, &options), client(&server, &options));
    holder.lease("alive/1", b"here").unwrap();
    other.set("kept", b"").unwrap();
    assert_eq!(other.try_get("alive/1").unwrap(), Some(b"here".to_vec()));
    drop(holder);
    let limit = soon();
    while other.try_get("alive/1").unwrap().is_some() {
        assert!(Instant::now() < limit, "the key stayed");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(other.num_keys().unwrap(), 1);
}
