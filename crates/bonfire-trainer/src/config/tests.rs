//! Tests of reading, overriding and resolving as a whole.

use std::time::Duration;

use serde::Deserialize;

use super::{
    Budget, ConfigError, DataSource, EngineKind, OneOrMany, OptimizerPlan, Plan, PrecisionMode,
    RunConfig, TransformsPlan, WarmupStart,
};
use bonfire_amp::{Clip, MixedPrecision, NormType};
use bonfire_parallel::{Compression, ParameterGroup, ParameterGroups, Select, ZeroStage};

const MINIMAL: &str = r#"
[model]
kind = "mlp"
[data]
path = "data/digits"
[optimizer]
kind = "sgd"
"#;

fn read(text: &str) -> Result<RunConfig, ConfigError> {
    RunConfig::from_toml_str(text, "test.toml")
}

fn lines(error: &ConfigError) -> Vec<String> {
    error.to_string().lines().map(str::to_owned).collect()
}

/// Reads `MINIMAL` with overrides and resolves it for `world_size` ranks.
fn plan(overrides: &[&str], world_size: usize) -> Result<Plan, ConfigError> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    let config = RunConfig::from_toml_str_with_overrides(MINIMAL, "test.toml", &overrides)?;
    Plan::resolve(&config, world_size)
}

#[track_caller]
fn rejects(overrides: &[&str], world_size: usize, expected: &[&str]) {
    let error = plan(overrides, world_size).expect_err("the configuration is wrong");
    let found: Vec<&str> = error.problems.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(found, expected);
}

#[test]
fn fills_in_the_documented_defaults() {
    let plan = plan(&[], 2).unwrap();
    assert_eq!((plan.name.as_str(), plan.seed, plan.world_size), ("mlp", 0, 2));
    assert_eq!(plan.data.source, DataSource::Idx { folder: "data/digits".into() });
    assert_eq!((plan.data.batch_size, plan.data.global_batch_size), (32, 64));
    assert_eq!((plan.data.workers, plan.data.drop_last, plan.data.prefetch_factor), (1, false, 2));
    assert_eq!(plan.data.normalize, None);
    assert_eq!(plan.data.transforms, TransformsPlan::default());
    assert_eq!(plan.train.budget, Budget::Epochs(10));
    assert_eq!((plan.train.accumulate_grad_batches, plan.train.log_every_n_steps), (1, 50));
    assert_eq!(plan.precision.mode, PrecisionMode::F32);
    assert_eq!(plan.distributed.engine, EngineKind::Auto);
    assert_eq!(plan.distributed.timeout, Duration::from_secs(600));
    assert_eq!(plan.distributed.bucket_cap_bytes, 25 << 20);
    assert_eq!(plan.distributed.first_bucket_bytes, 1 << 20);
    assert!(plan.distributed.broadcast_buffers);
    assert_eq!((plan.checkpoint.every_n_steps, plan.checkpoint.every_n_epochs), (None, 1));
    assert_eq!(plan.log.interval, Duration::from_secs(5));
    let sgd = OptimizerPlan::Sgd {
        lr: 1e-3,
        momentum: 0.0,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
        momentum_correction: true,
    };
    assert_eq!(plan.optimizer, sgd);
}

#[test]
fn adamw_has_pytorch_defaults() {
    let adamw =
        OptimizerPlan::AdamW { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 };
    assert_eq!(plan(&["optimizer.kind=adamw"], 1).unwrap().optimizer, adamw);
}

#[test]
fn reports_all_kinds_of_problems_at_once_with_their_lines() {
    let text = r#"
sed = 1
[model]
kind = "mlp"
[data]
path = 3
batch_size = "many"
normalize = { mean = 0.5, std = 0.0, median = 1 }
[train]
max_epoch = 3
[optimiser]
lr = 1
[optimizer]
kind = "sgdd"
lr = -1
betas = [0.9]
momentum = [1]
[log]
interval_s = 0
[data.transforms]
horizontal_flips = 0.5
"#;
    let error = read(text).unwrap_err();
    let expected = [
        "test.toml:6: data.path: invalid type: integer `3`, expected path string",
        "test.toml:7: data.batch_size: invalid type: string \"many\", expected an integer, 0 or more",
        "test.toml:8: unknown key \"data.normalize.median\"; did you mean \"mean\"?",
        "test.toml:21: unknown key \"data.transforms.horizontal_flips\"; did you mean \"horizontal_flip\"?",
        "test.toml:10: unknown key \"train.max_epoch\"; did you mean \"max_epochs\"?",
        "test.toml:14: optimizer.kind: \"sgdd\" is not one of \"sgd\", \"adam\", \"adamw\"; did you mean \"sgd\"?",
        "test.toml:17: optimizer.momentum: invalid type: sequence, expected a number",
        "test.toml:16: optimizer.betas: invalid length 1, expected an array of length 2",
        "test.toml:11: unknown section \"optimiser\"; did you mean \"optimizer\"?",
        "test.toml:2: unknown key \"sed\"; did you mean \"seed\"?",
        "test.toml:15: optimizer.lr = -1: must be 0 or more",
        "test.toml:8: data.normalize.std = 0: must be above 0",
        "test.toml:19: log.interval_s = 0: must be a number of seconds above 0",
    ];
    let (mut found, mut expected) = (lines(&error), expected.map(str::to_owned).to_vec());
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "{error}");
}

#[test]
fn points_at_the_section_that_has_the_key() {
    let error = read("lr = 0.1\n").unwrap_err();
    assert_eq!(lines(&error)[0], "test.toml:1: unknown key \"lr\"; did you mean \"optimizer.lr\"?");
    let error = read("[profile]\ntrace = 1\n").unwrap_err();
    assert_eq!(lines(&error)[0], "test.toml:2: unknown key \"profile.trace\"; known are steps");
}

#[test]
fn reports_every_syntax_error_with_its_line() {
    let error = read("name = \n[train]\nmax_epochs = = 3\n").unwrap_err();
    let places: Vec<_> = error.problems.iter().map(|p| (p.line, p.key.as_str())).collect();
    assert_eq!(places, [(Some(1), ""), (Some(3), "")], "{error}");
    assert!(lines(&error)[0].starts_with("test.toml:1: not valid TOML: "), "{error}");
    let error = read("[train]\nmax_epochs = 1\nmax_epochs = 2\n").unwrap_err();
    assert!(lines(&error)[0].starts_with("test.toml:3: not valid TOML: "), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let error = RunConfig::load("/no/such/run.toml").unwrap_err().to_string();
    assert!(error.starts_with("/no/such/run.toml: cannot read the configuration: No such file"));
}

#[test]
fn a_value_in_place_of_a_section_is_no_panic() {
    let error = read("train = 3\n").unwrap_err();
    assert_eq!(lines(&error)[0], "test.toml:1: train = 3: expected a section [train]");
}

#[test]
fn overrides_win_over_the_file() {
    let plan = plan(
        &[
            "optimizer.lr=1",
            "name=night run",
            "model.hidden.sizes=[8, 4]",
            "train.max_steps = 7",
            "data.path=\"a b\"",
            "data.normalize={ mean = 0.5, std = 2 }",
            "precision.mode=f64",
        ],
        1,
    )
    .unwrap();
    assert_eq!(plan.optimizer.lr(), 1.0);
    assert_eq!(plan.name, "night run");
    assert_eq!(plan.train.budget, Budget::Steps(7));
    assert_eq!(plan.data.source, DataSource::Idx { folder: "a b".into() });
    assert_eq!(plan.data.normalize.map(|n| n.std), Some(OneOrMany::one(2.0)));
    assert_eq!(plan.precision.mode, PrecisionMode::F64);
    assert_eq!(plan.model.keys["hidden"]["sizes"].as_array().unwrap().len(), 2);
}

#[test]
fn an_override_replaces_the_key_that_it_excludes() {
    let text = format!("{MINIMAL}\n[train]\nmax_epochs = 3\n");
    let mut config = read(&text).unwrap();
    config.apply_overrides(&["train.max_steps=5".to_owned()]).unwrap();
    assert_eq!(Plan::resolve(&config, 1).unwrap().train.budget, Budget::Steps(5));
    config.apply_overrides(&["train.max_epochs=2".to_owned()]).unwrap();
    assert_eq!(Plan::resolve(&config, 1).unwrap().train.budget, Budget::Epochs(2));
    let both = ["train.max_epochs=2".to_owned(), "train.max_steps=5".to_owned()];
    config.apply_overrides(&both).unwrap();
    let error = Plan::resolve(&config, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--set train.max_epochs=2: train.max_epochs = 2 and train.max_steps = 5 exclude each \
         other: remove one"
    );
}

#[test]
fn wrong_overrides_are_reported_and_change_nothing() {
    let mut config = read(MINIMAL).unwrap();
    let before = config.clone();
    let wrong = ["train", "data.path.deep=1", "train.max_epoch=3", "optimizer.lr=fast", ".a=1"];
    let error = config.apply_overrides(&wrong.map(str::to_owned)).unwrap_err();
    let expected = [
        "--set train: \"train\" has no \"=\"; write key=value",
        "--set data.path.deep=1: data.path.deep cannot be set: data.path = \"data/digits\" is no \
         table of keys",
        "--set .a=1: \".a\" is no key; write names joined by dots, like train.max_steps",
        "--set train.max_epoch=3: unknown key \"train.max_epoch\"; did you mean \"max_epochs\"?",
        "--set optimizer.lr=fast: optimizer.lr: invalid type: string \"fast\", expected a number",
    ];
    assert_eq!(lines(&error), expected);
    assert_eq!(config, before);
}

#[test]
fn value_problems_name_key_value_and_remedy() {
    rejects(
        &["train.accumulate_grad_batches=0", "checkpoint.every_n_steps=0", "name=a/b"],
        1,
        &[
            "train.accumulate_grad_batches = 0: must be 1 or more",
            "name = \"a/b\": must be usable as a folder's name: not empty, no slash, no leading dot",
            "checkpoint.every_n_steps = 0: must be 1 or more; leave it out for none",
        ],
    );
    rejects(
        &["optimizer.nesterov=true", "optimizer.eps=1", "optimizer.lr=nan"],
        1,
        &[
            "optimizer.eps is a key of kind \"adam\" and \"adamw\", not of \"sgd\"; remove it",
            "optimizer.lr = NaN: must be 0 or more",
            "optimizer.nesterov = true: needs momentum above 0 (it is 0) and dampening 0 (it is 0)",
        ],
    );
    rejects(
        &["optimizer.kind=adamw", "optimizer.betas=[0.9, 1]"],
        1,
        &["optimizer.betas[1] = 1: must be 0 or more and below 1"],
    );
    rejects(
        &["schedule.kind=cosine", "schedule.min_lr=1", "schedule.warmup_steps=9"],
        1,
        &["schedule.min_lr = 1: must be from 0 to optimizer.lr = 0.001"],
    );
    rejects(
        &["train.max_steps=8", "schedule.warmup_steps=9"],
        1,
        &["schedule.warmup_steps = 9: must not be above train.max_steps = 8"],
    );
    rejects(
        &["distributed.timeout_s=0"],
        0,
        &[
            "world_size = 0: must be 1 or more",
            "distributed.timeout_s = 0: must be a number of seconds above 0",
        ],
    );
}

#[test]
fn distributed_keys_that_do_not_go_together_are_reported() {
    rejects(&["distributed.zero_stage=3"], 2, &["distributed.zero_stage = 3: must be 0, 1 or 2"]);
    rejects(
        &["distributed.compression=fp16", "distributed.compression_ratio=0.1"],
        2,
        &[
            "distributed.compression_ratio is a key of compression \"topk\", not of \"fp16\"; remove it",
        ],
    );
    let error = plan(&["distributed.compression=topk", "distributed.compression_ratio=2"], 2);
    assert!(error.unwrap_err().to_string().contains("ratio = 2"));
    let error = plan(&["distributed.compression=int8", "distributed.zero_stage=2"], 2);
    assert!(error.unwrap_err().to_string().contains("zero_stage = 2: a compressed bucket"));
    rejects(
        &["distributed.local_sgd.outer_momentum=0.5", "distributed.local_sgd.period=4"],
        2,
        &[
            "distributed.local_sgd.outer_lr is missing: set it to the outer learning rate, to which \
           outer_momentum and outer_nesterov belong",
        ],
    );
    let error = plan(&["distributed.local_sgd.period=0"], 2).unwrap_err().to_string();
    assert!(error.contains("local_sgd.period = 0: must be at least 1"), "{error}");
}

#[test]
fn the_data_parallel_layer_gets_what_is_written() {
    let keys = [
        "distributed.compression=powersgd",
        "distributed.matrix_approximation_rank=2",
        "distributed.start_powerSGD_iter=5",
        "distributed.zero_stage=1",
        "distributed.check_replicas_every=7",
        "distributed.static_graph=true",
        "seed=9",
    ];
    let plan = plan(&keys, 2).unwrap();
    assert_eq!(
        plan.distributed.compression,
        Compression::PowerSgd {
            matrix_approximation_rank: 2,
            min_compression_rate: 2.0,
            start_iter: 5,
            use_error_feedback: true,
            warm_start: true,
            seed: 9,
        }
    );
    let layer = crate::TrainerConfig::from_plan(&plan).parallel;
    assert_eq!(layer.zero_stage, ZeroStage::Optimizer);
    assert_eq!(layer.check_replicas_every, 7);
    assert!(layer.static_graph);
    // Written out and read again it is the same plan.
    let again = Plan::resolve(&read(&plan.to_toml().unwrap()).unwrap(), 2).unwrap();
    assert_eq!(again, plan);
}

#[test]
fn an_empty_configuration_lists_what_is_required() {
    let error = Plan::resolve(&read("").unwrap(), 1).unwrap_err();
    let expected = [
        "test.toml: model.kind is missing: set it to the name of a registered model",
        "test.toml: optimizer.kind is missing: set it to \"sgd\", \"adam\" or \"adamw\"",
        "test.toml: data.path is missing: set it to the folder of the data set",
    ];
    assert_eq!(lines(&error), expected);
}

#[test]
fn the_global_batch_is_divided_over_ranks_and_micro_batches() {
    let accumulate = "train.accumulate_grad_batches=2";
    let resolved = plan(&["data.global_batch_size=96", accumulate], 3).unwrap();
    assert_eq!((resolved.data.batch_size, resolved.data.global_batch_size), (16, 96));
    let resolved = plan(&["data.batch_size=16", accumulate], 3).unwrap();
    assert_eq!((resolved.data.batch_size, resolved.data.global_batch_size), (16, 96));
    let divisible = "must be divisible by 6 (world size 3 x train.accumulate_grad_batches 2)";
    rejects(
        &["data.global_batch_size=100", accumulate],
        3,
        &[&format!("data.global_batch_size = 100: {divisible}; use 96 or 102")],
    );
    rejects(
        &["data.global_batch_size=4", accumulate],
        3,
        &[&format!("data.global_batch_size = 4: {divisible}; use at least 6")],
    );
}

#[test]
fn counts_steps_as_the_sampler_does() {
    let mut plan = plan(&["data.batch_size=8", "train.accumulate_grad_batches=2"], 2).unwrap();
    // 50 samples a rank are 7 micro-batches of at most 8, so 4 windows of at most 2.
    assert_eq!(plan.steps_per_epoch(100), 4);
    assert_eq!(plan.total_steps(100), 40);
    assert_eq!(plan.schedule(100).total_steps(), 40);
    plan.data.drop_last = true;
    assert_eq!(plan.steps_per_epoch(95), 3);
    assert_eq!(plan.steps_per_epoch(15), 0);
    plan.train.budget = Budget::Steps(9);
    assert_eq!(plan.total_steps(100), 9);
}

#[test]
fn writing_and_loading_gives_the_same_configuration_and_plan() {
    let text = r#"
name = "full"
seed = 7
[model]
kind = "cnn"
channels = [8, 16]
head = { hidden = 32, dropout = 0.5 }
[data]
path = "data"
global_batch_size = 64
normalize = { mean = 0.1307, std = 0.3081 }
[data.transforms]
[train]
max_steps = 100
[optimizer]
kind = "adamw"
lr = 3e-4
[schedule]
kind = "cosine"
warmup_steps = 5
min_lr = 1e-5
[distributed]
engine = "host"
timeout_s = 0.3
bucket_cap_mb = 0.7
[checkpoint]
every_n_steps = 20
[clip]
[profile]
"#;
    let config = read(text).unwrap();
    assert_eq!(read(&config.to_toml().unwrap()).unwrap(), config);
    for world_size in [1, 2] {
        let plan = Plan::resolve(&config, world_size).unwrap();
        let written = plan.to_toml().unwrap();
        let again = read(&written).unwrap();
        assert_eq!(Plan::resolve(&again, world_size).unwrap(), plan, "{written}");
        assert_eq!(Plan::resolve(&plan.to_run_config(), world_size).unwrap(), plan);
    }
    let minimal = plan(&[], 2).unwrap();
    assert_eq!(Plan::resolve(&read(&minimal.to_toml().unwrap()).unwrap(), 2).unwrap(), minimal);
}

#[test]
fn precision_and_clipping_resolve_and_are_written_as_they_were_read() {
    let keys = [
        "precision.mode=fp16",
        "precision.init_scale=1024",
        "precision.growth_interval=100",
        "clip.max_norm=1",
        "clip.norm_type=inf",
        "train.gradient_checkpointing=true",
    ];
    let resolved = plan(&keys, 2).unwrap();
    assert_eq!(resolved.precision.mode, PrecisionMode::Fp16);
    assert_eq!(resolved.precision.scaler.init_scale, 1024.0);
    assert_eq!(resolved.precision.scaler.backoff_factor, 0.5);
    let clip =
        Clip::Norm { max_norm: 1.0, norm_type: NormType::Infinity, error_if_nonfinite: false };
    assert_eq!(resolved.clip, Some(clip));
    let trainer = crate::TrainerConfig::from_plan(&resolved);
    assert_eq!(trainer.parallel.mixed_precision, Some(MixedPrecision::fp16()));
    assert!(trainer.gradient_checkpointing);
    for keys in
        [&keys[..], &["precision.mode=bf16", "precision.master_weights=false"], &["clip.value=0.5"]]
    {
        let resolved = plan(keys, 2).unwrap();
        let again = Plan::resolve(&read(&resolved.to_toml().unwrap()).unwrap(), 2).unwrap();
        assert_eq!(again, resolved);
    }
    // Two words for one mode.
    let mode = |word: &str| plan(&[&format!("precision.mode={word}")], 1).unwrap();
    assert_eq!(mode("f32"), mode("fp32"));
    assert_eq!(mode("f32").precision.mode.to_string(), "fp32");
}

#[test]
fn wrong_precision_and_clipping_are_reported_together() {
    rejects(
        &[
            "precision.mode=fp16",
            "precision.init_scale=nan",
            "precision.growth_factor=1",
            "precision.backoff_factor=1.5",
            "precision.growth_interval=0",
            "precision.master_weights=false",
            "clip.max_norm=0",
            "clip.norm_type=1",
            "optimizer.lr=-1",
        ],
        1,
        &[
            "optimizer.lr = -1: must be 0 or more",
            "precision.master_weights = false: only mode \"bf16\" trains without 32-bit parameters, \
             not \"fp16\"; remove it",
            "precision.init_scale = NaN: must be above 0 and at most 3e38",
            "precision.growth_factor = 1: must be above 1",
            "precision.backoff_factor = 1.5: must be above 0 and below 1",
            "precision.growth_interval = 0: must be 1 or more",
            "clip.norm_type = 1: must be 2 or inf",
            "clip.max_norm = 0: must be above 0",
        ],
    );
    rejects(
        &["precision.init_scale=2", "clip.value=nan", "clip.error_if_nonfinite=true"],
        1,
        &[
            "precision.init_scale is a key of mode \"fp16\", not of \"fp32\"; remove it",
            "clip.error_if_nonfinite belongs to clip.max_norm: set that, or remove it",
            "clip.value = NaN: must be above 0",
        ],
    );
    rejects(
        &["clip.value=1", "clip.max_norm=-2"],
        1,
        &[
            "clip.max_norm = -2 and clip.value = 1 exclude each other: remove one",
            "clip.max_norm = -2: must be above 0",
        ],
    );
    let error = plan(&["precision.mode=fp8"], 1).unwrap_err().to_string();
    assert!(
        error.contains("\"fp8\" is not one of \"fp32\", \"f32\", \"f64\", \"bf16\", \"fp16\""),
        "{error}"
    );
}

#[test]
fn agreement_ignores_paths_and_per_rank_values_only() {
    let ours = plan(&["model.hidden=8"], 2).unwrap().agreement_entries();
    assert!(ours.is_sorted());
    let value = |key: &str| ours.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    assert_eq!(value("model.hidden"), Some("8"));
    assert_eq!(value("data.global_batch_size"), Some("64"));
    assert_eq!(value("world_size"), Some("2"));
    assert_eq!(value("data.path"), None);
    let free = ["model.hidden=8", "data.path=b", "data.workers=4", "log.interval_s=1"];
    assert_eq!(plan(&free, 2).unwrap().agreement_entries(), ours);
    let theirs = plan(&["model.hidden=8", "optimizer.lr=0.5"], 2).unwrap().agreement_entries();
    let first = ours.iter().zip(&theirs).find(|(a, b)| a != b).unwrap();
    assert_eq!(
        (first.0.0.as_str(), first.0.1.as_str(), first.1.1.as_str()),
        ("optimizer.lr", "0.001", "0.5")
    );
}

#[test]
fn agreement_knows_that_there_are_weights_but_not_where() {
    let entries = |overrides: &[&str]| plan(overrides, 2).unwrap().agreement_entries();
    let [one, other] = ["a.pt", "/data/b.pt"].map(|file| format!("model.weights={file}"));
    assert_eq!(entries(&[&one]), entries(&[&other]));
    assert_ne!(entries(&[&one]), entries(&[]));
    assert_ne!(entries(&[&one]), entries(&[&one, "model.reset_head=true"]));
}

#[test]
fn a_head_is_reset_only_beside_weights() {
    let weights = |overrides: &[&str]| plan(overrides, 1).map(|plan| plan.model.weights);
    let found = weights(&["model.weights=a.pt", "model.reset_head=true"]).unwrap().unwrap();
    assert_eq!((found.path.to_str(), found.reset_head), (Some("a.pt"), true));
    assert_eq!(weights(&["model.reset_head=false"]).unwrap(), None);
    let error = weights(&["model.reset_head=true"]).unwrap_err().to_string();
    assert!(
        error.contains("model.reset_head = true") && error.contains("set model.weights"),
        "{error}"
    );
}

#[test]
fn a_scaled_rate_is_scaled_once_however_often_the_plan_is_written() {
    let keys = ["schedule.scaling=linear", "schedule.base_batch_size=16", "optimizer.lr=0.1"];
    let mut last = plan(&keys, 2).unwrap();
    for _ in 0..3 {
        near(last.schedule(640).lr(0), 0.1 * 64.0 / 16.0);
        last = Plan::resolve(&read(&last.to_toml().unwrap()).unwrap(), 2).unwrap();
    }
    let written = last.to_toml().unwrap();
    assert!(written.contains("# The learning rates below are multiplied (linear: 64 / 16 = 4)."));
    // The same file for another number of ranks follows the rule.
    let again = Plan::resolve(&read(&written).unwrap(), 4).unwrap();
    near(again.schedule(640).lr(0), 0.1 * 128.0 / 16.0);

    let rate = |scaling: &str, keys: &[&str]| {
        let scaling = format!("schedule.scaling={scaling}");
        let keys = [&["optimizer.lr=0.1", scaling.as_str()], keys].concat();
        plan(&keys, 2).unwrap().schedule(640).lr(0)
    };
    near(rate("sqrt", &["schedule.base_batch_size=16"]), 0.2);
    near(rate("none", &[]), 0.1);
    near(rate("3", &[]), 0.3);
    near(rate("0.5", &[]), 0.05);
    let cycle = ["schedule.kind=one_cycle", "schedule.max_lr=5", "schedule.div_factor=10"];
    near(rate("2", &cycle), 1.0);
}

#[track_caller]
fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-12, "{a} is not {b}");
}

#[test]
fn every_schedule_is_written_and_read_again() {
    let kinds: [&[&str]; 8] = [
        &["kind=constant", "warmup_epochs=0.5"],
        &["kind=constant", "warmup_epochs=0.5", "warmup_start=base", "scaling=2"],
        &["kind=step", "step_size=3"],
        &["kind=multi_step", "milestones=[3, 5]", "unit=step", "gamma=0.5"],
        &["kind=cosine", "scaling=0.5"],
        &["kind=polynomial", "power=2", "min_lr=1e-5"],
        &["kind=one_cycle", "cycle_momentum=false"],
        &["kind=reduce_on_plateau", "metric=accuracy", "mode=max"],
    ];
    for keys in kinds {
        let keys: Vec<String> = keys.iter().map(|key| format!("schedule.{key}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let plan = plan(&keys, 1).unwrap();
        let written = plan.to_toml().unwrap();
        assert_eq!(Plan::resolve(&read(&written).unwrap(), 1).unwrap(), plan, "{written}");
    }
}

#[test]
fn a_warm_up_has_one_start() {
    rejects(
        &["schedule={warmup_start=\"base\",warmup_start_factor=0.5}"],
        1,
        &[
            "schedule.warmup_start_factor = 0.5 and schedule.warmup_start = base exclude each other: remove \
             one",
            "schedule.warmup_start = \"base\": the rate before scaling is the rate itself; set \
             schedule.scaling, or warmup_start_factor instead",
        ],
    );
    // An override takes the place of the other key.
    let keys = ["schedule={warmup_start_factor=0.5,scaling=4}", "schedule.warmup_start=base"];
    let schedule = plan(&keys, 1).unwrap().schedule;
    assert_eq!(schedule.warmup.start, WarmupStart::Base);
    near(schedule.warmup.start.factor(&schedule.scaling), 0.25);
}

#[test]
fn impossible_schedules_are_reported_with_all_that_is_wrong() {
    rejects(
        &["schedule.kind=step", "schedule.gamma=0", "schedule.min_lr=0.1", "optimizer.lr=-1"],
        1,
        &[
            "optimizer.lr = -1: must be 0 or more",
            "schedule.min_lr is a key of kind \"cosine\", \"polynomial\", \"reduce_on_plateau\", \
             not of \"step\"; remove it",
            "schedule.step_size is missing: set it to the epochs between two falls of the rate",
            "schedule.gamma = 0: must be above 0 and at most 1",
        ],
    );
    rejects(
        &[
            "schedule.kind=multi_step",
            "schedule.milestones=[5, 5]",
            "schedule.gamma=1.5",
            "schedule.warmup_epochs=20",
            "schedule.scaling=linear",
        ],
        1,
        &[
            "schedule.base_batch_size is missing: set it to the global batch size that optimizer.lr \
             was chosen for, which scaling \"linear\" starts from",
            "schedule.warmup_epochs = 20: must not be above train.max_epochs = 10",
            "schedule.milestones = [5, 5]: must begin at 1 or later and increase",
            "schedule.gamma = 1.5: must be above 0 and at most 1",
        ],
    );
    rejects(
        &[
            "schedule.kind=one_cycle",
            "schedule.max_lr=nan",
            "schedule.warmup_steps=5",
            "schedule.pct_start=2",
            "schedule.base_momentum=0.99",
        ],
        1,
        &[
            "schedule.warmup_steps: kind \"one_cycle\" warms up by itself (pct_start); remove it",
            "schedule.pct_start = 2: must be from 0 to 1",
            "schedule.max_lr = NaN: must be above 0",
            "schedule.base_momentum = 0.99: must not be above schedule.max_momentum = 0.95",
        ],
    );
    rejects(
        &[
            "schedule.kind=reduce_on_plateau",
            "schedule.metric=accuracy",
            "schedule.factor=1",
            "train.check_val_every_n_epochs=0",
            "train.label_smoothing=1.5",
        ],
        1,
        &[
            "train.label_smoothing = 1.5: must be from 0 to 1",
            "schedule.mode is missing: set it to \"min\" or \"max\", whether lower or higher \
             \"accuracy\" is better",
            "schedule.factor = 1: must be above 0 and below 1",
            "schedule.kind = \"reduce_on_plateau\": watches validations, and \
             train.check_val_every_n_epochs = 0 makes none before the end; set it to 1",
        ],
    );
    let error = plan(&["schedule.scaling=quadratic", "schedule.unit=batch"], 1).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("\"quadratic\" is not one of \"none\", \"linear\", \"sqrt\""),
        "{error}"
    );
    assert!(error.contains("\"batch\" is not one of \"epoch\", \"step\""), "{error}");
}

#[test]
fn a_scaled_rate_is_the_limit_of_the_lowest() {
    let keys = [
        "optimizer.lr=0.1",
        "schedule.kind=cosine",
        "schedule.min_lr=0.3",
        "schedule.scaling=linear",
        "schedule.base_batch_size=8",
    ];
    assert!(plan(&keys, 1).is_ok());
    let error = plan(&keys[..3], 1).unwrap_err().to_string();
    assert!(
        error.contains("schedule.min_lr = 0.3: must be from 0 to optimizer.lr = 0.1"),
        "{error}"
    );
}

const GROUPS: &str = r#"
no_decay_on_norms_and_biases = true
[[optimizer.groups]]
match = "head.*"
lr_factor = 10
[[optimizer.groups]]
kind = "norm"
weight_decay = 0.5
"#;

#[test]
fn parameter_groups_reach_the_data_parallel_layer() {
    let config = read(&format!("{MINIMAL}{GROUPS}")).unwrap();
    let plan = Plan::resolve(&config, 2).unwrap();
    let groups = ParameterGroups::new()
        .with_group(ParameterGroup::matching("head.*").with_lr_factor(10.0))
        .with_group(ParameterGroup::new(Select::Norm).with_weight_decay(0.5))
        .with_no_decay_on_norms_and_biases(true);
    assert_eq!(crate::TrainerConfig::from_plan(&plan).parallel.parameter_groups, groups);
    let written = plan.to_toml().unwrap();
    assert_eq!(Plan::resolve(&read(&written).unwrap(), 2).unwrap(), plan, "{written}");
    // A difference between ranks is found before the first step.
    let entries = plan.agreement_entries();
    assert!(
        entries.iter().any(|(key, value)| key == "optimizer.groups" && value.contains("head.*"))
    );
}

#[test]
fn wrong_groups_are_named_with_their_place() {
    let text = format!(
        "{MINIMAL}[[optimizer.groups]]\nmatch = \"a\"\nlr_facto = 2\n[[optimizer.groups]]\n\
         kind = \"bias\"\nmatch = \"b\"\nlr_factor = -1\n[[optimizer.groups]]\nweight_decay = 0\n"
    );
    let mut found = lines(&read(&text).unwrap_err());
    found.sort();
    let expected = [
        "test.toml:10: unknown key \"optimizer.groups[0].lr_facto\"; did you mean \"lr_factor\"?",
        "test.toml:13: optimizer.groups[1].match = \"b\" and optimizer.groups[1].kind = \"bias\" \
         exclude each other: remove one",
        "test.toml:14: optimizer.groups[1].lr_factor = -1: must be 0 or more",
        "test.toml:8: optimizer.groups[0] changes nothing: give it lr_factor or weight_decay",
        "test.toml:8: optimizer.groups[2].match is missing: set it to a pattern of module paths, or \
         set kind to \"norm\" or \"bias\"",
    ];
    assert_eq!(found, expected);
}

#[derive(Debug, PartialEq, Deserialize)]
struct Mlp {
    hidden: usize,
    #[serde(default)]
    dropout: f64,
}

#[test]
fn the_models_keys_are_read_strictly() {
    let model = |keys: &str| read(&format!("[model]\nkind = \"mlp\"\n{keys}")).unwrap();
    assert_eq!(model("hidden = 8").parse_model::<Mlp>().unwrap(), Mlp { hidden: 8, dropout: 0.0 });
    let wrong = model("hidden = \"8\"\ndropuot = 0.5").parse_model::<Mlp>().unwrap_err();
    let expected = [
        "test.toml:3: model.hidden: invalid type: string \"8\", expected an integer, 0 or more",
        "test.toml:4: unknown key \"model.dropuot\"; did you mean \"dropout\"?",
    ];
    assert_eq!(lines(&wrong), expected);
    let missing = model("").parse_model::<Mlp>().unwrap_err();
    assert_eq!(lines(&missing), ["test.toml:1: model: missing field `hidden`"]);
}
