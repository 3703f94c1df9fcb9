//! Bytes that a rank sends, against the f32 all-reduce over a ring.

use super::*;
use bonfire_comm::{Algorithm, ReduceOp};

/// Bytes of one step relative to the plain all-reduce.
fn relative(compression: Compression, ranks: usize, segments: &[Segment]) -> f64 {
    let ratios = local::spawn(ranks, |group| {
        let group = group.with_algorithm(Algorithm::Ring).unwrap();
        let mut hook = run(compression, ranks, &[], 0).hook(&group);
        let len = segments.last().unwrap().range.end;
        let values = |rank: usize| (0..len).map(|k| ((k * 31 + rank) % 89) as f32).collect();
        let mut plain: Vec<f32> = values(group.rank());

        let sent = group.bytes_sent();
        group.all_reduce(&mut plain, ReduceOp::Mean).unwrap();
        let by_plain = group.bytes_sent() - sent;
        reduce::<f32>(hook.as_mut(), 0, segments, values(group.rank()), &group);
        (group.bytes_sent() - sent - by_plain) as f64 / by_plain as f64
    });
    ratios.iter().sum::<f64>() / ranks as f64
}

#[test]
fn each_hook_sends_what_it_promises() {
    // A layer of 784 x 256, as in a small network.
    let segments = bucket(&[("weight", &[784, 256]), ("bias", &[256])]);
    let len = segments[1].range.end as f64;
    for ranks in [2, 3] {
        let check = |compression, expected: f64| {
            let got = relative(compression, ranks, &segments);
            assert!((got / expected - 1.0).abs() < 0.005, "{compression:?}: {got}, not {expected}");
        };
        check(Compression::Fp16, 0.5);
        check(Compression::Bf16, 0.5);
        check(Compression::int8(), 0.265_625);
        check(Compression::fp8(), 0.265_625);
        check(Compression::top_k(), 0.01 * ranks as f64);
        for rank in [1, 4] {
            let factors = rank as f64 * (784.0 + 256.0) + 256.0;
            check(power_sgd(rank, true), factors / len);
        }
    }
}
