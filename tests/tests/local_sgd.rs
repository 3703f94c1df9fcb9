//! Averages of parameters now and then, against the same arithmetic in one process.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_comm::ProcessGroup;
use bonfire_models::Mlp;
use bonfire_nn::{ImageClassifier, cross_entropy};
use bonfire_parallel::{DataParallel, DataParallelConfig, FlatOptimizer, LocalSgd, OuterMomentum};
use bonfire_tensor::state::{HostTensor, State, Stateful};
use bonfire_tests::training::{HIDDEN, mlp, numbers, small_buckets};
use bonfire_tests::{Precision, Rule, Samples, as_rank, assert_close, results, run_ranks};
use burn::tensor::Device;
use std::collections::BTreeMap;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);
const TOLERANCE: f64 = 1e-9;
const BATCH: usize = 4;
const STEPS: usize = 11;
const RATE: f64 = 0.05;

type Numbers = BTreeMap<String, Vec<f64>>;

fn policies() -> [LocalSgd; 3] {
    [
        LocalSgd::new(3),
        LocalSgd::new(4).with_start_step(2),
        LocalSgd::new(3).with_outer(OuterMomentum::default()),
    ]
}

#[test]
fn two_ranks_follow_the_formula() {
    check(2, "two_ranks_follow_the_formula");
}

#[test]
fn three_ranks_follow_the_formula() {
    check(3, "three_ranks_follow_the_formula");
}

fn check(world: usize, test: &str) {
    let all = |group: &ProcessGroup| {
        let device = Precision::F64.device();
        policies().iter().for_each(|policy| compare(group, *policy, &device));
    };
    if as_rank(all) {
        return;
    }
    results::<()>(&run_ranks(world, test, &[], DEADLINE));
}

fn begin(group: &ProcessGroup, policy: Option<LocalSgd>, device: &Device) -> DataParallel<Mlp> {
    let config = DataParallelConfig { local_sgd: policy, ..small_buckets() };
    DataParallel::new(mlp(HIDDEN, 0, device), group, config).unwrap()
}

fn backward(parallel: &mut DataParallel<Mlp>, rank: usize, step: usize, device: &Device) {
    let first = (step * 4 + rank) * BATCH;
    let samples = Samples::synthetic(first..first + BATCH);
    let logits = parallel.replica().unwrap().forward(samples.images(device));
    parallel.backward(cross_entropy(logits, samples.targets(device))).unwrap();
}

fn compare(group: &ProcessGroup, policy: LocalSgd, device: &Device) {
    let mut parallel = begin(group, Some(policy), device);
    let mut optimizer = Rule::Sgd.optimizer();
    let mut reference = Reference::new(group.world_size(), policy, device);
    for step in 0..STEPS {
        backward(&mut parallel, group.rank(), step, device);
        parallel.step(optimizer.as_mut(), RATE).unwrap();
        let expected = reference.step(step, device);
        for (path, values) in numbers(&parallel.state().unwrap()) {
            let what = format!("{policy:?}: {path} after step {step}");
            assert_close(&what, &values, &expected[group.rank()][&path], TOLERANCE);
        }
    }
    assert!(parallel.drifts());
    let last: Vec<Numbers> =
        reference.ranks.iter().map(|one| numbers(&one.0.state().unwrap())).collect();
    parallel.agree().unwrap();
    for (path, values) in numbers(&parallel.state().unwrap()) {
        assert_close(&path, &values, &mean(&last, &path), TOLERANCE);
    }
    parallel.check_replicas().unwrap();
}

/// The outer optimizer's memory follows the parameters, whatever the buckets and the ranks.
#[test]
fn diloco_continues_with_other_buckets() {
    let work = |group: &ProcessGroup| {
        let device = Precision::F64.device();
        let policy = LocalSgd::new(2).with_outer(OuterMomentum::default());
        let run = |parallel: &mut DataParallel<Mlp>,
                   optimizer: &mut dyn FlatOptimizer,
                   steps: std::ops::Range<usize>| {
            for step in steps {
                backward(parallel, group.rank(), step, &device);
                parallel.step(optimizer, RATE).unwrap();
            }
        };
        let mut parallel = begin(group, Some(policy), &device);
        let mut optimizer = Rule::Sgd.optimizer();
        run(&mut parallel, optimizer.as_mut(), 0..5);
        let exchange = parallel.exchange_state(optimizer.as_mut()).unwrap();
        let bytes = group.broadcast_bytes(exchange.to_bytes(), 0).unwrap();
        let exchange = State::from_bytes(&bytes).unwrap();
        let model = parallel.state().unwrap();
        run(&mut parallel, optimizer.as_mut(), 5..9);

        let config =
            DataParallelConfig { local_sgd: Some(policy), ..DataParallelConfig::default() };
        let mut again = DataParallel::new(mlp(HIDDEN, 1, &device), group, config).unwrap();
        let mut optimizer = Rule::Sgd.optimizer();
        again.load_state(model).unwrap();
        again.load_exchange_state(exchange, optimizer.as_mut(), State::default()).unwrap();
        run(&mut again, optimizer.as_mut(), 5..9);
        let expected = numbers(&parallel.state().unwrap());
        for (path, values) in numbers(&again.state().unwrap()) {
            assert_close(&path, &values, &expected[&path], TOLERANCE);
        }
    };
    if as_rank(work) {
        return;
    }
    results::<()>(&run_ranks(2, "diloco_continues_with_other_buckets", &[], DEADLINE));
}

fn mean(ranks: &[Numbers], path: &str) -> Vec<f64> {
    let mut sum = vec![0.0; ranks[0][path].len()];
    for one in ranks {
        sum.iter_mut().zip(&one[path]).for_each(|(sum, value)| *sum += value / ranks.len() as f64);
    }
    sum
}

/// All ranks in one process, each with a model and an optimizer of its own.
struct Reference {
    policy: LocalSgd,
    ranks: Vec<(DataParallel<Mlp>, Box<dyn FlatOptimizer>)>,
    start: Numbers,
    momentum: Numbers,
}

impl Reference {
    fn new(world: usize, policy: LocalSgd, device: &Device) -> Self {
        let single = ProcessGroup::single();
        let one = || (begin(&single, None, device), Rule::Sgd.optimizer());
        let ranks: Vec<_> = (0..world).map(|_| one()).collect();
        let start = numbers(&ranks[0].0.state().unwrap());
        let momentum = start.iter().map(|(path, v)| (path.clone(), vec![0.0; v.len()])).collect();
        Self { policy, ranks, start, momentum }
    }

    fn step(&mut self, step: usize, device: &Device) -> Vec<Numbers> {
        let world = self.ranks.len();
        let shared = (step as u64) < self.policy.start_step;
        for (own, (parallel, optimizer)) in self.ranks.iter_mut().enumerate() {
            if shared {
                let replica = parallel.replica().unwrap();
                let losses = (0..world).map(|rank| {
                    let first = (step * 4 + rank) * BATCH;
                    let samples = Samples::synthetic(first..first + BATCH);
                    cross_entropy(replica.forward(samples.images(device)), samples.targets(device))
                });
                let sum = losses.reduce(|sum, loss| sum + loss).unwrap();
                parallel.backward(sum.mul_scalar(1.0 / world as f64)).unwrap();
            } else {
                backward(parallel, own, step, device);
            }
            parallel.step(optimizer.as_mut(), RATE).unwrap();
        }
        let states: Vec<Numbers> =
            self.ranks.iter().map(|one| numbers(&one.0.state().unwrap())).collect();
        if shared {
            self.start.clone_from(&states[0]);
            return states;
        }
        let local_steps = step as u64 + 1 - self.policy.start_step;
        if !local_steps.is_multiple_of(self.policy.period) {
            return states;
        }
        let mut new: Numbers =
            self.start.keys().map(|path| (path.clone(), mean(&states, path))).collect();
        if let Some(outer) = self.policy.outer {
            for (path, values) in &mut new {
                let momentum = self.momentum.get_mut(path).unwrap();
                for ((value, start), m) in values.iter_mut().zip(&self.start[path]).zip(momentum) {
                    let distance = start - *value;
                    *m = outer.momentum * *m + distance;
                    *value = start - outer.learning_rate * (distance + outer.momentum * *m);
                }
            }
        }
        self.start.clone_from(&new);
        for (parallel, _) in &mut self.ranks {
            let state = parallel.state().unwrap();
            let tensors = state.tensors.into_iter().map(|(path, tensor)| {
                let data = new[&path].clone().into();
                (path, HostTensor { shape: tensor.shape, data })
            });
            let state = State { tensors: tensors.collect(), ..State::default() };
            parallel.load_state(state).unwrap();
        }
        vec![new; world]
    }
}
