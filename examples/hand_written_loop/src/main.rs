//! A training loop without the `Trainer`: join the group, replicate the model, loop.
//!
//! Run it from the root of the repository, alone:
//!
//! ```text
//! cargo run --release -p hand_written_loop
//! ```
//!
//! or once for every rank:
//!
//! ```text
//! cargo build --release -p hand_written_loop
//! cargo run --release -- launch --nproc-per-node 2 -- target/release/hand_written_loop
//! ```
#![allow(clippy::print_stdout, reason = "what it prints is what an example is for")]

use bonfire::models::LeNetConfig;
use bonfire::prelude::*;
use burn::module::Module;
use burn::tensor::Device;
use std::error::Error;
use std::sync::Arc;

const EPOCHS: u64 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    keep_freed_memory();
    let group = match RankEnv::detect()? {
        Some(env) => init_process_group(&env, InitOptions::default())?,
        None => ProcessGroup::single(),
    };
    let shard = Shard::new(group.rank(), group.world_size())?;
    let device = Device::flex();

    let digits = IdxImages::open_folder("data/digits", Split::Train)?;
    let image = ImageShape { channels: 1, height: digits.rows(), width: digits.cols() };
    let num_classes = digits.num_classes();
    let collate = Arc::new(ImageCollate::new(image, Some((0.306, 0.376)), &device));
    let batch_size = 48 / group.world_size();
    let config = LoaderConfig { batch_size, shuffle: true, ..LoaderConfig::default() };
    let train = DataLoader::new(Arc::new(digits), collate.clone(), config);

    let digits = IdxImages::open_folder("data/digits", Split::Test)?;
    let config = LoaderConfig { padding: Padding::Skip, shuffle: false, ..config };
    let test = DataLoader::new(Arc::new(digits), collate, config);

    let model = LeNetConfig::default().init(image, num_classes, &device.autodiff())?;
    let mut parallel = DataParallel::new(model, &group, DataParallelConfig::default())?;
    let mut optimizer = SgdConfig::new().with_momentum(0.9).with_nesterov(true).init()?;

    for epoch in 0..EPOCHS {
        let (mut loss_sum, mut batches, mut correct, mut images) = (0.0, 0.0, 0.0, 0.0);
        for batch in train.batches(shard, epoch, 0)? {
            // Never skipped: with `Padding::Keep` every rank has data in every batch.
            let Some(batch) = batch?.data else { continue };
            let loss = cross_entropy(parallel.replica()?.forward(batch.images), batch.targets);
            loss_sum += loss.clone().into_scalar::<f64>();
            batches += 1.0;
            parallel.backward(loss)?;
            parallel.step(&mut optimizer, 0.05)?;
        }
        let model = parallel.model().valid();
        for batch in test.batches(shard, 0, 0)? {
            let Some(batch) = batch?.data else { continue };
            images += batch.len() as f64;
            let scores = model.forward(batch.images);
            correct += correct_predictions(scores, batch.targets).into_scalar::<f64>();
        }
        // Sums over all ranks, so that every sample counts once.
        let mut sums = [loss_sum, batches, correct, images];
        group.all_reduce(&mut sums, ReduceOp::Sum)?;
        if group.rank() == 0 {
            let [loss, accuracy] = [sums[0] / sums[1], sums[2] / sums[3]];
            println!("epoch {epoch}  train loss {loss:.4}  test accuracy {accuracy:.4}");
        }
    }
    Ok(())
}
