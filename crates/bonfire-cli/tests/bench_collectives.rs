//! `bonfire bench collectives`: what it measures, what it writes, and what it refuses.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use support::{Ended, Running, Train, bonfire, free_port};

const KEYS: [&str; 11] = [
    "op",
    "algorithm",
    "engine",
    "dtype",
    "bytes",
    "world_size",
    "iterations",
    "time_us",
    "algbw_gbps",
    "busbw_gbps",
    "wrong",
];

/// A short measurement whose rows land in the test's folder.
fn bench(args: &[&str]) -> Train {
    let call = bonfire(&["bench", "collectives", "--iterations", "3"]);
    let json = call.folder.path().join("rows.json");
    args.iter().fold(call, |call, arg| call.args([arg])).args(["--json", json.to_str().unwrap()])
}

fn json(ended: &Ended) -> PathBuf {
    ended.folder.path().join("rows.json")
}

fn rows(ended: &Ended) -> Vec<Value> {
    let text = fs::read_to_string(json(ended)).unwrap();
    let Value::Array(rows) = serde_json::from_str(&text).unwrap() else { unreachable!("{text}") };
    rows
}

/// Asserts that nothing but the output and, if wanted, the rows are in the test's folder.
#[track_caller]
fn leaves(ended: &Ended, with_rows: bool) {
    let entries = fs::read_dir(ended.folder.path()).unwrap();
    let found: BTreeSet<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let expected = ["stdout", "stderr"].into_iter().chain(with_rows.then_some("rows.json"));
    assert_eq!(found, expected.map(str::to_string).collect(), "{}", ended.log());
}

/// Checks a row against its own figures, and returns its operation and bytes.
#[track_caller]
fn check_row(row: &Value, engine: &str, world_size: u64) -> (String, u64) {
    let keys: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys.iter().collect::<BTreeSet<_>>(), KEYS.iter().collect(), "{row}");
    assert_eq!(row["engine"], engine, "{row}");
    assert_eq!(row["world_size"], world_size, "{row}");
    assert_eq!((&row["iterations"], &row["wrong"]), (&Value::from(3), &Value::from(0)), "{row}");
    let number = |key: &str| row[key].as_f64().unwrap();
    let (op, bytes, n) = (row["op"].as_str().unwrap(), number("bytes"), world_size as f64);
    assert!(number("time_us") > 0.0, "{row}");
    let algbw = bytes / (number("time_us") * 1e3);
    let factor = match op {
        "all_reduce" => 2.0 * (n - 1.0) / n,
        "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter" => (n - 1.0) / n,
        _ => 1.0,
    };
    assert!((number("algbw_gbps") - algbw).abs() <= 1e-9 * algbw, "{row}");
    assert!((number("busbw_gbps") - algbw * factor).abs() <= 1e-9 * algbw, "{row}");
    (op.to_string(), row["bytes"].as_u64().unwrap())
}

/// Checks all rows and compares their operations and bytes.
#[track_caller]
fn check_rows(ended: &Ended, engine: &str, world_size: u64, expected: &[(&str, u64)]) {
    let rows = rows(ended);
    let found: Vec<_> = rows.iter().map(|row| check_row(row, engine, world_size)).collect();
    let expected: Vec<_> = expected.iter().map(|&(op, bytes)| (op.to_string(), bytes)).collect();
    assert_eq!(found, expected, "{}", ended.log());
    leaves(ended, true);
}

#[test]
fn two_processes_measure_what_was_asked_for() {
    let ops = "all_reduce,broadcast,all_gather,reduce_scatter,barrier";
    let ended = bench(&["--ops", ops, "--sizes", "4K,1000"]).succeed();
    let expected = [
        ("all_reduce", 4096),
        ("all_reduce", 1000),
        ("broadcast", 4096),
        ("broadcast", 1000),
        ("all_gather", 4096),
        ("all_gather", 1000),
        ("reduce_scatter", 4096),
        ("reduce_scatter", 1000),
        ("barrier", 0),
    ];
    check_rows(&ended, "host", 2, &expected);
    for row in rows(&ended) {
        assert_eq!((&row["algorithm"], &row["dtype"]), (&"auto".into(), &"f32".into()));
    }
    assert_eq!(ended.stderr, "", "{}", ended.log());
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[0], "# engine host, world size 2 on 1 machine, transport auto");
    assert_eq!(lines.last(), Some(&"# wrong elements: 0 OK"));
    let cells = |line: &&str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let table: Vec<_> = lines.iter().filter(|line| !line.starts_with('#')).map(cells).collect();
    assert_eq!(table.len(), expected.len(), "{}", ended.log());
    assert_eq!(table[1][..5], ["1000", "250", "f32", "all_reduce", "auto"]);
    // The count of one part, as in nccl-tests.
    assert_eq!(table[5][..5], ["1000", "125", "f32", "all_gather", "auto"]);
    assert!(table.iter().all(|cells| cells.len() == 9 && cells[8] == "0"), "{}", ended.log());
}

#[test]
fn buffers_of_parts_are_rounded_down() {
    let ended = bench(&["--nproc-per-node", "3", "--ops", "all_gather,all_reduce"])
        .args(["--sizes", "1000,8", "--dtype", "bf16"])
        .succeed();
    let expected =
        [("all_gather", 996), ("all_gather", 6), ("all_reduce", 1000), ("all_reduce", 8)];
    check_rows(&ended, "host", 3, &expected);
}

#[test]
fn every_operation_is_measured() {
    let parts = ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"];
    let whole = ["all_reduce", "reduce", "broadcast", "send_recv"];
    let ops = [&parts[..], &whole].concat();
    for engine in ["host", "local"] {
        let ended = bench(&["--nproc-per-node", "3", "--engine", engine])
            .args(["--ops", &ops.join(","), "--sizes", "1000"])
            .succeed();
        let parts = parts.map(|op| (op, 996));
        let expected = [&parts[..], &whole.map(|op| (op, 1000))].concat();
        check_rows(&ended, engine, 3, &expected);
    }
}

#[test]
fn ranks_can_be_threads_and_of_any_type() {
    for (dtype, size) in [("f64", 8), ("f16", 2), ("bf16", 2), ("i32", 4), ("i64", 8), ("u8", 1)] {
        let ended = bench(&["--engine", "local", "--nproc-per-node", "3", "--sizes", "4K"])
            .args(["--ops", "all_reduce,reduce_scatter", "--dtype", dtype])
            .succeed();
        let expected = [("all_reduce", 4096), ("reduce_scatter", 4096 - 4096 % (3 * size))];
        check_rows(&ended, "local", 3, &expected);
        assert!(rows(&ended).iter().all(|row| row["dtype"] == dtype));
        assert!(ended.stdout.starts_with("# engine local, world size 3 on 1 machine\n"));
    }
}

#[test]
fn a_rank_alone_needs_no_others() {
    let ended = bench(&["--nproc-per-node", "1", "--sizes", "4K"]).succeed();
    check_rows(&ended, "single", 1, &[("all_reduce", 4096)]);
    let ended = bench(&["--nproc-per-node", "1", "--ops", "send_recv"]).fail();
    ended.says_once(&["--ops send_recv", "--nproc-per-node 2"]);
}

#[test]
fn every_algorithm_is_measured_in_turn() {
    let ended = bench(&["--algorithm", "all", "--sizes", "4K,1M"]).succeed();
    let names = bonfire_comm::Algorithm::ALL.iter().map(|algorithm| algorithm.name());
    let names: Vec<&str> = names.collect();
    let rows = rows(&ended);
    let found = rows.iter().map(|row| row["algorithm"].as_str().unwrap());
    assert_eq!(found.collect::<Vec<_>>(), [names.clone(), names].concat());
}

#[test]
fn ranks_of_another_launcher_join() {
    let port = free_port();
    let start = |rank| bench(&["--sizes", "4K"]).with_rank(rank, 2, port).start();
    let ranks: Vec<Running> = (0..2).map(start).collect();
    let ended: Vec<Ended> = ranks.into_iter().map(Running::wait).collect();
    assert!(ended.iter().all(|ended| ended.status.success()), "{}", ended[0].log());
    check_rows(&ended[0], "host", 2, &[("all_reduce", 4096)]);
    // Rank 0 speaks for all.
    assert_eq!(ended[1].stdout, "");
    leaves(&ended[1], false);

    let ended = bench(&["--engine", "local"]).with_rank(1, 2, free_port()).fail();
    ended.says_once(&["--engine local", "RANK"]);
}

/// Runs into an error that has each of `parts` on one line, once, and measures nothing.
#[track_caller]
fn refused(args: &[&str], parts: &[&str]) -> Ended {
    let ended = bench(args).fail();
    ended.says_once(parts);
    assert_eq!(ended.stdout, "");
    leaves(&ended, false);
    ended
}

#[test]
fn sizes_that_are_none_are_refused() {
    for size in ["12Q", "4KB", "-4", "1.5M"] {
        refused(&[&format!("--sizes=4K,{size}")], &["--sizes", size, "4K, 25M, 1G"]);
    }
    refused(&["--sizes", "99999999999G"], &["--sizes", "more bytes"]);
    let parts = ["--sizes 1002,6: not a multiple of 4 bytes", "f32"];
    refused(&["--sizes", "1002,4K,6"], &parts);
    let ended = bench(&["--sizes", "4294967296G"]).fail();
    ended.says_once(&["--sizes 4611686018427387904: a rank cannot get this much memory"]);
    leaves(&ended, false);
}

#[test]
fn unknown_names_are_refused_with_those_that_there_are() {
    let ended = refused(&["--ops", "all_reduce,allgather"], &["'allgather'", "--ops"]);
    ended.says("all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather");
    refused(&["--dtype", "f8"], &["'f8'", "--dtype"]).says("f32, f64, f16, bf16, i32, i64, u8");
    refused(&["--algorithm", "mesh"], &["'mesh'"]).says("recursive_doubling, hierarchical, all");
    refused(&["--engine", "gloo"], &["'gloo'"]).says("auto, nccl, host, local, mpi");
    refused(&["--transport", "rdma"], &["'rdma'"]).says("auto, tcp");
}

#[test]
fn a_transport_is_for_engine_host() {
    let ended = bench(&["--transport", "tcp", "--sizes", "4K"]).succeed();
    assert!(ended.stdout.contains(", transport tcp\n"), "{}", ended.log());
    refused(&["--engine", "local", "--transport", "tcp"], &["--transport tcp", "\"local\""]);
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_is_measured() {
    for engine in ["host", "local"] {
        let call = bonfire(&["bench", "collectives", "--engine", engine]);
        let missing = call.folder.path().join("no/rows.json");
        let ended = call.args(["--json", missing.to_str().unwrap()]).fail();
        ended.says_once(&["creating", "no/rows.json", "No such file"]);
        assert_eq!(ended.stdout, "");
        let ended = bonfire(&["bench", "collectives", "--engine", engine, "--json", "."]).fail();
        ended.says_once(&["creating", "no regular file"]);
    }
}

#[test]
fn engines_that_are_not_there_are_refused() {
    for engine in ["mpi", "nccl"] {
        let start = format!("engine \"{engine}\" cannot be used");
        refused(&["--engine", engine], &[&start]);
    }
}
