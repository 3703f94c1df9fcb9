//! Mixed images train on mixed targets, as PyTorch does, the same way on all ranks.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_data::transform::BatchMix;
use bonfire_data::{
    BatchContext, Collate, DataLoader, Image, ImageSample, InMemoryDataset, LoaderConfig, Shard,
};
use bonfire_nn::{ImageClassifier, ImageShape, cross_entropy_mixed};
use bonfire_tests::golden::numbers_of;
use bonfire_trainer::{ImageBatch, ImageCollate, Learnable, MixedTargets, StepContext};
use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use std::sync::Arc;

/// Made by `golden/transforms.py`.
static GOLDEN: &[u8] = include_bytes!("../golden/transforms.safetensors");

/// Scores are the pixels.
#[derive(Module, Debug)]
struct Pixels;

impl ImageClassifier for Pixels {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        images.flatten(1, 3)
    }
}

fn classes(name: &str, device: &Device) -> Tensor<1, Int> {
    let classes: Vec<i64> =
        numbers_of(GOLDEN, name).into_iter().map(|class| class as i64).collect();
    let count = classes.len();
    Tensor::from_data(TensorData::new(classes, [count]), device)
}

#[test]
fn the_loss_of_mixed_targets_is_that_of_pytorch() {
    let device = Device::flex();
    let data = TensorData::new(numbers_of(GOLDEN, "loss/scores"), [5, 4]);
    let scores = Tensor::<2>::from_data(data, (&device, DType::F64));
    let targets = || ["loss/own", "loss/partner"].map(|name| classes(name, &device));
    for (smoothing, expected) in [0.0, 0.1].into_iter().zip(numbers_of(GOLDEN, "loss/losses")) {
        let loss = cross_entropy_mixed(scores.clone(), targets(), 0.3, smoothing);
        let loss: f64 = loss.into_scalar();
        assert!((loss - expected).abs() < 1e-12, "smoothing {smoothing}: {loss}, {expected}");
    }
}

#[test]
fn the_accuracy_of_mixed_images_counts_the_class_with_the_larger_share() {
    let device = Device::flex();
    let batch = |lambda| {
        let images = Tensor::<1>::from_data([2.0, 0.0, 2.0, 0.0], &device).reshape([2, 2, 1, 1]);
        let of = |classes: [i64; 2]| Tensor::<1, Int>::from_data(classes, &device);
        let mixed = Some(MixedTargets { partners: of([1, 0]), lambda });
        ImageBatch { mixed, ..ImageBatch::new(images, of([0, 0])) }
    };
    let context = StepContext::outside(device.clone());
    for (lambda, correct) in [(0.7, 2.0), (0.3, 1.0)] {
        let output = Pixels.training_step(batch(lambda), &context);
        let accuracy = &output.metrics[0];
        let found: f64 = accuracy.sum.clone().into_scalar();
        assert_eq!((accuracy.name, found, accuracy.count), ("accuracy", correct, 2.0));
    }
}

fn samples(count: u8) -> Vec<ImageSample> {
    let image = |label: u8| Image::new(vec![label, label, label, 10 * label], [1, 2, 2]).unwrap();
    (0..count).map(|label| ImageSample { image: image(label), label: label.into() }).collect()
}

fn collate(device: &Device) -> ImageCollate {
    let shape = ImageShape { channels: 2, height: 1, width: 2 };
    ImageCollate::new(shape, None, device)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.try_into_vec_as::<f64>().unwrap()
}

#[test]
fn each_channel_is_normalised_by_its_own_figures() {
    let device = Device::flex();
    let collate = collate(&device).with_normalization(&[0.0, 1.0], &[0.5]).unwrap();
    let batch = collate.collate(samples(2)).unwrap();
    let expected: Vec<f64> = [[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 10.0]]
        .into_iter()
        .flat_map(|[a, b, c, d]| {
            let first = [a, c].map(|byte: f64| byte / 255.0 / 0.5);
            let second = [b, d].map(|byte: f64| (byte / 255.0 - 1.0) / 0.5);
            [first, second].concat()
        })
        .collect();
    for (found, expected) in values(batch.images).iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    let error = collate.with_normalization(&[0.1; 3], &[1.0]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "3 means are given to normalise images of 2 channels: give one, or one for each channel"
    );
}

#[test]
fn all_ranks_mix_a_batch_alike_with_the_images_that_they_have() {
    let device = Device::flex();
    let mix = BatchMix { mixup_alpha: Some(0.4), cutmix_alpha: None };
    let data = Arc::new(InMemoryDataset::new(samples(24)));
    let config = LoaderConfig { batch_size: 4, seed: 9, shuffle: true, ..LoaderConfig::default() };
    let collate = Arc::new(collate(&device).with_mix(mix));
    let lambdas = |index, workers| -> Vec<f64> {
        let config = LoaderConfig { workers, ..config };
        let loader = DataLoader::new(Arc::clone(&data), Arc::clone(&collate), config);
        let shard = Shard { index, count: 2 };
        let batches =
            loader.batches(shard, 3, 0).unwrap().map(|batch| batch.unwrap().data.unwrap());
        batches.map(|batch| batch.mixed.unwrap().lambda).collect()
    };
    let first = lambdas(0, 0);
    assert_eq!(first, lambdas(1, 2));
    let drawn: Vec<f64> = [0, 8, 16]
        .map(|position| {
            mix.draw(&BatchContext { seed: 9, epoch: 3, position }, [1, 2]).unwrap().lambda()
        })
        .to_vec();
    assert_eq!(first, drawn);

    let batch =
        collate.collate_at(samples(3), &BatchContext { seed: 9, epoch: 3, position: 8 }).unwrap();
    let MixedTargets { partners, lambda } = batch.mixed.unwrap();
    assert_eq!(partners.try_into_vec_as::<i64>().unwrap(), [2, 0, 1]);
    let shares = values(batch.images).into_iter().step_by(4).map(|value| value * 255.0);
    for (found, (own, partner)) in shares.zip([(0.0, 2.0), (1.0, 0.0), (2.0, 1.0)]) {
        assert!((found - (lambda * own + (1.0 - lambda) * partner)).abs() < 1e-5, "{found}");
    }
}
