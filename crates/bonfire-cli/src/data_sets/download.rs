//! Downloads one file over HTTP: resumes, tries again, and checks the result.

use super::catalog::PublishedFile;
use super::error::{FetchError, io};
use super::part::Part;
use crate::voice::say;
use md5::{Digest, Md5};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;
use ureq::Agent;
use ureq::http::{Response, StatusCode, header};

/// Longest time between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How a file came to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Got {
    /// It was there, with the right checksum.
    Present,
    /// It was transferred.
    Fetched,
}

/// Downloads files.
pub(super) struct Downloader {
    agent: Agent,
    retries: u32,
    first_wait: Duration,
}

/// Why one attempt failed.
enum Attempt {
    /// Another one may succeed.
    BrokeOff(String),
    /// None will.
    Failed(FetchError),
}

impl From<FetchError> for Attempt {
    fn from(error: FetchError) -> Self {
        Self::Failed(error)
    }
}

impl Downloader {
    /// Makes a downloader that waits for `timeout` at most for a connection, an answer, and each piece
    /// of it, and tries `retries` times again, first after `first_wait`, then each time after twice as
    /// long.
    pub(super) fn new(timeout: Duration, retries: u32, first_wait: Duration) -> Self {
        let timeout = Some(timeout);
        let agent = Agent::config_builder()
            .timeout_connect(timeout)
            .timeout_resolve(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout)
            .http_status_as_error(false)
            .user_agent(concat!("bonfire/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: agent.into(), retries, first_wait }
    }

    /// Brings the file at `url` to `path`, where it appears only when it is whole and is the published one.
    /// What has come so far lies beside it, as `path` with `.part` added.
    pub(super) fn download(
        &self,
        url: &str,
        path: &Path,
        published: &PublishedFile,
    ) -> Result<Got, FetchError> {
        if is_there(path, published.md5)? {
            return Ok(Got::Present);
        }
        let part = Part::lock(path)?;
        // Another process may have finished it just before.
        if is_there(path, published.md5)? {
            return Ok(Got::Present);
        }
        // What an earlier call left may be of another file; then the checksum is wrong, and all is
        // fetched anew once.
        let resumed = part.size()? > 0;
        self.transfer(url, &part, published.bytes)?;
        let mut found = checksum(part.path())?;
        if found != published.md5 && resumed {
            say(format_args!("{url}: the part that was there does not fit, starting anew"));
            part.clear()?;
            self.transfer(url, &part, published.bytes)?;
            found = checksum(part.path())?;
        }
        if found != published.md5 {
            part.clear()?;
            let (url, expected) = (url.to_owned(), published.md5.to_owned());
            return Err(FetchError::Checksum { url, expected, found });
        }
        fs::rename(part.path(), path).map_err(io("renaming", part.path()))?;
        Ok(Got::Fetched)
    }

    /// Transfers what `part` still lacks of `bytes`, in as many attempts as allowed.
    fn transfer(&self, url: &str, part: &Part, bytes: u64) -> Result<(), FetchError> {
        let mut wait = self.first_wait;
        for attempt in 1.. {
            let reason = match self.attempt(url, part, bytes) {
                Ok(()) => break,
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::BrokeOff(reason)) => reason,
            };
            if attempt > self.retries {
                let (url, kept) = (url.to_owned(), part.size()?);
                return Err(FetchError::GaveUp { url, attempts: attempt, reason, kept });
            }
            say(format_args!("{url}: {reason}; trying again in {} s", wait.as_secs_f64()));
            std::thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        Ok(())
    }

    fn attempt(&self, url: &str, part: &Part, bytes: u64) -> Result<(), Attempt> {
        let start = part.size()?;
        let mut request = self.agent.get(url);
        if start > 0 {
            request = request.header(header::RANGE, format!("bytes={start}-"));
        }
        let mut response = request.call().map_err(|error| sorted(url, error))?;
        let before = match response.status() {
            StatusCode::OK => {
                part.clear()?;
                0
            }
            StatusCode::PARTIAL_CONTENT if starts_at(&response, start) => start,
            StatusCode::PARTIAL_CONTENT => {
                part.clear()?;
                let reason = "the server sent another range than it was asked for".into();
                return Err(Attempt::BrokeOff(reason));
            }
            // The part is whole, or of another file: the checksum tells.
            StatusCode::RANGE_NOT_SATISFIABLE if start > 0 => return Ok(()),
            status => return Err(refused(url, status)),
        };
        let file = OpenOptions::new().append(true).open(part.path());
        let mut file = file.map_err(io("opening", part.path()))?;
        let expected = length(&response).map(|length| before + length);
        let room = bytes.saturating_sub(before);
        if !copy(&mut response, &mut file, part.path(), room)? {
            part.clear()?;
            return Err(FetchError::TooLong { url: url.to_owned(), expected: bytes }.into());
        }
        let came = part.size()?;
        match expected {
            Some(expected) if came != expected => {
                Err(Attempt::BrokeOff(format!("only {came} of {expected} bytes came")))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the published file is there already; another one of its name is an error.
fn is_there(path: &Path, md5: &str) -> Result<bool, FetchError> {
    if !path.exists() {
        return Ok(false);
    }
    let found = checksum(path)?;
    if found == md5 {
        return Ok(true);
    }
    let (expected, found) = (format!("MD5 {md5}"), format!("MD5 {found}"));
    Err(FetchError::Occupied { path: path.to_owned(), expected, found })
}

/// Writes what comes; false when that is more than `room` bytes.
fn copy(
    response: &mut Response<ureq::Body>,
    file: &mut File,
    part: &Path,
    mut room: u64,
) -> Result<bool, Attempt> {
    let mut body = response.body_mut().as_reader();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = match body.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Attempt::BrokeOff(format!("the transfer broke off: {error}")));
            }
        };
        match room.checked_sub(count as u64) {
            Some(left) => room = left,
            None => return Ok(false),
        }
        file.write_all(&buffer[..count]).map_err(io("writing", part))?;
    }
}

/// Whether another attempt may succeed where `error` came before any answer.
fn sorted(url: &str, error: ureq::Error) -> Attempt {
    use ureq::Error;
    match error {
        Error::Io(_) | Error::Timeout(_) | Error::ConnectionFailed | Error::HostNotFound => {
            Attempt::BrokeOff(error.to_string())
        }
        Error::Protocol(_) => Attempt::BrokeOff(error.to_string()),
        other => {
            let (url, reason) = (url.to_owned(), other.to_string());
            Attempt::Failed(FetchError::Address { url, reason })
        }
    }
}

/// What a status that brings no file means.
fn refused(url: &str, status: StatusCode) -> Attempt {
    let passes = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    if status.is_server_error() || passes {
        return Attempt::BrokeOff(format!("the server answered {}", status.as_u16()));
    }
    Attempt::Failed(FetchError::Refused { url: url.to_owned(), status: status.as_u16() })
}

/// Whether a partial answer begins where the part ends: `Content-Range: bytes START-END/ALL`.
fn starts_at(response: &Response<ureq::Body>, start: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE);
    let begins =
        range.and_then(|range| range.to_str().ok()?.strip_prefix("bytes ")?.split('-').next());
    begins.is_some_and(|begins| begins.trim() == start.to_string())
}

fn length(response: &Response<ureq::Body>) -> Option<u64> {
    response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The MD5 checksum of a file, in hexadecimal.
pub(super) fn checksum(path: &Path) -> Result<String, FetchError> {
    let mut file = File::open(path).map_err(io("reading", path))?;
    let (mut hash, mut buffer) = (Md5::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).map_err(io("reading", path))? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests;
