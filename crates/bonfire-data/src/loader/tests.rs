use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::{DatasetDigest, InMemoryDataset, LoadedBatch, SampleContext};

/// Returns what it is asked for; may be slow, fail or panic, and counts.
#[derive(Default)]
struct Probe {
    len: usize,
    delay: Duration,
    fails_at: Option<usize>,
    panics_at: Option<usize>,
    reads: AtomicUsize,
}

impl Dataset for Probe {
    type Item = SampleContext;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, context: &SampleContext) -> Result<SampleContext, DataError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        thread::sleep(self.delay);
        assert_ne!(Some(context.index), self.panics_at, "this sample bites");
        if Some(context.index) == self.fails_at {
            return Err(DataError::message("this sample is rotten"));
        }
        Ok(*context)
    }

    fn digest(&self) -> DatasetDigest {
        DatasetDigest { num_samples: self.len as u64, class_names: Vec::new(), content: 0 }
    }
}

struct Keep;

impl<I: Send> Collate<I> for Keep {
    type Batch = Vec<I>;

    fn collate(&self, items: Vec<I>) -> Result<Vec<I>, DataError> {
        Ok(items)
    }
}

fn loader(probe: Probe, config: LoaderConfig) -> DataLoader<Probe, Keep> {
    DataLoader::new(Arc::new(probe), Arc::new(Keep), config)
}

fn probe(len: usize) -> Probe {
    Probe { len, ..Probe::default() }
}

type Loaded = LoadedBatch<Vec<SampleContext>>;

fn load(loader: &DataLoader<Probe, Keep>, shard: Shard, epoch: u64, cursor: u64) -> Vec<Loaded> {
    loader.batches(shard, epoch, cursor).unwrap().collect::<Result<_, _>>().unwrap()
}

fn indices(batches: &[Loaded]) -> Vec<usize> {
    batches.iter().flat_map(|b| b.data.iter().flatten()).map(|context| context.index).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn batches_do_not_depend_on_workers(
        len in 8_usize..80, num_shards in 1_usize..5, batch_size in 1_usize..9, shuffle in any::<bool>(),
        skip in any::<bool>(), epoch in 0_u64..3, prefetch_factor in 1_usize..4,
    ) {
        let padding = if skip { Padding::Skip } else { Padding::Keep };
        let config = LoaderConfig { batch_size, shuffle, padding, prefetch_factor, ..Default::default() };
        let shard = Shard { index: num_shards - 1, count: num_shards };
        let inline = loader(probe(len), config).with_seed(5);
        let expected = load(&inline, shard, epoch, 0);
        prop_assert_eq!(expected.len(), inline.num_batches(shard));
        for workers in [1, 3] {
            let threaded = loader(probe(len), config).with_seed(5).with_workers(workers);
            prop_assert_eq!(&load(&threaded, shard, epoch, 0), &expected);
            let cursor = expected[0].cursor_after;
            prop_assert_eq!(&load(&threaded, shard, epoch, cursor)[..], &expected[1..]);
        }
    }

    #[test]
    fn evaluation_counts_each_sample_once(
        len in 1_usize..60, num_shards in 1_usize..9, batch_size in 1_usize..9,
    ) {
        let config = LoaderConfig { batch_size, padding: Padding::Skip, ..Default::default() };
        let loader = loader(probe(len), config);
        let shards: Vec<Vec<Loaded>> =
            (0..num_shards).map(|index| load(&loader, Shard { index, count: num_shards }, 0, 0)).collect();
        let mut seen: Vec<usize> = shards.iter().flat_map(|batches| indices(batches)).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..len).collect::<Vec<_>>());
        for number in 0..shards[0].len() {
            let samples: usize = shards.iter().map(|batches| batches[number].samples).sum();
            for batches in &shards {
                prop_assert_eq!(batches[number].global_samples, samples);
                prop_assert_eq!(batches[number].data.is_none(), batches[number].samples == 0);
            }
        }
    }
}

#[test]
fn kept_padding_is_marked() {
    let config = LoaderConfig { batch_size: 4, ..Default::default() };
    let batches = load(&loader(probe(5), config), Shard { index: 1, count: 2 }, 0, 0);
    assert_eq!(indices(&batches), [1, 3, 0]);
    assert_eq!(batches[0].padding_mask, [false, false, true]);
    assert_eq!((batches[0].samples, batches[0].num_real_samples()), (3, 2));
    assert_eq!((batches[0].global_samples, batches[0].global_positions), (5, 6));
}

#[test]
fn a_sample_knows_seed_and_epoch() {
    let loader = loader(probe(3), LoaderConfig { seed: 9, workers: 2, ..Default::default() });
    for batch in load(&loader, Shard::whole(), 4, 0) {
        let context = batch.data.unwrap()[0];
        assert_eq!((context.seed, context.epoch), (9, 4));
    }
}

#[test]
fn an_error_arrives_in_order_and_ends_the_epoch() {
    for workers in [0, 1, 3] {
        let probe = Probe { len: 20, fails_at: Some(9), ..Probe::default() };
        let config = LoaderConfig { batch_size: 2, workers, ..Default::default() };
        let loader = loader(probe, config);
        let mut batches = loader.batches(Shard::whole(), 1, 0).unwrap();
        for _ in 0..4 {
            batches.next().unwrap().unwrap();
        }
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert_eq!(error, "cannot read sample 9 in epoch 1: this sample is rotten");
        assert!(batches.next().is_none());
        assert_eq!(batches.remaining(), 0);
    }
}

#[test]
fn a_panic_arrives_in_order_as_an_error() {
    for workers in [0, 1, 3] {
        let probe = Probe { len: 20, panics_at: Some(5), ..Probe::default() };
        let config = LoaderConfig { batch_size: 2, workers, ..Default::default() };
        let results: Vec<_> =
            loader(probe, config).batches(Shard::whole(), 0, 0).unwrap().collect();
        assert_eq!(results.len(), 3);
        assert!(results[..2].iter().all(Result::is_ok));
        let error = results[2].as_ref().unwrap_err();
        assert!(matches!(error, DataError::WorkerPanicked { batch: 2, epoch: 0, .. }), "{error}");
        assert!(error.to_string().contains("this sample bites"), "{error}");
    }
}

#[test]
fn a_collate_error_and_panic_arrive_too() {
    for workers in [0, 2] {
        let dataset = Arc::new(InMemoryDataset::new(vec![1, 2, 3, 4]));
        let config = LoaderConfig { workers, ..Default::default() };
        let collate = Arc::new(|items: Vec<i32>| match items[0] {
            3 => Err(DataError::other("shapes differ")),
            4 => panic!("never reached"),
            item => Ok(item),
        });
        let loader = DataLoader::new(dataset, collate, config);
        let results: Vec<_> = loader.batches(Shard::whole(), 0, 0).unwrap().collect();
        assert_eq!(results.len(), 3);
        assert_eq!(results[2].as_ref().unwrap_err().to_string(), "shapes differ");
        let rest: Vec<_> = loader.batches(Shard::whole(), 0, 3).unwrap().collect();
        assert!(matches!(rest[0], Err(DataError::WorkerPanicked { .. })));
    }
}

#[test]
fn dropping_early_joins_promptly() {
    // A whole epoch would take 100 s.
    let delay = Duration::from_millis(10);
    let config = LoaderConfig { batch_size: 50, workers: 3, ..Default::default() };
    let loader = loader(Probe { len: 10_000, delay, ..Probe::default() }, config);
    let started = Instant::now();
    let batches = loader.batches(Shard::whole(), 0, 0).unwrap();
    thread::sleep(Duration::from_millis(30));
    drop(batches);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let reads = loader.dataset().reads.load(Ordering::SeqCst);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(loader.dataset().reads.load(Ordering::SeqCst), reads, "a worker still reads");
    // The workers held clones of these; all of them are gone.
    assert_eq!(Arc::strong_count(&loader.dataset), 1);
}

#[test]
fn dropping_wakes_workers_that_wait_to_send() {
    for prefetch_factor in [1, 2] {
        let config = LoaderConfig { workers: 2, prefetch_factor, ..Default::default() };
        let loader = loader(probe(1000), config);
        let mut batches = loader.batches(Shard::whole(), 0, 0).unwrap();
        batches.next().unwrap().unwrap();
        thread::sleep(Duration::from_millis(50));
        drop(batches);
        assert_eq!(Arc::strong_count(&loader.dataset), 1);
    }
}

#[test]
fn no_more_than_the_promised_batches_are_in_flight() {
    for (workers, prefetch_factor) in [(1, 1), (3, 1), (2, 2), (2, 4)] {
        let config = LoaderConfig { workers, prefetch_factor, ..Default::default() };
        let loader = loader(probe(1000), config);
        let mut batches = loader.batches(Shard::whole(), 0, 0).unwrap();
        for taken in 0..10 {
            thread::sleep(Duration::from_millis(5));
            let reads = loader.dataset().reads.load(Ordering::SeqCst);
            assert!(reads <= taken + workers * prefetch_factor, "{reads} read, {taken} taken");
            batches.next().unwrap().unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while loader.dataset().reads.load(Ordering::SeqCst) < 10 + workers * prefetch_factor {
            assert!(Instant::now() < deadline, "the workers do not prefetch");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn waiting_is_measured() {
    for workers in [0, 1] {
        let delay = Duration::from_millis(20);
        let config = LoaderConfig { workers, ..Default::default() };
        let loader = loader(Probe { len: 3, delay, ..Probe::default() }, config);
        let mut batches = loader.batches(Shard::whole(), 0, 0).unwrap();
        assert_eq!(batches.by_ref().count(), 3);
        assert!(batches.wait_time() >= Duration::from_millis(40), "{:?}", batches.wait_time());
    }
}

#[test]
fn impossible_options_are_errors() {
    let refused = |len, shard, config| {
        let loader = loader(probe(len), config);
        assert_eq!(loader.num_batches(shard), 0);
        loader.batches(shard, 0, 0).unwrap_err().to_string()
    };
    let config = LoaderConfig::default();
    let no_prefetch = LoaderConfig { prefetch_factor: 0, ..config };
    assert!(refused(3, Shard::whole(), no_prefetch).contains("prefetch_factor is 0"));
    let no_batch = LoaderConfig { batch_size: 0, ..config };
    assert!(refused(3, Shard::whole(), no_batch).contains("batch_size is 0"));
    let four = Shard { index: 0, count: 4 };
    assert!(refused(3, four, config).contains("3 samples are too few for 4 shards"));
    assert!(refused(3, Shard { index: 4, count: 4 }, config).contains("shard 4 of 4"));
    assert!(refused(0, Shard::whole(), config).contains("0 samples"));
}

#[test]
fn absurd_numbers_of_workers_and_batches_in_flight_are_harmless() {
    let absurd = usize::MAX;
    let config = LoaderConfig { workers: absurd, prefetch_factor: absurd, ..Default::default() };
    let batches = load(&loader(probe(5), config), Shard::whole(), 0, 0);
    assert_eq!(indices(&batches), [0, 1, 2, 3, 4]);
}

#[test]
fn a_loader_of_trait_objects_works() {
    type Items = dyn Dataset<Item = i32>;
    let dataset: Arc<Items> = Arc::new(InMemoryDataset::new(vec![1, 2, 3]));
    let collate: Arc<dyn Collate<i32, Batch = Vec<i32>>> = Arc::new(Keep);
    let config = LoaderConfig { batch_size: 2, workers: 2, shuffle: true, ..Default::default() };
    let batches = DataLoader::new(dataset, collate, config).batches(Shard::whole(), 0, 0).unwrap();
    let seen: BTreeSet<i32> = batches.flat_map(|batch| batch.unwrap().data.unwrap()).collect();
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
}

/// Reading its last sample never returns, as that of a pipe without a writer.
struct Stuck;

impl Dataset for Stuck {
    type Item = i32;

    fn len(&self) -> usize {
        4
    }

    fn get(&self, context: &SampleContext) -> Result<i32, DataError> {
        match context.index {
            3 => loop {
                thread::park();
            },
            _ => Ok(1),
        }
    }

    fn digest(&self) -> DatasetDigest {
        DatasetDigest { num_samples: 4, class_names: vec![], content: 0 }
    }
}

#[test]
fn a_batch_that_never_comes_is_an_error_that_names_it_and_leaving_does_not_wait_for_it() {
    let timeout = Duration::from_millis(200);
    let config = LoaderConfig { workers: 2, timeout, ..Default::default() };
    let loader = DataLoader::new(Arc::new(Stuck), Arc::new(Keep), config);
    let started = Instant::now();
    let mut batches = loader.batches(Shard::whole(), 5, 0).unwrap();
    assert_eq!(batches.by_ref().take(3).filter(Result::is_ok).count(), 3);
    let error = batches.next().unwrap().unwrap_err().to_string();
    let expected = "data worker 1 did not deliver batch 3 of epoch 5 within 0.2 s";
    assert!(error.starts_with(expected) && error.contains("data.timeout_s"), "{error}");
    assert!(batches.next().is_none());
    drop(batches);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}
