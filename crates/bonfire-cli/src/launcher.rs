use crate::CliError;
use crate::args::TrainArgs;
use crate::exit::Outcome;
use crate::launch::{Exit, WorkerSpec, run_workers};
use crate::process::launch_time;
use crate::report::say;
use crate::worker::default_run_folder;
use bonfire_comm::{StoreOptions, StoreServer};
use bonfire_trainer::config::Plan;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::UNIX_EPOCH;

/// Starts a process for every rank, hosts their store, and waits for them.
pub(crate) fn launch(plan: &Plan, args: &TrainArgs, ranks: usize) -> Result<Outcome, CliError> {
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
    spec.args = worker_args(plan, args)?;
    spec.env = vec![
        ("BONFIRE_STORE_PORT".to_string(), port.to_string()),
        ("BONFIRE_STORE_HOSTED".to_string(), "1".to_string()),
    ];
    spec.run_id = secret.run_id;
    spec.token = secret.token;
    spec.launch_time_ns =
        launch_time().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let outcome = run_workers(spec)?;
    drop(store);

    if let Some(failure) = &outcome.failure {
        // A rank that could still speak has said why; a killed one could not.
        match failure.exit {
            Exit::Signal(_) => say(format_args!("error: {}", outcome.summary)),
            Exit::Code(_) if failure.message.is_some() => {}
            Exit::Code(code) => {
                say(format_args!("rank {} failed with exit code {code}", failure.rank));
            }
        }
    }
    match outcome.exit_code {
        0 => Ok(Outcome::Done),
        code => Ok(Outcome::Workers(code)),
    }
}

/// The arguments by which a worker does what this program was asked to do.
fn worker_args(plan: &Plan, args: &TrainArgs) -> Result<Vec<OsString>, CliError> {
    let mut list: Vec<OsString> = vec!["train".into(), args.config.clone().into()];
    for value in &args.overrides {
        list.extend(["--set".into(), value.into()]);
    }
    let out = match &args.out {
        Some(out) => out.clone(),
        None => default_run_folder(&plan.name)?,
    };
    list.extend(["--out".into(), out.into()]);
    if let Some(path) = &args.resume {
        list.extend(["--resume".into(), path.into()]);
    }
    if args.insecure {
        list.push("--insecure".into());
    }
    Ok(list)
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
