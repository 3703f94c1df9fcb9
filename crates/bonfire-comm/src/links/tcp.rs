//! TCP connections between the ranks of different machines.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::SockRef;

/// Asked of the kernel for each direction; it may grant less.
///
/// Measured as in `flow.rs`, on a busy machine: the fastest all-reduce of 814 kB took 0.23 to
/// 0.48 ms with 4 MiB (4 runs) and 0.39 to 0.51 ms with 512 KiB (4 runs); system time of 25 MiB
/// with chunks of 128 KiB was 6.4 s with 4 MiB, 8.4 s with 1 MiB, 9.1 s with 512 KiB (1 run each).
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Sets what makes a connection fast. Each option is a wish: a kernel may refuse it.
pub(crate) fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    // Pacing and bandwidth probes of other algorithms only cost time where nothing is lost.
    #[cfg(target_os = "linux")]
    if stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback()) {
        let _ = socket.set_tcp_congestion(b"reno");
    }
}

/// Reads "would block" as "no bytes".
fn zero_if_blocked(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
        {
            Ok(0)
        }
        other => other,
    }
}

/// Hands bytes over; see [`super::Links::try_send`].
pub(super) fn try_send(stream: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    // A closed connection must be an error also in programs that restore SIGPIPE.
    zero_if_blocked(SockRef::from(stream).send_vectored_with_flags(parts, libc::MSG_NOSIGNAL))
}

/// Takes bytes; see [`super::Links::try_recv`].
pub(super) fn try_recv(mut stream: &TcpStream, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    match stream.read_vectored(parts) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        other => zero_if_blocked(other),
    }
}

/// Sleeps until one of the streams is ready; a zero timeout only looks.
pub(super) fn wait(
    sends: &[&TcpStream],
    receives: &[&TcpStream],
    timeout: Duration,
) -> io::Result<()> {
    let entry =
        |stream: &&TcpStream, events| libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 };
    let mut entries: Vec<_> = receives.iter().map(|stream| entry(stream, libc::POLLIN)).collect();
    entries.extend(sends.iter().map(|stream| entry(stream, libc::POLLOUT)));
    // Rounded up: a nap of no time would be a loop without pause.
    let milliseconds = timeout.as_micros().div_ceil(1000).min(1000) as libc::c_int;
    let count = entries.len() as libc::nfds_t;
    // SAFETY: `entries` is an array of `count` initialised pollfd that outlives the call, and the
    // kernel writes to `revents` only.
    let result = unsafe { libc::poll(entries.as_mut_ptr(), count, milliseconds) };
    if result >= 0 {
        return Ok(());
    }
    zero_if_blocked(Err(io::Error::last_os_error())).map(|_| ())
}
