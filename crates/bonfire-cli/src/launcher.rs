//! Starts the ranks of this machine, as processes or as threads.

use crate::CliError;
use crate::exit::Outcome;
use crate::launch::{Exit, Labels, WorkerSpec, run_workers};
use crate::process::{COMMAND, command_line, launch_time};
use crate::voice::{LogFormat, complain, environment, voice};
use bonfire_comm::{ProcessGroup, StoreOptions, StoreServer, local};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// Starts this program with `args` for every rank, hosts their store, and waits for them.
pub(crate) fn launch(args: Vec<OsString>, ranks: usize) -> Result<Outcome, CliError> {
    let secret = Secret::draw()?;
    let options = StoreOptions {
        token: Some(secret.token.clone()),
        run_id: secret.run_id.clone(),
        restart_count: None,
    };
    let store = StoreServer::bind(SocketAddr::from(([127, 0, 0, 1], 0)), &options)?;
    let port = store.address().port();

    let program = std::env::current_exe().map_err(|source| CliError::Io {
        action: "finding",
        path: "this program".into(),
        source,
    })?;
    let mut spec = WorkerSpec::new(program, ranks, port);
    spec.args = args;
    spec.env = vec![
        ("BONFIRE_STORE_PORT".to_string(), port.to_string()),
        ("BONFIRE_STORE_HOSTED".to_string(), "1".to_string()),
    ];
    spec.env.push((COMMAND.to_string(), command_line()));
    spec.env.extend(environment());
    if voice().log_format == LogFormat::Json {
        spec.labels = Labels::Json;
    }
    spec.run_id = secret.run_id;
    spec.token = secret.token;
    spec.launch_time_ns =
        launch_time().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let outcome = run_workers(spec)?;
    drop(store);

    if let Some(failure) = &outcome.failure {
        // A rank that could still speak has said why; a killed one could not.
        match failure.exit {
            Exit::Signal(_) => complain(format_args!("error: {}", outcome.summary)),
            Exit::Code(_) if failure.message.is_some() => {}
            Exit::Code(code) => {
                complain(format_args!("rank {} failed with exit code {code}", failure.rank));
            }
        }
    }
    match outcome.exit_code {
        0 => Ok(Outcome::Done),
        code => Ok(Outcome::Workers(code)),
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

/// What lets only this run's workers talk to each other.
struct Secret {
    token: String,
    run_id: String,
}

impl Secret {
    fn draw() -> Result<Self, CliError> {
        use std::io::Read;
        const SOURCE: &str = "/dev/urandom";
        let mut bytes = [0u8; 24];
        std::fs::File::open(SOURCE)
            .and_then(|mut source| source.read_exact(&mut bytes))
            .map_err(|source| CliError::Io { action: "reading", path: SOURCE.into(), source })?;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { token: hex(&bytes[..16]), run_id: hex(&bytes[16..]) })
    }
}
