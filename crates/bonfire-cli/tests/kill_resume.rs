//! A run that is killed again and again, at random times, and started again by the same command.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "it is a test")]

mod support;

use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::{Train, into, repository};

const RANKS: usize = 2;
const KILLS: usize = 5;
/// Training images of the digits.
const SAMPLES: usize = 1438;
const EPOCHS: u64 = 2;

/// Two epochs of many steps of a network with running statistics, and an average; a checkpoint after
/// every third step.
fn train(out: &Path) -> Train {
    into(&repository().join("configs/digits.toml"), out)
        .ranks(RANKS)
        .args(["--resume", "auto"])
        .set(&["train.max_epochs=2", "data.batch_size=3", "train.log_every_n_steps=5"])
        .set(&["schedule.warmup_epochs=1", "model={kind=\"resnet\",depth=8,width=4}"])
        .set(&["average={kind=\"ema\",decay=0.9}"])
        .set(&["checkpoint.every_n_steps=3", "log.samples=true"])
}

/// All values of the model and of its average.
fn values(out: &Path) -> [Vec<u8>; 2] {
    ["model.safetensors", "model_ema.safetensors"].map(|name| fs::read(out.join(name)).unwrap())
}

/// Asserts that every epoch has had every sample once, over all ranks.
fn check_samples(out: &Path) {
    let mut seen: BTreeMap<(u64, usize), u32> = BTreeMap::new();
    for rank in 0..RANKS {
        let text = fs::read_to_string(out.join(format!("samples-rank{rank}.csv"))).unwrap();
        let mut last = 0;
        for line in text.lines() {
            let mut fields = line.split(',');
            let epoch: u64 = fields.next().unwrap().parse().unwrap();
            let step: u64 = fields.next().unwrap().parse().unwrap();
            assert_eq!(step, last + 1, "rank {rank} has every step once");
            last = step;
            for index in fields.next().unwrap().split(' ') {
                *seen.entry((epoch, index.parse().unwrap())).or_default() += 1;
            }
        }
    }
    for epoch in 0..EPOCHS {
        for index in 0..SAMPLES {
            assert_eq!(seen.get(&(epoch, index)), Some(&1), "sample {index} of epoch {epoch}");
        }
    }
    assert_eq!(seen.len(), EPOCHS as usize * SAMPLES);
}

#[test]
fn a_run_killed_at_random_times_is_the_run_that_was_not() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let start = Instant::now();
    train(&whole).succeed();
    let taken = start.elapsed();
    check_samples(&whole);

    let out = folder.path().join("killed");
    let mut random = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    eprintln!("random numbers from {random}");
    let mut draw = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut kills = 0;
    while kills < KILLS {
        let running = train(&out).start();
        // Short enough that the run cannot end before it was killed so often.
        let delay = Duration::from_micros(draw(taken.as_micros() as u64 / KILLS as u64));
        std::thread::sleep(delay);
        let victim = draw(1 + RANKS as u64) as usize;
        let killed = match victim {
            0 => {
                running.signal(Signal::SIGKILL);
                true
            }
            // It may not have started yet.
            rank => running.try_signal_rank(rank - 1, Signal::SIGKILL),
        };
        kills += usize::from(killed);
        if !killed {
            running.signal(Signal::SIGKILL);
        }
        let ended = running.wait();
        assert!(!ended.status.success(), "after {delay:?}: {}", ended.log());
        assert!(!ended.stderr.contains("trying the checkpoint before it"), "{}", ended.log());
    }
    let ended = train(&out).succeed();
    assert!(!ended.stderr.contains("trying the checkpoint before it"), "{}", ended.log());
    assert!(values(&out) == values(&whole), "other values than of a run that was not killed");
    check_samples(&out);
}
