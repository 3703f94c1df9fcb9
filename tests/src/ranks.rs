//! Ranks that are processes: this program, started again.

use bonfire_comm::{InitOptions, ProcessGroup, RankEnv, init_process_group};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Set in a process that is a rank.
const ROLE: &str = "BONFIRE_TEST_ROLE";
/// Precedes a rank's result on its line.
const RESULT: &str = "BONFIRE-TEST-RESULT ";
/// Deadline of a rank's rendezvous and collectives, well below that of a test.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// What a rank left behind.
#[derive(Debug)]
pub struct RankOutput {
    /// Its number.
    pub rank: usize,
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to its standard output and error.
    pub log: String,
}

impl RankOutput {
    /// The result that the rank reported.
    ///
    /// # Panics
    /// Without one, showing the log.
    pub fn result<T: DeserializeOwned>(&self) -> T {
        let mut lines = self.log.lines().rev();
        let Some(json) = lines.find_map(|line| Some(line.split_once(RESULT)?.1)) else {
            panic!("a rank reported no result\n{}", show(std::slice::from_ref(self)));
        };
        serde_json::from_str(json).unwrap()
    }
}

/// Whether this process is a rank.
pub fn is_rank() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// In a process that is a rank, joins the others, does `work`, reports what it returns, and returns
/// true; in any other process returns false.
pub fn as_rank<T: Serialize>(work: impl FnOnce(&ProcessGroup) -> T) -> bool {
    if !is_rank() {
        return false;
    }
    let env = RankEnv::detect().unwrap().unwrap();
    let options = InitOptions::default().with_timeout(COLLECTIVE_TIMEOUT);
    let group = init_process_group(&env, options).unwrap();
    let result = work(&group);
    // The test harness leaves its own line unfinished.
    println!("\n{RESULT}{}", serde_json::to_string(&result).unwrap());
    true
}

/// Starts `world` processes that run the test called `test` as ranks, with the variables `env`, and
/// waits for their end.
///
/// # Panics
/// When they have not ended after `deadline`; they are killed then, and their logs shown.
pub fn run_ranks(
    world: usize,
    test: &str,
    env: &[(&str, &str)],
    deadline: Duration,
) -> Vec<RankOutput> {
    let port = free_port();
    let mut ranks: Vec<RankProcess> =
        (0..world).map(|rank| RankProcess::start(rank, world, port, test, env)).collect();
    let end = Instant::now() + deadline;
    let mut late = false;
    while !late && ranks.iter_mut().any(RankProcess::is_running) {
        late = Instant::now() >= end;
        std::thread::sleep(POLL);
    }
    if late {
        ranks.iter_mut().for_each(RankProcess::kill);
    }
    let outputs: Vec<RankOutput> = ranks.iter_mut().map(RankProcess::finish).collect();
    assert!(!late, "{test}: not done after {deadline:?}\n{}", show(&outputs));
    outputs
}

/// The results of ranks that all have to end well, in their order.
///
/// # Panics
/// When one did not, showing the logs of all.
pub fn results<T: DeserializeOwned>(outputs: &[RankOutput]) -> Vec<T> {
    assert!(outputs.iter().all(|output| output.status.success()), "{}", show(outputs));
    outputs.iter().map(RankOutput::result).collect()
}

fn show(outputs: &[RankOutput]) -> String {
    let one = |output: &RankOutput| {
        format!("---- rank {} ({}):\n{}\n", output.rank, output.status, output.log)
    };
    outputs.iter().map(one).collect()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A running rank; dropping it kills it.
struct RankProcess {
    rank: usize,
    child: Child,
    log: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl RankProcess {
    fn start(rank: usize, world: usize, port: u16, test: &str, env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, "rank")
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("LOCAL_WORLD_SIZE", world.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("BONFIRE_TOKEN", format!("bonfire-tests-{}-{port}", std::process::id()))
            .env("RAYON_NUM_THREADS", "1")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let readers = vec![
            collect(child.stdout.take().unwrap(), log.clone()),
            collect(child.stderr.take().unwrap(), log.clone()),
        ];
        Self { rank, child, log, readers }
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
    }

    fn finish(&mut self) -> RankOutput {
        let status = self.child.wait().unwrap();
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner).clone();
        RankOutput { rank: self.rank, status, log }
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// Appends what comes through a pipe to `log`, line by line.
fn collect(pipe: impl Read + Send + 'static, log: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    })
}
