//! Settings, names and starts.

use super::*;

#[test]
fn impossible_settings_are_named() {
    let power_sgd = |rank, rate, start, feedback, warm| Compression::PowerSgd {
        matrix_approximation_rank: rank,
        min_compression_rate: rate,
        start_iter: start,
        use_error_feedback: feedback,
        warm_start: warm,
        seed: 0,
    };
    let cases = [
        (Compression::Int8 { block: 0 }, "block = 0"),
        (Compression::Fp8 { block: 1 << 40 }, "block = 1099511627776"),
        (Compression::TopK { ratio: 0.0 }, "ratio = 0"),
        (Compression::TopK { ratio: 1.5 }, "ratio = 1.5"),
        (Compression::TopK { ratio: f64::NAN }, "ratio = NaN"),
        (power_sgd(0, 2.0, 10, true, true), "matrix_approximation_rank = 0"),
        (power_sgd(1, -2.0, 10, true, true), "min_compression_rate = -2"),
        (power_sgd(1, f64::INFINITY, 10, true, true), "min_compression_rate = inf"),
        (power_sgd(1, 2.0, 1, true, false), "start_powerSGD_iter = 1"),
        (power_sgd(1, 2.0, 1, false, true), "start_powerSGD_iter = 1"),
    ];
    for (compression, part) in cases {
        let error = compression.build().err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(power_sgd(1, 2.0, 0, false, false).build().is_ok());
}

#[test]
fn hooks_have_names_and_only_power_sgd_starts_late() {
    let named = |compression: Compression| {
        compression.build().unwrap().map(|hook| (hook.name(), hook.start_step()))
    };
    assert_eq!(named(Compression::default()), None);
    assert_eq!(named(Compression::Fp16), Some(("fp16", 0)));
    assert_eq!(named(Compression::Bf16), Some(("bf16", 0)));
    assert_eq!(named(Compression::int8()), Some(("int8", 0)));
    assert_eq!(named(Compression::fp8()), Some(("fp8", 0)));
    assert_eq!(named(Compression::top_k()), Some(("topk", 0)));
    assert_eq!(named(Compression::power_sgd()), Some(("powerSGD", 1000)));
}
