//! Worlds of rank processes under test.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::remains::Remains;

/// Deadline of the collectives under test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which a rank must have ended after a fault that is noticed at once.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(4);
/// Time in which a rank must have ended after a fault that only a deadline tells.
pub(crate) const AT_DEADLINE: Duration = Duration::from_secs(9);
/// Time for processes to start and meet, on a busy machine.
pub(crate) const START: Duration = Duration::from_secs(30);
/// Time for a process to end after its last word, which includes its goodbyes.
const END: Duration = Duration::from_secs(8);

/// How the ranks of a world reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wiring {
    Shared,
    Tcp,
    /// Ranks 0 and 1 share memory, rank 2 is on another machine.
    Mixed,
    /// Each rank is on the machine of that number.
    Machines(&'static [usize]),
}

impl Wiring {
    pub(crate) const ALL: [Self; 3] = [Self::Shared, Self::Tcp, Self::Mixed];

    fn variables(self, rank: usize) -> [(&'static str, &'static str); 2] {
        let (transport, machine) = match self {
            Self::Shared => ("auto", 0),
            Self::Tcp => ("tcp", 0),
            Self::Mixed => ("auto", [0, 0, 1][rank]),
            Self::Machines(machines) => ("auto", machines[rank]),
        };
        [("BONFIRE_TRANSPORT", transport), ("BONFIRE_MACHINE", ["a", "b"][machine])]
    }
}

/// What is to be started.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) wiring: Wiring,
    pub(crate) size: usize,
    /// What each rank does; see `rank`.
    pub(crate) actions: Vec<String>,
    pub(crate) variables: Vec<(&'static str, String)>,
    /// A network namespace for each rank.
    pub(crate) namespaces: Vec<String>,
    pub(crate) port: u16,
}

impl Plan {
    /// Three ranks that do the same.
    pub(crate) fn new(wiring: Wiring, action: &str) -> Self {
        Self {
            wiring,
            size: 3,
            actions: vec![action.to_owned(); 3],
            variables: Vec::new(),
            namespaces: Vec::new(),
            port: free_port(),
        }
    }

    /// One rank does something else.
    pub(crate) fn but(mut self, rank: usize, action: &str) -> Self {
        self.actions[rank] = action.to_owned();
        self
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    pub(crate) fn start(self) -> World {
        World::start(self)
    }
}

/// A port outside of the range from which the system takes those of connections, so that only a
/// test can be there.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let start = std::process::id() as usize * 97;
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 12_000 + ((start + step) % 18_000) as u16;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// The processes of a world and what must not outlive them.
pub(crate) struct World {
    what: String,
    ranks: Vec<Rank>,
    remains: Remains,
}

struct Rank {
    child: Child,
    lines: Receiver<String>,
    log: Vec<String>,
}

impl World {
    fn start(plan: Plan) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let run_id = format!("faults-{}-{number}", std::process::id());
        let mut world = Self {
            what: format!("{:?} {:?}", plan.wiring, plan.actions),
            ranks: Vec::new(),
            remains: Remains::of(&run_id),
        };
        let program = std::env::current_exe().unwrap();
        for rank in 0..plan.size {
            let mut command = match plan.namespaces.get(rank) {
                Some(namespace) => {
                    let mut command = Command::new("ip");
                    command.args(["netns", "exec", namespace]).arg(&program);
                    command
                }
                None => Command::new(&program),
            };
            command
                .args(["rank_process", "--exact", "--nocapture"])
                .env("FAULT_ACTION", &plan.actions[rank])
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", plan.size.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", plan.port.to_string())
                .env("BONFIRE_RUN_ID", &run_id)
                .env("XDG_RUNTIME_DIR", world.remains.directory())
                .envs(plan.wiring.variables(rank))
                .envs(plan.variables.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            world.ranks.push(Rank::start(command));
        }
        world
    }

    pub(crate) fn id(&self, rank: usize) -> u32 {
        self.ranks[rank].child.id()
    }

    /// Waits until a rank says `word`, and returns what follows it.
    pub(crate) fn hear(&mut self, rank: usize, word: &str, limit: Instant) -> String {
        match self.ranks[rank].hear(word, limit) {
            Some(text) => text,
            None => self.fail(&format!("rank {rank} did not say {word} in time")),
        }
    }

    /// Waits until all ranks are connected and at work.
    pub(crate) fn await_ready(&mut self) {
        let limit = Instant::now() + START;
        for rank in 0..self.ranks.len() {
            self.hear(rank, "READY", limit);
        }
        std::thread::sleep(Duration::from_millis(100));
    }

    /// Gives a rank its sign.
    pub(crate) fn cue(&mut self, rank: usize) {
        let stdin = self.ranks[rank].child.stdin.as_mut().unwrap();
        stdin.write_all(b"now\n").unwrap();
    }

    pub(crate) fn signal(&self, rank: usize, name: &str) {
        let id = self.id(rank).to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(status.unwrap().success());
    }

    /// What each of `survivors` said at its end, which must be within `bound` from now.
    pub(crate) fn results(&mut self, survivors: &[usize], bound: Duration) -> Vec<String> {
        let limit = Instant::now() + bound;
        survivors.iter().map(|&rank| self.hear(rank, "RESULT", limit)).collect()
    }

    /// Ends `victims` and waits for the others' own end; then nothing may be left.
    pub(crate) fn finish(mut self, victims: &[usize]) {
        for &rank in victims {
            let _ = self.ranks[rank].child.kill();
        }
        let limit = Instant::now() + END;
        while self.ranks.iter_mut().any(|rank| rank.child.try_wait().unwrap().is_none()) {
            if Instant::now() >= limit {
                self.fail("some ranks did not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(left) = self.remains.found() {
            self.fail(&format!("left behind: {left}"));
        }
    }

    /// Ends the test and shows what the ranks have said.
    pub(crate) fn fail(&mut self, why: &str) -> ! {
        let mut text = format!("{}: {why}", self.what);
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let _ = rank.child.kill();
            while rank.hear("\0", Instant::now() + Duration::from_millis(200)).is_some() {}
            text.push_str(&format!("\n--- rank {number}\n{}", rank.log.join("\n")));
        }
        panic!("{text}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

impl Rank {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        forward(child.stdout.take().unwrap(), sender.clone());
        forward(child.stderr.take().unwrap(), sender);
        Self { child, lines, log: Vec::new() }
    }

    fn hear(&mut self, word: &str, limit: Instant) -> Option<String> {
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).ok()?;
            self.log.push(line.clone());
            // The test harness may have begun the line.
            if let Some((_, text)) = line.split_once(&format!("{word} ")) {
                return Some(text.to_owned());
            }
        }
    }
}

/// Hands on what a process writes.
fn forward(stream: impl Read + Send + 'static, lines: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = lines.send(line);
        }
    });
}

/// Runs a case for each of `cases`, some at a time.
pub(crate) fn for_each<T: Send>(cases: impl IntoIterator<Item = T>, run: impl Fn(T) + Sync) {
    // The ranks mostly wait.
    const AT_A_TIME: usize = 6;
    let cases = Mutex::new(cases.into_iter().collect::<VecDeque<T>>());
    let next = || cases.lock().unwrap().pop_front();
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(case) = next() {
                    run(case);
                }
            });
        }
    });
}
