//! Tests with shell scripts as workers. Every test has a deadline.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::launch::launch_with as launch_here;
use crate::{Exit, Labels, Launch, LaunchError, LaunchOutcome, WorkerSpec, launch};

const DEADLINE: Duration = Duration::from_secs(30);

/// Names the variables through which a test tells [`as_launcher`] what to run.
const SCRIPT: &str = "LAUNCH_TEST_SCRIPT";
const RUN_ID: &str = "LAUNCH_TEST_RUN_ID";

fn unique_run_id() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Marks the processes of a test.
const MARK: &str = "LAUNCH_TEST_MARK";

fn spec(nproc: usize, script: &str) -> Launch {
    let mut spec = WorkerSpec::new("/bin/sh");
    spec.args = vec!["-c".into(), script.into()];
    spec.env = vec![(MARK.into(), unique_run_id())];
    spec.peer_pause = Duration::from_millis(300);
    spec.shutdown_timeout = Duration::from_millis(300);
    Launch::new(spec, nproc)
}

fn mark(launch: &Launch) -> String {
    launch.spec.env[0].1.clone()
}

/// Launches under a deadline, with the signals that `signals` makes up.
fn launch_with(
    spec: Launch,
    mut signals: impl FnMut() -> Vec<i32> + Send + 'static,
) -> Result<LaunchOutcome, LaunchError> {
    let (sender, receiver) = mpsc::channel();
    let run_id = mark(&spec);
    std::thread::spawn(move || drop(sender.send(launch_here(&spec, &mut signals))));
    let outcome = receiver.recv_timeout(DEADLINE).expect("the launcher did not return in time");
    assert_none_left(&run_id);
    outcome
}

fn run(nproc: usize, script: &str) -> LaunchOutcome {
    launch_with(spec(nproc, script), Vec::new).unwrap()
}

/// Sends each signal once its file exists in `folder`.
fn signal_when(
    folder: &Path,
    script: Vec<(&'static str, Signal)>,
) -> impl FnMut() -> Vec<i32> + Send + 'static {
    let folder = folder.to_owned();
    let mut left = script.into_iter().peekable();
    move || match left.next_if(|(file, _)| folder.join(file).exists()) {
        Some((_, signal)) => vec![signal as i32],
        None => Vec::new(),
    }
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "deadline: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Lists the processes whose environment says that they belong to the run.
fn members(run_id: &str) -> Vec<String> {
    let mark = format!("{MARK}={run_id}");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let belongs = |path: &Path| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == mark.as_bytes())
    };
    processes
        .filter(|entry| belongs(&entry.path()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[track_caller]
fn assert_none_left(run_id: &str) {
    // A killed process keeps its environment for a moment.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) && !members(run_id).is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(members(run_id), Vec::<String>::new());
}

#[test]
fn all_ranks_finish_and_know_who_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let names = "$RANK $LOCAL_RANK $GROUP_RANK $GROUP_WORLD_SIZE $WORLD_SIZE $LOCAL_WORLD_SIZE \
                 $MASTER_ADDR $BONFIRE_STORE_HOSTED $BONFIRE_RESTART_COUNT $BONFIRE_MAX_RESTARTS \
                 $BONFIRE_LAUNCH_TIME_NS $RAYON_NUM_THREADS $OMP_NUM_THREADS $EXTRA ${#BONFIRE_TOKEN} \
                 ${#BONFIRE_RUN_ID}";
    let script = format!(
        "echo {names} > $OUT/$RANK; test -d ${{BONFIRE_ERROR_FILE%/*}} && \
         test $MASTER_PORT = $BONFIRE_STORE_PORT"
    );
    let mut launch = spec(3, &script);
    let out = folder.path().to_string_lossy().into_owned();
    let more = [("OUT", out.as_str()), ("EXTRA", "more"), ("RANK", "9")];
    launch.spec.env.extend(more.map(|(name, value)| (name.to_owned(), value.to_owned())));
    launch.spec.launch_time_ns = 17;
    launch.spec.threads_per_rank = Some(2);
    launch.max_restarts = 4;
    assert!(!format!("{launch:?}").contains("more"), "variables may be secret");
    let outcome = launch_with(launch, Vec::new).unwrap();
    assert_eq!((outcome.exit_code, outcome.failure), (0, None));
    assert_eq!(outcome.summary, "all 3 ranks finished");
    for rank in 0..3 {
        let written = fs::read_to_string(folder.path().join(rank.to_string())).unwrap();
        let expected = format!("{rank} {rank} 0 1 3 3 127.0.0.1 1 0 4 17 2 2 more 32 16\n");
        assert_eq!(written, expected);
    }
}

#[test]
fn failed_ranks_are_started_again_while_restarts_last() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; echo $BONFIRE_RESTART_COUNT >> seen-$RANK; [ $RANK = 0 ] && sleep 30; \
         [ $BONFIRE_RESTART_COUNT = 2 ] || exit 7",
        folder.path().display()
    );
    let mut launch = spec(2, &script.replace("sleep 30", "exec sleep 0.1"));
    (launch.max_restarts, launch.backoff) = (2, Duration::from_millis(10));
    assert_eq!(launch_with(launch, Vec::new).unwrap().exit_code, 0);
    let seen = |rank| fs::read_to_string(folder.path().join(format!("seen-{rank}"))).unwrap();
    assert_eq!((seen(0).as_str(), seen(1).as_str()), ("0\n1\n2\n", "0\n1\n2\n"));
    let mut launch = spec(2, &script);
    (launch.max_restarts, launch.backoff) = (1, Duration::from_millis(10));
    let outcome = launch_with(launch, Vec::new).unwrap();
    assert_eq!(outcome.summary, "rank 1 exited with code 7");
}

#[test]
fn a_rank_that_stops_by_itself_is_waited_for_like_the_others() {
    let outcome = run(2, "[ $RANK = 1 ] && exit 143; sleep 1; exit 143");
    assert_eq!((outcome.exit_code, outcome.failure), (143, None));
}

#[test]
fn output_is_labelled_kept_and_filtered() {
    let folder = tempfile::tempdir().unwrap();
    let mut launch = spec(3, "echo out $RANK; echo err $RANK >&2");
    launch.spec.streams.logs = Some(folder.path().to_owned());
    launch.spec.streams.redirects = "0:1,1:3".parse().unwrap();
    launch.spec.streams.tee = "1:1".parse().unwrap();
    launch.spec.streams.labels = Labels::Words;
    assert_eq!(launch_with(launch, Vec::new).unwrap().exit_code, 0);
    let kept = |rank: usize, stream: &str| {
        fs::read_to_string(folder.path().join(format!("attempt_0/{rank}/{stream}.log"))).ok()
    };
    assert_eq!(kept(0, "stdout").as_deref(), Some("out 0\n"));
    assert_eq!(kept(0, "stderr"), None);
    assert_eq!(kept(1, "stdout").as_deref(), Some("out 1\n"));
    assert_eq!(kept(1, "stderr").as_deref(), Some("err 1\n"));
    assert_eq!(kept(2, "stdout"), None);
}

#[test]
fn one_failure_ends_the_run_with_its_exit_code() {
    let start = Instant::now();
    let outcome = run(3, "if [ $RANK = 1 ]; then exit 3; fi; sleep 60");
    assert_eq!((outcome.exit_code, outcome.summary.as_str()), (3, "rank 1 exited with code 3"));
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_killed_rank_is_the_cause_even_if_a_peer_is_seen_to_fail_first() {
    let mut spec = spec(3, "[ $RANK = 1 ] && kill -9 $$; exit 1");
    spec.spec.peer_pause = Duration::from_secs(10);
    let outcome = launch_with(spec, Vec::new).unwrap();
    assert_eq!(outcome.exit_code, 137);
    assert_eq!(outcome.summary, "rank 1 was killed by signal 9 (SIGKILL)");
    assert_eq!(outcome.failure.unwrap().exit, Exit::Signal(9));
}

#[test]
fn the_error_file_is_part_of_the_summary() {
    let outcome = run(2, "[ $RANK = 0 ] || { echo 'no data' > $BONFIRE_ERROR_FILE; exit 1; }");
    assert_eq!(outcome.summary, "rank 1 exited with code 1: no data");
}

#[test]
fn peers_may_report_before_they_are_terminated() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; trap 'touch terminated; exit' TERM; [ $RANK = 1 ] && exit 5; sleep 0.5; touch told",
        folder.path().display()
    );
    let mut spec = spec(2, &script);
    spec.spec.peer_pause = Duration::from_secs(10);
    let start = Instant::now();
    assert_eq!(launch_with(spec, Vec::new).unwrap().exit_code, 5);
    assert!(folder.path().join("told").exists() && !folder.path().join("terminated").exists());
    assert!(start.elapsed() < Duration::from_secs(8), "the pause ends with the last rank");
}

#[test]
fn ranks_that_ignore_sigterm_are_killed_after_the_grace_time() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; trap '' TERM; [ $RANK = 1 ] && touch deaf; \
         while [ $RANK = 1 ] || [ ! -e deaf ]; do sleep 0.05; done; exit 4",
        folder.path().display()
    );
    let start = Instant::now();
    assert_eq!(run(2, &script).exit_code, 4);
    assert!(start.elapsed() >= Duration::from_millis(600), "pause and grace time");
}

#[test]
fn what_a_rank_leaves_running_is_killed() {
    let outcome = run(2, "sleep 1000 & sleep 1000 & exit 0");
    assert_eq!(outcome.exit_code, 0);
}

#[test]
fn a_forwarded_signal_is_obeyed_without_a_time_limit() {
    let folder = tempfile::tempdir().unwrap();
    // Rank 0 needs longer for its last checkpoint than the pause and the grace time together.
    let script = format!(
        "cd {}; trap 'sleep $((2 - 2 * RANK)); touch saved-$RANK; exit 143' TERM; \
         [ $RANK = 0 ] || sleep 0.5; touch ready-$RANK; while :; do sleep 0.05; done",
        folder.path().display()
    );
    let signals = signal_when(folder.path(), vec![("ready-1", Signal::SIGTERM)]);
    let outcome = launch_with(spec(2, &script), signals).unwrap();
    assert_eq!((outcome.exit_code, outcome.failure), (143, None));
    assert_eq!(outcome.summary, "all ranks stopped after SIGTERM (exit code 143)");
    assert!(folder.path().join("saved-0").exists() && folder.path().join("saved-1").exists());
}

#[test]
fn a_request_for_a_report_does_not_stop_the_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; trap 'touch dumped; exit 6' USR2; touch ready; while :; do sleep 0.05; done",
        folder.path().display()
    );
    let signals = signal_when(folder.path(), vec![("ready", Signal::SIGUSR2)]);
    let outcome = launch_with(spec(1, &script), signals).unwrap();
    // The shell may say that it was signalled.
    assert!(outcome.summary.starts_with("rank 0 exited with code 6"), "{}", outcome.summary);
    assert!(folder.path().join("dumped").exists());
}

#[test]
fn a_second_interrupt_kills() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; trap 'touch interrupted' INT; touch ready; while :; do sleep 0.05; done",
        folder.path().display()
    );
    let twice = vec![("ready", Signal::SIGINT), ("interrupted", Signal::SIGINT)];
    let outcome = launch_with(spec(1, &script), signal_when(folder.path(), twice)).unwrap();
    assert_eq!((outcome.exit_code, outcome.failure), (130, None));
    assert_eq!(outcome.summary, "all ranks were killed after a second SIGINT");
}

#[test]
fn ranks_that_ask_to_be_requeued_do_not_fail() {
    let outcome = run(2, "sleep 0.$RANK; exit 75");
    assert_eq!((outcome.exit_code, outcome.failure), (75, None));
}

#[test]
fn a_program_that_cannot_be_started_is_an_error() {
    let mut missing = spec(2, "");
    missing.spec.program = "/no/such/program".into();
    let error = launch_with(missing, Vec::new).unwrap_err().to_string();
    assert!(error.starts_with("rank 0: cannot start /no/such/program: No such file"), "{error}");
    assert!(matches!(launch_with(spec(0, ""), Vec::new), Err(LaunchError::NoRanks)));
}

/// Not a test by itself: a launcher in a process of its own, for the tests below.
#[test]
fn as_launcher() {
    let (Ok(script), Ok(run_id)) = (std::env::var(SCRIPT), std::env::var(RUN_ID)) else { return };
    let mut spec = spec(2, &script);
    spec.spec.env[0].1 = run_id;
    std::process::exit(launch(&spec).unwrap().exit_code);
}

/// A launcher in a process of its own, killed when dropped, with a folder for what it leaves.
struct Launcher {
    process: Child,
    folder: tempfile::TempDir,
}

impl Launcher {
    fn start(script: &str, run_id: &str) -> Self {
        let module = module_path!().split_once("::").unwrap().1;
        let folder = tempfile::tempdir().unwrap();
        let errors = fs::File::create(folder.path().join("stderr")).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("{module}::as_launcher"), "--exact", "--nocapture"]);
        command.env(SCRIPT, script).env(RUN_ID, run_id).env("TMPDIR", folder.path());
        let process = command.stdout(Stdio::null()).stderr(errors).spawn().unwrap();
        Self { process, folder }
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the launcher ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_real_interrupt_reaches_the_ranks() {
    let (folder, run_id) = (tempfile::tempdir().unwrap(), unique_run_id());
    let script = format!(
        "cd {}; trap 'exit 130' INT; touch ready-$RANK; while :; do sleep 0.05; done",
        folder.path().display()
    );
    let mut launcher = Launcher::start(&script, &run_id);
    until("both ranks are ready", || {
        [0, 1].iter().all(|rank| folder.path().join(format!("ready-{rank}")).exists())
    });
    launcher.signal(Signal::SIGINT);
    assert_eq!(launcher.wait().code(), Some(130));
    assert_none_left(&run_id);
}

#[test]
fn ranks_die_with_a_killed_launcher() {
    let run_id = unique_run_id();
    let mut launcher = Launcher::start("exec sleep 1000", &run_id);
    until("both ranks run", || members(&run_id).len() == 2);
    launcher.signal(Signal::SIGKILL);
    launcher.wait();
    assert_none_left(&run_id);
}

#[test]
fn output_of_ranks_is_prefixed() {
    let run_id = unique_run_id();
    let mut launcher = Launcher::start("echo out $RANK; echo err $RANK >&2", &run_id);
    assert_eq!(launcher.wait().code(), Some(0));
    let errors = launcher.errors();
    let mut lines: Vec<&str> = errors.lines().filter(|line| line.contains("err")).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[rank 0] err 0", "[rank 1] err 1"]);
}
