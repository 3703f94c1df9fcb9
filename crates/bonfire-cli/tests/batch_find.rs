//! `bonfire batch-find`: batch sizes are tried in processes of their own.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use support::bonfire;

const RECIPE: &str = "configs/digits.toml";

/// The first column of the CSV.
fn sizes(printed: &str) -> Vec<usize> {
    let rows = printed.lines().skip(1).take_while(|line| !line.starts_with('#'));
    rows.map(|row| row.split(',').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn sizes_are_doubled_and_one_is_suggested() {
    for ranks in ["1", "2"] {
        let options = ["--init-val", "8", "--max-val", "32", "--largest", "--steps-per-trial", "2"];
        let ended =
            bonfire(&["batch-find", RECIPE, "--nproc-per-node", ranks]).args(options).succeed();
        let printed = ended.stdout;
        assert!(
            printed.starts_with("batch_size,images_per_s,ms_per_step,peak_memory_mib\n"),
            "{printed}"
        );
        assert_eq!(sizes(&printed), [8, 16, 32], "{printed}");
        assert!(printed.contains("# suggestion: data.batch_size = 32 for each rank"), "{printed}");
        assert!(printed.contains("(the recipe has "), "{printed}");
    }
}

#[test]
fn memory_ends_the_search() {
    let options = ["--init-val", "8", "--memory-limit", "0.001", "--steps-per-trial", "1"];
    let printed = bonfire(&["batch-find", RECIPE]).args(options).succeed().stdout;
    assert_eq!(sizes(&printed), [8, 16], "{printed}");
    assert!(printed.contains("# ended before 32: it would need about"), "{printed}");
}

#[test]
fn what_cannot_be_tried_is_told() {
    let ended = bonfire(&["batch-find", RECIPE, "--init-val", "5000"]).fail();
    ended.says("--init-val 5000");
    ended.says("the training data have");
    bonfire(&["batch-find", RECIPE, "--set", "optimizer.lr=-1"]).fail().says("optimizer.lr");
    bonfire(&["batch-find", RECIPE, "--init-val", "0"]).fail().says("must be at least 1");
    let ended = bonfire(&["batch-find", RECIPE, "--init-val", "100", "--max-val", "50"]).fail();
    ended.says("it is above --max-val 50");
    bonfire(&["batch-find", RECIPE, "--memory-limit", "-1"]).fail();
    bonfire(&["batch-find", RECIPE, "--memory-limit", "0"]).fail().says("must be above 0");
    // Another failure than a want of memory is told in its own words.
    let ended = bonfire(&["batch-find", RECIPE, "--set", "optimizer.lr=1e39"]).fail();
    ended.says("the trial of batch size 8 failed: error: the loss is ");
}
