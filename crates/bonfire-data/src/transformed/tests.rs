//! Augmented pixels depend on seed, epoch and sample, whoever asks for them.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::*;
use crate::transform::{
    ColorJitter, RandAugment, RandomCrop, RandomErasing, RandomHorizontalFlip, RandomResizedCrop,
    RandomRotation, Resize, ResizeTo, TrivialAugmentWide,
};
use crate::{BatchContext, Collate, DataLoader, Image, LoaderConfig, Padding, Shard};

/// Images of different sizes, each made anew, after a while.
struct Slow {
    len: usize,
    pause: Duration,
}

impl Dataset for Slow {
    type Item = ImageSample;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, context: &SampleContext) -> Result<ImageSample, DataError> {
        sleep(self.pause);
        let (height, width) = (20 + context.index % 3, 24 + context.index % 5);
        let pixels: Vec<u8> =
            (0..height * width * 3).map(|byte| (byte * 7 + context.index * 31) as u8).collect();
        let image = Image::new(pixels, [height, width, 3])?;
        Ok(ImageSample { image, label: context.index as u32 })
    }

    fn digest(&self) -> DatasetDigest {
        DatasetDigest { num_samples: self.len as u64, class_names: Vec::new(), content: 1 }
    }
}

impl ImageDataset for Slow {
    fn image_shape(&self) -> Option<[usize; 3]> {
        None
    }

    fn num_channels(&self) -> Option<usize> {
        Some(3)
    }

    fn num_classes(&self) -> usize {
        self.len
    }
}

fn everything() -> Transforms {
    Transforms::new()
        .with(RandomResizedCrop::new([20, 20]))
        .with(RandomCrop { padding: [2; 4], ..RandomCrop::new([16, 16]) })
        .with(RandomHorizontalFlip::default())
        .with(RandomRotation::new([-10.0, 10.0]))
        .with(ColorJitter::new(0.4, 0.4, 0.4, 0.1))
        .with(RandAugment::default())
        .with(TrivialAugmentWide::default())
        .with(RandomErasing::default())
}

/// Keeps the samples, with what the batch knows of its place.
struct Keep;

impl Collate<ImageSample> for Keep {
    type Batch = (BatchContext, Vec<ImageSample>);

    fn collate(&self, items: Vec<ImageSample>) -> Result<Self::Batch, DataError> {
        self.collate_at(items, &BatchContext { seed: 0, epoch: 0, position: 0 })
    }

    fn collate_at(
        &self,
        items: Vec<ImageSample>,
        context: &BatchContext,
    ) -> Result<Self::Batch, DataError> {
        Ok((*context, items))
    }
}

fn loader(pause: u64, len: usize, config: LoaderConfig) -> DataLoader<Transformed<Slow>, Keep> {
    let images = Arc::new(Slow { len, pause: Duration::from_millis(pause) });
    DataLoader::new(Arc::new(Transformed::new(images, everything())), Arc::new(Keep), config)
}

/// All images of an epoch by label, and the positions of the batches.
fn epoch(world_size: usize, workers: usize, epoch: u64) -> (BTreeMap<u32, Image>, Vec<u64>) {
    let config = LoaderConfig {
        batch_size: 12 / world_size,
        workers,
        seed: 7,
        shuffle: true,
        padding: Padding::Skip,
        ..LoaderConfig::default()
    };
    let loader = loader(0, 40, config);
    let (mut images, mut positions) = (BTreeMap::new(), Vec::new());
    for index in 0..world_size {
        let shard = Shard { index, count: world_size };
        for batch in loader.batches(shard, epoch, 0).unwrap() {
            let Some((context, samples)) = batch.unwrap().data else { continue };
            positions.push(context.position);
            images.extend(samples.into_iter().map(|sample| (sample.label, sample.image)));
        }
    }
    positions.sort_unstable();
    positions.dedup();
    (images, positions)
}

#[test]
fn a_sample_has_the_same_pixels_at_any_world_size_with_any_number_of_workers() {
    let reference = epoch(1, 0, 0);
    assert_eq!((reference.0.len(), reference.1.as_slice()), (40, &[0, 12, 24, 36][..]));
    for world_size in [1, 2, 3] {
        for workers in [0, 1, 4] {
            let found = epoch(world_size, workers, 0);
            assert!(found == reference, "world size {world_size}, {workers} workers");
        }
    }
    let later = epoch(2, 1, 1).0;
    assert!(reference.0.iter().all(|(label, image)| later[label] != *image));
}

#[test]
fn the_shape_and_the_transforms_are_known_beforehand() {
    let images = Arc::new(Slow { len: 3, pause: Duration::ZERO });
    let transformed = |list| Transformed::new(Arc::clone(&images), list);
    let resized = |edge| Transforms::new().with(Resize { size: ResizeTo::Exact([edge; 2]) });
    assert_eq!(transformed(Transforms::new()).image_shape(), None);
    assert_eq!(transformed(resized(8)).image_shape(), Some([8, 8, 3]));
    assert_eq!(transformed(Transforms::new()).digest(), images.digest());
    assert_ne!(transformed(resized(8)).digest(), images.digest());
    assert_ne!(transformed(resized(8)).digest(), transformed(resized(9)).digest());
    assert_eq!(transformed(resized(8)).digest(), transformed(resized(8)).digest());
}

/// What costs something is asked for only where it is needed.
#[test]
fn no_file_but_one_is_opened_where_a_crop_fixes_the_size() {
    let folder = tempfile::tempdir().unwrap();
    for (name, size) in [("a/1.png", 9), ("b/1.png", 9), ("b/2.png", 20)] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::new(size, size).save(path).unwrap();
    }
    let options = crate::FileOptions::default();
    let images = crate::ImageFiles::open_classes(folder.path(), None, crate::Split::Train, options);
    let images = Arc::new(images.unwrap());
    // Were they opened now, there would be one size.
    std::fs::remove_file(folder.path().join("b/1.png")).unwrap();
    std::fs::remove_file(folder.path().join("b/2.png")).unwrap();
    let shape = |edge| {
        let crop = Transforms::new().with(RandomCrop::new([edge; 2]));
        Transformed::new(Arc::clone(&images), crop).output_shape()
    };
    assert_eq!(shape(9).unwrap(), Some([9, 9, 3]));
    let error = shape(10).unwrap_err().to_string();
    assert!(
        error.starts_with("RandomCrop cannot take an image of 9 rows and 9 columns"),
        "{error}"
    );
    image::RgbImage::new(20, 20).save(folder.path().join("b/2.png")).unwrap();
    assert_eq!(images.image_shape(), None, "a header was read before");
}

/// Eight samples of 4 ms are 32 ms a batch; four workers make one in 8 ms, well within a step of 16.
#[test]
fn a_slow_decoder_does_not_stall_the_steps_when_there_are_workers_enough() {
    let config = LoaderConfig { batch_size: 8, workers: 4, ..LoaderConfig::default() };
    let mut batches = loader(4, 8 * 24, config).batches(Shard::whole(), 0, 0).unwrap();
    batches.next().unwrap().unwrap();
    let (first, started) = (batches.wait_time(), Instant::now());
    for batch in &mut batches {
        batch.unwrap();
        sleep(Duration::from_millis(16));
    }
    let share = (batches.wait_time() - first).as_secs_f64() / started.elapsed().as_secs_f64();
    // Without workers it is two thirds. The bound allows for a machine that is busy otherwise.
    assert!(share < 0.25, "{share}");
}
