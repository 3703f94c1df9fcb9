//! Failures and orders that every engine of ours must survive, for `local` and `host` alike.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock;
use crate::{CommError, ProcessGroup, ReduceOp};

/// What one rank does.
pub(crate) type Case<'a> = &'a (dyn Fn(ProcessGroup) + Send + Sync);
/// Starts a world of that many ranks and waits for their end.
pub(crate) type World<'a> = &'a dyn Fn(usize, Duration, Case<'_>);

const LONG: Duration = Duration::from_secs(30);

/// Runs `f` on each rank and returns the errors by rank.
fn errors(
    world: World<'_>,
    size: usize,
    timeout: Duration,
    f: impl Fn(&ProcessGroup) -> crate::Result<()> + Send + Sync,
) -> Vec<Option<CommError>> {
    let errors = Mutex::new(vec![None; size]);
    world(size, timeout, &|group| {
        let result = f(&group);
        lock(&errors)[group.rank()] = result.err();
    });
    errors.into_inner().unwrap()
}

fn texts(errors: &[Option<CommError>]) -> Vec<String> {
    errors.iter().map(|error| error.as_ref().map_or_else(String::new, |e| e.to_string())).collect()
}

/// Runs all cases.
pub(crate) fn run_failure_cases(world: World<'_>) {
    different_calls_are_an_error_on_every_rank(world);
    different_lengths_are_an_error_on_every_rank(world);
    a_deadline_names_the_missing_rank(world);
    a_monitored_barrier_has_a_deadline_of_its_own(world);
    an_abort_reaches_pending_and_later_calls(world);
    a_rank_that_leaves_is_named(world);
    groups_do_not_order_each_other(world);
    split_makes_the_groups_of_mpi(world);
    results_have_the_same_bits_everywhere_and_again(world);
    blocking_and_started_calls_keep_their_order(world);
}

fn different_calls_are_an_error_on_every_rank(world: World<'_>) {
    let errors = errors(world, 3, LONG, |group| {
        let mut data = [1f32; 4000];
        if group.rank() == 1 {
            group.broadcast(&mut data, 1)
        } else {
            group.all_reduce(&mut data, ReduceOp::Sum)
        }?;
        // The root of a broadcast may be through before anybody has seen its call.
        group.barrier()
    });
    for text in texts(&errors) {
        assert!(text.contains("broadcast(root 1) of 4000 f32 [sequence 0]"), "{text}");
        assert!(text.contains("all_reduce(sum) of 4000 f32 [sequence 0]"), "{text}");
    }
}

fn different_lengths_are_an_error_on_every_rank(world: World<'_>) {
    for (length, other) in [(3usize, 4usize), (50_000, 40_000)] {
        let errors = errors(world, 2, LONG, |group| {
            let length = if group.rank() == 0 { length } else { other };
            group.barrier()?;
            group.all_reduce(&mut vec![0f64; length], ReduceOp::Mean)
        });
        for text in texts(&errors) {
            for part in [length, other] {
                let call = format!("all_reduce(mean) of {part} f64 [sequence 1]");
                assert!(text.contains(&call), "{text}");
            }
        }
    }
}

fn a_deadline_names_the_missing_rank(world: World<'_>) {
    let start = Instant::now();
    let errors = errors(world, 3, Duration::from_millis(600), |group| {
        group.barrier()?;
        if group.rank() == 2 {
            std::thread::sleep(Duration::from_millis(2500));
        }
        group.all_reduce(&mut [0i64; 10], ReduceOp::Max)
    });
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    for text in texts(&errors) {
        assert!(text.contains("all_reduce(max) of 10 i64 [sequence 1]"), "{text}");
        assert!(text.contains("rank(s) [2] have not entered it"), "{text}");
    }
}

fn a_monitored_barrier_has_a_deadline_of_its_own(world: World<'_>) {
    let start = Instant::now();
    let errors = errors(world, 3, LONG, |group| {
        group.monitored_barrier(LONG)?;
        if group.rank() == 2 {
            std::thread::sleep(Duration::from_millis(2000));
        }
        group.monitored_barrier(Duration::from_millis(500))
    });
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    for text in &texts(&errors)[..2] {
        assert!(text.contains("waited 500ms in barrier [sequence 1]"), "{text}");
        assert!(text.contains("rank(s) [2] have not entered it"), "{text}");
    }
}

fn an_abort_reaches_pending_and_later_calls(world: World<'_>) {
    let errors = errors(world, 3, LONG, |group| {
        let side = group.duplicate("side")?;
        if group.rank() == 0 {
            std::thread::sleep(Duration::from_millis(100));
            group.abort("the disk is full");
        } else {
            side.start_all_reduce(vec![1u8; 5], ReduceOp::Sum)?.wait().unwrap_err();
        }
        group.barrier()
    });
    for text in texts(&errors) {
        assert_eq!(text, "rank 0 failed: the disk is full");
    }
}

fn a_rank_that_leaves_is_named(world: World<'_>) {
    for leaver in [0, 1] {
        let start = Instant::now();
        let errors = errors(world, 3, LONG, |group| {
            group.barrier()?;
            if group.rank() == leaver { Ok(()) } else { group.barrier() }
        });
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        for (rank, text) in texts(&errors).into_iter().enumerate() {
            let expected = format!("rank {leaver} left the group \"world\"");
            assert!(rank == leaver || text.starts_with(&expected), "{text}");
        }
    }
}

fn groups_do_not_order_each_other(world: World<'_>) {
    let errors = errors(world, 2, LONG, |group| {
        let (a, b) = (group.duplicate("a")?, group.duplicate("b")?);
        for _ in 0..20 {
            let start = |on: &ProcessGroup, n| on.start_all_reduce(vec![1f32; n], ReduceOp::Sum);
            let (x, y) = if group.rank() == 0 {
                let x = start(&a, 70_000)?;
                (x, start(&b, 100)?)
            } else {
                let y = start(&b, 100)?;
                (start(&a, 70_000)?, y)
            };
            assert_eq!(y.wait()?.into_vec::<f32>()?, [2.0; 100]);
            assert_eq!(x.wait()?.into_vec::<f32>()?, [2.0; 70_000]);
        }
        Ok(())
    });
    assert_eq!(errors, [None, None]);
}

fn split_makes_the_groups_of_mpi(world: World<'_>) {
    let errors = errors(world, 4, LONG, |group| {
        let rank = group.rank();
        let color = (rank != 3).then_some(u64::from(rank == 1));
        let Some(part) = group.split(color, -(rank as i64))? else {
            assert_eq!(rank, 3);
            return group.barrier();
        };
        let expected = [(1, 2), (0, 1), (0, 2)][rank];
        assert_eq!((part.rank(), part.world_size()), expected);
        let ranks = part.all_gather_bytes(&vec![rank as u8; rank])?;
        if rank != 1 {
            assert_eq!(ranks, [vec![2, 2], vec![]]);
        }
        assert_eq!(part.broadcast_bytes(vec![7; rank], 0)?.len(), [2, 1, 2][rank]);
        assert_eq!(part.num_machines(), 1);
        group.barrier()
    });
    assert_eq!(errors, [None, None, None, None]);
}

fn results_have_the_same_bits_everywhere_and_again(world: World<'_>) {
    for length in [500usize, 30_011] {
        let results = Mutex::new(Vec::new());
        for _ in 0..3 {
            world(3, LONG, &|group| {
                let noise = |i: usize| ((i * 7919 + group.rank() * 104_729) % 9973) as f32 / 977.0;
                let mut data: Vec<f32> = (0..length).map(noise).collect();
                group.all_reduce(&mut data, ReduceOp::Mean).unwrap();
                lock(&results).push(data.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
            });
        }
        let results = results.into_inner().unwrap();
        assert_eq!(results.len(), 9);
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

fn blocking_and_started_calls_keep_their_order(world: World<'_>) {
    let errors = errors(world, 2, LONG, |group| {
        // More than the queue holds.
        let work: crate::Result<Vec<_>> = (0..200)
            .map(|i| group.start_all_reduce(vec![i as f32; 3 + 40 * i], ReduceOp::Sum))
            .collect();
        let mut data = [1i32; 11];
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        assert_eq!(data, [2; 11]);
        for (i, work) in work?.into_iter().enumerate() {
            assert!(work.fence().is_err());
            assert_eq!(work.wait()?.into_vec::<f32>()?[2], 2.0 * i as f32);
        }
        assert!(group.bytes_sent() > 0);
        let work = group.start_barrier()?;
        while !work.is_done() {
            std::thread::yield_now();
        }
        work.wait()?;
        Ok(())
    });
    assert_eq!(errors, [None, None]);
}
