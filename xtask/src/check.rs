//! `cargo xtask check`: everything that a change must pass.

use crate::Result;
use crate::cargo::{cargo, run};

/// Runs the checks, the quick ones first; stops at the first that fails.
pub(crate) fn run_all() -> Result<()> {
    run(cargo().args(["fmt", "--check"]))?;
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run(cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    run(cargo().args(["test", "--workspace"]))
}
