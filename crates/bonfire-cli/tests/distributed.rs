//! The keys of `[distributed]` that change how ranks train together.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use support::{Ended, Train, digits};

/// Two epochs of 30 steps.
const SHORT: &[&str] = &["train.max_epochs=2", "distributed.check_replicas_every=0"];

const WAYS: [(&str, &[&str], &str); 10] = [
    ("fp16", &["distributed.compression=fp16"], "gradients compressed (fp16)"),
    ("bf16", &["distributed.compression=bf16"], "gradients compressed (bf16)"),
    ("int8", &["distributed.compression=int8"], "gradients compressed (int8)"),
    ("fp8", &["distributed.compression=fp8"], "gradients compressed (fp8)"),
    ("topk", &["distributed.compression=topk"], "gradients compressed (topk)"),
    (
        "powersgd",
        &["distributed.compression=powersgd", "distributed.start_powerSGD_iter=2"],
        "gradients compressed (powersgd)",
    ),
    ("zero 1", &["distributed.zero_stage=1"], "ZeRO stage 1"),
    ("zero 2", &["distributed.zero_stage=2"], "ZeRO stage 2"),
    ("local sgd", &["distributed.local_sgd={period=4}"], "parameters averaged every 4 steps"),
    (
        "diloco",
        &["distributed.local_sgd={period=7,start_step=3,outer_lr=0.7}"],
        "parameters averaged every 7 steps",
    ),
];

fn train(keys: &[&str]) -> Train {
    digits().ranks(2).set(SHORT).set(keys)
}

fn number(ended: &Ended, key: &str) -> f64 {
    ended.summary()[key].as_f64().unwrap()
}

#[test]
fn every_way_trains_and_says_so_in_the_first_line() {
    for (name, keys, words) in WAYS {
        let ended = train(keys).succeed();
        let first = ended.stderr.lines().next().unwrap();
        assert!(first.ends_with(words), "{name}: {first}");
        let accuracy = number(&ended, "valid_accuracy");
        assert!(accuracy > 0.6, "{name}: {accuracy}");
    }
}

#[test]
fn a_stopped_run_continues_with_the_same_bits() {
    for (name, keys, _) in WAYS {
        let often = [
            "checkpoint.every_n_steps=11",
            "checkpoint.keep_last=99",
            "checkpoint.asynchronous=false",
        ];
        let whole = train(keys).set(&often).succeed();
        let place = whole.run_folder().join("checkpoints/step-00000022");
        let resumed = train(keys).set(&often).resume(&place).succeed();
        assert_eq!(resumed.fingerprint(), whole.fingerprint(), "{name}");
    }
}

#[test]
fn a_continuation_may_compress_otherwise_or_not_at_all() {
    let keys =
        ["checkpoint.every_n_steps=11", "checkpoint.keep_last=99", "checkpoint.asynchronous=false"];
    for (before, after) in [("none", "int8"), ("int8", "none"), ("topk", "fp8"), ("int8", "topk")] {
        let set = |kind| [format!("distributed.compression={kind}")];
        let (before, after) = (set(before), set(after));
        let whole = train(&[before[0].as_str()]).set(&keys).succeed();
        let place = whole.run_folder().join("checkpoints/step-00000022");
        let resumed = train(&[after[0].as_str()]).set(&keys).resume(&place).succeed();
        assert!(number(&resumed, "valid_accuracy") > 0.6, "{before:?} {after:?}");
    }
}

#[test]
fn fewer_bytes_are_sent_and_counted() {
    let sent = |keys: &[&str]| number(&train(keys).succeed(), "bytes_sent_per_step");
    let plain = sent(&[]);
    // The first of 60 steps travels whole.
    let share = |keys: &[&str]| (sent(keys) / plain - 1.0 / 60.0) * 60.0 / 59.0;
    let fp16 = share(&["distributed.compression=fp16"]);
    assert!((0.49..0.51).contains(&fp16), "{fp16}");
    let int8 = share(&["distributed.compression=int8"]);
    assert!((0.25..0.28).contains(&int8), "{int8}");
    let topk = share(&["distributed.compression=topk"]);
    assert!((0.015..0.03).contains(&topk), "{topk}");
    let local = sent(&["distributed.local_sgd={period=10}"]) / plain;
    assert!((0.09..0.11).contains(&local), "{local}");
}

#[test]
fn ranks_that_share_the_optimizer_train_as_ranks_that_do_not() {
    let whole = train(&[]).succeed();
    for stage in [1, 2] {
        let shared = train(&[&format!("distributed.zero_stage={stage}")]).succeed();
        let (a, b) = (number(&shared, "valid_loss"), number(&whole, "valid_loss"));
        assert!((a - b).abs() < 1e-3, "stage {stage}: {a} {b}");
        let optimizer = |ended: &Ended| ended.summary()["memory_bytes"]["optimizer"].as_f64();
        let share = optimizer(&shared).unwrap() / optimizer(&whole).unwrap();
        assert!((0.5..0.52).contains(&share), "stage {stage}: {share}");
    }
}

#[test]
fn settings_that_exclude_each_other_are_refused_before_the_start() {
    let keys = ["distributed.zero_stage=2", "distributed.compression=int8"];
    let ended = train(&keys).fail();
    ended.says_once(&["zero_stage = 2", "compressed", "stage 1"]);
}
