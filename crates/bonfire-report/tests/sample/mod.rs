//! A made-up run of four ranks, one of them slow.

use bonfire_report::history::{Phase, RankRow, Row};
use serde_json::json;
use std::fs;
use std::path::Path;

const STEPS_PER_EPOCH: u64 = 390;
pub(crate) const CONFIG: &str = "name = \"cifar10_resnet18\"\nseed = 1\n\n[model]\nkind = \"resnet\"\ndepth = 18\n\
    stem = \"cifar\"\n\n[data]\nkind = \"cifar10\"\npath = \"data/cifar10\"\nbatch_size = 64\nworkers = 4\n\n\
    [optimizer]\nkind = \"sgd\"\nlr = 0.1\nmomentum = 0.9\n\n[precision]\nmode = \"fp16\"\n";

/// Numbers that look random and are the same every time.
struct Noise(u64);

impl Noise {
    /// The next one, between -1 and 1.
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    }
}

/// Rows of `epochs` epochs with a report every `every` steps.
pub(crate) fn rows(epochs: u64, every: u64) -> Vec<Row> {
    let mut noise = Noise(7);
    let total = epochs * STEPS_PER_EPOCH;
    let mut rows = Vec::new();
    for step in 1..=total {
        let share = step as f64 / total as f64;
        if step % every == 0 {
            rows.push(train(step, share, &mut noise));
        }
        if step % STEPS_PER_EPOCH == 0 {
            rows.push(valid(step, share, &mut noise));
        }
    }
    rows
}

fn named(figures: &[(&str, f64)]) -> Vec<(String, f64)> {
    figures.iter().map(|(name, value)| (name.to_string(), *value)).collect()
}

fn train(step: u64, share: f64, noise: &mut Noise) -> Row {
    let loss = 0.45 + 1.85 * (-6.0 * share).exp() + 0.13 * noise.next() * (1.0 - 0.6 * share);
    let warmup = (share / 0.05).min(1.0);
    let ranks: Vec<RankRow> = (0..4).map(|rank| rank_row(rank, noise)).collect();
    let spike = if (0.1996..0.2004).contains(&share) { 40.0 } else { 1.0 };
    Row {
        phase: Phase::Train,
        epoch: (step - 1) / STEPS_PER_EPOCH,
        step,
        time_s: 1_769_860_800.0 + step as f64 * 0.0483,
        learning_rate: Some(0.1 * warmup * (1.0 + (std::f64::consts::PI * share).cos()) / 2.0),
        images_per_s: Some(ranks.iter().map(|rank| rank.images_per_s).sum()),
        figures: named(&[
            ("loss", loss),
            (
                "accuracy",
                (0.97 - 0.75 * (-5.0 * share).exp() + 0.04 * noise.next()).clamp(0.0, 1.0),
            ),
            ("grad_norm", spike * (0.6 + 4.0 * (-5.0 * share).exp()) * (1.0 + 0.4 * noise.next())),
            ("loss_scale", 65536.0 / 2f64.powi(((share * 40.0) as i32 % 5) / 3)),
        ]),
        ranks,
    }
}

fn rank_row(rank: usize, noise: &mut Noise) -> RankRow {
    let slow = if rank == 2 { 0.78 } else { 1.0 };
    let comm_wait = if rank == 2 { 0.02 } else { 0.21 } + 0.015 * noise.next();
    let images_per_s = 1_302.0 + 30.0 * noise.next();
    RankRow {
        rank,
        images_per_s,
        busy_images_per_s: 1_650.0 * slow + 40.0 * noise.next(),
        data: 0.05 + 0.01 * noise.next(),
        forward: 0.24,
        backward: 0.45 + 0.01 * noise.next(),
        comm_wait,
        optimizer: 0.05,
        cpu_cores: 0.9 - 0.08 * rank as f64 + 0.02 * noise.next(),
        device_utilization: Some(0.9 * slow - 0.05 * rank as f64 + 0.02 * noise.next()),
        peak_memory_bytes: 1 << 28,
    }
}

fn valid(step: u64, share: f64, noise: &mut Noise) -> Row {
    let accuracy = 0.934 - 0.6 * (-5.5 * share).exp() + 0.012 * noise.next() * (1.0 - share);
    Row {
        phase: Phase::Valid,
        epoch: (step - 1) / STEPS_PER_EPOCH,
        step,
        time_s: 1_769_860_800.0 + step as f64 * 0.0483,
        learning_rate: None,
        images_per_s: None,
        figures: named(&[
            ("loss", 0.52 + 1.5 * (-5.0 * share).exp() + 0.03 * noise.next()),
            ("accuracy", accuracy),
            ("top5_accuracy", 1.0 - (1.0 - accuracy) * 0.12),
        ]),
        ranks: Vec::new(),
    }
}

fn confusion() -> Vec<Vec<u64>> {
    let mut noise = Noise(3);
    let count = |row: usize, column: usize, noise: &mut Noise| match (row, column) {
        (3, 5) | (5, 3) => 62,
        (3, 3) | (5, 5) => 868,
        _ if row == column => 940 + (20.0 * noise.next()) as u64,
        _ => (9.0 * noise.next()).max(0.0) as u64,
    };
    (0..10).map(|row| (0..10).map(|column| count(row, column, &mut noise)).collect()).collect()
}

/// Writes the files that such a run leaves.
pub(crate) fn write(folder: &Path) {
    let lines: String = rows(30, 10).iter().map(|row| row.to_line().unwrap()).collect();
    fs::create_dir_all(folder.join("profile")).unwrap();
    fs::write(folder.join("metrics.jsonl"), lines).unwrap();
    fs::write(folder.join("config.toml"), CONFIG).unwrap();
    let summary = json!({
        "world_size": 4, "epochs": 30, "steps": 11_700, "skipped_steps": 3, "train_loss": 0.4519,
        "valid_loss": 0.5231, "valid_accuracy": 0.9338, "test_loss": 0.5274, "test_accuracy": 0.9341,
        "variants": [{"name": "ema", "valid_loss": 0.511, "valid_accuracy": 0.9362}],
        "images_per_s": 5_208.3, "baseline_images_per_s": 1_402.0, "duration_s": 565.2,
        "seconds_to_first_step": 3.41,
        "time_share": {"data": 0.05, "forward": 0.24, "backward": 0.45, "comm_wait": 0.16, "optimizer": 0.05},
        "bytes_sent": 783_000_000_000u64, "bytes_sent_per_step": 66_923_076.9,
        "memory_bytes": {"parameters": 44_695_848, "gradients": 44_695_848, "optimizer": 44_695_848},
        "skipped_files": {"train": 0, "valid": 0}, "parameters_xxh3": "4c1f2a9be07d5310",
        "stopped": false, "stopped_early": false, "confusion_matrix": confusion(),
        "class_names": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
    });
    let environment = json!({
        "bonfire": "0.1.0", "os": "Linux 6.8", "cpu": "AMD EPYC 9454, 48 cores", "cores": 48,
        "memory_bytes": 270_582_939_648u64, "engine": "nccl",
        "devices": ["NVIDIA H100", "NVIDIA H100", "NVIDIA H100", "NVIDIA H100"], "precision": "fp16",
    });
    let slow = "rank 2 is slow: it computes 22 % fewer images/s than the others, which wait for it 21 % of their time";
    let data = "data is not the bottleneck: ranks wait for batches 5 % of their time";
    let verdict = json!({"findings": [{"text": slow}, {"text": data}]});
    let layer = |path: &str, kind: &str, output: [usize; 4]| {
        json!({"path": path, "kind": kind, "output": output, "calls": 1, "parameters": 36_864,
               "bytes": 147_456, "activation_bytes": 262_144, "flops": 75_497_472})
    };
    let model = json!({
        "samples": 1, "trainable": 11_173_962, "frozen": 0, "buffers": 9_600, "bytes": 44_734_248,
        "activation_bytes": 5_242_880, "flops": 1_114_000_000,
        "layers": [layer("conv1", "Conv2d", [1, 64, 32, 32]), layer("layer1.0.Basic.conv1", "Conv2d", [1, 64, 32, 32])],
    });
    fs::write(folder.join("model_summary.json"), model.to_string()).unwrap();
    fs::write(folder.join("summary.json"), summary.to_string()).unwrap();
    fs::write(folder.join("environment.json"), environment.to_string()).unwrap();
    fs::write(folder.join("profile/verdict.json"), verdict.to_string()).unwrap();
}
