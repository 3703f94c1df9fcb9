use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;

fn header(magic: u32, dimensions: &[u32]) -> Vec<u8> {
    let words = [&[magic], dimensions].concat();
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Three images of 2 x 2.
fn images() -> Vec<u8> {
    [header(0x0803, &[3, 2, 2]), (0..12).collect()].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn read(bytes: &[u8], kind: IdxKind) -> Result<IdxArray, DataError> {
    read_idx(bytes, Path::new("some-file"), kind)
}

/// The offset, the problem and the message that reading `bytes` as images ends in.
fn problem_of(bytes: &[u8]) -> (u64, IdxProblem, String) {
    let error = read(bytes, IdxKind::Images).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("some-file: "), "{message}");
    match error {
        DataError::MalformedIdx { offset, problem, .. } => (offset, problem, message),
        other => panic!("{other}"),
    }
}

#[test]
fn plain_and_compressed_files_are_read_alike() {
    let array = read(&images(), IdxKind::Images).unwrap();
    assert_eq!(array.dimensions, [3, 2, 2]);
    assert_eq!(array.data, (0..12).collect::<Vec<u8>>());
    assert_eq!(read(&gzip(&images()), IdxKind::Images).unwrap(), array);
    let labels = [header(0x0801, &[2]), vec![7, 9]].concat();
    assert_eq!(read(&labels, IdxKind::Labels).unwrap().data, [7, 9]);
    // A gzip file may consist of several members.
    let (head, tail) = (gzip(&images()[..9]), gzip(&images()[9..]));
    assert_eq!(read(&[head, tail].concat(), IdxKind::Images).unwrap(), array);
}

#[test]
fn a_wrong_magic_says_what_was_found() {
    let (offset, problem, message) = problem_of(b"\x89PNG\r\n");
    assert_eq!(problem, IdxProblem::NotIdx { expected: 0x803, found: 0x8950_4e47 });
    assert_eq!(offset, 0);
    assert!(message.contains("expected magic 0x00000803, got 0x89504e47"), "{message}");
    let (_, problem, _) = problem_of(&header(0x0703, &[1, 1, 1]));
    assert!(matches!(problem, IdxProblem::NotIdx { .. }));
}

#[test]
fn swapped_files_are_recognised() {
    let (_, problem, message) = problem_of(&header(0x0801, &[5]));
    assert!(matches!(problem, IdxProblem::Swapped { wanted: "images", got: "labels", .. }));
    assert!(message.contains("are the image and label files swapped?"), "{message}");
    let error = read(&images(), IdxKind::Labels).unwrap_err().to_string();
    assert!(error.contains("expected labels (magic 0x00000801), got images"), "{error}");
}

#[test]
fn other_element_types_and_ranks_are_refused() {
    for (code, name) in [(0x09, "signed byte"), (0x0d, "32-bit float"), (0x0e, "64-bit float")] {
        let (_, problem, message) = problem_of(&header(code << 8 | 3, &[1, 1, 1]));
        assert!(matches!(problem, IdxProblem::UnsupportedElement { .. }));
        assert!(message.contains(name), "{message}");
    }
    let (_, problem, _) = problem_of(&header(0x0804, &[1, 1, 1, 1]));
    assert_eq!(problem, IdxProblem::WrongRank { wanted: "images", expected: 3, found: 4 });
}

#[test]
fn a_truncated_header_says_how_much_is_there() {
    for len in [0, 1, 2, 3, 4, 7, 15] {
        let (offset, problem, message) = problem_of(&images()[..len]);
        let found_bytes = len as u64;
        assert_eq!(problem, IdxProblem::TruncatedHeader { expected_bytes: 16, found_bytes });
        assert_eq!(offset, found_bytes);
        assert!(message.contains(&format!("(at byte {len})")), "{message}");
    }
}

#[test]
fn zero_dimensions_are_refused_by_name() {
    for (place, name) in ["number of items", "height", "width"].into_iter().enumerate() {
        let mut dimensions = [3, 2, 2];
        dimensions[place] = 0;
        let (offset, problem, _) = problem_of(&header(0x0803, &dimensions));
        assert_eq!(problem, IdxProblem::ZeroDimension { dimension: name });
        assert_eq!(offset, 4 + 4 * place as u64);
    }
}

#[test]
fn absurd_dimensions_are_refused_before_anything_is_allocated() {
    for dimensions in [[u32::MAX; 3], [u32::MAX, 2, 1], [1 << 16, 1 << 16, 2]] {
        let (offset, problem, _) = problem_of(&header(0x0803, &dimensions));
        assert!(matches!(problem, IdxProblem::TooLarge { .. }), "{problem}");
        assert_eq!(offset, 4);
    }
    // Just within the limit: believed, but not allocated.
    let promise = header(0x0803, &[1 << 16, 1 << 8, 1 << 8]);
    let (_, problem, _) = problem_of(&promise);
    assert_eq!(problem, IdxProblem::TruncatedData { expected_bytes: 1 << 32, found_bytes: 0 });
    let (_, problem, _) = problem_of(&gzip(&promise));
    assert_eq!(problem, IdxProblem::TruncatedData { expected_bytes: 1 << 32, found_bytes: 0 });
}

#[test]
fn truncated_data_says_expected_and_got() {
    let bytes = images();
    let (offset, problem, message) = problem_of(&bytes[..20]);
    assert_eq!(problem, IdxProblem::TruncatedData { expected_bytes: 12, found_bytes: 4 });
    assert_eq!(offset, 20);
    assert!(message.contains("expected 12 bytes, got 4 (at byte 20)"), "{message}");
    let (_, problem, message) = problem_of(&gzip(&bytes[..27]));
    assert_eq!(problem, IdxProblem::TruncatedData { expected_bytes: 12, found_bytes: 11 });
    assert!(message.contains("(at byte 27 of the decompressed data)"), "{message}");
}

#[test]
fn trailing_bytes_are_refused() {
    let bytes = [images(), vec![0]].concat();
    for bytes in [bytes.clone(), gzip(&bytes)] {
        let (offset, problem, _) = problem_of(&bytes);
        assert_eq!(problem, IdxProblem::TrailingBytes { expected_bytes: 12 });
        assert_eq!(offset, 28);
    }
}

#[test]
fn a_gzip_stream_cut_anywhere_is_an_error() {
    let bytes = gzip(&images());
    for len in 2..bytes.len() {
        let (_, problem, message) = problem_of(&bytes[..len]);
        assert!(matches!(problem, IdxProblem::CorruptGzip { .. }), "{len}: {message}");
    }
}

#[test]
fn a_damaged_gzip_stream_is_an_error() {
    let bytes = gzip(&images());
    let mut wrong_checksum = bytes.clone();
    let place = bytes.len() - 8;
    wrong_checksum[place] ^= 1;
    let (offset, problem, _) = problem_of(&wrong_checksum);
    assert!(matches!(problem, IdxProblem::CorruptGzip { .. }), "{problem}");
    assert_eq!(offset, 28);
    let garbage_behind = [bytes, b"garbage, and more of it".to_vec()].concat();
    let (_, problem, _) = problem_of(&garbage_behind);
    assert!(matches!(problem, IdxProblem::CorruptGzip { .. }), "{problem}");
}

#[test]
fn missing_files_and_folders_are_io_errors() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("nothing")] {
        let error = open_idx(&path, IdxKind::Images).unwrap_err();
        assert!(matches!(error, DataError::Io { .. }), "{error}");
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    }
}

fn kind() -> impl Strategy<Value = IdxKind> {
    prop_oneof![Just(IdxKind::Images), Just(IdxKind::Labels)]
}

/// An array is only ever returned whole.
fn check(result: Result<IdxArray, DataError>) {
    if let Ok(array) = result {
        assert_eq!(array.dimensions.iter().product::<usize>(), array.data.len());
        assert!(!array.data.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in kind()) {
        check(read(&bytes, kind));
        check(read(&gzip(&bytes), kind));
        check(read(&[&GZIP_MAGIC[..], &bytes].concat(), kind));
    }

    #[test]
    fn a_plausible_header_with_arbitrary_bytes_never_panics(
        element in 7_u32..15, rank in 0_u32..5, dimensions in prop::collection::vec(0_u32..6, 0..5),
        bytes in prop::collection::vec(any::<u8>(), 0..60), kind in kind(),
    ) {
        let file = [header(element << 8 | rank, &dimensions), bytes].concat();
        check(read(&file, kind));
        check(read(&gzip(&file), kind));
    }

    #[test]
    fn a_flipped_bit_in_a_gzip_file_never_goes_unnoticed(place in any::<prop::sample::Index>(), bit in 0..8) {
        let whole = read(&images(), IdxKind::Images).unwrap();
        let mut bytes = gzip(&images());
        let place = place.index(bytes.len());
        bytes[place] ^= 1_u8 << bit;
        // Only flags and times in gzip's own header may change without effect.
        if let Ok(array) = read(&bytes, IdxKind::Images) {
            prop_assert_eq!(array, whole);
        }
    }

    #[test]
    fn what_is_written_is_read(
        count in 1_u32..5, rows in 1_u32..6, cols in 1_u32..6, seed in any::<u8>(), compress in any::<bool>(),
    ) {
        let data: Vec<u8> = (0..count * rows * cols).map(|i| (i as u8).wrapping_mul(seed)).collect();
        let file = [header(0x0803, &[count, rows, cols]), data.clone()].concat();
        let array = read(&if compress { gzip(&file) } else { file }, IdxKind::Images).unwrap();
        prop_assert_eq!(array.dimensions, [count as usize, rows as usize, cols as usize]);
        prop_assert_eq!(array.data, data);
    }
}
