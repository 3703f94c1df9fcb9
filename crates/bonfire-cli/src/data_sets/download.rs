//! Downloads one file over HTTP: resumes, tries again, and checks the result.

use super::error::{FetchError, io};
use crate::report::say;
use md5::{Digest, Md5};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
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

    /// Brings the file at `url` to `path`, where it appears only when it is whole and has the checksum
    /// `md5`. What has come so far lies beside it, as `path` with `.part` added.
    pub(super) fn download(&self, url: &str, path: &Path, md5: &str) -> Result<Got, FetchError> {
        if path.exists() {
            let found = checksum(path)?;
            if found == md5 {
                return Ok(Got::Present);
            }
            let (path, expected) = (path.to_owned(), md5.to_owned());
            return Err(FetchError::Occupied { path, expected, found });
        }
        let part = part_of(path);
        // What an earlier call left may be of another file; then the checksum is wrong, and all is
        // fetched anew once.
        let resumed = size(&part)? > 0;
        self.transfer(url, &part)?;
        let mut found = checksum(&part)?;
        if found != md5 && resumed {
            say(format_args!("{url}: the part that was there does not fit, starting anew"));
            fs::remove_file(&part).map_err(io("deleting", &part))?;
            self.transfer(url, &part)?;
            found = checksum(&part)?;
        }
        if found != md5 {
            fs::remove_file(&part).map_err(io("deleting", &part))?;
            let (url, expected) = (url.to_owned(), md5.to_owned());
            return Err(FetchError::Checksum { url, expected, found });
        }
        fs::rename(&part, path).map_err(io("renaming", &part))?;
        Ok(Got::Fetched)
    }

    /// Transfers what `part` still lacks, in as many attempts as allowed.
    fn transfer(&self, url: &str, part: &Path) -> Result<(), FetchError> {
        let mut wait = self.first_wait;
        for attempt in 1.. {
            let reason = match self.attempt(url, part) {
                Ok(()) => break,
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::BrokeOff(reason)) => reason,
            };
            if attempt > self.retries {
                let (url, kept) = (url.to_owned(), size(part)?);
                return Err(FetchError::GaveUp { url, attempts: attempt, reason, kept });
            }
            say(format_args!("{url}: {reason}; trying again in {} s", wait.as_secs_f64()));
            std::thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        Ok(())
    }

    fn attempt(&self, url: &str, part: &Path) -> Result<(), Attempt> {
        let start = size(part)?;
        let mut request = self.agent.get(url);
        if start > 0 {
            request = request.header(header::RANGE, format!("bytes={start}-"));
        }
        let mut response = request.call().map_err(|error| sorted(url, error))?;
        let mut options = OpenOptions::new();
        let (file, before) = match response.status() {
            StatusCode::OK => (options.write(true).create(true).truncate(true).open(part), 0),
            StatusCode::PARTIAL_CONTENT if starts_at(&response, start) => {
                (options.append(true).open(part), start)
            }
            StatusCode::PARTIAL_CONTENT => {
                fs::remove_file(part).map_err(io("deleting", part))?;
                let reason = "the server sent another range than it was asked for".into();
                return Err(Attempt::BrokeOff(reason));
            }
            // The part is whole, or of another file: the checksum tells.
            StatusCode::RANGE_NOT_SATISFIABLE if start > 0 => return Ok(()),
            status => return Err(refused(url, status)),
        };
        let mut file = file.map_err(io("opening", part))?;
        let expected = length(&response).map(|length| before + length);
        copy(&mut response, &mut file, part)?;
        let came = size(part)?;
        match expected {
            Some(expected) if came != expected => {
                Err(Attempt::BrokeOff(format!("only {came} of {expected} bytes came")))
            }
            _ => Ok(()),
        }
    }
}

fn copy(response: &mut Response<ureq::Body>, file: &mut File, part: &Path) -> Result<(), Attempt> {
    let mut body = response.body_mut().as_reader();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = match body.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Attempt::BrokeOff(format!("the transfer broke off: {error}")));
            }
        };
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

fn part_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".part");
    name.into()
}

/// The length of a file, 0 where there is none.
fn size(path: &Path) -> Result<u64, FetchError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(io("reading", path)(error)),
    }
}

fn checksum(path: &Path) -> Result<String, FetchError> {
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
