use std::path::PathBuf;

/// Why a data set could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Happens when the server answers that it will not send a file.
    #[error("{url}: the server answered {status}; --url BASE names a mirror")]
    Refused {
        /// The address.
        url: String,
        /// The status of HTTP.
        status: u16,
    },
    /// Happens when a transfer breaks off again and again.
    #[error(
        "{url}: gave up after {attempts} attempt(s): {reason}; the same command goes on from the {kept} \
         bytes that are there"
    )]
    GaveUp {
        /// The address.
        url: String,
        /// How often it was tried.
        attempts: u32,
        /// What happened the last time.
        reason: String,
        /// The bytes that are kept.
        kept: u64,
    },
    /// Happens when an address cannot be used at all.
    #[error("{url}: {reason}")]
    Address {
        /// The address.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Happens when a file that was transferred whole is another than was published.
    #[error(
        "{url}: the file has MD5 {found}, expected {expected}; it was deleted, since it is damaged or \
         not the published one"
    )]
    Checksum {
        /// The address.
        url: String,
        /// The published checksum.
        expected: String,
        /// The checksum of what came.
        found: String,
    },
    /// Happens when a file of the same name is there already and is another one.
    #[error(
        "{} is there already with {found}, expected {expected}; move it away to fetch it anew",
        path.display()
    )]
    Occupied {
        /// The file.
        path: PathBuf,
        /// The checksum or the length of what was published.
        expected: String,
        /// That of what is there.
        found: String,
    },
    /// Happens when a server sends more than was published.
    #[error(
        "{url}: more came than the {expected} bytes of the published file; what came was deleted, since it \
         is another file"
    )]
    TooLong {
        /// The address.
        url: String,
        /// The published length.
        expected: u64,
    },
    /// Happens when another process downloads the same file.
    #[error("{} is being downloaded by another process; wait for it, or end it", path.display())]
    Busy {
        /// What has come so far.
        path: PathBuf,
    },
    /// Happens when an archive lacks a file, though its checksum is right.
    #[error("{} lacks {}", archive.display(), missing.join(", "))]
    Incomplete {
        /// The archive.
        archive: PathBuf,
        /// What it lacks.
        missing: Vec<String>,
    },
    /// Happens when a file cannot be read or written.
    #[error("{action} \"{}\" failed: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
}

/// Makes an error out of the system's reason.
pub(super) fn io(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(std::io::Error) -> FetchError {
    let path = path.into();
    move |source| FetchError::Io { action, path, source }
}
