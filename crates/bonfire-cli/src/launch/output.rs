//! Output of ranks above 0, line by line with the rank before each line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer lines are broken, so that a rank that writes no line ends cannot fill the memory.
const MAX_LINE: usize = 16 * 1024;

/// Starts a thread that copies `from` to standard error until it ends.
pub(super) fn forward_to_stderr(
    rank: usize,
    from: impl Read + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("output of rank {rank}")).spawn(move || {
        let result = copy_lines(rank, BufReader::new(from), |line| {
            // A closed standard error must not stop the reading: the rank would then block.
            let _ = io::stderr().lock().write_all(line);
        });
        if let Err(error) = result {
            tracing::debug!(rank, %error, "cannot read the output");
        }
    })
}

/// Waits for the threads, but not longer than `limit`: a process that left the rank's process
/// group may hold the pipe open.
pub(super) fn join(threads: Vec<JoinHandle<()>>, limit: Duration) {
    let deadline = Instant::now() + limit;
    for thread in threads {
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        if thread.is_finished() && thread.join().is_err() {
            tracing::debug!("an output thread panicked");
        }
    }
}

/// Hands each line, with its prefix and line end, to `write`.
fn copy_lines(rank: usize, mut from: impl BufRead, mut write: impl FnMut(&[u8])) -> io::Result<()> {
    let prefix = format!("[rank {rank}] ").into_bytes();
    let mut line = prefix.clone();
    loop {
        let room = prefix.len() + MAX_LINE - line.len();
        let read = from.by_ref().take(room as u64).read_until(b'\n', &mut line)?;
        let ended = line.ends_with(b"\n");
        let full = line.len() == prefix.len() + MAX_LINE;
        if !ended && (full || (read == 0 && line.len() > prefix.len())) {
            line.push(b'\n');
        }
        if line.ends_with(b"\n") {
            write(&line);
            line.truncate(prefix.len());
        }
        if read == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_LINE, copy_lines};

    fn copied(text: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        copy_lines(3, text, |line| lines.push(line.to_vec())).unwrap();
        lines
    }

    #[test]
    fn prefixes_every_line_and_ends_the_last() {
        let lines = copied(b"one\n\ntwo \xff");
        assert_eq!(lines, [&b"[rank 3] one\n"[..], b"[rank 3] \n", b"[rank 3] two \xff\n"]);
        assert!(copied(b"").is_empty());
    }

    #[test]
    fn breaks_lines_that_are_too_long() {
        let lines = copied(&vec![b'x'; 2 * MAX_LINE + 1]);
        let lengths: Vec<usize> =
            lines.iter().map(|line| line.len() - "[rank 3] \n".len()).collect();
        assert_eq!(lengths, [MAX_LINE, MAX_LINE, 1]);
    }
}
