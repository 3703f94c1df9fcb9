//! A trained model classifies a picture: what a program needs that serves one.
//!
//! Train the digits, then run it from the root of the repository:
//!
//! ```text
//! cargo run --release -- train configs/digits.toml --out runs/digits
//! cargo run --release -p infer -- runs/digits/model.safetensors examples/infer/seven.png
//! ```

#![allow(clippy::print_stdout, reason = "the output is for people")]

use bonfire::data::{Image, ImageSample};
use bonfire::models::LeNetConfig;
use bonfire::nn::softmax;
use bonfire::prelude::*;
use bonfire::trainer::weights::{Head, WeightNames, load_weights};
use burn::tensor::Device;
use image::imageops::FilterType;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(weights), Some(picture)) = (arguments.next(), arguments.next()) else {
        return Err("usage: infer MODEL.safetensors PICTURE.png".into());
    };
    for (class, probability) in classify(weights.as_ref(), picture.as_ref())? {
        println!("{class}: {probability:.4}");
    }
    Ok(())
}

/// The three likeliest digits, with their probabilities.
fn classify(weights: &Path, picture: &Path) -> Result<Vec<(usize, f32)>, Box<dyn Error>> {
    // The model of configs/digits.toml; `model.toml` beside the weights says the same.
    let device = Device::flex();
    let shape = ImageShape { channels: 1, height: 8, width: 8 };
    let new = LeNetConfig::default().init(shape, 10, &device)?;
    let model = load_weights(new, weights, &WeightNames::default(), Head::Load)?.model;

    // A picture of the shape and the normalisation that the model was trained on; its class is not
    // known, and scores do not depend on it.
    let grey = image::open(picture)?.resize_exact(8, 8, FilterType::Triangle).into_luma8();
    let sample = ImageSample { image: Image::new(grey.into_raw(), [8, 8, 1])?, label: 0 };
    let batch = ImageCollate::new(shape, Some((0.306, 0.376)), &device).collate(vec![sample])?;

    let probabilities = softmax(model.forward(batch.images), 1).into_data();
    let mut ranked: Vec<(usize, f32)> = probabilities.iter::<f32>().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(3);
    Ok(ranked)
}
