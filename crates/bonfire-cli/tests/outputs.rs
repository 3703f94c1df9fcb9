//! What a run leaves for people: rows, event files, a page, and how it compares with another.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use support::{digits, into, repository};

/// The rows of `metrics.jsonl`.
fn rows(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn summary(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("summary.json")).unwrap()).unwrap()
}

#[test]
fn a_run_leaves_rows_events_and_a_page() {
    let ended =
        digits().ranks(2).set(&["train.max_epochs=2", "train.log_every_n_steps=10"]).succeed();
    let run = ended.folder.path().join("run");
    let rows = rows(&run);
    let table = fs::read_to_string(run.join("metrics.csv")).unwrap();
    assert_eq!(rows.len(), table.lines().count() - 1, "{table}");
    let last = rows.iter().rfind(|row| row["phase"] == "train").unwrap();
    let ranks = last["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2, "{last}");
    for rank in ranks {
        let parts = ["data", "forward", "backward", "comm_wait", "optimizer"];
        let shares: Vec<f64> = parts.iter().map(|part| rank[part].as_f64().unwrap()).collect();
        let sum: f64 = shares.iter().sum();
        assert!(shares.iter().all(|share| *share >= 0.0) && sum > 0.5 && sum <= 1.0, "{rank}");
        let [all, busy] =
            ["images_per_s", "busy_images_per_s"].map(|key| rank[key].as_f64().unwrap());
        assert!(all > 0.0 && busy >= all, "{rank}");
    }
    let valid = rows.iter().filter(|row| row["phase"] == "valid").count();
    assert_eq!(valid, 2);

    let summary = summary(&run);
    let by_rank = summary["images_per_s_by_rank"].as_array().unwrap();
    let sum: f64 = by_rank.iter().map(|speed| speed.as_f64().unwrap()).sum();
    let all = summary["images_per_s"].as_f64().unwrap();
    assert!((sum / all - 1.0).abs() < 0.1, "{summary}");
    assert_eq!(summary["time_share_by_rank"][0], summary["time_share"]);
    let environment: Value =
        serde_json::from_slice(&fs::read(run.join("environment.json")).unwrap()).unwrap();
    assert_eq!(environment["world size"], 2);
    let command = environment["command"].as_str().unwrap();
    assert!(command.contains("train") && command.contains("--nproc-per-node 2"), "{command}");

    let page = fs::read_to_string(run.join("report.html")).unwrap();
    for part in ["finished", "Loss", "Accuracy", "Learning rate", "max_epochs = 2", "<svg"] {
        assert!(page.contains(part), "{part:?} is missing");
    }
    let log = fs::read_to_string(run.join("logs/rank0.log")).unwrap();
    for part in ["world size 2", "run folder", "epoch 2/2", "test accuracy", "[rank 0] "] {
        assert!(log.contains(part), "{part:?} is missing in\n{log}");
    }
    assert!(run.join("logs/rank1.log").is_file());
    let events: Vec<_> = fs::read_dir(run.join("tensorboard")).unwrap().collect();
    assert_eq!(events.len(), 1);
}

#[test]
fn a_resumed_run_goes_on_with_the_rows_of_the_first() {
    let recipe = repository().join("configs/digits.toml");
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let run = |out: &Path, epochs: &str| {
        let epochs = format!("train.max_epochs={epochs}");
        let args = ["--resume", "auto"];
        into(&recipe, out)
            .set(&[
                &epochs,
                "train.log_every_n_steps=10",
                "schedule.warmup_epochs=0",
                "schedule.kind=constant",
            ])
            .args(args)
            .succeed();
    };
    run(&whole, "2");
    run(&parts, "1");
    run(&parts, "2");
    let of = |run: &Path| -> Vec<_> {
        let place =
            |row: &Value| (row["phase"].clone(), row["step"].clone(), row["figures"].clone());
        rows(run).iter().map(place).collect()
    };
    assert_eq!(of(&whole), of(&parts));
    assert_eq!(fs::read_dir(parts.join("tensorboard")).unwrap().count(), 2);
    // Nothing is trained any more, and nothing is written twice.
    run(&parts, "2");
    assert_eq!(of(&whole), of(&parts));
}

#[test]
fn a_run_is_compared_with_a_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let baseline = folder.path().join("summary.json");
    fs::write(&baseline, "{\"world_size\": 1, \"images_per_s\": 0.5}").unwrap();
    let path = baseline.to_str().unwrap();
    let ended = digits()
        .ranks(2)
        .set(&["train.max_epochs=1", "schedule.warmup_epochs=0"])
        .args(["--baseline", path])
        .succeed();
    let summary = summary(&ended.folder.path().join("run"));
    let number = |key: &str| summary[key].as_f64().unwrap();
    // The numbers of JSON are read back to within their last place.
    let close = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-12;
    assert!(close(number("speed_up"), number("images_per_s") / 0.5), "{summary}");
    assert!(close(number("scaling_efficiency"), number("speed_up") / 2.0), "{summary}");
    assert!(ended.stdout.contains("speed-up / efficiency"), "{}", ended.stdout);

    fs::write(&baseline, "{\"world_size\": 1, \"images_per_s\": 0.0}").unwrap();
    let ended = digits().ranks(2).args(["--baseline", path]).fail();
    ended.says("there is no speed to compare with");
    let ended = digits().args(["--baseline", "/nowhere.json"]).fail();
    ended.says("reading the baseline \"/nowhere.json\" failed");
}

#[test]
fn outputs_can_be_left_out() {
    let set = [
        "train.max_epochs=1",
        "schedule.warmup_epochs=0",
        "log.tensorboard=false",
        "log.report=false",
    ];
    let ended = digits().set(&set).succeed();
    let run = ended.folder.path().join("run");
    assert!(!run.join("tensorboard").exists() && !run.join("report.html").exists());
    assert!(run.join("metrics.jsonl").exists());
}

#[test]
fn quiet_runs_tell_nothing_and_json_runs_nothing_else() {
    let ended = digits()
        .ranks(2)
        .set(&["train.max_epochs=1", "schedule.warmup_epochs=0"])
        .args(["--quiet"])
        .succeed();
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
    let set = ["train.max_epochs=1", "schedule.warmup_epochs=0", "log.interval_s=0.01"];
    let ended = digits().ranks(2).set(&set).args(["--log-format", "json"]).succeed();
    let lines: Vec<Value> =
        ended.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let message = |line: &Value| line["message"].as_str().unwrap().to_owned();
    let training = lines.iter().find(|line| message(line) == "training").unwrap();
    assert_eq!((&training["rank"], &training["level"]), (&0.into(), &"INFO".into()), "{training}");
    assert!(training["images_per_s"].as_f64().unwrap() > 0.0, "{training}");
    let validated = lines.iter().find(|line| message(line) == "validated").unwrap();
    assert!(validated["accuracy"].as_f64().unwrap() > 0.5, "{validated}");
    assert!(lines.iter().all(|line| line["time"].is_string()), "{}", ended.stderr);
    let ended = digits().args(["--quiet"]).set(&["train.max_epochs=0"]).fail();
    ended.says("train.max_epochs = 0: must be 1 or more");
}

#[test]
fn ranks_that_others_have_started_say_which_they_are() {
    let ended = digits()
        .with_rank(0, 1, support::free_port())
        .set(&["train.max_epochs=1", "schedule.warmup_epochs=0"])
        .succeed();
    assert!(
        ended.stderr.lines().any(|line| line.starts_with("[rank 0] run folder ")),
        "{}",
        ended.log()
    );
}

#[test]
fn figures_of_classes_are_the_same_over_any_number_of_ranks() {
    let metrics = "train.metrics=[\"top5_accuracy\", \"precision\", \"recall\", \"f1\", \"auroc\", \
                   \"confusion_matrix\"]";
    // 359 test images, which three ranks cannot share evenly; nothing is learnt, so all models are one.
    let set = [
        "train.max_steps=1",
        "schedule.warmup_epochs=0",
        "optimizer.lr=0",
        "precision.mode=f64",
        metrics,
    ];
    let of = |ranks: usize| {
        let ended = digits().ranks(ranks).set(&set).set(&["data.global_batch_size=96"]).succeed();
        summary(&ended.folder.path().join("run"))
    };
    let (one, three) = (of(1), of(3));
    let names = ["auroc", "f1", "precision", "recall", "top5_accuracy"];
    for name in names {
        let [one, three] = [&one, &three].map(|it| it["valid_figures"][name].as_f64().unwrap());
        assert!((one - three).abs() < 1e-12 && (0.0..=1.0).contains(&one), "{name}: {one} {three}");
    }
    assert_eq!(one["confusion_matrix"], three["confusion_matrix"]);
    let rows = one["confusion_matrix"].as_array().unwrap();
    let count = |row: usize, column: usize| rows[row][column].as_u64().unwrap();
    let all: u64 = (0..10).flat_map(|row| (0..10).map(move |column| count(row, column))).sum();
    let right: u64 = (0..10).map(|class| count(class, class)).sum();
    assert_eq!(all, 359);
    let accuracy = one["valid_accuracy"].as_f64().unwrap();
    assert!((right as f64 / 359.0 - accuracy).abs() < 1e-9, "{accuracy} {right}");
}

#[test]
fn a_fast_run_tries_everything_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = repository().join("configs/digits.toml");
    for (ranks, run) in [("1", "true"), ("2", "3")] {
        let mut train =
            support::bonfire(&["train", recipe.to_str().unwrap(), "--nproc-per-node", ranks]);
        train.command().current_dir(folder.path());
        let data = format!("data.path={}", repository().join("data/digits").display());
        let run = format!("train.fast_dev_run={run}");
        let ended = train.set(&[&data, &run]).succeed();
        ended.says("fast_dev_run: ");
        assert_eq!(ended.stdout, "", "{}", ended.log());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn limits_shorten_epochs_and_a_model_can_learn_batches_by_heart() {
    let few = ["train.max_epochs=3", "schedule.warmup_epochs=0"];
    let ended = digits()
        .set(&few)
        .set(&["train.limit_train_batches=4", "train.limit_val_batches=0.5", "log.samples=true"])
        .succeed();
    let run = ended.folder.path().join("run");
    assert_eq!(summary(&run)["steps"], 12);
    let seen = fs::read_to_string(run.join("samples-rank0.csv")).unwrap();
    assert_eq!(seen.lines().count(), 12, "{seen}");

    let set = [
        "train.max_epochs=60",
        "train.overfit_batches=2",
        "schedule.warmup_epochs=0",
        "log.samples=true",
    ];
    let ended = digits().ranks(2).set(&set).succeed();
    let run = ended.folder.path().join("run");
    let summary = summary(&run);
    assert_eq!(summary["steps"], 120);
    assert!(summary["valid_loss"].as_f64().unwrap() < 0.02, "{summary}");
    assert_eq!(summary["valid_accuracy"], 1.0, "{summary}");
    let seen = fs::read_to_string(run.join("samples-rank1.csv")).unwrap();
    let mut samples: Vec<_> = seen.lines().map(|line| line.rsplit(',').next().unwrap()).collect();
    samples.sort_unstable();
    samples.dedup();
    assert_eq!(samples.len(), 2, "the same two batches in every epoch");

    let ended = digits().set(&["train.overfit_batches=1.5", "train.limit_val_batches=0"]).fail();
    ended.says("train.overfit_batches = 1.5: must be a number of batches, or a share");
    ended.says("train.limit_val_batches = 0: must be 1 or more");
}

#[test]
fn a_learning_rate_is_found_that_learns() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("curve.svg");
    let args = ["lr-find", "configs/digits.toml", "--min-lr", "1e-6", "--max-lr", "10", "--plot"];
    let ended = support::bonfire(&[&args[..], &[plot.to_str().unwrap()]].concat()).succeed();
    let rows: Vec<&str> = ended.stdout.lines().filter(|line| line.contains(',')).collect();
    assert!(rows.len() > 40 && rows[0] == "learning_rate,loss,smoothed", "{}", ended.stdout);
    let said = ended.stdout.lines().find(|line| line.starts_with("# suggestion")).unwrap();
    let lr = said.split("optimizer.lr = ").nth(1).unwrap().split(',').next().unwrap();
    let rate: f64 = lr.parse().unwrap();
    assert!((1e-4..1.0).contains(&rate), "{said}");
    assert!(fs::read_to_string(&plot).unwrap().contains("learning rate"));
    let lr = format!("optimizer.lr={lr}");
    let trained = digits().set(&["train.max_epochs=4", &lr]).succeed();
    let accuracy = summary(&trained.folder.path().join("run"))["valid_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.8, "{accuracy} with {lr}");

    let ended = support::bonfire(&["lr-find", "configs/digits.toml", "--min-lr", "2"]).fail();
    ended.says("must rise from above 0");
}

#[test]
fn a_run_tells_what_it_uses_and_what_its_model_is_made_of() {
    let overrides = [
        "train.max_epochs=1",
        "schedule.warmup_epochs=0",
        "train.log_every_n_steps=10",
        "log.histograms_every_n_steps=20",
        "log.grad_norm=true",
        "train.metrics=[\"confusion_matrix\"]",
    ];
    let ended = digits().ranks(2).set(&overrides).succeed();
    let run = ended.folder.path().join("run");
    let summary = summary(&run);
    for rank in 0..2 {
        let cores = summary["cpu_cores_by_rank"][rank].as_f64().unwrap();
        assert!(cores > 0.05 && cores < 64.0, "{summary}");
        let bytes = summary["peak_memory_bytes_by_rank"][rank].as_u64().unwrap();
        assert!(bytes > 1 << 20, "{summary}");
        assert!(summary["device_utilization_by_rank"][rank].is_null(), "no GPU: {summary}");
    }
    let rows = rows(&run);
    let norm = rows[0]["figures"]["grad_norm"].as_f64().unwrap();
    assert!(norm > 0.0 && norm.is_finite(), "{}", rows[0]);
    assert_eq!(summary["confusion_matrix"].as_array().unwrap().len(), 10);
    assert!(ended.stdout.contains("processor cores busy (by rank)"), "{}", ended.stdout);
    assert!(ended.stdout.contains("peak memory (by rank)"), "{}", ended.stdout);

    let model: Value =
        serde_json::from_slice(&fs::read(run.join("model_summary.json")).unwrap()).unwrap();
    let layers = model["layers"].as_array().unwrap();
    let kinds: Vec<&str> = layers.iter().map(|layer| layer["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Conv2d", "Conv2d", "Linear", "Linear"], "{model}");
    // 16 channels of 8x8 pixels, each the sum of 9 products and a bias.
    assert_eq!(layers[0]["flops"], 16 * 64 * 18, "{model}");
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    for part in ["<h2>Model</h2>", "Processor cores kept busy", "<th scope=\"row\">conv1</th>"] {
        assert!(page.contains(part), "{part:?} is missing");
    }

    let events = fs::read_dir(run.join("tensorboard")).unwrap().next().unwrap().unwrap();
    let bytes = fs::read(events.path()).unwrap();
    for tag in ["parameters/conv1.weight", "gradients/fc2.bias", "cpu_cores/rank 1"] {
        assert!(bytes.windows(tag.len()).any(|window| window == tag.as_bytes()), "{tag}");
    }
}

#[test]
fn a_dry_run_lists_the_layers() {
    let printed = digits().args(["--dry-run"]).succeed().stdout;
    let layer = printed.lines().find(|line| line.starts_with("# conv2 ")).unwrap();
    let cells: Vec<&str> =
        layer.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(cells, ["# conv2", "Conv2d", "[1, 32, 4, 4]", "4640", "18.1 KiB", "2 KiB", "147k"]);
    assert!(printed.contains("# 22602 trainable and 0 frozen parameters"), "{printed}");
}

#[test]
fn the_first_value_that_is_not_finite_is_named() {
    let ended = digits()
        .ranks(2)
        .set(&["train.detect_anomaly=true", "optimizer.lr=1e39", "schedule.kind=constant"])
        .set(&["schedule.warmup_epochs=0"])
        .fail();
    ended.says("since parameter \"conv1.weight\" is no longer finite");
    ended.says("lower optimizer.lr");
    // What every rank has said is kept, with the time, though rank 0 speaks for all on the terminal.
    for rank in 0..2 {
        let log = ended.folder.path().join(format!("run/logs/rank{rank}.log"));
        let log = fs::read_to_string(log).unwrap();
        let error = log.lines().find(|line| line.contains("no longer finite")).unwrap();
        assert!(
            error.starts_with("20") && error.contains(&format!("Z ERROR [rank {rank}] ")),
            "{log}"
        );
    }
}

#[test]
fn a_limited_epoch_goes_on_with_other_ranks() {
    let set = [
        "train.limit_train_batches=10",
        "schedule.kind=constant",
        "schedule.warmup_epochs=0",
        "data.batch_size=8",
        "checkpoint.every_n_steps=8",
    ];
    let folder = tempfile::tempdir().unwrap();
    let recipe = repository().join("configs/digits.toml");
    let out = folder.path().join("run");
    into(&recipe, &out).ranks(3).set(&set).set(&["train.max_steps=8"]).succeed();
    // 8 of 10 batches of 3 ranks are more than the 10 batches of one: its first epoch is over.
    let two = ["train.max_epochs=2"];
    let ended = into(&recipe, &out).set(&set).set(&two).args(["--resume", "auto"]).succeed();
    assert_eq!(summary(&out)["epochs"], 2, "{}", ended.log());
    assert_eq!(summary(&out)["steps"], 18, "{}", ended.log());
}

#[test]
fn a_profile_that_never_begins_is_told() {
    let ended = digits()
        .set(&["train.max_steps=5", "schedule.warmup_epochs=0", "profile.steps=1000..1010"])
        .succeed();
    ended.says("no profile: the run took steps 0 to 5, and profile.steps are 1000 to 1010");
    digits().set(&["profile.steps=0..20000"]).fail().says("at most 10000 steps");
}

#[test]
fn a_rate_is_found_for_what_would_be_trained() {
    let recipe = repository().join("configs/digits.toml");
    let find = |set: &[&str]| {
        let mut call = support::bonfire(&["lr-find", recipe.to_str().unwrap()]);
        call = call.set(set).args(["--num-training", "40", "--min-lr", "1e-4"]);
        call
    };
    let printed = find(&["checkpoint.keep_best=true"]).succeed().stdout;
    assert!(printed.contains("# suggestion: optimizer.lr = "), "{printed}");
    let scaled = ["schedule.scaling=linear", "schedule.base_batch_size=12"];
    let printed = find(&scaled).succeed().stdout;
    assert!(printed.contains(", which becomes "), "{printed}");
    find(&["model.weights=/nonexistent.safetensors"]).fail().says("/nonexistent.safetensors");
}

#[test]
fn an_unreadable_row_costs_the_page_and_not_the_run() {
    let ended = digits().set(&["train.max_epochs=1", "schedule.warmup_epochs=0"]).succeed();
    let run = ended.folder.path().join("run");
    let mut text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.insert_str(0, "{\"phase\":\"tra\n");
    fs::write(run.join("metrics.jsonl"), text).unwrap();
    // Nothing is trained any more, but the page is written again, or not.
    let recipe = repository().join("configs/digits.toml");
    let overrides = ["train.max_epochs=2", "schedule.warmup_epochs=0"];
    let again = into(&recipe, &run).set(&overrides).args(["--resume", "auto"]).succeed();
    assert!(again.stdout.contains("test accuracy"), "{}", again.log());
}
