//! What lets only a run's own ranks talk to each other.

use crate::error::LaunchError;
use std::fs::File;
use std::io::Read;

/// Draws as many random bytes, in hexadecimal digits.
pub(crate) fn draw(bytes: usize) -> Result<String, LaunchError> {
    let mut random = vec![0u8; bytes];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut random))
        .map_err(|source| LaunchError::Random { source })?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
