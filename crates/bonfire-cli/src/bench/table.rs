use super::measure::Row;
use super::plan::{Case, Plan};
use crate::CliError;
use crate::output::print_line;
use bonfire_comm::{ProcessGroup, Transport};

/// The table on the standard output of rank 0.
pub(super) struct Table {
    shown: bool,
}

impl Table {
    /// Makes a table that is shown, or one that is not.
    pub(super) fn new(shown: bool) -> Self {
        Self { shown }
    }

    /// Says what was measured where, and names the columns.
    pub(super) fn header(
        &self,
        world: &ProcessGroup,
        plan: &Plan,
        transport: Option<Transport>,
    ) -> Result<(), CliError> {
        let machines = match world.num_machines() {
            1 => "1 machine".to_string(),
            number => format!("{number} machines"),
        };
        self.say(&format!(
            "# engine {}, world size {} on {machines}{}",
            world.engine_name(),
            world.world_size(),
            transport_in_words(world, transport),
        ))?;
        self.say(&format!(
            "# in place; 1 warm-up, median of {} iterations of the slowest rank; 1 GB = 1e9 bytes",
            plan.iterations
        ))?;
        let head = ["bytes", "count", "type", "op", "algorithm", "time", "algbw", "busbw", "wrong"];
        let units = ["(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", ""];
        for cells in [head, units] {
            self.say(&line('#', cells.map(str::to_string)))?;
        }
        Ok(())
    }

    /// Shows a row as soon as it is measured.
    pub(super) fn row(&self, row: &Row, case: &Case, world_size: usize) -> Result<(), CliError> {
        // As in nccl-tests: the argument of the call, which for some is the part of a rank.
        let count = if case.op.has_parts() { case.count / world_size } else { case.count };
        let cells = [
            row.bytes.to_string(),
            count.to_string(),
            row.dtype.to_string(),
            row.op.to_string(),
            row.algorithm.to_string(),
            format!("{:.2}", row.time_us),
            format!("{:.3}", row.algbw_gbps),
            format!("{:.3}", row.busbw_gbps),
            row.wrong.to_string(),
        ];
        self.say(&line(' ', cells))
    }

    /// Sums up.
    pub(super) fn footer(&self, rows: &[Row]) -> Result<(), CliError> {
        let wrong: usize = rows.iter().map(|row| row.wrong).sum();
        let verdict = if wrong == 0 { "OK" } else { "FAILED" };
        self.say(&format!("# wrong elements: {wrong} {verdict}"))
    }

    fn say(&self, line: &str) -> Result<(), CliError> {
        if self.shown { print_line(line) } else { Ok(()) }
    }
}

/// Only engine `host` has a choice.
fn transport_in_words(world: &ProcessGroup, chosen: Option<Transport>) -> String {
    if world.engine_name() != "host" {
        return String::new();
    }
    let of_environment = || std::env::var("BONFIRE_TRANSPORT").unwrap_or_default();
    let name = chosen.map_or_else(of_environment, |transport| transport.to_string());
    format!(", transport {}", if name.is_empty() { "auto" } else { &name })
}

fn line(mark: char, cells: [String; 9]) -> String {
    let [bytes, count, dtype, op, algorithm, time, algbw, busbw, wrong] = cells;
    format!(
        "{mark}{bytes:>12} {count:>12}  {dtype:<4}  {op:<14}  {algorithm:<18} {time:>12} \
         {algbw:>8} {busbw:>8} {wrong:>7}"
    )
    .trim_end()
    .to_string()
}
