//! `bonfire checkpoint`: what is in checkpoints, and what can be made of them.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use bonfire_trainer::checkpoint::read_safetensors;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use support::{Ended, bonfire, digits};

/// Two epochs of 30 steps with an average, and a checkpoint after every tenth; shared by all tests.
fn run() -> &'static Path {
    static RUN: OnceLock<Ended> = OnceLock::new();
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let ended = RUN.get_or_init(|| {
        digits()
            .ranks(2)
            .set(&["train.max_epochs=2", "schedule.warmup_epochs=1"])
            .set(&["average={kind=\"ema\",decay=0.9}"])
            .set(&["checkpoint.every_n_steps=10", "checkpoint.keep_last=99"])
            .set(&["checkpoint.keep_best=true", "checkpoint.asynchronous=false"])
            .succeed()
    });
    PATH.get_or_init(|| ended.run_folder())
}

/// A copy of the run's checkpoints that a test may change.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("checkpoints");
    let mut copy = std::process::Command::new("cp");
    assert!(copy.arg("-r").arg(run().join("checkpoints")).arg(&to).status().unwrap().success());
    folder
}

fn checkpoint(step: u64) -> PathBuf {
    run().join(format!("checkpoints/step-{step:08}"))
}

fn command(arguments: &[&str]) -> support::Train {
    bonfire(&["checkpoint"].into_iter().chain(arguments.iter().copied()).collect::<Vec<_>>())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn inspect_lists_a_run_and_shows_its_newest() {
    let ended = command(&["inspect", text(run())]).succeed();
    for part in ["step-00000010", "step-00000060", "latest", "best", "step 60, epoch 2"] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.log());
    }
    for part in ["saved by 2 rank(s)", "format 2", "callback.ema", "optimizer", "seed = 1"] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.log());
    }
    assert!(!ended.stdout.contains("position.cursor"));
    let ended = command(&["inspect", "--tensors", text(&checkpoint(20))]).succeed();
    assert!(ended.stdout.contains("position.cursor = Uint(960)"), "{}", ended.log());
    assert!(!ended.stdout.contains("step-00000010"), "{}", ended.log());
    command(&["inspect", "nothing"]).fail().says_once(&["no complete checkpoint at", "nothing"]);
}

#[test]
fn verify_finds_what_is_damaged() {
    let ended = command(&["verify", text(run())]).succeed();
    assert_eq!(ended.stdout.matches(": sound").count(), 6, "{}", ended.log());
    let folder = copy();
    let model = folder.path().join("checkpoints/step-00000020/model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&model, bytes).unwrap();
    let ended = command(&["verify", text(folder.path())]).fail();
    ended.says_once(&["error: 1 of 6 checkpoints are damaged"]);
    assert!(ended.stdout.contains("step-00000020: damaged: "), "{}", ended.log());
    assert!(ended.stdout.contains("model.safetensors"), "{}", ended.log());
}

#[test]
fn export_makes_the_model_that_the_run_has_come_to() {
    let folder = tempfile::tempdir().unwrap();
    let (model, ema) = (folder.path().join("model"), folder.path().join("ema"));
    command(&["export", text(run()), "--out", text(&model)]).succeed();
    let tensors = |path: &Path| read_safetensors(path).unwrap();
    assert_eq!(
        tensors(&model.join("model.safetensors")),
        tensors(&run().join("model.safetensors"))
    );
    let newest = checkpoint(60);
    command(&["export", text(&newest), "--variant", "ema", "--out", text(&ema)]).succeed();
    assert_eq!(
        tensors(&ema.join("model.safetensors")),
        tensors(&run().join("model_ema.safetensors"))
    );
    // What was exported can be applied.
    let recipe = support::repository().join("configs/digits.toml");
    let figures =
        |model: &Path| bonfire(&["evaluate", text(model), text(&recipe)]).succeed().stdout;
    assert_eq!(figures(&model), figures(run()));

    let ended = command(&["export", text(run()), "--variant", "swa", "--out", "x"]).fail();
    ended.says_once(&["no average \"swa\"", "it has ema"]);
    command(&["export", text(run()), "--out", text(&model)])
        .fail()
        .says("there is something already");
    let ended = command(&["export", text(copy().path()), "--out", "x"]).fail();
    ended.says_once(&["there is no model.toml", "--model"]);
}

#[test]
fn average_is_the_mean_of_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("mean");
    command(&["average", text(run()), "--last", "2", "--out", text(&out)]).succeed();
    let mean = read_safetensors(&out.join("model.safetensors")).unwrap();
    let of = |step| read_safetensors(&checkpoint(step).join("model.safetensors")).unwrap();
    let (one, other) = (of(50), of(60));
    assert!(one != other);
    for (name, mean) in &mean {
        let [mean, one, other] =
            [mean, &one[name], &other[name]].map(|tensor| tensor.data.as_slice::<f32>().unwrap());
        for ((mean, one), other) in mean.iter().zip(one).zip(other) {
            let expected = (f64::from(*one) + f64::from(*other)) / 2.0;
            assert!((f64::from(*mean) - expected).abs() <= 1e-7 * expected.abs(), "{name}");
        }
    }
    let recipe = support::repository().join("configs/digits.toml");
    bonfire(&["evaluate", text(&out), text(&recipe)]).succeed();
}

#[test]
fn prune_keeps_the_newest_and_the_best() {
    let folder = copy();
    let checkpoints = folder.path().join("checkpoints");
    fs::write(checkpoints.join("best"), "step-00000030").unwrap();
    let prune = |more: &[&str]| {
        command(&[&["prune", text(folder.path()), "--keep-last", "2"], more].concat()).succeed()
    };
    let steps =
        || fs::read_dir(&checkpoints).unwrap().flatten().filter(|e| e.path().is_dir()).count();
    assert_eq!(prune(&["--dry-run"]).stdout.matches("would remove").count(), 3);
    assert_eq!(steps(), 6);
    assert_eq!(prune(&[]).stdout.matches("removed").count(), 3);
    assert_eq!(steps(), 3);
    assert!(prune(&[]).stdout.contains("nothing to remove"));
    command(&["verify", text(folder.path())]).succeed();
}
