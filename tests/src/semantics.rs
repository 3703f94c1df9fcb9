//! What each rank computes in each window, in every way to synchronise, and one process that computes
//! all of it.

use crate::assert_close;
use crate::samples::{FEATURES, Samples};
use crate::training::{numbers, small_buckets};
use bonfire_comm::ProcessGroup;
use bonfire_parallel::{
    AdamConfig, AdamWConfig, Compression, DataParallel, DataParallelConfig, FlatOptimizer,
    GradientReduction, LossReduction, SgdConfig, ZeroStage,
};
use bonfire_tensor::lend::pretend;
use bonfire_tensor::parameters;
use bonfire_tensor::state::Stateful;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};
use std::sync::{Mutex, PoisonError};

const TOLERANCE: f64 = 1e-9;
const STEPS: usize = 6;
const RATE: f64 = 0.05;
/// Samples in an ordinary micro-batch.
const BATCH: usize = 4;

/// Compares every case on `group` with one process, in f64 within 1e-9. With `apart` the ranks'
/// tensors count as a device's.
///
/// # Panics
/// On the first difference.
pub fn compare_all(group: &ProcessGroup, device: &Device, apart: bool) {
    CASES.iter().for_each(|case| compare(case, group, device, apart));
}

/// Two branches between a stem and a head, in no order of use; `frozen` takes no part in training.
#[derive(Module, Debug)]
struct Net {
    head: Linear,
    right: Linear,
    frozen: Linear,
    stem: Linear,
    left: Linear,
}

impl Net {
    fn new(seed: u64, device: &Device) -> Self {
        static GENERATOR: Mutex<()> = Mutex::new(());
        let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
        device.seed(seed);
        let linear = |input, output| LinearConfig::new(input, output).init(device);
        let net = Self {
            head: linear(7, 3),
            right: linear(13, 7),
            frozen: linear(13, 13).no_grad(),
            stem: linear(FEATURES, 13),
            left: linear(13, 7),
        };
        // Weights are drawn when they are first looked at.
        parameters::inspect(&net).unwrap();
        net
    }

    /// One number a sample.
    fn forward(&self, images: Tensor<4>, branch: Branch) -> Tensor<1> {
        let x: Tensor<2> = tanh(self.stem.forward(images.flatten(1, 3)));
        let x = x.clone() + self.frozen.forward(x);
        let x = match branch {
            Branch::Both => self.left.forward(x.clone()) + self.right.forward(x),
            Branch::Left => self.left.forward(x),
            Branch::Right => self.right.forward(x),
        };
        self.head.forward(tanh(x)).square().sum_dim(1).flatten(0, 1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Branch {
    Both,
    Left,
    Right,
}

/// What one rank computes in one micro-batch.
#[derive(Debug, Clone, Copy)]
struct Work {
    samples: usize,
    branch: Branch,
}

struct Case {
    name: &'static str,
    config: fn(&mut DataParallelConfig),
    optimizer: fn() -> Box<dyn FlatOptimizer>,
    loss: LossReduction,
    /// Micro-batches of a rank in a window.
    work: fn(rank: usize, step: usize) -> Vec<Work>,
}

fn sgd() -> Box<dyn FlatOptimizer> {
    Box::new(SgdConfig::new().with_momentum(0.9).with_weight_decay(1e-2).init().unwrap())
}

fn adam() -> Box<dyn FlatOptimizer> {
    Box::new(AdamConfig::new().with_weight_decay(1e-2).init().unwrap())
}

fn adamw() -> Box<dyn FlatOptimizer> {
    Box::new(AdamWConfig::new().init().unwrap())
}

fn both(_: usize, _: usize) -> Vec<Work> {
    vec![Work { samples: BATCH, branch: Branch::Both }]
}

fn left(_: usize, _: usize) -> Vec<Work> {
    vec![Work { samples: BATCH, branch: Branch::Left }]
}

fn branch_by_rank(rank: usize, _: usize) -> Vec<Work> {
    let branch = if rank == 0 { Branch::Left } else { Branch::Right };
    vec![Work { samples: BATCH, branch }]
}

fn branch_by_step(rank: usize, step: usize) -> Vec<Work> {
    let branch = match (rank + step) % 3 {
        0 => Branch::Left,
        1 => Branch::Right,
        _ => Branch::Both,
    };
    vec![Work { samples: BATCH, branch }]
}

fn right_on_rank_1_only(rank: usize, _: usize) -> Vec<Work> {
    let branch = if rank == 1 { Branch::Both } else { Branch::Left };
    vec![Work { samples: BATCH, branch }]
}

fn branches_in_turn(_: usize, _: usize) -> Vec<Work> {
    let work = |branch| Work { samples: BATCH, branch };
    vec![work(Branch::Left), work(Branch::Right), work(Branch::Left)]
}

fn uneven(rank: usize, step: usize) -> Vec<Work> {
    let work = |samples| Work { samples, branch: Branch::Both };
    match (rank, step % 3) {
        (0, 0) => vec![work(5), work(1)],
        (0, _) => vec![work(4)],
        (_, 2) => Vec::new(),
        (rank, _) => vec![work(1 + rank), work(2)],
    }
}

macro_rules! cases {
    ($($name:literal: $config:expr, $optimizer:ident, $loss:ident, $work:ident;)+) => {
        &[$(Case {
            name: $name,
            config: $config,
            optimizer: $optimizer,
            loss: LossReduction::$loss,
            work: $work,
        },)+]
    };
}

fn per_sample(config: &mut DataParallelConfig) {
    config.reduction = GradientReduction::PerSample { nominal: BATCH as f64 };
}

const CASES: &[Case] = cases! {
    "buckets": |_| {}, sgd, Mean, both;
    "one bucket": |c| (c.first_bucket_mb, c.bucket_cap_mb) = (25.0, 25.0), adamw, Mean, both;
    "a parameter larger than a bucket": |c| (c.first_bucket_mb, c.bucket_cap_mb) = (1e-5, 1e-5), sgd, Mean, both;
    "unused on all ranks": |c| c.find_unused_parameters = true, adamw, Mean, left;
    "unused on some ranks": |c| c.find_unused_parameters = true, sgd, Mean, right_on_rank_1_only;
    "another branch on every rank": |c| c.find_unused_parameters = true, adamw, Mean, branch_by_rank;
    "another branch in every step": |c| c.find_unused_parameters = true, sgd, Mean, branch_by_step;
    "static graph, unused on all ranks": |c| c.static_graph = true, adam, Mean, left;
    "static graph, unused on some ranks": |c| c.static_graph = true, sgd, Mean, right_on_rank_1_only;
    "static graph, another branch on every rank": |c| c.static_graph = true, adamw, Mean, branch_by_rank;
    "the union of a window's micro-batches": |_| {}, sgd, Mean, branches_in_turn;
    "every sample weighs the same": per_sample, sgd, Mean, uneven;
    "every sample weighs the same, sums": per_sample, adamw, Sum, uneven;
    "ZeRO-1, SGD": |c| c.zero_stage = ZeroStage::Optimizer, sgd, Mean, both;
    "ZeRO-1, Adam": |c| c.zero_stage = ZeroStage::Optimizer, adam, Mean, both;
    "ZeRO-1, AdamW, uneven": |c| { per_sample(c); c.zero_stage = ZeroStage::Optimizer }, adamw, Mean, uneven;
    "ZeRO-1, unused": |c| { c.find_unused_parameters = true; c.zero_stage = ZeroStage::Optimizer }, adamw, Mean, branch_by_step;
    "ZeRO-2, SGD": |c| c.zero_stage = ZeroStage::Gradients, sgd, Mean, both;
    "ZeRO-2, AdamW, uneven": |c| { per_sample(c); c.zero_stage = ZeroStage::Gradients }, adamw, Sum, uneven;
    "ZeRO-2, a window of micro-batches": |c| c.zero_stage = ZeroStage::Gradients, adam, Mean, branches_in_turn;
    "ZeRO-2, unused": |c| { c.find_unused_parameters = true; c.zero_stage = ZeroStage::Gradients }, sgd, Mean, branch_by_step;
    "top-k of everything": |c| c.compression = Compression::TopK { ratio: 1.0 }, sgd, Mean, both;
    "top-k of everything, ZeRO-1": |c| {
        c.compression = Compression::TopK { ratio: 1.0 };
        c.zero_stage = ZeroStage::Optimizer;
    }, adamw, Mean, both;
    "top-k of everything, unused": |c| {
        c.compression = Compression::TopK { ratio: 1.0 };
        c.find_unused_parameters = true;
    }, adamw, Mean, branch_by_step;
    "replicas compared": |c| c.check_replicas_every = 1, adamw, Mean, branches_in_turn;
};

fn compare(case: &Case, group: &ProcessGroup, device: &Device, apart: bool) {
    let mut config = small_buckets();
    (case.config)(&mut config);
    let reduction = config.reduction;
    let single = DataParallelConfig { reduction, ..small_buckets() };
    let own = Net::new(group.rank() as u64, device);
    pretend::set_apart(false);
    let single_group = ProcessGroup::single();
    let zero = Net::new(0, device);
    let mut one = DataParallel::new(zero, &single_group, single).unwrap();
    pretend::set_apart(apart);
    let mut ranks = DataParallel::new(own, group, config).unwrap();
    let (mut ranks_optimizer, mut one_optimizer) = ((case.optimizer)(), (case.optimizer)());
    for step in 0..STEPS {
        let all: Vec<Vec<Work>> =
            (0..group.world_size()).map(|rank| (case.work)(rank, step)).collect();
        let own = &all[group.rank()];
        window(&mut ranks, step, group.rank(), own, case.loss, 1.0, device);
        ranks.step(ranks_optimizer.as_mut(), RATE).unwrap();

        let scale = match reduction {
            GradientReduction::MeanOverRanks => 1.0 / group.world_size() as f64,
            GradientReduction::PerSample { .. } => 1.0,
        };
        let busy: Vec<usize> = (0..all.len()).filter(|rank| !all[*rank].is_empty()).collect();
        for rank in &busy[..busy.len() - 1] {
            one.no_sync(|one| window(one, step, *rank, &all[*rank], case.loss, scale, device));
        }
        let last = busy[busy.len() - 1];
        window(&mut one, step, last, &all[last], case.loss, scale, device);
        one.step(one_optimizer.as_mut(), RATE).unwrap();

        let expected = numbers(&one.state().unwrap());
        for (path, values) in numbers(&ranks.state().unwrap()) {
            let what = format!("{}: {path} after step {step}", case.name);
            assert_close(&what, &values, &expected[&path], TOLERANCE);
        }
    }
    assert_eq!(ranks.steps(), STEPS as u64);
    ranks.check_replicas().unwrap();
}

/// Runs the micro-batches of a rank; all but the last without communication.
fn window(
    parallel: &mut DataParallel<Net>,
    step: usize,
    rank: usize,
    work: &[Work],
    loss: LossReduction,
    scale: f64,
    device: &Device,
) {
    if work.is_empty() {
        parallel.backward_without_samples().unwrap();
    }
    for (index, micro_batch) in work.iter().enumerate() {
        let first = ((step * 8 + rank) * 8 + index) * 8;
        let samples = Samples::synthetic(first..first + micro_batch.samples);
        let pass = |parallel: &mut DataParallel<Net>| {
            let replica = parallel.replica().unwrap();
            let each = replica.forward(samples.images(device), micro_batch.branch);
            let value = match loss {
                LossReduction::Mean => each.mean(),
                LossReduction::Sum => each.sum(),
            };
            let weight = micro_batch.samples as f64;
            parallel.backward_weighted(value.mul_scalar(scale), loss, weight).unwrap();
        };
        if index + 1 < work.len() { parallel.no_sync(pass) } else { pass(parallel) }
    }
}
