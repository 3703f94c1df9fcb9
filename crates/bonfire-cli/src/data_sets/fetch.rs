//! `bonfire data fetch`.

use super::args::FetchArgs;
use super::catalog::{COLLECTIONS, Collection};
use super::download::{Downloader, Got};
use super::error::{FetchError, io};
use super::unpack::unpack;
use super::unpacked;
use crate::CliError;
use crate::exit::Outcome;
use crate::voice::say;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Time before a transfer that broke off is tried again for the first time.
const FIRST_WAIT: Duration = Duration::from_millis(500);

pub(super) fn fetch(args: &FetchArgs) -> Result<Outcome, CliError> {
    // Clap lets the names of collections pass only.
    if let Some(collection) = COLLECTIONS.iter().find(|known| known.name == args.name) {
        let base = args.url.as_deref().unwrap_or(collection.base);
        let timeout = Duration::from_secs(args.timeout);
        let downloader = Downloader::new(timeout, args.retries, FIRST_WAIT);
        fetch_collection(collection, base, &args.out, &downloader)?;
    }
    Ok(Outcome::Done)
}

/// Brings the files of a collection into a folder.
fn fetch_collection(
    collection: &Collection,
    base: &str,
    out: &Path,
    downloader: &Downloader,
) -> Result<(), FetchError> {
    fs::create_dir_all(out).map_err(io("creating", out))?;
    let members = collection.members;
    if !members.is_empty() && unpacked::are_there(collection, out)? {
        say(format_args!("{}: all files are there already, checksums right", out.display()));
        return Ok(());
    }
    for file in collection.files {
        let url = format!("{}/{}", base.trim_end_matches('/'), file.name);
        let path = out.join(file.name);
        let how = match downloader.download(&url, &path, file)? {
            Got::Present => "is there already",
            Got::Fetched => "fetched",
        };
        say(format_args!("{}: {how}, checksum right", path.display()));
        if !members.is_empty() {
            let checksums = unpack(&path, members, out)?;
            unpacked::record(collection, &checksums, out)?;
            fs::remove_file(&path).map_err(io("deleting", &path))?;
            say(format_args!("{}: {} files unpacked", out.display(), members.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::catalog::{Member, NAMES, PublishedFile};
    use super::super::test_server::{Answer, Server};
    use super::super::unpack::tests::archive;
    use super::*;
    use md5::{Digest, Md5};

    fn downloader() -> Downloader {
        Downloader::new(Duration::from_secs(5), 1, Duration::ZERO)
    }

    /// A collection whose files are these; leaks it, as collections are written in the program.
    fn collection(files: &[(String, Vec<u8>)], members: &[(&'static str, u64)]) -> Collection {
        let files: Vec<PublishedFile> = files
            .iter()
            .map(|(name, content)| {
                let md5: String =
                    Md5::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
                let bytes = content.len() as u64;
                PublishedFile { name: name.clone().leak(), md5: md5.leak(), bytes }
            })
            .collect();
        let members: Vec<Member> =
            members.iter().map(|&(name, bytes)| Member { name, bytes }).collect();
        let members = members.leak();
        Collection { name: "test", base: "", files: files.leak(), members }
    }

    #[test]
    fn all_files_of_a_collection_are_fetched_once() {
        let files = vec![("a.gz".to_owned(), vec![1; 5000]), ("b.gz".to_owned(), vec![2; 10])];
        let collection = collection(&files, &[]);
        let server = Server::start(files, &[Answer::Breaks(1000), Answer::Well]);
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("deep/er");
        for _ in 0..2 {
            fetch_collection(&collection, &server.base, &out, &downloader()).unwrap();
        }
        assert_eq!(fs::read(out.join("a.gz")).unwrap(), [1; 5000]);
        assert_eq!(fs::read(out.join("b.gz")).unwrap(), [2; 10]);
        assert_eq!(server.ranges(), [None, Some("bytes=1000-".to_owned()), None]);
    }

    #[test]
    fn an_archive_is_unpacked_and_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.tar.gz");
        archive(&path, &["c/data_batch_1.bin", "c/test_batch.bin", "c/readme.html"]);
        let files = vec![("c.tar.gz".to_owned(), fs::read(&path).unwrap())];
        let collection = collection(&files, &[("data_batch_1.bin", 18), ("test_batch.bin", 16)]);
        let server = Server::start(files, &[Answer::Well]);
        let out = folder.path().join("out");
        for _ in 0..2 {
            fetch_collection(&collection, &server.base, &out, &downloader()).unwrap();
        }
        assert_eq!(server.ranges().len(), 1);
        let mut names: Vec<_> =
            fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["data_batch_1.bin", "test.md5", "test_batch.bin"]);

        // A file that was changed since is told, and stays.
        let changed = out.join("test_batch.bin");
        fs::write(&changed, "of the same size").unwrap();
        let fetch = || fetch_collection(&collection, &server.base, &out, &downloader());
        let error = fetch().unwrap_err();
        assert!(matches!(error, FetchError::Occupied { .. }), "{error}");
        assert_eq!(fs::read(&changed).unwrap(), b"of the same size");
        // One that is missing is brought again, the others are left alone.
        fs::remove_file(&changed).unwrap();
        fetch().unwrap();
        assert_eq!((server.ranges().len(), fs::metadata(&changed).unwrap().len()), (2, 16));
    }

    /// Nothing is known of files without a record but their sizes; the archive tells the rest.
    #[test]
    fn files_of_other_contents_are_never_taken_for_those_of_an_archive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.tar.gz");
        archive(&path, &["c/a.bin"]);
        let files = vec![("c.tar.gz".to_owned(), fs::read(&path).unwrap())];
        let collection = collection(&files, &[("a.bin", 7)]);
        let server = Server::start(files, &[Answer::Well]);
        let out = folder.path().join("out");
        fs::create_dir(&out).unwrap();
        for (content, downloads) in [("short", 0), ("7 bytes", 1)] {
            fs::write(out.join("a.bin"), content).unwrap();
            let error = fetch_collection(&collection, &server.base, &out, &downloader());
            let error = error.unwrap_err();
            assert!(matches!(error, FetchError::Occupied { .. }), "{error}");
            assert_eq!(fs::read_to_string(out.join("a.bin")).unwrap(), content);
            assert_eq!(server.ranges().len(), downloads);
        }
        fs::write(out.join("a.bin"), "c/a.bin").unwrap();
        fetch_collection(&collection, &server.base, &out, &downloader()).unwrap();
        assert!(out.join("test.md5").exists());
    }

    #[test]
    fn the_catalog_is_complete() {
        assert_eq!(COLLECTIONS.map(|collection| collection.name), NAMES);
        for file in COLLECTIONS.iter().flat_map(|collection| collection.files) {
            assert!(file.bytes > 0);
            assert!(file.md5.len() == 32 && file.md5.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
        // An archive is taken apart, so it has to be the only file.
        let archives = COLLECTIONS.iter().filter(|collection| !collection.members.is_empty());
        archives.for_each(|collection| assert_eq!(collection.files.len(), 1));
    }
}
