//! The environment variables that tell a process its rank.

use std::net::{IpAddr, ToSocketAddrs};
use std::str::FromStr;

use self::names::{Names, TORCHRUN};
use crate::{CommError, Result};

mod names;

/// Who this process is among its peers, as a launcher tells it.
///
/// The names are those of torchrun. When neither `RANK` nor `WORLD_SIZE` is set, the numbers are
/// also read from Open MPI's `mpirun` (`OMPI_COMM_WORLD_RANK`, ...), from Hydra, the `mpirun` of
/// MPICH and Intel MPI (`PMI_RANK`, ...), and from Slurm's `srun` (`SLURM_PROCID`, ...).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankEnv {
    /// `RANK`: this process among all.
    pub rank: usize,
    /// `WORLD_SIZE`: number of processes.
    pub world_size: usize,
    /// `LOCAL_RANK`: this process among those of this machine.
    pub local_rank: usize,
    /// `LOCAL_WORLD_SIZE`: number of processes on this machine.
    pub local_world_size: usize,
    /// `MASTER_ADDR`: machine of rank 0. Other launchers than torchrun do not set it: then it is
    /// this machine when all ranks are on it, else the first of Slurm's node list, else empty,
    /// which engine `mpi` does not mind.
    pub master_addr: String,
    /// `MASTER_PORT`; 29500 when another launcher than torchrun has not set it.
    pub master_port: u16,
    /// `BONFIRE_STORE_PORT`: port of the store if it is not derived from `MASTER_PORT`.
    pub store_port: Option<u16>,
    /// `BONFIRE_STORE_HOSTED`: whether the launcher hosts the store; else rank 0 does.
    pub store_hosted: bool,
    /// `BONFIRE_RUN_ID` or `TORCHELASTIC_RUN_ID`: name of the run, part of all store keys.
    pub run_id: String,
    /// `BONFIRE_RESTART_COUNT` or `TORCHELASTIC_RESTART_COUNT`.
    pub restart_count: u32,
    /// `BONFIRE_TOKEN`: the secret that the ranks share.
    pub token: Option<String>,
    /// Whether torchrun is the parent, which holds `MASTER_PORT` itself.
    pub under_torchrun: bool,
}

/// The variables without which there is no rank. Set all or none.
const REQUIRED: [&str; 4] = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];
/// The port that torchrun takes when it is told none.
const DEFAULT_PORT: u16 = 29500;

impl RankEnv {
    /// Reads the variables of this process; `None` when it was not started as a rank.
    ///
    /// # Errors
    /// As [`Self::from_lookup`].
    pub fn detect() -> Result<Option<Self>> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads the variables from `lookup`. An empty value counts as not set.
    ///
    /// # Errors
    /// [`CommError::MissingVariables`] when only some are set, [`CommError::InvalidVariable`]
    /// for a value that does not parse or contradicts another.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let lookup = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let Some(names) = names::find(&lookup)? else { return Ok(None) };
        if names == TORCHRUN {
            check_torchrun(&lookup)?;
        }
        let rank = required(&lookup, names.rank)?;
        let world_size = required(&lookup, names.world_size)?;
        let local_world_size = names.local_world_size(&lookup)?.unwrap_or(world_size);
        let default_addr = if local_world_size == world_size {
            "127.0.0.1".to_owned()
        } else {
            names.first_machine(&lookup).unwrap_or_default()
        };
        let env = Self {
            rank,
            world_size,
            local_rank: parse(&lookup, names.local_rank)?.unwrap_or(rank),
            local_world_size,
            master_addr: lookup("MASTER_ADDR").unwrap_or(default_addr),
            master_port: parse(&lookup, "MASTER_PORT")?.unwrap_or(DEFAULT_PORT),
            store_port: parse(&lookup, "BONFIRE_STORE_PORT")?,
            store_hosted: parse_flag(&lookup, "BONFIRE_STORE_HOSTED")?,
            run_id: run_id(&lookup),
            restart_count: restart_count(&lookup)?,
            token: lookup("BONFIRE_TOKEN"),
            under_torchrun: lookup("TORCHELASTIC_RUN_ID").is_some(),
        };
        env.check(names)?;
        Ok(Some(env))
    }

    /// Describes a rank of a run on this machine, for programs that start their own ranks.
    pub fn on_loopback(rank: usize, world_size: usize, port: u16) -> Self {
        Self {
            rank,
            world_size,
            local_rank: rank,
            local_world_size: world_size,
            master_addr: "127.0.0.1".into(),
            master_port: port,
            store_port: None,
            store_hosted: false,
            run_id: "none".into(),
            restart_count: 0,
            token: None,
            under_torchrun: false,
        }
    }

    fn check(&self, names: Names) -> Result<()> {
        let invalid = |name, value: usize, expected| {
            Err(CommError::InvalidVariable { name, value: value.to_string(), expected })
        };
        if self.world_size == 0 {
            return invalid(names.world_size, 0, "at least 1".into());
        }
        if self.rank >= self.world_size {
            let expected = format!("less than {}, which is {}", names.world_size, self.world_size);
            return invalid(names.rank, self.rank, expected);
        }
        if self.local_world_size == 0 || self.local_world_size > self.world_size {
            let expected = format!("1 to {}, which is {}", names.world_size, self.world_size);
            return invalid(names.local_world_size, self.local_world_size, expected);
        }
        if self.local_rank >= self.local_world_size {
            let (name, size) = (names.local_world_size, self.local_world_size);
            let expected = format!("less than {name}, which is {size}");
            return invalid(names.local_rank, self.local_rank, expected);
        }
        Ok(())
    }

    /// Returns the port of the store: the given one, else `MASTER_PORT`, else the port above it
    /// under torchrun.
    ///
    /// # Errors
    /// [`CommError::InvalidVariable`] when there is no port above;
    /// [`CommError::MissingVariables`] when there is no address either, because a launcher of
    /// MPI or Slurm has started ranks on several machines and nobody has set `MASTER_ADDR`.
    pub fn resolved_store_port(&self) -> Result<u16> {
        if self.master_addr.is_empty() {
            let (missing, present) = (vec!["MASTER_ADDR"], vec!["the rank"]);
            return Err(CommError::MissingVariables { missing, present });
        }
        let derived = if self.under_torchrun && !self.store_hosted {
            self.master_port.checked_add(1)
        } else {
            Some(self.master_port)
        };
        self.store_port.or(derived).ok_or_else(|| CommError::InvalidVariable {
            name: "MASTER_PORT",
            value: self.master_port.to_string(),
            expected: "a port with another above it, or BONFIRE_STORE_PORT".into(),
        })
    }

    /// Tells whether the ranks meet on this machine only.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.master_addr)
    }
}

/// Returns the name of the run.
fn run_id(lookup: &impl Fn(&str) -> Option<String>) -> String {
    lookup("BONFIRE_RUN_ID")
        .or_else(|| lookup("TORCHELASTIC_RUN_ID"))
        .unwrap_or_else(|| "none".to_owned())
}

/// Returns how often the run was restarted.
fn restart_count(lookup: &impl Fn(&str) -> Option<String>) -> Result<u32> {
    match parse(lookup, "BONFIRE_RESTART_COUNT")? {
        Some(count) => Ok(count),
        None => Ok(parse(lookup, "TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0)),
    }
}

/// Returns the name of the run of this process and how often it was restarted, without the name
/// look-up that [`RankEnv::detect`] may need.
pub(crate) fn run_of_this_process() -> (String, u32) {
    let lookup = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    (run_id(&lookup), restart_count(&lookup).unwrap_or(0))
}

/// Names what is missing of torchrun's variables.
fn check_torchrun(lookup: &impl Fn(&str) -> Option<String>) -> Result<()> {
    let (present, mut missing): (Vec<_>, Vec<_>) =
        REQUIRED.into_iter().partition(|name| lookup(name).is_some());
    if lookup("MASTER_ADDR").is_some_and(|address| !is_loopback(&address)) {
        let local = [TORCHRUN.local_rank, TORCHRUN.local_world_size];
        missing.extend(local.into_iter().filter(|name| lookup(name).is_none()));
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(CommError::MissingVariables { missing, present })
}

/// Tells whether a name stands for this machine only.
fn is_loopback(host: &str) -> bool {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return ip.is_loopback();
    }
    if host == "localhost" {
        return true;
    }
    let addresses = (host, 0u16).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    addresses.is_ok_and(|all| !all.is_empty() && all.iter().all(|one| one.ip().is_loopback()))
}

fn parse<T: FromStr>(
    lookup: &impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Option<T>> {
    let Some(value) = lookup(name) else { return Ok(None) };
    value.trim().parse().map(Some).map_err(|_| {
        let expected = format!("a number of type {}", std::any::type_name::<T>());
        CommError::InvalidVariable { name, value, expected }
    })
}

fn required<T: FromStr>(lookup: &impl Fn(&str) -> Option<String>, name: &'static str) -> Result<T> {
    let missing = || CommError::MissingVariables { missing: vec![name], present: Vec::new() };
    parse(lookup, name)?.ok_or_else(missing)
}

fn parse_flag(lookup: &impl Fn(&str) -> Option<String>, name: &'static str) -> Result<bool> {
    match lookup(name).as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(value) => Err(CommError::InvalidVariable {
            name,
            value: value.to_owned(),
            expected: "0 or 1".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<RankEnv>> {
        RankEnv::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    const FULL: [(&str, &str); 4] = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
    ];

    fn with(extra: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        let mut pairs = extra.to_vec();
        pairs.extend(FULL.iter().filter(|(name, _)| !extra.iter().any(|(key, _)| key == name)));
        pairs
    }

    #[test]
    fn nothing_set_is_no_rank() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[("RANK", ""), ("HOME", "/")]).unwrap(), None);
    }

    #[test]
    fn half_set_names_all_that_is_missing() {
        let error = read(&[("RANK", "0"), ("MASTER_PORT", "1")]).unwrap_err();
        let expected = CommError::MissingVariables {
            missing: vec!["WORLD_SIZE", "MASTER_ADDR"],
            present: vec!["RANK", "MASTER_PORT"],
        };
        assert_eq!(error, expected);
        assert!(
            error
                .to_string()
                .starts_with("WORLD_SIZE, MASTER_ADDR not set, but RANK, MASTER_PORT are")
        );
    }

    #[test]
    fn local_variables_are_needed_over_machines_only() {
        let env = read(&FULL).unwrap().unwrap();
        assert_eq!((env.local_rank, env.local_world_size), (1, 2));
        let error = read(&with(&[("MASTER_ADDR", "192.0.2.7")])).unwrap_err();
        assert!(error.to_string().starts_with("LOCAL_RANK, LOCAL_WORLD_SIZE not set"), "{error}");
    }

    #[test]
    fn a_bad_value_is_named() {
        let error = read(&with(&[("WORLD_SIZE", "two")])).unwrap_err();
        let text = "environment variable WORLD_SIZE is \"two\", expected a number of type usize";
        assert_eq!(error.to_string(), text);
        let error = read(&with(&[("RANK", "2")])).unwrap_err();
        let text = "environment variable RANK is \"2\", expected less than WORLD_SIZE, which is 2";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn the_store_port_follows_the_launcher() {
        let port = |extra: &[(&'static str, &'static str)]| {
            read(&with(extra)).unwrap().unwrap().resolved_store_port()
        };
        assert_eq!(port(&[]), Ok(29500));
        assert_eq!(port(&[("TORCHELASTIC_RUN_ID", "x")]), Ok(29501));
        assert_eq!(port(&[("BONFIRE_STORE_PORT", "7"), ("TORCHELASTIC_RUN_ID", "x")]), Ok(7));
        assert!(port(&[("MASTER_PORT", "65535"), ("TORCHELASTIC_RUN_ID", "x")]).is_err());
    }

    fn open_mpi(local_size: &'static str) -> [(&'static str, &'static str); 4] {
        [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", local_size),
        ]
    }

    fn numbers(env: &RankEnv) -> [usize; 4] {
        [env.rank, env.world_size, env.local_rank, env.local_world_size]
    }

    #[test]
    fn open_mpi_tells_the_rank() {
        let env = read(&open_mpi("4")).unwrap().unwrap();
        assert_eq!(numbers(&env), [3, 4, 1, 4]);
        assert_eq!((env.master_addr.as_str(), env.resolved_store_port()), ("127.0.0.1", Ok(29500)));
        // On several machines engine host must be told where to meet.
        let env = read(&open_mpi("2")).unwrap().unwrap();
        assert_eq!((numbers(&env), env.master_addr.as_str()), ([3, 4, 1, 2], ""));
        let error = env.resolved_store_port().unwrap_err();
        assert!(error.to_string().starts_with("MASTER_ADDR not set, but the rank is"), "{error}");
        let mut pairs = open_mpi("2").to_vec();
        pairs.extend([("MASTER_ADDR", "192.0.2.7"), ("MASTER_PORT", "7")]);
        let env = read(&pairs).unwrap().unwrap();
        assert_eq!((env.master_addr.as_str(), env.resolved_store_port()), ("192.0.2.7", Ok(7)));
    }

    #[test]
    fn torchrun_comes_before_mpirun() {
        let mut pairs = open_mpi("4").to_vec();
        pairs.extend(FULL);
        assert_eq!(numbers(&read(&pairs).unwrap().unwrap()), [1, 2, 1, 2]);
        let mut pairs = open_mpi("4").to_vec();
        pairs.push(("RANK", "0"));
        assert!(matches!(read(&pairs), Err(CommError::MissingVariables { .. })));
    }

    #[test]
    fn variables_of_mpirun_are_named_in_errors() {
        let error = read(&open_mpi("4")[..1]).unwrap_err().to_string();
        let text = "OMPI_COMM_WORLD_SIZE not set, but OMPI_COMM_WORLD_RANK is;";
        assert!(error.starts_with(text), "{error}");
        let error = read(&open_mpi("5")).unwrap_err().to_string();
        let text = "environment variable OMPI_COMM_WORLD_LOCAL_SIZE is \"5\"";
        assert!(error.starts_with(text), "{error}");
    }

    #[test]
    fn hydra_tells_the_rank_when_it_tells_all() {
        let all = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0")];
        assert_eq!(numbers(&read(&all).unwrap().unwrap()), [1, 2, 0, 2]);
        assert_eq!(read(&all[..1]).unwrap(), None);
        assert_eq!(read(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]).unwrap(), None);
    }

    #[test]
    fn a_slurm_step_is_a_world_and_a_batch_script_is_not() {
        let step = [
            ("SLURM_PROCID", "9"),
            ("SLURM_NTASKS", "11"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODEID", "2"),
            ("SLURM_STEP_TASKS_PER_NODE", "4(x2),3"),
            ("SLURM_JOB_NODELIST", "gpu[3-5]"),
            ("SLURM_STEP_ID", "0"),
        ];
        let env = read(&step).unwrap().unwrap();
        assert_eq!((numbers(&env), env.master_addr.as_str()), ([9, 11, 1, 3], "gpu3"));
        assert_eq!(read(&step[..6]).unwrap(), None);
    }
}
