//! Starts the ranks of this machine, as processes or as threads.

use crate::CliError;
use crate::exit::Outcome;
use crate::launch_args::{LaunchArgs, LaunchOptions};
use crate::process::{COMMAND, command_line, launch_time};
use crate::voice::{LogFormat, complain, environment, say, voice};
use bonfire_comm::{ProcessGroup, local};
use bonfire_launch::{
    Console, Exit, Labels, Launch, LaunchError, LaunchOutcome, Meet, Streams, WorkerSpec, launch,
};
use std::ffi::OsString;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// The port where nodes meet that take their places by arrival, as torchrun's.
const MEETING_PORT: u16 = 29400;
/// The port of the first node's store, as torchrun's.
const STORE_PORT: u16 = 29500;

/// `bonfire launch`: starts any program.
pub(crate) fn launch_program(args: &LaunchArgs) -> Result<Outcome, CliError> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Ok(Outcome::Done);
    };
    let mut spec = WorkerSpec::new(program);
    spec.args = arguments.to_vec();
    let launch = describe(spec, &args.options, args.insecure)?;
    if let Some(threads) = launch.threads_in_words() {
        say(format_args!(
            "{threads} for each of {} ranks on this node; set them yourself to change that",
            launch.nproc
        ));
    }
    run(&launch)
}

/// Starts this program with `args` for every rank of this node, and waits for the run to end.
pub(crate) fn launch_own(
    args: Vec<OsString>,
    options: &LaunchOptions,
    insecure: bool,
) -> Result<Outcome, CliError> {
    run(&describe(own(args)?, options, insecure)?)
}

/// Starts this program with `args` for as many ranks, all on this machine.
pub(crate) fn launch_here(args: Vec<OsString>, ranks: usize) -> Result<Outcome, CliError> {
    let mut spec = own(args)?;
    spec.streams.labels = labels();
    run(&Launch::new(spec, ranks))
}

/// This program as the ranks', of which the first has the terminal.
fn own(args: Vec<OsString>) -> Result<WorkerSpec, CliError> {
    let program = std::env::current_exe().map_err(|source| CliError::Io {
        action: "finding",
        path: "this program".into(),
        source,
    })?;
    let mut spec = WorkerSpec::new(program);
    spec.args = args;
    spec.streams.console = Console::FirstHasTheTerminal;
    spec.env = vec![(COMMAND.to_string(), command_line())];
    spec.env.extend(environment());
    spec.launch_time_ns =
        launch_time().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    Ok(spec)
}

fn labels() -> Labels {
    match voice().log_format {
        LogFormat::Json => Labels::Json,
        LogFormat::Text => Labels::Words,
    }
}

/// What the options make of a program.
fn describe(
    mut spec: WorkerSpec,
    options: &LaunchOptions,
    insecure: bool,
) -> Result<Launch, CliError> {
    spec.streams = Streams {
        labels: labels(),
        shown: options.local_ranks_filter.clone(),
        logs: options.log_dir.as_ref().map(|folder| folder.join(&options.rdzv_id)),
        redirects: options.redirects.clone(),
        tee: options.tee.clone(),
        ..spec.streams
    };
    if spec.streams.logs.is_none() && (options.redirects.is_any() || options.tee.is_any()) {
        let problem = "they need a folder: give --log-dir too".to_owned();
        return Err(CliError::Option { option: "--redirects and --tee".into(), problem });
    }
    spec.pin_cores = options.pin_cores;
    spec.shutdown_timeout = options.shutdown_timeout;
    let mut launch = Launch::new(spec, options.nproc()?);
    launch.meet = meet(options, insecure)?;
    launch.max_restarts = options.max_restarts;
    launch.backoff = options.restart_backoff;
    launch.monitor_interval = options.monitor_interval;
    Ok(launch)
}

/// Where this node meets the others, if there may be any.
fn meet(options: &LaunchOptions, insecure: bool) -> Result<Option<Meet>, CliError> {
    let wrong =
        |option: &str, problem: String| Err(CliError::Option { option: option.into(), problem });
    if options.standalone && options.nnodes.max > 1 {
        return wrong("--standalone", "it is for one node; leave it out, or --nnodes".into());
    }
    if options.rdzv_endpoint.is_none() && options.node_rank >= options.nnodes.max {
        let problem =
            format!("of --nnodes {} the last is {}", options.nnodes, options.nnodes.max - 1);
        return wrong(&format!("--node-rank {}", options.node_rank), problem);
    }
    if !options.is_among_nodes() {
        return Ok(None);
    }
    let by_arrival = options.rdzv_backend.as_deref() == Some("c10d");
    let (host, port, node_rank) = match &options.rdzv_endpoint {
        Some(_) if options.rdzv_backend.as_deref() == Some("static") => {
            return wrong(
                "--rdzv-backend static",
                "places are given with --node-rank, --master-addr and --master-port".into(),
            );
        }
        Some(endpoint) => match split_endpoint(endpoint) {
            Ok((host, port)) => (host, port.unwrap_or(MEETING_PORT), None),
            Err(problem) => return wrong("--rdzv-endpoint", problem),
        },
        None => {
            let port = options.master_port.unwrap_or(STORE_PORT);
            (options.master_addr.clone(), port, (!by_arrival).then_some(options.node_rank))
        }
    };
    if options.nnodes.is_elastic() && node_rank.is_some() {
        return wrong(
            "--nnodes",
            "the places of a changing number of nodes cannot be given: use --rdzv-endpoint".into(),
        );
    }
    let token = std::env::var("BONFIRE_TOKEN").ok().filter(|token| !token.is_empty());
    Ok(Some(Meet {
        nodes: options.nnodes,
        node_rank,
        host,
        port,
        run_id: options.rdzv_id.clone(),
        token,
        insecure,
        join_timeout: options.rdzv_conf.join,
        last_call: options.rdzv_conf.last_call,
    }))
}

/// `host`, `host:port`, `[::1]:port`.
fn split_endpoint(text: &str) -> Result<(String, Option<u16>), String> {
    let port = |text: &str| {
        text.parse::<u16>().ok().filter(|port| *port > 0).ok_or(format!("{text:?} is no port"))
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("a bracket is not closed")?;
        let port = rest.strip_prefix(':').map(port).transpose()?;
        return Ok((host.to_owned(), port));
    }
    match text.split_once(':') {
        Some((host, rest)) if !rest.contains(':') => Ok((host.to_owned(), Some(port(rest)?))),
        _ if text.is_empty() => Err("it is empty".to_owned()),
        _ => Ok((text.to_owned(), None)),
    }
}

fn run(launch_plan: &Launch) -> Result<Outcome, CliError> {
    let outcome = match launch(launch_plan) {
        Err(LaunchError::Interrupted { signal }) => {
            complain(format_args!("stopped by {signal} while waiting for the other nodes"));
            return Ok(Outcome::Workers(128 + signal as i32));
        }
        outcome => outcome?,
    };
    tell(&outcome, launch_plan.spec.streams.console);
    match outcome.exit_code {
        0 => Ok(Outcome::Done),
        code => Ok(Outcome::Workers(code)),
    }
}

/// Says how a run has ended, where its ranks have not.
fn tell(outcome: &LaunchOutcome, console: Console) {
    let Some(failure) = &outcome.failure else {
        if outcome.exit_code == 1 || console == Console::EachToItsOwn && outcome.exit_code != 0 {
            complain(format_args!("error: {}", outcome.summary));
        }
        return;
    };
    // A rank of this program that could still speak has said why; a killed one could not.
    let has_told = console == Console::FirstHasTheTerminal && failure.message.is_some();
    match failure.exit {
        Exit::Code(code) if console == Console::FirstHasTheTerminal => {
            if !has_told {
                complain(format_args!("rank {} failed with exit code {code}", failure.rank));
            }
        }
        _ => complain(format_args!("error: {}", outcome.summary)),
    }
    if let Some(hint) = &failure.hint {
        complain(format_args!("hint: {hint}"));
    }
}

/// Runs every rank in a thread of this process, and returns the first error of any.
pub(crate) fn threads(
    ranks: usize,
    timeout: Duration,
    rank: impl Fn(ProcessGroup) -> Result<Outcome, CliError> + Send + Sync,
) -> Result<Outcome, CliError> {
    let first_error = Mutex::new(None);
    let outcomes = local::spawn_with_timeout(ranks, timeout, |group| {
        rank(group).inspect_err(|error| {
            let mut first = first_error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| error.to_string());
        })
    });
    match first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(CliError::Threads(error)),
        None => Ok(outcomes.into_iter().flatten().next().unwrap_or(Outcome::Done)),
    }
}

#[cfg(test)]
mod tests {
    use super::split_endpoint;

    #[test]
    fn endpoints_are_read_with_and_without_a_port() {
        let read = |text: &str| split_endpoint(text).unwrap();
        assert_eq!(read("node1"), ("node1".into(), None));
        assert_eq!(read("node1:29401"), ("node1".into(), Some(29401)));
        assert_eq!(read("[fe80::1]:5"), ("fe80::1".into(), Some(5)));
        assert_eq!(read("fe80::1"), ("fe80::1".into(), None));
        for wrong in ["", "node1:", "node1:x", "node1:0", "[fe80::1"] {
            assert!(split_endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
