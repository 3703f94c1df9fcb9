//! The loader of recipes: JPEG files of an image folder decoded, augmented and made into batches.
//!
//! ```sh
//! cargo run --release -p bonfire-benches --bin loader -- --workers 2 --folder /tmp/loader-bench
//! python benches/peers/loader.py --workers 2 --folder /tmp/loader-bench
//! ```
//!
//! The first makes the files, in the layout of an image folder, and measures ours; the second measures
//! PyTorch's `DataLoader` with torchvision on the same files, with the same transforms, batch size and
//! number of workers: a random resized crop to 224 x 224, a flip, normalisation. Without `--folder` the
//! files lie in a temporary folder. Prints one line of JSON:
//!
//! - `images_per_s`: images of the loader alone, with nothing done in between;
//! - `wait_share`: the share of an epoch in which a consumer waits for batches, the first one included. Between
//!   two batches it sleeps half as long again as the loader alone takes for one: there is CPU to spare, and whoever
//!   loads ahead has time to. `unprefetched_wait_share` is the same without workers, which load only when asked.
#![allow(clippy::print_stdout, reason = "the figures go to standard output")]

use bonfire::data::transform::{RandomHorizontalFlip, RandomResizedCrop, Transforms};
use bonfire::data::{
    DataError, DataLoader, FileOptions, ImageFiles, LoaderConfig, Padding, Shard, Split,
    Transformed,
};
use bonfire::nn::ImageShape;
use bonfire::trainer::ImageCollate;
use burn::tensor::Device;
use clap::Parser;
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CLASSES: usize = 4;
const ROWS: usize = 375;
const COLUMNS: usize = 500;
const EDGE: usize = 224;
const QUALITY: u8 = 90;
const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const STD: [f64; 3] = [0.229, 0.224, 0.225];
/// Time between two batches, by that which the loader alone takes for one.
const STEP: f64 = 1.5;

/// Measures the loader.
#[derive(Parser)]
#[command(name = "loader")]
struct Args {
    /// Files to make and read.
    #[arg(long, default_value_t = 2048)]
    images: usize,
    /// Images in a batch.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Threads that load; 0 loads on the thread that waits.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Seconds to measure the loader alone, after the first batch.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Where the files are made and stay, for the peer to read too.
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// What a recipe with `data.kind = "folder"` loads its batches by.
type Loader = DataLoader<Transformed<ImageFiles>, ImageCollate>;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(figures) => println!("{figures}"),
        Err(error) => {
            eprintln!("loader: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(args: &Args) -> Result<String, Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let folder = args.folder.as_deref().unwrap_or(scratch.path());
    make_files(folder, args.images)?;
    let ahead = loader(folder, args, args.workers)?;
    let rate = images_per_s(&ahead, Duration::try_from_secs_f64(args.seconds)?)?;
    let step = Duration::try_from_secs_f64(STEP * args.batch_size as f64 / rate)?;
    let figures = serde_json::json!({
        "loader": "bonfire",
        "images_per_s": rate,
        "wait_share": wait_share(&ahead, step)?,
        "unprefetched_wait_share": wait_share(&loader(folder, args, 0)?, step)?,
        "workers": args.workers,
        "batch_size": args.batch_size,
        "images": args.images,
    });
    Ok(figures.to_string())
}

fn loader(folder: &Path, args: &Args, workers: usize) -> Result<Loader, DataError> {
    let options = FileOptions::default();
    let files = ImageFiles::open_folder(folder, Split::Train, [None, None], options)?;
    let transforms = Transforms::new()
        .with(RandomResizedCrop::new([EDGE, EDGE]))
        .with(RandomHorizontalFlip::default());
    let shape = ImageShape { channels: 3, height: EDGE, width: EDGE };
    let collate =
        ImageCollate::new(shape, None, &Device::flex()).with_normalization(&MEAN, &STD)?;
    let config = LoaderConfig {
        batch_size: args.batch_size,
        workers,
        shuffle: true,
        drop_last: true,
        padding: Padding::Skip,
        ..LoaderConfig::default()
    };
    let images = Arc::new(Transformed::new(Arc::new(files), transforms));
    Ok(DataLoader::new(images, Arc::new(collate), config))
}

/// Goes through epochs until the time is over; the first batch only starts the clock.
fn images_per_s(loader: &Loader, time: Duration) -> Result<f64, DataError> {
    let (mut images, mut started) = (0, None);
    for epoch in 0.. {
        for batch in loader.batches(Shard::whole(), epoch, 0)? {
            let batch = batch?;
            std::hint::black_box(&batch.data);
            let started: &mut Instant = match &mut started {
                Some(started) => {
                    images += batch.samples;
                    started
                }
                None => started.insert(Instant::now()),
            };
            if started.elapsed() >= time && images > 0 {
                return Ok(images as f64 / started.elapsed().as_secs_f64());
            }
        }
    }
    Ok(0.0)
}

/// Goes through one epoch, with a pause after every batch.
fn wait_share(loader: &Loader, step: Duration) -> Result<f64, DataError> {
    let (started, mut waited) = (Instant::now(), Duration::ZERO);
    let mut batches = loader.batches(Shard::whole(), 0, 0)?;
    loop {
        let asked = Instant::now();
        let batch = batches.next().transpose()?;
        waited += asked.elapsed();
        if batch.is_none() {
            return Ok(waited.as_secs_f64() / started.elapsed().as_secs_f64());
        }
        std::thread::sleep(step);
    }
}

/// Makes the training files of an image folder, unless they are there.
fn make_files(folder: &Path, images: usize) -> Result<(), Box<dyn Error>> {
    let train = folder.join("train");
    for class in 0..CLASSES {
        fs::create_dir_all(train.join(format!("class{class}")))?;
    }
    for number in 0..images {
        let path = train.join(format!("class{}/{number:05}.jpg", number % CLASSES));
        if path.exists() {
            continue;
        }
        let mut bytes = Vec::new();
        JpegEncoder::new_with_quality(&mut bytes, QUALITY).write_image(
            &scene(number),
            COLUMNS as u32,
            ROWS as u32,
            ExtendedColorType::Rgb8,
        )?;
        fs::write(&path, bytes)?;
    }
    Ok(())
}

/// Soft shapes with some noise, which compress about as photographs do.
fn scene(number: usize) -> Vec<u8> {
    let mut noise = number as u32;
    let mut pixels = Vec::with_capacity(ROWS * COLUMNS * 3);
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            for channel in 0..3 {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let scale = 20.0 + (number % 13 + 5 * channel) as f32;
                let wave = (row as f32 / scale).sin() * (column as f32 / (scale + 7.0)).cos();
                pixels.push((128.0 + 90.0 * wave + (noise >> 28) as f32) as u8);
            }
        }
    }
    pixels
}
