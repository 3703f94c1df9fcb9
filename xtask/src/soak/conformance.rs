//! `cargo xtask soak conformance`: the whole table of operations, without the shortcuts of the tests.

use crate::cargo::{cargo, run as run_command};
use crate::{Result, record};
use std::time::Instant;

/// The tests that stand for an engine and its transports.
const TABLES: [(&str, &str); 2] = [
    ("local", "local::tests::the_whole_conformance_table_holds"),
    ("host: shared memory, TCP, mixed", "init::tests::the_whole_conformance_table_holds"),
];

pub(super) fn run() -> Result<()> {
    let mut text = "Every operation, reduction and element type at lengths 0, 1, 7, 1023 and 2^20, worlds of 1 to 4 \
         ranks, every algorithm, against a serial oracle, bit by bit.\n\n\
         | engine | minutes |\n|---|---|\n"
        .to_string();
    for (engine, test) in TABLES {
        let start = Instant::now();
        run_command(
            cargo().args(["test", "--release", "--package", "bonfire-comm", "--lib", "--"]).args([
                "--exact",
                "--ignored",
                test,
            ]),
        )?;
        text.push_str(&format!("| {engine} | {:.1} |\n", start.elapsed().as_secs_f64() / 60.0));
    }
    print!("\n{text}");
    record::write("soak-conformance", &text)?;
    Ok(())
}
