use super::*;

/// Records with labels as given, whose red, green and blue values are 1, 2 and 3 but for the first.
fn records(labels: &[&[u8]]) -> Vec<u8> {
    let planes = [1u8, 2, 3].map(|value| [value; PLANE]).concat();
    let mut bytes: Vec<u8> =
        labels.iter().flat_map(|label| [label, &planes[..]].concat()).collect();
    bytes[labels[0].len() + 1] = 77;
    bytes
}

fn context(index: usize) -> SampleContext {
    SampleContext { seed: 0, epoch: 0, index }
}

fn folder_with(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

#[test]
fn files_are_joined_in_order_and_planes_interleaved() {
    let folder = folder_with(&[
        ("data_batch_2.bin", records(&[&[9]])),
        ("data_batch_1.bin", records(&[&[3], &[4]])),
    ]);
    let data = CifarImages::open_folder(folder.path(), Cifar::Ten, Split::Train).unwrap();
    assert_eq!(data.labels(), [3, 4, 9]);
    let sample = data.get(&context(0)).unwrap();
    assert_eq!((sample.image.shape(), sample.label), ([32, 32, 3], 3));
    // The second value of the red plane is the red of the second column.
    assert_eq!(sample.image.pixels()[..9], [1, 2, 3, 77, 2, 3, 1, 2, 3]);
    assert!(data.get(&context(3)).is_err());
    assert_eq!((data.num_classes(), data.digest().class_names[9].as_str()), (10, "9"));
}

#[test]
fn cifar_100_has_coarse_and_fine_labels() {
    let folder = folder_with(&[("test.bin", records(&[&[19, 99]]))]);
    let open = |cifar| CifarImages::open_folder(folder.path(), cifar, Split::Test).unwrap();
    let (fine, coarse) = (open(Cifar::HundredFine), open(Cifar::HundredCoarse));
    assert_eq!((fine.labels(), fine.num_classes()), (&[99][..], 100));
    assert_eq!((coarse.labels(), coarse.num_classes()), (&[19][..], 20));
    assert_eq!(fine.get(&context(0)).unwrap().image.pixels()[..3], [1, 2, 3]);
}

#[test]
fn classes_have_the_names_that_lie_beside_them() {
    let names = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("cifar-10-batches-bin");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("test_batch.bin"), records(&[&[1]])).unwrap();
    fs::write(inner.join("batches.meta.txt"), names).unwrap();
    let data = CifarImages::open_folder(folder.path(), Cifar::Ten, Split::Test).unwrap();
    assert_eq!(data.digest().class_names[1], "automobile");
}

#[test]
fn wrong_files_are_told_apart() {
    let open = |name: &str, bytes: Vec<u8>| {
        let folder = folder_with(&[(name, bytes)]);
        let split = if name.starts_with("test") { Split::Test } else { Split::Train };
        CifarImages::open_folder(folder.path(), Cifar::Ten, split).unwrap_err().to_string()
    };
    let truncated = open("data_batch_1.bin", records(&[&[1], &[2]])[..5000].to_vec());
    assert!(truncated.contains("5000 bytes are no whole number of records of 3073"), "{truncated}");
    let label = open("test_batch.bin", records(&[&[1], &[10]]));
    assert!(label.contains("record 1 has label 10"), "{label}");
    for name in ["data_batch_1", "data_batch_1.bin", "test_batch"] {
        let pickle = open(name, b"\x80\x02}q\x00".to_vec());
        assert!(pickle.contains("pickle"), "{pickle}");
    }
    assert!(open("test_batch.bin", Vec::new()).contains("has no images"));
    let missing = open("nothing", Vec::new());
    assert!(missing.contains("looked for data_batch_1.bin; data_batch_2.bin"), "{missing}");
}

#[test]
fn the_digest_covers_pixels_and_labels() {
    let content = |labels: &[&[u8]]| {
        let folder = folder_with(&[("test_batch.bin", records(labels))]);
        let data = CifarImages::open_folder(folder.path(), Cifar::Ten, Split::Test).unwrap();
        data.digest().content
    };
    assert_eq!(content(&[&[1], &[2]]), content(&[&[1], &[2]]));
    assert_ne!(content(&[&[1], &[2]]), content(&[&[2], &[1]]));
}

#[test]
fn a_real_part_of_cifar_10_is_readable() {
    let Some(folder) = std::env::var_os("BONFIRE_DATA_DIR").map(PathBuf::from) else {
        println!("SKIPPED: needs BONFIRE_DATA_DIR, the folder of larger data sets");
        return;
    };
    let folder = folder.join("cifar10-bin-small");
    for (split, num_samples) in [(Split::Train, 10_000), (Split::Test, 2_000)] {
        let data = CifarImages::open_folder(&folder, Cifar::Ten, split).unwrap();
        assert_eq!(data.len(), num_samples);
        assert_eq!(data.digest().class_names[3], "cat");
    }
}
