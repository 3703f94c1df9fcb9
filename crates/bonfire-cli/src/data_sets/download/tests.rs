use super::super::test_server::{Answer, Server};
use super::*;
use std::net::TcpListener;
use std::time::Instant;

/// The file that the server of a test has.
fn content() -> Vec<u8> {
    (0..100_000u32).map(|index| (index * 7 % 251) as u8).collect()
}

/// A server with that file, and its address.
fn start(answers: &[Answer]) -> (Server, String) {
    let server = Server::start(vec![("file.bin".to_owned(), content())], answers);
    let url = format!("{}/file.bin", server.base);
    (server, url)
}

/// Downloads into a folder where `part` has come already.
fn download(
    server: &(Server, String),
    part: &[u8],
    retries: u32,
) -> (tempfile::TempDir, Result<Got, String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.bin");
    if !part.is_empty() {
        fs::write(folder.path().join("file.bin.part"), part).unwrap();
    }
    let md5 = hex(&content());
    let downloader = Downloader::new(Duration::from_millis(300), retries, Duration::from_millis(1));
    let result = downloader.download(&server.1, &path, &published(&md5));
    if result.is_ok() {
        assert!(fs::read(&path).unwrap() == content(), "the file is another one");
        assert!(!folder.path().join("file.bin.part").exists());
    }
    (folder, result.map_err(|error| error.to_string().replace(&server.1, "URL")))
}

/// The file under a checksum.
fn published(md5: &str) -> PublishedFile {
    let md5 = md5.to_owned().leak();
    PublishedFile { name: "file.bin", md5, bytes: content().len() as u64 }
}

fn hex(bytes: &[u8]) -> String {
    Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_file_that_is_there_is_only_checked() {
    let server = start(&[Answer::Well]);
    let (folder, result) = download(&server, &[], 0);
    assert_eq!(result, Ok(Got::Fetched));
    let downloader = Downloader::new(Duration::from_secs(1), 0, Duration::ZERO);
    let path = folder.path().join("file.bin");
    assert_eq!(
        downloader.download(&server.1, &path, &published(&hex(&content()))).unwrap(),
        Got::Present
    );
    assert_eq!(server.0.ranges(), [None]);
    let error = downloader.download(&server.1, &path, &published("00")).unwrap_err().to_string();
    assert!(
        error.contains("is there already with MD5") && error.contains("expected MD5 00"),
        "{error}"
    );
}

#[test]
fn a_broken_transfer_goes_on_where_it_stopped() {
    let server = start(&[Answer::Breaks(30_000), Answer::Breaks(0), Answer::Well]);
    assert_eq!(download(&server, &[], 2).1, Ok(Got::Fetched));
    let from = Some("bytes=30000-".to_owned());
    assert_eq!(server.0.ranges(), [None, from.clone(), from]);
}

#[test]
fn what_an_earlier_call_left_is_used_or_replaced() {
    let server = start(&[Answer::Well]);
    assert_eq!(download(&server, &content()[..50_000], 0).1, Ok(Got::Fetched));
    assert_eq!(server.0.ranges(), [Some("bytes=50000-".to_owned())]);
    // All of it was there: the server says that there is no more.
    assert_eq!(download(&server, &content(), 0).1, Ok(Got::Fetched));
    // It was of another file.
    assert_eq!(download(&server, &[9; 10], 0).1, Ok(Got::Fetched));
    assert_eq!(download(&server, &[9; 200_000], 0).1, Ok(Got::Fetched));
    // The server knows no ranges.
    let server = start(&[Answer::Whole]);
    assert_eq!(download(&server, &content()[..50_000], 0).1, Ok(Got::Fetched));
}

#[test]
fn a_wrong_checksum_is_an_error_and_leaves_nothing() {
    let server = start(&[Answer::Well]);
    let folder = tempfile::tempdir().unwrap();
    let downloader = Downloader::new(Duration::from_secs(1), 3, Duration::ZERO);
    let path = folder.path().join("file.bin");
    let error = downloader.download(&server.1, &path, &published("00ff")).unwrap_err();
    assert!(matches!(error, FetchError::Checksum { .. }), "{error}");
    assert!(error.to_string().contains("expected 00ff"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // Another attempt would bring the same.
    assert_eq!(server.0.ranges().len(), 1);
}

#[test]
fn a_missing_file_is_not_asked_for_again_but_a_busy_server_is() {
    let server = start(&[Answer::Status(404)]);
    let (_folder, result) = download(&server, &[], 5);
    assert_eq!(result.unwrap_err(), "URL: the server answered 404; --url BASE names a mirror");
    assert_eq!(server.0.ranges().len(), 1);
    let server = start(&[Answer::Status(503), Answer::Status(429), Answer::Well]);
    assert_eq!(download(&server, &[], 2).1, Ok(Got::Fetched));
}

#[test]
fn a_stalled_server_is_left_and_what_came_is_kept() {
    let server = start(&[Answer::Stalls(20_000)]);
    let started = Instant::now();
    let (folder, result) = download(&server, &[], 1);
    assert!(started.elapsed() < Duration::from_secs(5));
    let error = result.unwrap_err();
    assert!(error.contains("gave up after 2 attempt(s)"), "{error}");
    assert!(error.contains("goes on from the 40000 bytes"), "{error}");
    assert_eq!(fs::metadata(folder.path().join("file.bin.part")).unwrap().len(), 40_000);
    let server = start(&[Answer::Stalls(20_000), Answer::Well]);
    assert_eq!(download(&server, &[], 1).1, Ok(Got::Fetched));
}

#[test]
fn an_answer_that_begins_elsewhere_is_thrown_away() {
    let server = start(&[Answer::WrongRange, Answer::Well]);
    assert_eq!(download(&server, &content()[..10], 1).1, Ok(Got::Fetched));
    assert_eq!(server.0.ranges(), [Some("bytes=10-".to_owned()), None]);
}

#[test]
fn nobody_listening_and_impossible_addresses_are_errors() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let downloader = Downloader::new(Duration::from_secs(1), 1, Duration::ZERO);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let error =
        downloader.download(&format!("http://{unused}/x"), &path, &published("")).unwrap_err();
    assert!(matches!(error, FetchError::GaveUp { attempts: 2, kept: 0, .. }), "{error}");
    let error = downloader.download("no address", &path, &published("")).unwrap_err();
    assert!(matches!(error, FetchError::Address { .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_mirror_that_sends_too_much_cannot_fill_the_disk() {
    let server = start(&[Answer::Well]);
    let folder = tempfile::tempdir().unwrap();
    let downloader = Downloader::new(Duration::from_secs(1), 3, Duration::ZERO);
    let small = PublishedFile { bytes: 70_000, ..published(&hex(&content())) };
    let path = folder.path().join("file.bin");
    let error = downloader.download(&server.1, &path, &small).unwrap_err();
    assert!(matches!(error, FetchError::TooLong { expected: 70_000, .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert_eq!(server.0.ranges().len(), 1);
}

#[test]
fn a_file_that_another_process_downloads_is_left_to_it() {
    let server = start(&[Answer::Well]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.bin");
    let downloader = Downloader::new(Duration::from_secs(1), 0, Duration::ZERO);
    let file = published(&hex(&content()));
    // Locks of two handles exclude each other within a process too.
    let held = Part::lock(&path).unwrap();
    let error = downloader.download(&server.1, &path, &file).unwrap_err();
    assert!(matches!(error, FetchError::Busy { .. }), "{error}");
    assert_eq!(server.0.ranges().len(), 0);
    drop(held);
    assert_eq!(downloader.download(&server.1, &path, &file).unwrap(), Got::Fetched);
}
