//! The program `bonfire` under a deadline, and what it leaves behind.

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub mod idx;
pub mod images;
pub mod netns;

/// Longest time for anything but an error.
const DEADLINE: Duration = Duration::from_secs(60);
/// Longest time for an error.
pub const SOON: Duration = Duration::from_secs(10);
/// In the environment of everything that a test starts, with a value of its own.
const MARK: &str = "BONFIRE_TEST_MARK";

/// A call of the program, mostly of `bonfire train`, with a folder for what the test needs.
pub struct Train {
    pub folder: tempfile::TempDir,
    command: Command,
    deadline: Duration,
}

/// How a call ended.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub folder: tempfile::TempDir,
}

/// A call that runs; dropping it kills all that it started.
pub struct Running {
    child: Child,
    folder: tempfile::TempDir,
    mark: String,
    deadline: Instant,
}

/// `bonfire train configs/digits.toml`, its run folder in a folder of the test.
pub fn digits() -> Train {
    recipe(&repository().join("configs/digits.toml"))
}

/// `bonfire train RECIPE`, its run folder in a folder of the test.
pub fn recipe(path: &Path) -> Train {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    Train { folder, ..into(path, &out) }
}

/// `bonfire train RECIPE --out OUT`.
pub fn into(path: &Path, out: &Path) -> Train {
    let mut train = bonfire(&["train"]);
    train.command.arg(path).arg("--out").arg(out);
    train
}

/// `bonfire ARGS`, in the repository and without what the test's environment would change.
pub fn bonfire(args: &[&str]) -> Train {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    command.current_dir(repository()).args(args);
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| foreign(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    Train { folder, command, deadline: DEADLINE }
}

/// Whether a variable of the test's own environment would change what the program does.
fn foreign(name: &str) -> bool {
    const OTHERS: [&str; 4] = ["RANK", "WORLD_SIZE", "RAYON_NUM_THREADS", "GROUP_RANK"];
    let prefixes = ["BONFIRE_", "LOCAL_", "MASTER_", "TORCHELASTIC_"];
    OTHERS.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

impl Train {
    pub fn ranks(self, ranks: usize) -> Self {
        self.args(["--nproc-per-node", &ranks.to_string()])
    }

    /// Overrides keys of the recipe, each as `key=value`.
    pub fn set(mut self, overrides: &[&str]) -> Self {
        for text in overrides {
            self.command.args(["--set", text]);
        }
        self
    }

    pub fn args<const N: usize>(mut self, args: [&str; N]) -> Self {
        self.command.args(args);
        self
    }

    pub fn resume(mut self, path: &Path) -> Self {
        self.command.arg("--resume").arg(path);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts it as a rank that somebody else launches.
    pub fn with_rank(self, rank: usize, world_size: usize, port: u16) -> Self {
        let (rank, world_size) = (rank.to_string(), world_size.to_string());
        self.env("RANK", &rank)
            .env("LOCAL_RANK", &rank)
            .env("WORLD_SIZE", &world_size)
            .env("LOCAL_WORLD_SIZE", &world_size)
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &port.to_string())
    }

    /// Has a shell do something first; `"$0" "$@"` is the program with its arguments.
    pub fn through_shell(mut self, script: &str) -> Self {
        let mut shell = Command::new("bash");
        shell.arg("-c").arg(script).arg(self.command.get_program()).args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.current_dir(repository()).stdin(Stdio::null());
        self.command = shell;
        self
    }

    pub fn within(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    pub fn start(mut self) -> Running {
        let log = |name| Stdio::from(File::create(self.folder.path().join(name)).unwrap());
        self.command.stdout(log("stdout")).stderr(log("stderr"));
        self.start_with_own_output()
    }

    /// Starts it with the outputs that the test gave.
    pub fn start_with_own_output(mut self) -> Running {
        self.command.env(MARK, self.folder.path());
        let child = self.command.process_group(0).spawn().unwrap();
        let mark = format!("{MARK}={}", self.folder.path().display());
        let deadline = Instant::now() + self.deadline;
        Running { child, folder: self.folder, mark, deadline }
    }

    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Runs it to its end.
    pub fn run(self) -> Ended {
        self.start().wait()
    }

    /// Runs it to its end, which has to be success.
    pub fn succeed(self) -> Ended {
        let ended = self.run();
        assert!(ended.status.success(), "{}", ended.log());
        ended
    }

    /// Runs it to its end, which has to be an error, soon, and with nothing left running.
    pub fn fail(self) -> Ended {
        let ended = self.within(SOON).run();
        let code = ended.status.code();
        assert!(code.is_some_and(|code| code != 0 && code != 101), "{}", ended.log());
        assert!(!ended.stderr.contains("panicked"), "{}", ended.log());
        ended
    }
}

impl Running {
    /// Waits for its end, and checks that nothing of it is left.
    pub fn wait(mut self) -> Ended {
        let mut status = None;
        self.until("the end", |running| {
            status = running.child.try_wait().unwrap();
            status.is_some()
        });
        self.until("the end of all that it started", |running| running.processes().is_empty());
        let read = |name| fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        let (stdout, stderr) = (read("stdout"), read("stderr"));
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        Ended { status: status.unwrap(), stdout, stderr, folder }
    }

    /// Polls until a condition holds.
    pub fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        while !condition(self) {
            let log = || fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default();
            assert!(Instant::now() < self.deadline, "waited too long for {what}:\n{}", log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until training has gone on for at least one report.
    pub fn until_training(&mut self) {
        let metrics = self.folder.path().join("run/metrics.csv");
        let lines = |path| fs::read_to_string(path).unwrap_or_default().lines().count();
        self.until("the first report", |_| lines(&metrics) > 1);
    }

    pub fn signal(&self, signal: Signal) {
        kill(pid(self.child.id()), signal).unwrap();
    }

    /// Sends a signal to the process of a rank only.
    pub fn signal_rank(&self, rank: usize, signal: Signal) {
        let variable = format!("RANK={rank}");
        let found = self.processes_with(&variable);
        assert_eq!(found.len(), 1, "processes of rank {rank}");
        kill(pid(found[0]), signal).unwrap();
    }

    /// Sends a signal to the process of a rank, and tells whether there was one.
    pub fn try_signal_rank(&self, rank: usize, signal: Signal) -> bool {
        let found = self.processes_with(&format!("RANK={rank}"));
        found.first().is_some_and(|id| kill(pid(*id), signal).is_ok())
    }

    /// Every process that it started and that still runs, itself included.
    pub fn processes(&self) -> Vec<u32> {
        self.processes_with(&self.mark)
    }

    fn processes_with(&self, variable: &str) -> Vec<u32> {
        let ids = fs::read_dir("/proc").unwrap().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
        let has = |id: &u32| {
            let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            let entries: Vec<&[u8]> = environment.split(|byte| *byte == 0).collect();
            [variable, &self.mark].iter().all(|wanted| entries.contains(&wanted.as_bytes()))
        };
        ids.filter(has).collect()
    }

    pub fn run_folder(&self) -> PathBuf {
        self.folder.path().join("run")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, and then there is nothing to kill.
        let _ = killpg(pid(self.child.id()), Signal::SIGKILL);
        let _ = self.child.wait();
        for process in self.processes() {
            let _ = kill(pid(process), Signal::SIGKILL);
        }
    }
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap())
}

impl Ended {
    pub fn run_folder(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub fn summary(&self) -> serde_json::Value {
        let path = self.run_folder().join("summary.json");
        let text = fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("no summary: {error}\n{}", self.log()));
        serde_json::from_str(&text).unwrap()
    }

    pub fn fingerprint(&self) -> String {
        self.summary()["parameters_xxh3"].as_str().unwrap().to_string()
    }

    pub fn log(&self) -> String {
        let signal = self.status.signal();
        let (status, out, errors) = (self.status, &self.stdout, &self.stderr);
        format!("{status} (signal {signal:?})\n-- stdout:\n{out}-- stderr:\n{errors}")
    }

    /// Asserts that the errors say each of `parts`, on one line and once.
    #[track_caller]
    pub fn says_once(&self, parts: &[&str]) {
        let says = |line: &&str| parts.iter().all(|part| line.contains(part));
        let count = self.stderr.lines().filter(says).count();
        assert_eq!(count, 1, "lines with {parts:?} in\n{}", self.log());
    }

    #[track_caller]
    pub fn says(&self, part: &str) {
        assert!(self.stderr.contains(part), "{part:?} is missing in\n{}", self.log());
    }
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
