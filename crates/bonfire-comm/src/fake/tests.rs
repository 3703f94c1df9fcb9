use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{FakeDevice, spawn, spawn_with_timeout};
use crate::{CommError, DType, HostBuffer, Operation, ProcessGroup, ReduceOp, conformance};

const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);
const SHORT: Duration = Duration::from_millis(20);

fn ones(len: usize) -> HostBuffer {
    vec![1f32; len].into()
}

#[test]
fn device_buffers_pass_the_conformance_table() {
    for size in 1..=3 {
        spawn(size, |group, device| {
            conformance::check_with(&group, &|group, operation, data| {
                let work = group.start(operation, device.upload(data).into())?;
                device.download(&mut work.wait()?.into_device()?)
            });
            assert_eq!(device.num_allocations(), 0);
        });
    }
}

#[test]
fn host_buffers_pass_it_on_the_same_group() {
    spawn(2, |group, _| conformance::check(&group));
}

#[test]
fn sub_groups_and_duplicates_have_devices_too() {
    spawn(3, |group, device| {
        let sum = |group: &ProcessGroup| {
            let work = group.start(SUM, device.upload(ones(5)).into()).unwrap();
            let sum = device.download(&mut work.wait().unwrap().into_device().unwrap()).unwrap();
            sum.as_slice::<f32>().unwrap()[0]
        };
        let odd = group.split(Some(group.rank() as u64 % 2), 0).unwrap().unwrap();
        assert_eq!(sum(&odd), if group.rank() == 1 { 1.0 } else { 2.0 });
        let copy = group.duplicate("copy").unwrap();
        assert_eq!((sum(&copy), sum(&group), sum(&odd)), (3.0, 3.0, odd.world_size() as f32));
    });
}

#[test]
fn a_collective_waits_for_the_work_that_fills_its_buffer() {
    spawn(2, |group, device| {
        let buffer = device.produce(ones(3), Duration::from_millis(30 * group.rank() as u64));
        let sum = group.start(SUM, buffer.into()).unwrap().wait().unwrap();
        let sum = device.download(&mut sum.into_device().unwrap()).unwrap();
        assert_eq!(sum, vec![2f32; 3].into());
    });
}

#[test]
fn work_behind_a_fence_sees_the_result_and_the_host_waits_for_nobody() {
    spawn(2, |group, device| {
        let start = Instant::now();
        let mut answers = Vec::new();
        for _ in 0..4 {
            let mut buffer = device.produce(ones(3), Duration::from_millis(50));
            let pointer = buffer.placement(Duration::ZERO).unwrap().pointer;
            let work = group.start(SUM, buffer.into()).unwrap();
            answers.push((device.consume(pointer, work.fence().unwrap()), work));
        }
        assert!(start.elapsed() < Duration::from_millis(40), "{:?}", start.elapsed());
        for (answer, work) in answers {
            assert_eq!(answer.recv().unwrap().unwrap(), vec![2f32; 3].into());
            drop(work);
        }
        assert!(start.elapsed() >= Duration::from_millis(200));
    });
}

#[test]
fn a_buffer_lives_until_the_device_is_through_with_it() {
    spawn(2, |group, device| {
        for _ in 0..20 {
            // Nobody holds buffer or work: the operation runs all the same.
            let buffer = device.produce(ones(1000), Duration::from_millis(1));
            drop(group.start(SUM, buffer.into()).unwrap());
        }
        let last = group.start(SUM, device.upload(ones(1)).into()).unwrap();
        drop(last.wait().unwrap());
        assert_eq!((device.num_allocations(), device.faults()), (0, vec![]));
        assert_eq!(device.operations().len(), 21);
    });
}

/// Two groups, whose operations the ranks ask for in different order; on one queue a device would
/// never come to the end of either.
#[test]
fn ranks_launch_in_one_order_whatever_their_programs_do() {
    spawn_with_timeout(3, Duration::from_secs(20), |group, device| {
        let a = group.duplicate("a").unwrap();
        let b = group.duplicate("b").unwrap();
        a.prepare_devices().unwrap();
        b.prepare_devices().unwrap();
        let start = |group: &ProcessGroup, op| {
            let buffer = device.produce(ones(8), Duration::from_millis(1));
            group.start(Operation::AllReduce(op), buffer.into()).unwrap()
        };
        for round in 0..20 {
            let works = if (round + group.rank()).is_multiple_of(2) {
                [start(&a, ReduceOp::Sum), start(&b, ReduceOp::Max)]
            } else {
                let b = start(&b, ReduceOp::Max);
                [start(&a, ReduceOp::Sum), b]
            };
            for work in works {
                drop(work.wait().unwrap());
            }
        }
        assert_eq!(device.operations().len(), 40);
        let mut codes: Vec<u8> = device
            .operations()
            .iter()
            .map(|operation| u8::from(*operation == Operation::AllReduce(ReduceOp::Max)))
            .collect();
        group.broadcast(&mut codes, 0).unwrap();
        let own = device.operations().into_iter();
        let own = own.map(|operation| u8::from(operation == Operation::AllReduce(ReduceOp::Max)));
        assert_eq!(own.collect::<Vec<_>>(), codes, "the order of rank 0");
    });
}

/// Returns when all ranks have come to it, or one has failed behind it. A rank that fails at once is
/// ahead of one that has not joined: that one would have no group to fail in.
fn meet(group: &ProcessGroup) {
    let _ = group.barrier();
}

fn first_error(
    timeout: Duration,
    f: impl Fn(ProcessGroup, FakeDevice) -> CommError + Sync + Send,
) -> Vec<CommError> {
    let start = Instant::now();
    let errors = spawn_with_timeout(3, timeout, |group, device| {
        meet(&group);
        let error = f(group.clone(), device.clone());
        let again = group.start(SUM, device.upload(ones(1)).into()).unwrap_err();
        assert!(group.failure().is_some(), "{again}");
        assert_eq!(device.faults(), Vec::<String>::new());
        error
    });
    assert!(start.elapsed() < timeout + Duration::from_secs(12), "{:?}", start.elapsed());
    errors
}

#[test]
fn a_rank_that_stays_away_is_named_at_the_deadline() {
    for error in first_error(Duration::from_secs(3), |group, device| {
        if group.rank() == 1 {
            // Late by more than the deadline, and then it hears of the failure.
            while group.failure().is_none() {
                std::thread::sleep(SHORT);
            }
            return group.failure().unwrap();
        }
        group.start(SUM, device.upload(ones(4)).into()).unwrap().wait().unwrap_err()
    }) {
        let text = error.to_string();
        assert!(text.contains("all_reduce(sum) of 4 f32 [sequence 0]"), "{text}");
        assert!(text.contains("rank(s) [1] have not entered it"), "{text}");
    }
}

#[test]
fn different_calls_are_told_on_every_rank() {
    for (rank, error) in first_error(Duration::from_secs(5), |group, device| {
        let len = if group.rank() == 2 { 5 } else { 4 };
        let work = group.start(SUM, device.upload(ones(len)).into());
        work.and_then(|work| work.wait())
            .err()
            .or_else(|| {
                while group.failure().is_none() {
                    std::thread::sleep(SHORT);
                }
                group.failure()
            })
            .unwrap()
    })
    .into_iter()
    .enumerate()
    {
        let text = error.to_string();
        assert!(text.contains("of 5 f32") && text.contains("of 4 f32"), "rank {rank}: {text}");
    }
}

#[test]
fn a_rank_that_leaves_ends_the_operations_of_the_others() {
    let errors = Mutex::new(Vec::new());
    let start = Instant::now();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        spawn(2, |group, device| {
            meet(&group);
            if group.rank() == 1 {
                panic!("no more");
            }
            let work = group.start(SUM, device.upload(ones(4)).into());
            let error = work.and_then(|work| work.wait()).unwrap_err();
            crate::sync::lock(&errors).push(error.to_string());
        })
    }));
    assert!(result.is_err() && start.elapsed() < Duration::from_secs(10));
    let errors = errors.into_inner().unwrap();
    assert!(errors[0].starts_with("rank 1 died (panicked: no more"), "{errors:?}");
}

#[test]
fn results_that_were_there_before_a_failure_are_not_lost() {
    let started = std::sync::Barrier::new(2);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        spawn(2, |group, device| {
            let work = group.start(SUM, device.upload(ones(4)).into()).unwrap();
            work.wait().unwrap();
            let between = group.device_mark();
            group.barrier().unwrap();
            if group.rank() == 1 {
                started.wait();
                panic!("no more");
            }
            let work = group.start(SUM, device.upload(ones(4)).into()).unwrap();
            started.wait();
            work.wait().unwrap_err();
            let all = group.device_mark();
            assert_eq!((between, all), (1, 2));
            assert!(!group.is_lost_before(between) && group.is_lost_before(all));
        })
    }));
    let reason = result.unwrap_err();
    assert_eq!(reason.downcast_ref::<&str>(), Some(&"no more"));
}

#[test]
fn an_operation_that_hangs_on_the_device_is_aborted_at_the_deadline() {
    for (rank, error) in first_error(Duration::from_secs(3), |group, device| {
        if group.rank() == 0 {
            device.hang();
        }
        let before = group.device_mark();
        let buffer = device.produce(ones(4), SHORT);
        let error = group.start(SUM, buffer.into()).unwrap().wait().unwrap_err();
        assert!(!group.is_lost_before(before) && group.is_lost_before(group.device_mark()));
        error
    })
    .into_iter()
    .enumerate()
    {
        let text = error.to_string();
        assert!(text.contains("all_reduce(sum) of 4 f32"), "rank {rank}: {text}");
        assert!(text.contains("waited 3s"), "rank {rank}: {text}");
    }
}

#[test]
fn an_error_of_the_library_reaches_every_rank() {
    for (rank, error) in first_error(Duration::from_secs(20), |group, device| {
        if group.rank() == 2 {
            device.break_down("the cable burns");
        }
        let buffer = device.produce(ones(4), SHORT);
        let work = group.start(SUM, buffer.into());
        match work.and_then(|work| work.wait()) {
            Err(error) => error,
            Ok(_) => {
                while group.failure().is_none() {
                    std::thread::sleep(SHORT);
                }
                group.failure().unwrap()
            }
        }
    })
    .into_iter()
    .enumerate()
    {
        let text = error.to_string();
        assert!(text.contains("rank 2: the fake library failed in"), "rank {rank}: {text}");
        assert!(text.contains("the cable burns"), "rank {rank}: {text}");
    }
}

#[test]
fn work_behind_a_fence_is_let_go_when_the_session_fails() {
    spawn_with_timeout(2, Duration::from_secs(20), |group, device| {
        if group.rank() == 0 {
            device.hang();
        }
        let mut buffer = device.upload(ones(4));
        let pointer = buffer.placement(Duration::ZERO).unwrap().pointer;
        let work = group.start(SUM, buffer.into()).unwrap();
        let answer = device.consume(pointer, work.fence().unwrap());
        meet(&group);
        std::thread::sleep(SHORT);
        if group.rank() == 1 {
            work.abort();
        } else {
            assert!(work.wait().unwrap_err().to_string().contains("was aborted"));
        }
        // Whatever it reads, it does not wait for ever.
        answer.recv_timeout(Duration::from_secs(10)).unwrap().ok();
    });
}

#[test]
fn a_buffer_that_the_device_cannot_fill_ends_the_session() {
    for error in first_error(Duration::from_secs(20), |group, device| {
        let buffer = if group.rank() == 1 {
            let (buffer, placer) = crate::DeviceBuffer::awaited(DType::F32, 4);
            placer.place(Err("the kernel failed".into()));
            buffer
        } else {
            device.upload(ones(4))
        };
        group.start(SUM, buffer.into()).and_then(|work| work.wait()).unwrap_err()
    }) {
        assert!(error.to_string().contains("fill a buffer: the kernel failed"), "{error}");
    }
}

#[test]
fn the_flight_recorder_knows_the_time_on_the_device() {
    spawn(2, |group, device| {
        let work = group.start(SUM, device.produce(ones(4), SHORT).into()).unwrap();
        drop(work.wait().unwrap());
        let dump = group.flight_recorder().snapshot(crate::flight::Reason::Request);
        let entry = dump.entries.last().unwrap();
        assert_eq!((entry.operation.as_str(), entry.sequence), ("all_reduce(sum)", Some(0)));
        // Without the time until the buffer was filled.
        let on_device = Duration::from_nanos(entry.on_device.unwrap());
        assert!(on_device < Duration::from_secs(5), "{on_device:?}");
        assert!(group.bytes_sent() >= 16);
    });
}
