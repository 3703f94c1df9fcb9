//! A listener that hands on connections after a good hello.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::wire::{Credentials, Hello};

/// Connections that may be in their hello at the same time; more are closed at once.
const MAX_STRANGERS: usize = 256;
/// Enough for the handlers of this crate, which keep their data on the heap.
const STACK_BYTES: usize = 256 * 1024;

/// Accepts connections until it is dropped.
pub(crate) struct Acceptor {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Calls `handler`, in a thread of its own, for every connection that said a good hello.
    pub(crate) fn start(
        listener: TcpListener,
        credentials: Credentials,
        check_run: bool,
        handler: impl Fn(TcpStream, Hello) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let greet = Greeter {
            credentials,
            check_run,
            handler,
            strangers: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
        };
        let thread = std::thread::Builder::new()
            .name("comm accept".into())
            .stack_size(STACK_BYTES)
            .spawn(move || accept(&listener, &stop, &Arc::new(greet)))?;
        Ok(Self { address, stopping, thread: Some(thread) })
    }

    /// Returns the address that is listened on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // A connection to itself wakes the accepting thread.
        let mut address = self.address;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let woken = TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

struct Greeter<F> {
    credentials: Credentials,
    check_run: bool,
    handler: F,
    strangers: AtomicUsize,
    /// Whether a connection was refused before.
    refused: AtomicBool,
}

fn accept<F>(listener: &TcpListener, stopping: &AtomicBool, greeter: &Arc<Greeter<F>>)
where
    F: Fn(TcpStream, Hello) + Send + Sync + 'static,
{
    loop {
        let accepted = listener.accept();
        if stopping.load(Ordering::Acquire) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, most likely: give others time to close some.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        if greeter.strangers.fetch_add(1, Ordering::AcqRel) >= MAX_STRANGERS {
            greeter.strangers.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let hearer = greeter.clone();
        let started = std::thread::Builder::new()
            .name("comm hello".into())
            .stack_size(STACK_BYTES)
            .spawn(move || hearer.hear(stream));
        if started.is_err() {
            greeter.strangers.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl<F: Fn(TcpStream, Hello)> Greeter<F> {
    fn hear(&self, mut stream: TcpStream) {
        let heard = Hello::hear(&mut stream, &self.credentials, self.check_run);
        self.strangers.fetch_sub(1, Ordering::AcqRel);
        match heard {
            Ok(Some(hello)) => (self.handler)(stream, hello),
            // Said once: a stranger must not fill the log.
            Ok(None) if !self.refused.swap(true, Ordering::Relaxed) => {
                tracing::warn!(peer = ?stream.peer_addr().ok(), "refused a connection");
            }
            Ok(None) => tracing::debug!(peer = ?stream.peer_addr().ok(), "refused a connection"),
            Err(error) => tracing::debug!(%error, "a connection ended before its hello"),
        }
    }
}
