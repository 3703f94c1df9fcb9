//! Published data sets: where they are, and the checksums they are published with.

/// A data set that can be fetched.
pub(super) struct Collection {
    pub(super) name: &'static str,
    /// What the names of files are added to.
    pub(super) base: &'static str,
    pub(super) files: &'static [PublishedFile],
    /// What is wanted out of the archive that the only file is; empty where files are used as they are.
    pub(super) members: &'static [Member],
}

/// A file with its MD5 checksum and its length.
pub(super) struct PublishedFile {
    pub(super) name: &'static str,
    pub(super) md5: &'static str,
    pub(super) bytes: u64,
}

/// A file in an archive. Its checksum is not published; that of the archive covers it.
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) bytes: u64,
}

/// The names of all collections.
pub(super) const NAMES: [&str; 3] = ["mnist", "fashion-mnist", "cifar10"];

/// All that can be fetched. Addresses and checksums of the MNIST family are those of torchvision's
/// `datasets/mnist.py`; torchvision has CIFAR-10's version for Python only, so those of the binary version
/// are the ones on its own page (cs.toronto.edu/~kriz/cifar.html).
pub(super) const COLLECTIONS: [Collection; 3] = [
    Collection {
        name: "mnist",
        base: "https://ossci-datasets.s3.amazonaws.com/mnist/",
        files: &[
            file("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            file("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            file("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            file("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ],
        members: &[],
    },
    Collection {
        name: "fashion-mnist",
        base: "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files: &[
            file("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            file("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
            file("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            file("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ],
        members: &[],
    },
    Collection {
        name: "cifar10",
        base: "https://www.cs.toronto.edu/~kriz/",
        files: &[file("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171)],
        members: &[
            member("batches.meta.txt", 61),
            member("data_batch_1.bin", 30_730_000),
            member("data_batch_2.bin", 30_730_000),
            member("data_batch_3.bin", 30_730_000),
            member("data_batch_4.bin", 30_730_000),
            member("data_batch_5.bin", 30_730_000),
            member("test_batch.bin", 30_730_000),
        ],
    },
];

const fn file(name: &'static str, md5: &'static str, bytes: u64) -> PublishedFile {
    PublishedFile { name, md5, bytes }
}

const fn member(name: &'static str, bytes: u64) -> Member {
    Member { name, bytes }
}
