use proptest::prelude::*;

use super::*;
use crate::{SampleRef, ShardBatch};

fn sampler(num_samples: usize, shard: (usize, usize), config: SamplerConfig) -> DistributedSampler {
    let shard = Shard::new(shard.0, shard.1).unwrap();
    DistributedSampler::new(num_samples, shard, config).unwrap()
}

fn in_order(batch_size: usize, drop_last: bool) -> SamplerConfig {
    SamplerConfig { shuffle: false, batch_size, drop_last, ..Default::default() }
}

/// The batches of all shards: `[shard][batch]`.
fn all_shards(
    num_samples: usize,
    num_shards: usize,
    config: SamplerConfig,
    epoch: u64,
    cursor: u64,
) -> Vec<Vec<ShardBatch>> {
    let batches = |index| {
        let mut sampler = sampler(num_samples, (index, num_shards), config);
        sampler.set_epoch(epoch);
        sampler.batches_from(cursor).unwrap().collect()
    };
    (0..num_shards).map(batches).collect()
}

/// The samples of each global batch in the order of the epoch, padding included.
fn dealt_back(shards: &[Vec<ShardBatch>]) -> Vec<Vec<SampleRef>> {
    let global = |number: usize| {
        let turns = shards[0][number].samples.len();
        (0..turns)
            .flat_map(|turn| shards.iter().map(move |batches| batches[number].samples[turn]))
            .collect()
    };
    (0..shards[0].len()).map(global).collect()
}

fn real(samples: impl IntoIterator<Item = SampleRef>) -> Vec<usize> {
    samples.into_iter().filter(|sample| !sample.padding).map(|sample| sample.index).collect()
}

/// PyTorch's `DistributedSampler.__iter__` and `BatchSampler`, written down literally.
fn pytorch(order: &[usize], rank: usize, world: usize, config: SamplerConfig) -> Vec<Vec<usize>> {
    let mut indices = order.to_vec();
    if config.drop_last {
        indices.truncate(order.len() / world * world);
    } else {
        let total_size = order.len().div_ceil(world) * world;
        let padding = total_size - order.len();
        let repeated = order.repeat(padding.div_ceil(order.len()));
        indices.extend(&repeated[..padding]);
    }
    let own: Vec<usize> = indices.into_iter().skip(rank).step_by(world).collect();
    let mut batches: Vec<Vec<usize>> =
        own.chunks(config.batch_size).map(<[usize]>::to_vec).collect();
    if config.drop_last {
        batches.retain(|batch| batch.len() == config.batch_size);
    }
    batches
}

#[test]
fn ten_samples_on_three_shards() {
    let indices = |batch: &ShardBatch| -> Vec<usize> {
        batch.samples.iter().map(|sample| sample.index).collect()
    };
    let shards = all_shards(10, 3, in_order(2, false), 0, 0);
    let of_shard =
        |index: usize| -> Vec<Vec<usize>> { shards[index].iter().map(indices).collect() };
    assert_eq!(of_shard(0), [[0, 3], [6, 9]]);
    assert_eq!(of_shard(1), [[1, 4], [7, 0]]);
    assert_eq!(of_shard(2), [[2, 5], [8, 1]]);
    assert!(!shards[0][1].samples[1].padding);
    assert!(shards[1][1].samples[1].padding && shards[2][1].samples[1].padding);
    for batches in &shards {
        assert_eq!((batches[0].global_samples, batches[0].global_positions), (6, 6));
        assert_eq!((batches[1].global_samples, batches[1].global_positions), (4, 6));
        assert_eq!((batches[0].cursor_after, batches[1].cursor_after), (6, 10));
    }
    let dropped = all_shards(10, 3, in_order(2, true), 0, 0);
    assert_eq!(dropped.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
}

#[test]
fn the_order_depends_on_the_sum_of_seed_and_epoch() {
    let config = |seed| SamplerConfig { seed, ..Default::default() };
    let order = |seed, epoch| real(dealt_back(&all_shards(10, 1, config(seed), epoch, 0)).concat());
    assert_eq!(order(0, 0), [5, 4, 3, 9, 6, 8, 0, 1, 2, 7]);
    assert_eq!(order(0, 1), [1, 5, 8, 3, 7, 2, 6, 0, 4, 9]);
    assert_eq!(order(1, 0), order(0, 1));
    assert_eq!(order(u64::MAX, 2), order(0, 1));
}

#[test]
fn more_shards_than_samples_repeat_the_head() {
    let shards = all_shards(2, 5, in_order(4, false), 0, 0);
    let samples = dealt_back(&shards).concat();
    assert_eq!(samples.iter().map(|s| s.index).collect::<Vec<_>>(), [0, 1, 0, 1, 0]);
    assert_eq!(real(samples), [0, 1]);
    assert_eq!(shards[4][0].global_samples, 2);
    assert_eq!(shards[4][0].cursor_after, 2);
}

#[test]
fn an_epoch_without_batches_is_an_error() {
    let shard = Shard { index: 0, count: 4 };
    let error = DistributedSampler::new(3, shard, in_order(1, true)).unwrap_err().to_string();
    assert!(error.contains("3 samples are too few for 4 shards"), "{error}");
    let error = DistributedSampler::new(7, shard, in_order(2, true)).unwrap_err().to_string();
    assert!(error.contains("at least 8"), "{error}");
    assert!(DistributedSampler::new(8, shard, in_order(2, true)).is_ok());
    assert!(DistributedSampler::new(0, shard, in_order(1, false)).is_err());
}

#[test]
fn impossible_options_are_errors() {
    let whole = Shard::whole();
    let error = DistributedSampler::new(3, whole, in_order(0, false)).unwrap_err().to_string();
    assert_eq!(error, "batch_size is 0; it must be at least 1");
    let nowhere = Shard { index: 2, count: 2 };
    assert!(DistributedSampler::new(3, nowhere, in_order(1, false)).is_err());
    assert!(DistributedSampler::new(usize::MAX, whole, in_order(1, false)).is_err());
}

#[test]
fn a_cursor_beyond_the_end_is_an_error() {
    let sampler = sampler(10, (0, 3), in_order(2, false));
    assert_eq!(sampler.batches_from(10).unwrap().len(), 0);
    for cursor in [11, u64::MAX] {
        let error = sampler.batches_from(cursor).unwrap_err();
        assert!(matches!(error, DataError::CursorBeyondEnd { .. }), "{error}");
    }
}

#[test]
fn huge_numbers_do_not_overflow() {
    let num_samples = usize::MAX - 7;
    for drop_last in [false, true] {
        let sampler = sampler(num_samples, (2, 3), in_order(5, drop_last));
        let mut batches = sampler.batches_from(0).unwrap();
        let last = batches.nth(batches.len() - 1).unwrap();
        assert!(last.samples.iter().all(|sample| sample.index < num_samples));
        assert!(last.cursor_after <= num_samples as u64);
        assert_eq!(batches.next(), None);
    }
    let all_at_once = sampler(3, (0, 2), in_order(usize::MAX, false));
    assert_eq!(all_at_once.batches_from(0).unwrap().next().unwrap().samples.len(), 2);
    let many = Shard { index: 0, count: usize::MAX - 3 };
    assert_eq!(DistributedSampler::new(3, many, in_order(1, false)).unwrap().num_batches(), 1);
}

/// Number of samples, number of shards and options for which an epoch has a batch.
fn setup() -> impl Strategy<Value = (usize, usize, SamplerConfig)> {
    (1_usize..200, 1_usize..9, 1_usize..20, any::<bool>(), any::<bool>(), any::<u64>())
        .prop_map(|(num_samples, num_shards, batch_size, shuffle, drop_last, seed)| {
            (
                num_samples,
                num_shards,
                SamplerConfig { shuffle, seed, drop_last, batch_size, limit_batches: None },
            )
        })
        .prop_filter("an epoch needs a batch", |(num_samples, num_shards, config)| {
            !config.drop_last || *num_samples >= num_shards * config.batch_size
        })
}

/// The order of the epoch, as one shard sees it.
fn order(num_samples: usize, config: SamplerConfig, epoch: u64) -> Vec<usize> {
    let config = SamplerConfig { batch_size: 1, drop_last: false, ..config };
    real(dealt_back(&all_shards(num_samples, 1, config, epoch, 0)).concat())
}

proptest! {
    #[test]
    fn the_order_is_a_permutation((num_samples, _, config) in setup(), epoch in any::<u64>()) {
        let mut seen = order(num_samples, config, epoch);
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..num_samples).collect::<Vec<_>>());
    }

    #[test]
    fn shards_take_what_pytorch_gives_them(
        (num_samples, num_shards, config) in setup(), epoch in 0_u64..5
    ) {
        let order = order(num_samples, config, epoch);
        let shards = all_shards(num_samples, num_shards, config, epoch, 0);
        for (rank, batches) in shards.iter().enumerate() {
            let indices: Vec<Vec<usize>> = batches
                .iter()
                .map(|batch| batch.samples.iter().map(|sample| sample.index).collect())
                .collect();
            prop_assert_eq!(indices, pytorch(&order, rank, num_shards, config));
        }
    }

    #[test]
    fn global_batches_are_runs_of_the_order(
        (num_samples, num_shards, config) in setup(), epoch in 0_u64..5
    ) {
        let order = order(num_samples, config, epoch);
        let shards = all_shards(num_samples, num_shards, config, epoch, 0);
        prop_assert_eq!(shards[0].len(), sampler(num_samples, (0, num_shards), config).num_batches());
        let global_size = num_shards * config.batch_size;
        for (number, samples) in dealt_back(&shards).into_iter().enumerate() {
            let start = number * global_size;
            let end = (start + global_size).min(num_samples);
            prop_assert_eq!(real(samples.iter().copied()), &order[start..end]);
            for batches in &shards {
                prop_assert_eq!(batches[number].global_samples, end - start);
                prop_assert_eq!(batches[number].global_positions, samples.len());
                prop_assert_eq!(batches[number].cursor_after, end as u64);
            }
        }
        let seen = real(dealt_back(&shards).concat());
        let dropped = num_samples - seen.len();
        let allowed = if config.drop_last { global_size - 1 } else { 0 };
        prop_assert!(dropped <= allowed, "{dropped} of {num_samples} dropped");
    }

    #[test]
    fn an_epoch_resumes_at_each_batch_with_any_number_of_shards(
        (num_samples, num_shards, config) in setup(),
        other_shards in 1_usize..9,
        other_batch in 1_usize..20,
        epoch in 0_u64..5,
    ) {
        let order = order(num_samples, config, epoch);
        let uninterrupted = all_shards(num_samples, num_shards, config, epoch, 0);
        for number in 0..uninterrupted[0].len() {
            let cursor = uninterrupted[0][number].cursor_after;
            let same = all_shards(num_samples, num_shards, config, epoch, cursor);
            for (resumed, whole) in same.iter().zip(&uninterrupted) {
                prop_assert_eq!(&resumed[..], &whole[number + 1..]);
            }
            let config = SamplerConfig { batch_size: other_batch, drop_last: false, ..config };
            let other = all_shards(num_samples, other_shards, config, epoch, cursor);
            prop_assert_eq!(real(dealt_back(&other).concat()), &order[cursor as usize..]);
        }
    }

    #[test]
    fn skipping_equals_stepping((num_samples, num_shards, config) in setup(), skip in 0_usize..30) {
        let batches = sampler(num_samples, (0, num_shards), config).batches_from(0).unwrap();
        let all: Vec<ShardBatch> = batches.clone().collect();
        let mut skipped = batches;
        prop_assert_eq!(skipped.nth(skip), all.get(skip).cloned());
        prop_assert_eq!(skipped.len(), all.len().saturating_sub(skip + 1));
    }
}

#[test]
fn a_limited_epoch_has_the_head_of_its_order_and_can_be_continued() {
    let shard = |index| Shard { index, count: 3 };
    let seen = |sampler: &DistributedSampler, cursor| -> Vec<usize> {
        let batches = sampler.batches_from(cursor).unwrap();
        batches.flat_map(|batch| batch.samples).filter(|s| !s.padding).map(|s| s.index).collect()
    };
    let all = |limit_batches, epoch, cursor| {
        let config = SamplerConfig { batch_size: 4, seed: 9, limit_batches, ..Default::default() };
        let mut indices: Vec<usize> = (0..3)
            .flat_map(|index| {
                let mut sampler = DistributedSampler::new(100, shard(index), config).unwrap();
                sampler.set_epoch(epoch);
                seen(&sampler, cursor)
            })
            .collect();
        indices.sort_unstable();
        indices
    };
    assert_eq!(all(Some(2), 0, 0).len(), 24);
    assert_ne!(all(Some(2), 0, 0), all(Some(2), 1, 0), "each epoch has a head of its own");
    let rest = all(Some(2), 0, 12);
    assert!(rest.len() == 12 && rest.iter().all(|index| all(Some(2), 0, 0).contains(index)));
    assert_eq!(all(Some(1000), 0, 0), all(None, 0, 0));
    // More shards have come further before: this epoch is over, and one beyond the data never was.
    assert!(all(Some(2), 0, 60).is_empty());
    let config = SamplerConfig { limit_batches: Some(2), ..Default::default() };
    let sampler = DistributedSampler::new(100, shard(0), config).unwrap();
    assert!(sampler.batches_from(101).is_err());
    let config = SamplerConfig { limit_batches: Some(0), ..Default::default() };
    let error = DistributedSampler::new(100, shard(0), config).unwrap_err();
    assert!(error.to_string().contains("limit_batches"), "{error}");
}
