//! What ranks print, line by line with the rank before each line.

use crate::streams::{Labels, Stream};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer lines are broken, so that a rank that writes no line ends cannot fill the memory.
const MAX_LINE: usize = 16 * 1024;
/// What is read at once: lines that arrive together are written together.
const CHUNK: usize = 64 * 1024;
/// How much of a rank's last words is kept.
const MAX_LAST: usize = 4 * 1024;

/// The end of what a rank has printed.
#[derive(Clone, Default)]
pub(crate) struct LastWords(Arc<Mutex<Vec<u8>>>);

impl LastWords {
    fn add(&self, text: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&text[text.len().saturating_sub(MAX_LAST)..]);
        let excess = kept.len().saturating_sub(MAX_LAST);
        kept.drain(..excess);
    }

    pub(crate) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).into_owned()
    }
}

/// A stream of a rank on its way.
pub(crate) struct Copy {
    pub(crate) rank: usize,
    pub(crate) labels: Labels,
    /// Where it goes on the console.
    pub(crate) to: Stream,
    /// Where it is kept as it is.
    pub(crate) log: Option<File>,
    pub(crate) last_words: LastWords,
}

impl Copy {
    /// Starts a thread that copies `from` until it ends.
    ///
    /// # Errors
    /// When the system has no room for a thread.
    pub(crate) fn start(self, from: impl Read + Send + 'static) -> io::Result<JoinHandle<()>> {
        let name = format!("output of rank {}", self.rank);
        std::thread::Builder::new().name(name).spawn(move || {
            let Self { rank, labels, to, mut log, last_words } = self;
            let from = Kept { from, log: log.as_mut(), last_words };
            let result = copy_lines(rank, labels, BufReader::with_capacity(CHUNK, from), |lines| {
                // A closed console must not stop the reading: the rank would then block.
                let _ = match to {
                    Stream::Out => io::stdout().lock().write_all(lines),
                    Stream::Err => io::stderr().lock().write_all(lines),
                };
            });
            if let Err(error) = result {
                tracing::debug!(rank, %error, "cannot read the output");
            }
        })
    }
}

/// Keeps what is read in passing.
struct Kept<'a, R> {
    from: R,
    log: Option<&'a mut File>,
    last_words: LastWords,
}

impl<R: Read> Read for Kept<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.last_words.add(&buffer[..read]);
        if let Some(log) = &mut self.log
            && let Err(error) = log.write_all(&buffer[..read])
        {
            // The rank goes on; its console still has all of it.
            tracing::warn!(%error, "a log of a rank cannot be written any more");
            self.log = None;
        }
        Ok(read)
    }
}

/// Waits for the threads, but not longer than `limit`: a process that left the rank's process
/// group may hold the pipe open.
pub(crate) fn join(threads: Vec<JoinHandle<()>>, limit: Duration) {
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

/// Hands lines, each with its label and line end, to `write`: those that have arrived together at once.
fn copy_lines(
    rank: usize,
    labels: Labels,
    mut from: BufReader<impl Read>,
    mut write: impl FnMut(&[u8]),
) -> io::Result<()> {
    let prefix = match labels {
        Labels::Words => format!("[rank {rank}] ").into_bytes(),
        Labels::Json => Vec::new(),
    };
    let mut lines = Vec::new();
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
                Labels::Json if !line.starts_with(b"{") => lines.extend(as_json(rank, &line)),
                _ => lines.extend_from_slice(&line),
            }
            line.truncate(prefix.len());
        }
        let has_more = from.buffer().contains(&b'\n');
        if !lines.is_empty() && (!has_more || lines.len() >= CHUNK) {
            write(&lines);
            lines.clear();
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
        copy_lines(3, labels, BufReader::new(text), |more| lines.extend_from_slice(more)).unwrap();
        lines.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
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

    #[test]
    fn lines_that_arrive_together_are_written_together() {
        let mut calls = 0;
        let text = b"one\ntwo\nthree".as_slice();
        copy_lines(0, Labels::Words, BufReader::new(text), |_| calls += 1).unwrap();
        assert_eq!(calls, 2, "all whole lines, then the end of the text");
    }

    #[test]
    fn last_words_are_the_end_of_the_text() {
        let last = LastWords::default();
        last.add(&vec![b'x'; 2 * MAX_LAST]);
        last.add(b"end");
        let text = last.text();
        assert_eq!((text.len(), text.ends_with("xend")), (MAX_LAST, true));
    }
}
