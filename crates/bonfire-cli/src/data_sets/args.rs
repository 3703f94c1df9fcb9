use super::catalog;
use clap::{Subcommand, value_parser};
use std::path::PathBuf;

/// Fetches published data sets, or says what is in one
#[derive(Subcommand)]
pub(crate) enum DataCommand {
    Fetch(FetchArgs),
    Info(InfoArgs),
}

/// Downloads a published data set into a folder that recipes can name
///
/// Nothing else in this program uses the network for data. An interrupted download goes on where it
/// stopped, every file is checked against its published MD5 checksum, and files that are there already
/// are only checked.
#[derive(clap::Args)]
pub(crate) struct FetchArgs {
    /// The data set.
    #[arg(value_parser = catalog::NAMES)]
    pub(crate) name: String,
    /// The folder, made if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// A mirror: the address that the names of files are added to.
    #[arg(long, value_name = "BASE")]
    pub(crate) url: Option<String>,
    /// How long the server may take to connect or to send the next bytes, in seconds.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,
    /// How often a transfer that broke off is tried again; each time waits twice as long.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub(crate) retries: u32,
}

/// Says what is in a data set: splits, classes, counts, sizes, mean and deviation of pixels
///
/// Reads every image once. The kind is found by what lies in the folder, unless --kind names it.
#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    /// The folder, as data.path of a recipe.
    pub(crate) path: PathBuf,
    /// Kind of the data set (data.kind).
    #[arg(long, value_name = "KIND", value_parser = ["idx", "cifar10", "cifar100", "folder", "csv"])]
    pub(crate) kind: Option<String>,
    /// Labels of cifar100 (data.label).
    #[arg(long, value_name = "LABEL", value_parser = ["fine", "coarse"])]
    pub(crate) label: Option<String>,
    /// Name of the training split of folder or csv (data.train).
    #[arg(long, value_name = "NAME")]
    pub(crate) train: Option<String>,
    /// Name of the validation split of folder or csv (data.valid).
    #[arg(long, value_name = "NAME")]
    pub(crate) valid: Option<String>,
    /// Channels of images in files (data.channels).
    #[arg(long, value_name = "N", value_parser = ["1", "3"])]
    pub(crate) channels: Option<String>,
    /// Draws the first training images of each class as a PNG file.
    #[arg(long, value_name = "FILE.png")]
    pub(crate) sheet: Option<PathBuf>,
}
