//! All sections, within minutes.

use crate::record::Record;
use crate::{Place, Precision, Result, Section, word};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Where to write, and how long it may take.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of record.json and record.md.
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = Place::Cuda)]
    device: Place,
    /// The script of PyTorch to measure beside; none leaves it out.
    #[arg(long)]
    torch: Option<PathBuf>,
    /// Python with PyTorch.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Seconds for everything: what does not fit is left out, and said to be.
    #[arg(long, default_value_t = 470)]
    limit: u64,
    /// Images in a batch.
    #[arg(long, default_value_t = 256)]
    batch: usize,
    /// Rows and columns of an image.
    #[arg(long, default_value_t = 224)]
    image: usize,
    /// Runs these sections only.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// One thing to run.
struct Task {
    name: String,
    command: Vec<String>,
    limit: Duration,
}

impl Args {
    fn section(&self, section: Section, limit: u64) -> Task {
        let command = vec!["section".into(), word(section), "--device".into(), word(self.device)];
        Task { name: word(section), command, limit: Duration::from_secs(limit) }
    }

    fn timed(&self, section: Section, precision: Precision, limit: u64) -> Task {
        let mut task = self.section(section, limit);
        task.name = format!("{} {}", task.name, word(precision));
        for (key, value) in [
            ("--precision", word(precision)),
            ("--batch", self.batch.to_string()),
            ("--image", self.image.to_string()),
        ] {
            task.command.extend([key.to_owned(), value]);
        }
        task
    }

    fn torch(&self, precision: &str, compile: bool, limit: u64) -> Option<Task> {
        let script = self.torch.as_ref()?;
        let mut command: Vec<String> = vec![
            self.python.display().to_string(),
            script.display().to_string(),
            "--precision".into(),
            precision.into(),
            "--limit-s".into(),
            "12".into(),
            "--device".into(),
            word(self.device),
            "--batch".into(),
            self.batch.to_string(),
            "--image".into(),
            self.image.to_string(),
        ];
        if compile {
            command.push("--compile".into());
        }
        let name = format!("torch {precision}{}", if compile { " compiled" } else { "" });
        Some(Task { name, command, limit: Duration::from_secs(limit) })
    }

    /// What matters most comes first.
    fn tasks(&self) -> Vec<Task> {
        let mut tasks = vec![
            self.section(Section::Environment, 30),
            self.section(Section::ConformanceOne, 40),
            self.section(Section::ConformanceTwo, 60),
            self.section(Section::EqualityOne, 90),
            self.section(Section::EqualityTwo, 90),
            self.timed(Section::Throughput, Precision::Bf16, 100),
        ];
        tasks.extend(self.torch("bf16", false, 45));
        tasks.extend([
            self.timed(Section::Kernels, Precision::Bf16, 60),
            self.timed(Section::Throughput, Precision::Fp16, 70),
            self.timed(Section::Throughput, Precision::F32, 70),
        ]);
        tasks.extend(self.torch("fp16", false, 40));
        // Burn multiplies f32 with TF32 where a GPU has it.
        let single = if self.device == Place::Cuda { "tf32" } else { "f32" };
        tasks.extend(self.torch(single, false, 45));
        tasks.push(self.section(Section::EqualityStaged, 60));
        tasks.extend(self.torch("bf16", true, 80));
        if self.only.is_empty() {
            return tasks;
        }
        tasks.retain(|task| self.only.iter().any(|name| task.name.starts_with(name.as_str())));
        tasks
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    std::fs::create_dir_all(&args.out)?;
    let end = Instant::now() + Duration::from_secs(args.limit);
    let mut record = Record::default();
    for task in args.tasks() {
        let left = end.saturating_duration_since(Instant::now());
        let limit = task.limit.min(left);
        let start = Instant::now();
        let outcome = match limit < Duration::from_secs(5) {
            true => Err("left out: the time is over".to_owned()),
            false => attempt(&task, limit),
        };
        let seconds = start.elapsed().as_secs_f64();
        match &outcome {
            Ok(_) => println!("{}: passed in {seconds:.1} s", task.name),
            Err(error) => println!("{}: FAILED after {seconds:.1} s: {error}", task.name),
        }
        record.add(&task.name, outcome, seconds);
        // After each: a machine that goes away leaves what was found.
        record.write(&args.out)?;
    }
    println!("{}", record.table());
    match record.failures() {
        0 => Ok(()),
        failures => Err(format!("{failures} section(s) failed or were left out").into()),
    }
}

/// Runs a task to its end or its limit; returns the JSON that it printed last.
fn attempt(task: &Task, limit: Duration) -> std::result::Result<Value, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = match task.command.first().map(String::as_str) {
        Some("section") => {
            let mut command = Command::new(own);
            command.args(&task.command);
            command
        }
        Some(program) => {
            let mut command = Command::new(program);
            command.args(&task.command[1..]);
            command
        }
        None => return Err("nothing to run".into()),
    };
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot be started: {error}"))?;
    // Both are read while it runs: a full pipe would stop it.
    let collect = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut pipe) = pipe {
                // What came before an error is what there is.
                let _ = pipe.read_to_end(&mut text);
            }
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = collect(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let err = collect(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
            Ok(None) => {
                // With its ranks, which would hold the GPU. It may have ended by itself.
                let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
                let _ = child.wait();
                break None;
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    let tail = |text: &str| {
        let lines: Vec<&str> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    };
    match status {
        Some(status) if status.success() => {
            let last = out.lines().rev().find_map(|line| serde_json::from_str(line).ok());
            last.ok_or_else(|| format!("printed no JSON: {}", tail(&out)))
        }
        Some(status) => Err(format!("{status}: {}", tail(&err))),
        None => Err(format!("killed after {:.0} s: {}", limit.as_secs_f64(), tail(&err))),
    }
}
