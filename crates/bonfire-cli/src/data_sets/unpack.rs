//! Takes named files out of a tar archive compressed with gzip.

use super::error::{FetchError, io};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

/// Writes the files called `members`, in whatever folder of the archive they lie, into `out`.
///
/// Nothing else of the archive is written, whatever names it has. A file appears under its name only when
/// it is whole.
pub(super) fn unpack(archive: &Path, members: &[&str], out: &Path) -> Result<(), FetchError> {
    let reading = || io("reading", archive);
    let file = File::open(archive).map_err(reading())?;
    let mut tar = tar::Archive::new(flate2::bufread::MultiGzDecoder::new(BufReader::new(file)));
    let mut missing: Vec<&str> = members.to_vec();
    for entry in tar.entries().map_err(reading())? {
        let mut entry = entry.map_err(reading())?;
        let path = entry.path().map_err(reading())?.into_owned();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let wanted = missing.iter().position(|member| *member == name);
        let Some(place) = wanted.filter(|_| entry.header().entry_type().is_file()) else {
            continue;
        };
        let target = out.join(missing.swap_remove(place));
        let part = target.with_extension("part");
        let mut written = File::create(&part).map_err(io("creating", &part))?;
        std::io::copy(&mut entry, &mut written).map_err(io("unpacking", &part))?;
        fs::rename(&part, &target).map_err(io("renaming", &part))?;
    }
    if missing.is_empty() {
        return Ok(());
    }
    missing.sort_unstable();
    let missing = missing.into_iter().map(str::to_owned).collect();
    Err(FetchError::Incomplete { archive: archive.to_owned(), missing })
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

    #[test]
    fn only_what_is_wanted_is_written_and_only_into_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (path, out) = (folder.path().join("a.tar.gz"), folder.path().join("out"));
        fs::create_dir(&out).unwrap();
        archive(&path, &["deep/er/a.bin", "readme.html", "../b.bin", "/etc/evil"]);
        unpack(&path, &["a.bin", "b.bin"], &out).unwrap();
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
        let error = unpack(&path, &["c.bin", "a.bin", "b.bin"], folder.path()).unwrap_err();
        assert!(error.to_string().ends_with("a.tar.gz lacks b.bin, c.bin"), "{error}");
    }
}
