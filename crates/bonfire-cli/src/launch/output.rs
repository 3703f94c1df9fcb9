//! Output of ranks above 0, line by line with the rank before each line.

use super::spec::Labels;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer lines are broken, so that a rank that writes no line ends cannot fill the memory.
const MAX_LINE: usize = 16 * 1024;

/// Starts a thread that copies `from` to standard error until it ends.
pub(super) fn forward_to_stderr(
    rank: usize,
    labels: Labels,
    from: impl Read + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("output of rank {rank}")).spawn(move || {
        let result = copy_lines(rank, labels, BufReader::new(from), |line| {
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

/// Hands each line, with its label and line end, to `write`.
fn copy_lines(
    rank: usize,
    labels: Labels,
    mut from: impl BufRead,
    mut write: impl FnMut(&[u8]),
) -> io::Result<()> {
    let prefix = match labels {
        Labels::Words => format!("[rank {rank}] ").into_bytes(),
        Labels::Json => Vec::new(),
    };
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
            match labels {
                Labels::Json if !line.starts_with(b"{") => write(&as_json(rank, &line)),
                _ => write(&line),
            }
            line.truncate(prefix.len());
        }
        if read == 0 {
            return Ok(());
        }
    }
}

/// A line that is no JSON as the message of an object.
fn as_json(rank: usize, line: &[u8]) -> Vec<u8> {
    let message = String::from_utf8_lossy(line.trim_ascii_end());
    format!("{}\n", serde_json::json!({ "rank": rank, "message": message })).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(labels: Labels, text: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        copy_lines(3, labels, text, |line| lines.push(line.to_vec())).unwrap();
        lines
    }

    fn copied(text: &[u8]) -> Vec<Vec<u8>> {
        labelled(Labels::Words, text)
    }

    #[test]
    fn every_line_is_json_where_that_is_asked_for() {
        let lines = labelled(Labels::Json, b"{\"rank\":3}\nit \"panics\"\n");
        let expected =
            [&b"{\"rank\":3}\n"[..], b"{\"message\":\"it \\\"panics\\\"\",\"rank\":3}\n"];
        assert_eq!(lines, expected);
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
