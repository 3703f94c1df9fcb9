//! One world and the end of one of its ranks.

use crate::Result;
use crate::cargo::command;
use crate::soak::random::Random;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Time in which every survivor must have ended.
const BOUND: Duration = Duration::from_secs(5);
const LONGEST_DELAY_MS: usize = 300;
/// Time that processes take to start and to meet.
const START_MS: usize = 30;
/// The names of `bonfire_comm::Algorithm`.
const ALGORITHMS: [&str; 6] =
    ["auto", "ring", "tree", "double_tree", "recursive_doubling", "hierarchical"];

/// How the ranks reach each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wiring {
    Shared,
    Tcp,
    Mixed,
}

pub(super) const WIRINGS: [Wiring; 3] = [Wiring::Shared, Wiring::Tcp, Wiring::Mixed];

impl Wiring {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shared => "auto",
            Self::Tcp => "tcp",
            Self::Mixed => "mixed",
        }
    }
}

/// What was drawn for a round.
pub(super) struct Draw {
    pub(super) wiring: Wiring,
    algorithm: &'static str,
    /// Number of each rank's machine.
    machines: Vec<usize>,
    victim: usize,
    delay: Duration,
    seed: u64,
    port: u16,
}

/// What came of a round.
pub(super) struct Outcome {
    /// Whether the killed rank had been through the rendezvous.
    pub(super) was_connected: bool,
    /// From the kill to the last survivor's error.
    pub(super) detection: Duration,
    pub(super) hung: bool,
    pub(super) failures: Vec<String>,
}

impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wiring, algorithm, machines, victim, delay, seed, .. } = self;
        let (ranks, name) = (machines.len(), wiring.name());
        write!(
            f,
            "{ranks} ranks, {name}, {algorithm}, rank {victim} after {delay:?}, seed {seed}"
        )?;
        if *wiring == Wiring::Mixed { write!(f, ", machines {machines:?}") } else { Ok(()) }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.was_connected { "" } else { " (on its way in)" };
        write!(f, "{:.1} ms{place}", self.detection.as_secs_f64() * 1e3)?;
        self.failures.iter().try_for_each(|failure| write!(f, "\nFAILED: {failure}"))
    }
}

impl Draw {
    pub(super) fn new(random: &mut Random) -> Self {
        let wiring = WIRINGS[random.below(WIRINGS.len())];
        let machines: Vec<usize> = match wiring {
            // Two machines, and two ranks on one of them.
            Wiring::Mixed => (0..3 + random.below(2))
                .map(|rank| if rank < 2 { rank } else { random.below(2) })
                .collect(),
            _ => vec![0; 2 + random.below(3)],
        };
        // One in four is likely to be killed on its way in.
        let longest = if random.below(4) == 0 { START_MS } else { LONGEST_DELAY_MS };
        Self {
            wiring,
            algorithm: ALGORITHMS[random.below(ALGORITHMS.len())],
            victim: random.below(machines.len()),
            machines,
            delay: Duration::from_millis(random.below(longest + 1) as u64),
            seed: random.next() | 1,
            port: free_port(random),
        }
    }

    /// Starts the ranks, kills one and hears the others.
    pub(super) fn run(&self, program: &Path) -> Result<Outcome> {
        let shared_memory = shared_memory_files();
        let run_id = format!("soak-{}-{}", std::process::id(), self.seed);
        let mut ranks: Vec<Rank> = (0..self.machines.len())
            .map(|rank| self.start(program, rank, &run_id))
            .collect::<Result<_>>()?;
        std::thread::sleep(self.delay);
        let was_connected = ranks[self.victim].has_said("ready");
        let start = Instant::now();
        ranks[self.victim].child.kill()?;
        ranks[self.victim].child.wait()?;
        let mut outcome =
            Outcome { was_connected, detection: Duration::ZERO, hung: false, failures: Vec::new() };
        for (number, rank) in ranks.iter_mut().enumerate() {
            if number != self.victim {
                self.hear(number, rank, start, &mut outcome);
            }
        }
        drop(ranks);
        let left: Vec<_> = shared_memory_files().difference(&shared_memory).cloned().collect();
        if !left.is_empty() {
            outcome.failures.push(format!("shared memory was left: {left:?}"));
        }
        let left = processes_of(&run_id);
        if !left.is_empty() {
            outcome.failures.push(format!("processes were left: {left:?}"));
        }
        Ok(outcome)
    }

    fn start(&self, program: &Path, rank: usize, run_id: &str) -> Result<Rank> {
        let transport = if self.wiring == Wiring::Tcp { "tcp" } else { "auto" };
        let mut child = command(program)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", self.machines.len().to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", self.port.to_string())
            .env("BONFIRE_RUN_ID", run_id)
            // A rank that is killed in the rendezvous would leave its token file.
            .env("BONFIRE_TOKEN", run_id)
            .env("BONFIRE_TRANSPORT", transport)
            .env("BONFIRE_MACHINE", self.machines[rank].to_string())
            .env("KILL_ME_SEED", self.seed.to_string())
            .env("KILL_ME_ALGORITHM", self.algorithm)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("a rank has no output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                let _ = sender.send((Instant::now(), line));
            }
        });
        Ok(Rank { child, lines })
    }

    /// Waits for the error and the end of a survivor.
    fn hear(&self, number: usize, rank: &mut Rank, start: Instant, outcome: &mut Outcome) {
        let victim = self.victim;
        let limit = start + BOUND;
        match rank.error(limit) {
            Some((time, text)) => {
                outcome.detection = outcome.detection.max(time.saturating_duration_since(start));
                let named = [
                    format!("rank {victim} died ("),
                    format!("for rank(s) [{victim}]; check that they were started"),
                    format!("is rank {victim} running?"),
                ];
                if !named.iter().any(|words| text.contains(words)) {
                    outcome.failures.push(format!("rank {number} does not name it: {text}"));
                }
            }
            None => outcome.failures.push(format!("rank {number} told no error")),
        }
        if !rank.ends(limit) {
            outcome.hung = true;
            outcome.failures.push(format!("rank {number} did not end within {BOUND:?}"));
        }
    }
}

/// A port outside of the range from which the system takes those of connections.
fn free_port(random: &mut Random) -> u16 {
    loop {
        let port = 12_000 + random.below(18_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A process, which ends with this.
struct Rank {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Rank {
    fn has_said(&self, word: &str) -> bool {
        self.lines.try_iter().any(|(_, line)| line == word)
    }

    /// The error that it tells, and when it does.
    fn error(&self, limit: Instant) -> Option<(Instant, String)> {
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            let (time, line) = self.lines.recv_timeout(left).ok()?;
            if let Some(error) = line.strip_prefix("error ") {
                return Some((time, error.to_owned()));
            }
        }
    }

    fn ends(&mut self, limit: Instant) -> bool {
        loop {
            match self.child.try_wait() {
                Ok(Some(_)) => return true,
                Ok(None) if Instant::now() < limit => std::thread::sleep(Duration::from_millis(2)),
                _ => return false,
            }
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Files in the folder of named shared memory that could be ours.
fn shared_memory_files() -> BTreeSet<String> {
    let Ok(files) = std::fs::read_dir("/dev/shm") else { return BTreeSet::new() };
    files
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .filter(|name| name.contains("bonfire"))
        .collect()
}

/// Processes with that run id in their environment.
fn processes_of(run_id: &str) -> Vec<String> {
    let variable = format!("BONFIRE_RUN_ID={run_id}");
    let belongs = |path: &Path| {
        let variables = std::fs::read(path.join("environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    };
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| belongs(path)).map(|path| path.display().to_string()).collect()
}
