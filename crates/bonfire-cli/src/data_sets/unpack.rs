//! Takes named files out of a tar archive compressed with gzip.

use super::catalog::Member;
use super::download::checksum;
use super::error::{FetchError, io};
use super::part::Part;
use std::fs::{self, File, OpenOptions};
use std::io::BufReader;
use std::path::Path;

/// Writes the `members`, in whatever folder of the archive they lie, into `out`, and returns their
/// checksums in the same order.
///
/// Nothing else of the archive is written, whatever names it has. A file appears under its name only when
/// it is whole; where another one of that name is, it stays, and that is an error.
pub(super) fn unpack(
    archive: &Path,
    members: &[Member],
    out: &Path,
) -> Result<Vec<String>, FetchError> {
    let reading = || io("reading", archive);
    let file = File::open(archive).map_err(reading())?;
    let mut tar = tar::Archive::new(flate2::bufread::MultiGzDecoder::new(BufReader::new(file)));
    let mut checksums: Vec<Option<String>> = vec![None; members.len()];
    for entry in tar.entries().map_err(reading())? {
        let mut entry = entry.map_err(reading())?;
        let path = entry.path().map_err(reading())?.into_owned();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let wanted = members.iter().zip(&mut checksums);
        let mut wanted = wanted.filter(|(member, sum)| member.name == name && sum.is_none());
        let Some((member, sum)) = wanted.next().filter(|_| entry.header().entry_type().is_file())
        else {
            continue;
        };
        let target = out.join(member.name);
        let part = Part::lock(&target)?;
        part.clear()?;
        let written = OpenOptions::new().append(true).open(part.path());
        let mut written = written.map_err(io("opening", part.path()))?;
        std::io::copy(&mut entry, &mut written).map_err(io("unpacking", part.path()))?;
        let fresh = checksum(part.path())?;
        keep(&part, &target, &fresh)?;
        *sum = Some(fresh);
    }
    let missing = members.iter().zip(&checksums).filter(|(_, sum)| sum.is_none());
    let missing: Vec<String> = missing.map(|(member, _)| member.name.to_owned()).collect();
    if missing.is_empty() {
        return Ok(checksums.into_iter().flatten().collect());
    }
    Err(FetchError::Incomplete { archive: archive.to_owned(), missing })
}

/// Brings an unpacked file to its name, unless it is there already.
fn keep(part: &Part, target: &Path, md5: &str) -> Result<(), FetchError> {
    if !target.exists() {
        return fs::rename(part.path(), target).map_err(io("renaming", part.path()));
    }
    part.clear()?;
    match checksum(target)? {
        found if found == md5 => Ok(()),
        found => {
            let (expected, found) = (format!("MD5 {md5}"), format!("MD5 {found}"));
            Err(FetchError::Occupied { path: target.to_owned(), expected, found })
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes an archive of files that hold their own names.
    pub(crate) fn archive(path: &Path, names: &[&str]) {
        let gzip = flate2::write::GzEncoder::new(File::create(path).unwrap(), Default::default());
        let mut tar = tar::Builder::new(gzip);
        for name in names {
            let mut header = tar::Header::new_ustar();
            // Names that would lead out of the folder are set past the checks of the writer.
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(name.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append(&header, name.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap();
    }

    fn members<const N: usize>(names: [&'static str; N]) -> [Member; N] {
        names.map(|name| Member { name, bytes: name.len() as u64 })
    }

    #[test]
    fn another_file_of_the_same_name_stays_and_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar.gz");
        archive(&path, &["a.bin", "b.bin"]);
        fs::write(folder.path().join("b.bin"), "of the user").unwrap();
        let error = unpack(&path, &members(["a.bin", "b.bin"]), folder.path()).unwrap_err();
        assert!(matches!(error, FetchError::Occupied { .. }), "{error}");
        assert_eq!(fs::read(folder.path().join("b.bin")).unwrap(), b"of the user");
        assert!(!folder.path().join("b.bin.part").exists());
    }

    #[test]
    fn only_what_is_wanted_is_written_and_only_into_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (path, out) = (folder.path().join("a.tar.gz"), folder.path().join("out"));
        fs::create_dir(&out).unwrap();
        archive(&path, &["deep/er/a.bin", "readme.html", "../b.bin", "/etc/evil"]);
        let sums = unpack(&path, &members(["a.bin", "b.bin"]), &out).unwrap();
        assert_eq!(sums[0], checksum(&out.join("a.bin")).unwrap());
        let mut names: Vec<_> =
            fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a.bin", "b.bin"]);
        assert_eq!(fs::read(out.join("a.bin")).unwrap(), b"deep/er/a.bin");
        assert!(!folder.path().join("b.bin").exists());
    }

    #[test]
    fn a_missing_member_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar.gz");
        archive(&path, &["x/a.bin"]);
        let error =
            unpack(&path, &members(["b.bin", "a.bin", "c.bin"]), folder.path()).unwrap_err();
        assert!(error.to_string().ends_with("a.tar.gz lacks b.bin, c.bin"), "{error}");
    }
}
