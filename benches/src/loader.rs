//! Images per second of the loader alone: JPEG files read, decoded, augmented and collated.
//!
//! ```sh
//! cargo run --release -p bonfire-benches --bin loader -- --workers 2 --folder /tmp/loader-bench
//! python benches/peers/loader.py --workers 2 --folder /tmp/loader-bench
//! ```
//!
//! The first makes the files, in the layout of an image folder, and measures ours; the second measures
//! PyTorch's `DataLoader` with torchvision on the same files, with the same transforms, batch size and
//! number of workers: a random resized crop to 224 x 224, a flip, normalisation. Without `--folder` the
//! files lie in a temporary folder. Prints one line of JSON.
#![allow(clippy::print_stdout, reason = "the figures go to standard output")]

use bonfire::data::transform::{RandomHorizontalFlip, RandomResizedCrop, Transforms};
use bonfire::data::{
    DataError, DataLoader, Dataset, DatasetDigest, Image, ImageDataset, ImageSample, LoaderConfig,
    Padding, SampleContext, Shard, Transformed,
};
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
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];

/// Measures the loader.
#[derive(Parser)]
#[command(name = "loader")]
struct Args {
    /// Files to make and read.
    #[arg(long, default_value_t = 512)]
    images: usize,
    /// Images in a batch.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Threads that load; 0 loads on the thread that waits.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Seconds to measure, after the first batch.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Where the files are made and stay, for the peer to read too.
    #[arg(long)]
    folder: Option<PathBuf>,
}

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
    let files = Arc::new(JpegFiles { paths: make_files(folder, args.images)? });
    let transforms = Transforms::new()
        .with(RandomResizedCrop::new([EDGE, EDGE]))
        .with(RandomHorizontalFlip::default());
    let config = LoaderConfig {
        batch_size: args.batch_size,
        workers: args.workers,
        shuffle: true,
        drop_last: true,
        padding: Padding::Skip,
        ..LoaderConfig::default()
    };
    let images = Arc::new(Transformed::new(files, transforms));
    let loader = DataLoader::new(images, Arc::new(normalized), config);
    let images_per_s = measure(&loader, Duration::try_from_secs_f64(args.seconds)?)?;
    let figures = serde_json::json!({
        "loader": "bonfire",
        "images_per_s": images_per_s,
        "workers": args.workers,
        "batch_size": args.batch_size,
        "images": args.images,
    });
    Ok(figures.to_string())
}

/// Goes through epochs until the time is over; the first batch only starts the clock.
fn measure<C>(
    loader: &DataLoader<Transformed<JpegFiles>, C>,
    time: Duration,
) -> Result<f64, DataError>
where
    C: bonfire::data::Collate<ImageSample, Batch = Vec<f32>> + 'static,
{
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
            if started.elapsed() >= time {
                return Ok(images as f64 / started.elapsed().as_secs_f64());
            }
        }
    }
    Ok(0.0)
}

/// JPEG files, decoded whenever they are asked for.
struct JpegFiles {
    paths: Vec<PathBuf>,
}

impl Dataset for JpegFiles {
    type Item = ImageSample;

    fn len(&self) -> usize {
        self.paths.len()
    }

    fn get(&self, context: &SampleContext) -> Result<ImageSample, DataError> {
        let out_of_range = DataError::IndexOutOfRange { index: context.index, len: self.len() };
        let path = self.paths.get(context.index).ok_or(out_of_range)?;
        let bytes =
            fs::read(path).map_err(|source| DataError::Io { path: path.clone(), source })?;
        let decoded = image::load_from_memory(&bytes).map_err(DataError::other)?.into_rgb8();
        let (width, height) = (decoded.width() as usize, decoded.height() as usize);
        let image = Image::new(decoded.into_raw(), [height, width, 3])?;
        Ok(ImageSample { image, label: (context.index % CLASSES) as u32 })
    }

    fn digest(&self) -> DatasetDigest {
        DatasetDigest { num_samples: self.len() as u64, class_names: Vec::new(), content: 0 }
    }
}

impl ImageDataset for JpegFiles {
    fn image_shape(&self) -> Option<[usize; 3]> {
        Some([ROWS, COLUMNS, 3])
    }

    fn num_classes(&self) -> usize {
        CLASSES
    }
}

/// Normalised planes, as the trainer's collation makes them.
fn normalized(items: Vec<ImageSample>) -> Result<Vec<f32>, DataError> {
    let mut values = Vec::with_capacity(items.len() * 3 * EDGE * EDGE);
    let tables: [[f32; 256]; 3] = std::array::from_fn(|channel| {
        std::array::from_fn(|byte| (byte as f32 / 255.0 - MEAN[channel]) / STD[channel])
    });
    for item in &items {
        for (channel, table) in tables.iter().enumerate() {
            let plane = item.image.pixels().iter().skip(channel).step_by(3);
            values.extend(plane.map(|byte| table[usize::from(*byte)]));
        }
    }
    Ok(values)
}

/// Makes the files of an image folder, unless they are there.
fn make_files(folder: &Path, images: usize) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    for class in 0..CLASSES {
        fs::create_dir_all(folder.join(format!("class{class}")))?;
    }
    (0..images)
        .map(|number| {
            let path = folder.join(format!("class{}/{number:05}.jpg", number % CLASSES));
            if !path.exists() {
                let mut bytes = Vec::new();
                JpegEncoder::new_with_quality(&mut bytes, QUALITY).write_image(
                    &scene(number),
                    COLUMNS as u32,
                    ROWS as u32,
                    ExtendedColorType::Rgb8,
                )?;
                fs::write(&path, bytes)?;
            }
            Ok(path)
        })
        .collect()
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
