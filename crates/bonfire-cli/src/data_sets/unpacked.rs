//! What is known of files that came out of an archive: their checksums, in the format of `md5sum`, which
//! `md5sum --check` reads too.

use super::catalog::Collection;
use super::download::checksum;
use super::error::{FetchError, io};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Whether all files of a collection are there as they came out of its archive.
///
/// Without a record of checksums their contents are not known, so that is false.
///
/// # Errors
/// [`FetchError::Occupied`] when a file has another length or checksum: it is not ours to replace.
pub(super) fn are_there(collection: &Collection, out: &Path) -> Result<bool, FetchError> {
    let recorded = read(&record_of(collection, out))?;
    let mut all = true;
    for member in collection.members {
        let path = out.join(member.name);
        let Ok(metadata) = fs::metadata(&path) else {
            all = false;
            continue;
        };
        if metadata.len() != member.bytes {
            let (expected, found) =
                (format!("{} bytes", member.bytes), format!("{} bytes", metadata.len()));
            return Err(FetchError::Occupied { path, expected, found });
        }
        let Some(md5) = recorded.get(member.name) else {
            all = false;
            continue;
        };
        let found = checksum(&path)?;
        if found != *md5 {
            let (expected, found) = (format!("MD5 {md5}"), format!("MD5 {found}"));
            return Err(FetchError::Occupied { path, expected, found });
        }
    }
    Ok(all)
}

/// Keeps the checksums of a collection's files, which are in the order of its members.
pub(super) fn record(
    collection: &Collection,
    checksums: &[String],
    out: &Path,
) -> Result<(), FetchError> {
    let lines = collection.members.iter().zip(checksums);
    let text: String = lines.map(|(member, md5)| format!("{md5}  {}\n", member.name)).collect();
    let path = record_of(collection, out);
    fs::write(&path, text).map_err(io("writing", &path))
}

/// The file with the checksums.
fn record_of(collection: &Collection, out: &Path) -> PathBuf {
    out.join(format!("{}.md5", collection.name))
}

/// The checksums of a record by file, none where there is no record.
fn read(record: &Path) -> Result<BTreeMap<String, String>, FetchError> {
    let text = match fs::read_to_string(record) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(io("reading", record)(error)),
    };
    let pairs = text.lines().filter_map(|line| line.split_once("  "));
    Ok(pairs.map(|(md5, name)| (name.to_owned(), md5.to_owned())).collect())
}
