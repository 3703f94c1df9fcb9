//! A server of files for tests, that can be told to answer badly.

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// How the server answers one request.
#[derive(Clone, Copy)]
pub enum Answer {
    /// As it should; ranges are obeyed.
    Well,
    /// The whole file, whatever range was asked for.
    Whole,
    /// As it should, but closes after as many bytes of the body.
    Breaks(usize),
    /// As many bytes of the body, then nothing more, and the connection stays open.
    Stalls(usize),
    /// With a status and no file.
    Status(u16),
    /// A partial answer that begins elsewhere.
    WrongRange,
}

/// A server that answers requests one after the other, each as told; the last answer is repeated.
pub struct Server {
    /// What the names of files are added to, with a slash.
    pub base: String,
    ranges: Arc<Mutex<Vec<Option<String>>>>,
}

impl Server {
    /// Serves `files` by their names, until the process of the test ends.
    pub fn start(files: Vec<(String, Vec<u8>)>, answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let (answers, seen) = (answers.to_vec(), Arc::clone(&ranges));
        thread::spawn(move || {
            let mut stalled = Vec::new();
            for (number, stream) in listener.incoming().enumerate() {
                let stream = stream.unwrap();
                let (name, range) = read_request(&stream);
                seen.lock().unwrap().push(range.clone());
                let answer = answers[number.min(answers.len() - 1)];
                let content = files.iter().find(|file| file.0 == name).map(|file| &file.1[..]);
                // The peer may have gone.
                let _ = reply(&stream, answer, range.as_deref(), content);
                if matches!(answer, Answer::Stalls(_)) {
                    stalled.push(stream);
                }
            }
        });
        Self { base, ranges }
    }

    /// The `Range` of every request until now.
    pub fn ranges(&self) -> Vec<Option<String>> {
        self.ranges.lock().unwrap().clone()
    }
}

/// The name of the file that is asked for, and the range.
fn read_request(stream: &TcpStream) -> (String, Option<String>) {
    let mut lines = BufReader::new(stream).lines().map(|line| line.unwrap_or_default());
    let first = lines.next().unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let headers = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase());
    let ranges: Vec<String> =
        headers.filter_map(|line| Some(line.strip_prefix("range: ")?.to_owned())).collect();
    (name, ranges.into_iter().next())
}

fn reply(
    mut stream: &TcpStream,
    answer: Answer,
    range: Option<&str>,
    content: Option<&[u8]>,
) -> std::io::Result<()> {
    let mut without_file = |status: u16| {
        write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    };
    let all = match (answer, content) {
        (Answer::Status(status), _) => return without_file(status),
        (_, None) => return without_file(404),
        (_, Some(all)) => all,
    };
    let asked =
        range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let start: usize = match answer {
        Answer::Whole => 0,
        _ => asked.unwrap_or(0),
    };
    if start >= all.len() {
        return without_file(416);
    }
    let body = &all[start..];
    let status = if start > 0 { "206 Partial Content" } else { "200 OK" };
    let claimed = if matches!(answer, Answer::WrongRange) { start + 1 } else { start };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {claimed}-{}/{}\r\n\
         Connection: close\r\n\r\n",
        body.len(),
        all.len() - 1,
        all.len()
    )?;
    match answer {
        Answer::Breaks(bytes) | Answer::Stalls(bytes) => stream.write_all(&body[..bytes]),
        _ => stream.write_all(body),
    }
}
