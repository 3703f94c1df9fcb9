//! `cargo xtask soak kill-resume`: runs that are killed again and again, and started again by the same
//! command, must come to what an uninterrupted one comes to.

mod samples;

use super::random::Random;
use crate::cargo::{build_release, command, output, root};
use crate::{Result, record};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// How often, and from where.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kills, over as many runs as it takes.
    #[arg(long, default_value_t = 200)]
    kills: usize,
    /// Where the random numbers begin; a new place every time when it is not given.
    #[arg(long)]
    seed: Option<u64>,
}

const RANKS: usize = 2;
const EPOCHS: u64 = 4;
/// Training images of the digits.
const SAMPLES: usize = 1438;
/// Kills of one run, then it may come to its end.
const KILLS_OF_A_RUN: usize = 20;
/// Longest time of a start that is not killed.
const DEADLINE: Duration = Duration::from_secs(120);

/// Who was killed, when, and where the run stood after it.
struct Kill {
    victim: &'static str,
    while_saving: bool,
    /// Newest step saved, if any.
    step: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = build_release()?.bonfire;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let seed = args.seed.unwrap_or(now.as_nanos() as u64);
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let folder = tempfile::tempdir()?;

    let whole = Run { program: &program, out: folder.path().join("whole") };
    let start = Instant::now();
    whole.finish()?;
    let taken = start.elapsed();
    let expected = whole.fingerprint()?;
    let values = whole.values()?;
    // So that a run is killed often before it ends, and mostly while it trains.
    let longest = whole.first_step()? + taken * 2 / KILLS_OF_A_RUN as u32;
    samples::check(&whole.out, RANKS, EPOCHS, SAMPLES)?;

    let (mut kills, mut failures, mut runs) = (Vec::new(), Vec::new(), 0);
    while kills.len() < args.kills {
        runs += 1;
        let run = Run { program: &program, out: folder.path().join(format!("run-{runs}")) };
        let wanted = KILLS_OF_A_RUN.min(args.kills - kills.len());
        for number in 0..wanted {
            match run.kill(longest, &mut random) {
                Ok(Some(kill)) => kills.push(kill),
                Ok(None) => break,
                Err(error) => failures.push(format!("run {runs}, kill {number}: {error}")),
            }
        }
        let end = run.finish().and_then(|()| {
            samples::check(&run.out, RANKS, EPOCHS, SAMPLES)?;
            let found = run.fingerprint()?;
            match found == expected && run.values()? == values {
                true => Ok(()),
                false => Err(format!(
                    "parameters_xxh3 {found}, uninterrupted {expected}; or other buffers or averages"
                )
                .into()),
            }
        });
        println!("run {runs}: {} kills so far", kills.len());
        failures.extend(end.err().map(|error| format!("run {runs}: {error}")));
        if failures.len() > 3 {
            break;
        }
    }
    let text = report(seed, taken, &expected, runs, &kills, &failures);
    print!("\n{text}");
    record::write("soak-kill-resume", &text)?;
    match failures.len() {
        0 => Ok(()),
        count => Err(format!("{count} failures").into()),
    }
}

/// A run and the command that starts and continues it.
struct Run<'a> {
    program: &'a Path,
    out: PathBuf,
}

impl Run<'_> {
    fn command(&self) -> Command {
        let mut command = command(self.program);
        command.arg("train").arg(root().join("configs/digits.toml"));
        command.arg("--nproc-per-node").arg(RANKS.to_string());
        command.arg("--out").arg(&self.out).args(["--resume", "auto"]);
        let epochs = format!("train.max_epochs={EPOCHS}");
        for value in [
            epochs.as_str(),
            "model={kind=\"resnet\",depth=8,width=4}",
            "data.batch_size=2",
            "checkpoint.every_n_steps=3",
            "checkpoint.keep_best=true",
            "average={kind=\"ema\",decay=0.99}",
            "log.samples=true",
        ] {
            command.args(["--set", value]);
        }
        command.env("RAYON_NUM_THREADS", "1");
        command
    }

    fn start(&self, log: &Path) -> Result<Child> {
        let file = std::fs::File::create(log)?;
        let mut command = self.command();
        Ok(command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?)
    }

    /// Starts it and kills one of its processes at a random time; waits for the others. `None` if it
    /// has come to its end.
    fn kill(&self, longest: Duration, random: &mut Random) -> Result<Option<Kill>> {
        let log = self.out.with_extension("log");
        loop {
            let mut child = self.start(&log)?;
            let delay = random.below(longest.as_micros() as usize);
            std::thread::sleep(Duration::from_micros(delay as u64));
            let while_saving = self.is_saving();
            let ranks = ranks_of(child.id());
            let (victim, process) = match random.below(1 + RANKS) {
                0 => ("launcher", Some(child.id())),
                1 => ("rank 0", ranks.first().copied()),
                _ => ("rank 1", ranks.get(1).copied()),
            };
            let killed = process.is_some_and(|id| {
                let id = nix::unistd::Pid::from_raw(id as i32);
                nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL).is_ok()
            });
            if !killed {
                child.kill()?;
            }
            let status = wait(&mut child, DEADLINE)?;
            self.await_ranks(&ranks)?;
            if status.success() {
                return Ok(None);
            }
            let said = std::fs::read_to_string(&log)?;
            if said.contains("trying the checkpoint before it") {
                return Err(format!("a damaged checkpoint was met\n{said}").into());
            }
            let step = self.verify()?;
            if killed {
                return Ok(Some(Kill { victim, while_saving, step }));
            }
        }
    }

    /// Waits until the ranks of a killed launcher are gone.
    fn await_ranks(&self, ranks: &[u32]) -> Result<()> {
        let start = Instant::now();
        while ranks.iter().any(|id| runs(*id)) {
            if start.elapsed() > DEADLINE {
                return Err("ranks outlived their launcher".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Runs it to its end.
    fn finish(&self) -> Result<()> {
        let log = self.out.with_extension("log");
        let mut child = self.start(&log)?;
        let status = wait(&mut child, DEADLINE)?;
        let said = std::fs::read_to_string(&log)?;
        match status.success() && !said.contains("trying the checkpoint before it") {
            true => Ok(()),
            false => Err(format!("{status}\n{said}").into()),
        }
    }

    /// Whether a checkpoint is being written.
    fn is_saving(&self) -> bool {
        let entries = std::fs::read_dir(self.out.join("checkpoints")).into_iter().flatten();
        let mut names = entries.flatten().map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().ends_with(".partial"))
    }

    /// Checks every checkpoint with the program's own command; returns the step of the newest.
    fn verify(&self) -> Result<Option<u64>> {
        let pointer = self.out.join("checkpoints/latest");
        let Ok(latest) = std::fs::read_to_string(pointer) else { return Ok(None) };
        output(command(self.program).args(["checkpoint", "verify"]).arg(&self.out))?;
        Ok(latest.trim().strip_prefix("step-").and_then(|step| step.parse().ok()))
    }

    fn summary(&self) -> Result<serde_json::Value> {
        let text = std::fs::read_to_string(self.out.join("summary.json"))?;
        Ok(serde_json::from_str(&text)?)
    }

    fn fingerprint(&self) -> Result<String> {
        let summary = self.summary()?;
        let value = summary["parameters_xxh3"].as_str();
        Ok(value.ok_or("summary.json has no parameters_xxh3")?.to_string())
    }

    /// All values of the model and of its average.
    fn values(&self) -> Result<[Vec<u8>; 2]> {
        let read = |name| std::fs::read(self.out.join(name));
        Ok([read("model.safetensors")?, read("model_ema.safetensors")?])
    }

    /// How long it took to the first step.
    fn first_step(&self) -> Result<Duration> {
        let seconds = self.summary()?["seconds_to_first_step"].as_f64();
        Ok(Duration::from_secs_f64(seconds.ok_or("summary.json has no seconds_to_first_step")?))
    }
}

fn wait(child: &mut Child, deadline: Duration) -> Result<std::process::ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(format!("it has not ended after {} s", deadline.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The processes that a launcher has started, in the order of their ranks.
fn ranks_of(launcher: u32) -> Vec<u32> {
    let path = format!("/proc/{launcher}/task/{launcher}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let rank = |id: &u32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let entries = environment.split(|byte| *byte == 0);
        let rank = entries.filter_map(|entry| entry.strip_prefix(b"RANK=".as_slice())).next();
        rank.map(<[u8]>::to_vec)
    };
    let mut ids: Vec<u32> = children.split_whitespace().filter_map(|id| id.parse().ok()).collect();
    ids.retain(|id| rank(id).is_some());
    ids.sort_by_key(rank);
    ids
}

/// Whether a process runs, and not only waits to be buried.
fn runs(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

fn report(
    seed: u64,
    taken: Duration,
    expected: &str,
    runs: usize,
    kills: &[Kill],
    failures: &[String],
) -> String {
    let mut text = format!(
        "A ResNet-8 on the digits, {RANKS} ranks, {EPOCHS} epochs of 360 steps, a checkpoint after every third step, with EMA \
         and the best checkpoint kept; `bonfire train --resume auto` started again after every SIGKILL. \
         Seed {seed}. Uninterrupted: {:.1} s, parameters_xxh3 {expected}.\n\n\
         {} kills of {runs} runs. After each kill every checkpoint of the folder was verified; at the end of each run \
         parameters, running statistics and average were compared byte by byte, and the samples of every epoch counted from the logs of both ranks.\n\n\
         | killed | times | while a checkpoint was being written | before the first checkpoint |\n\
         |---|---|---|---|\n",
        taken.as_secs_f64(),
        kills.len(),
    );
    for victim in ["launcher", "rank 0", "rank 1"] {
        let of: Vec<&Kill> = kills.iter().filter(|kill| kill.victim == victim).collect();
        text.push_str(&format!(
            "| {victim} | {} | {} | {} |\n",
            of.len(),
            of.iter().filter(|kill| kill.while_saving).count(),
            of.iter().filter(|kill| kill.step.is_none()).count(),
        ));
    }
    match failures.is_empty() {
        true => text.push_str("\nEvery run came to the parameters of the uninterrupted one, and saw every sample once an epoch.\n"),
        false => failures.iter().for_each(|failure| text.push_str(&format!("\nFAILED: {failure}\n"))),
    }
    text
}
