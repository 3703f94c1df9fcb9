//! The recipes of MNIST, on the images of it that lie in this repository.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use support::{recipe, repository};

#[test]
fn a_few_epochs_of_mnist5k_reach_the_accuracy_that_is_expected() {
    let ended = recipe(&repository().join("configs/mnist5k.toml"))
        .ranks(2)
        .set(&["train.max_epochs=6"])
        .succeed();
    let accuracy = ended.summary()["valid_accuracy"].as_f64().unwrap();
    assert!(accuracy >= 0.96, "{}", ended.log());
}

/// 64 images a rank, at a rate in proportion to all of them; `cargo xtask soak mnist` trains it.
#[test]
fn the_rate_of_mnist_grows_with_the_ranks() {
    for (ranks, steps, rate) in [(1, 630, "0.06"), (2, 320, "0.12")] {
        let ended = recipe(&repository().join("configs/mnist.toml"))
            .ranks(ranks)
            .set(&["data.path=data/mnist5k"])
            .args(["--dry-run"])
            .succeed();
        let first = format!("# run: {steps} steps, ");
        assert!(ended.stdout.contains(&first), "{}", ended.log());
        let line = ended.stdout.lines().find(|line| line.ends_with("end of warm-up")).unwrap();
        assert_eq!(line.split_whitespace().nth(3), Some(rate), "{}", ended.log());
    }
}
