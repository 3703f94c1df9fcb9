//! Every collective against a serial oracle, on the memory of the device.

use crate::{Place, Result, SectionArgs};
use bonfire::comm::{CommError, HostBuffer, Operation, OperationKind, ProcessGroup, ReduceOp};
use bonfire_comm::conformance::check_with;
use bonfire_tensor::host::{flat_from_host, to_host};
use bonfire_tensor::lend;
use burn::tensor::{Device, Tensor};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

pub(crate) fn one(place: Place) -> Result<Value> {
    check(place, &place.single()?)
}

pub(crate) fn two(args: &SectionArgs, group: &ProcessGroup) -> Result<Value> {
    check(args.device, group)
}

fn check(place: Place, group: &ProcessGroup) -> Result<Value> {
    let (device, start) = (place.device()?, Instant::now());
    let on_device: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    let run = |group: &ProcessGroup, operation: Operation, buffer: HostBuffer| {
        let (dtype, len) = (buffer.dtype(), buffer.len());
        // Integers travel as such in control messages only, which stay in host memory.
        if !dtype.is_float() || len == 0 || operation.kind() == OperationKind::Barrier {
            return group.start(operation, buffer.into())?.wait()?.into_host();
        }
        let mut counts = on_device.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *counts.entry(format!("{:?} {dtype}", operation.kind())).or_default() += 1;
        drop(counts);
        through_device(group, operation, buffer, &device)
    };
    check_with(group, &run);
    let split = group.split(Some(group.rank() as u64), 0)?.ok_or("no group of one rank")?;
    check_with(&split, &run);
    if group.world_size() > 1 {
        check_with(&group.duplicate("copy")?, &run);
        check_orders(group, &device)?;
        check_mismatch(group, &device)?;
    }
    let counts = on_device.into_inner().unwrap_or_default();
    Ok(json!({
        "engine": group.engine_name(),
        "ranks": group.world_size(),
        "operations_on_the_device": counts.values().sum::<u32>(),
        "by_kind": counts,
        "seconds": start.elapsed().as_secs_f64(),
    }))
}

fn through_device(
    group: &ProcessGroup,
    operation: Operation,
    buffer: HostBuffer,
    device: &Device,
) -> bonfire::comm::Result<HostBuffer> {
    let failed = |error: bonfire_tensor::TensorError| match error {
        bonfire_tensor::TensorError::Comm(error) => error,
        other => CommError::Internal { detail: other.to_string() },
    };
    let flat = flat_from_host(buffer, device);
    let done = lend::start(group, operation, flat).and_then(lend::Lent::finish);
    done.and_then(to_host).map_err(failed)
}

/// Two groups whose operations the ranks start in different order.
fn check_orders(group: &ProcessGroup, device: &Device) -> Result<()> {
    let groups = [group.duplicate("a")?, group.duplicate("b")?];
    for group in &groups {
        group.prepare_devices()?;
    }
    for round in 0..20 {
        let mut order = [0, 1];
        if (round + group.rank()).is_multiple_of(2) {
            order.reverse();
        }
        let mut lent = Vec::new();
        for which in order {
            let flat = Tensor::<1>::ones([1 << 16], device).mul_scalar(which as f64 + 1.0);
            let operation = Operation::AllReduce(ReduceOp::Sum);
            lent.push((which, lend::start(&groups[which], operation, flat)?));
        }
        for (which, lent) in lent {
            let mean: f32 = lent.finish()?.mean().into_scalar();
            let expected = (which + 1) as f32 * group.world_size() as f32;
            if mean != expected {
                return Err(format!("round {round}, group {which}: {mean}, not {expected}").into());
            }
        }
    }
    Ok(())
}

/// Ranks that call with different lengths are told so: in a session of its own, which it ends.
fn check_mismatch(group: &ProcessGroup, device: &Device) -> Result<()> {
    // The last check of the section: the session has failed thereafter, as it has to. What is left
    // of it is the word that all ranks have seen the same.
    let len = 1000 + group.rank();
    let flat = Tensor::<1>::ones([len], device);
    let started = lend::start(group, Operation::AllReduce(ReduceOp::Sum), flat);
    let seen = started.and_then(lend::Lent::finish).and_then(to_host);
    let failure = (0..500).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        group.failure()
    });
    let text = failure.map(|error| error.to_string()).unwrap_or_default();
    match text.contains("1000 f32") && text.contains("1001 f32") {
        true => Ok(()),
        false => Err(format!("a mismatch was told as {text:?}, {:?}", seen.is_ok()).into()),
    }
}
