//! How a world is made: the options of a rendezvous.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::group::DEFAULT_TIMEOUT;
use crate::{Algorithm, CommError, EngineKind, Result, Transport};

/// How a world is made.
#[derive(Debug, Clone)]
pub struct InitOptions {
    /// Deadline of every collective. Default 600 s.
    pub timeout: Duration,
    /// Deadline of the rendezvous; `None` takes `timeout`.
    pub rendezvous_timeout: Option<Duration>,
    /// Whether ranks on several machines may meet without a token. Default false.
    pub insecure: bool,
    /// What moves the bytes. Default [`EngineKind::Auto`]: `nccl` for a rank with a GPU, else
    /// `host`.
    pub engine: EngineKind,
    /// Number of this rank's GPU among those that the process sees, for engine `nccl`. `None`, the
    /// default, is LOCAL_RANK where that engine is chosen.
    pub gpu: Option<usize>,
    /// How collectives are carried out. Default [`Algorithm::Auto`].
    pub algorithm: Algorithm,
    /// How ranks of the same machine are reached. Default [`Transport::Auto`], or what
    /// `BONFIRE_TRANSPORT` says.
    pub transport: Option<Transport>,
    /// Ranks with the same number share a machine. `None`, the default, takes
    /// `BONFIRE_MACHINE`, else asks the system.
    pub machine: Option<u64>,
}

impl Default for InitOptions {
    fn default() -> Self {
        Self {
            timeout: DEFAULT_TIMEOUT,
            rendezvous_timeout: None,
            insecure: false,
            engine: EngineKind::Auto,
            gpu: None,
            algorithm: Algorithm::Auto,
            transport: None,
            machine: None,
        }
    }
}

impl InitOptions {
    /// Sets the deadline of the rendezvous and of every collective.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Chooses the engine.
    #[must_use]
    pub fn with_engine(mut self, engine: EngineKind) -> Self {
        self.engine = engine;
        self
    }

    /// Says which GPU this rank has.
    #[must_use]
    pub fn with_gpu(mut self, ordinal: usize) -> Self {
        self.gpu = Some(ordinal);
        self
    }

    /// Chooses how collectives are carried out.
    #[must_use]
    pub fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Chooses how ranks of the same machine are reached.
    #[must_use]
    pub fn with_transport(mut self, transport: Transport) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Says on which machine this rank is, whatever the system says: for tests of several
    /// machines on one.
    #[must_use]
    pub fn with_machine(mut self, machine: u64) -> Self {
        self.machine = Some(machine);
        self
    }

    /// The engine that is meant, which is one that can be made here.
    pub(super) fn chosen_engine(&self) -> Result<EngineKind> {
        let unavailable = |engine, reason: &str, remedy: &str| {
            let (reason, remedy) = (reason.to_owned(), remedy.to_owned());
            CommError::EngineUnavailable { engine, reason, remedy }
        };
        self.engine.expect_available()?;
        match (self.engine, self.gpu) {
            (EngineKind::Auto, None) => Ok(EngineKind::Host),
            (EngineKind::Auto, Some(_)) => {
                EngineKind::Nccl.expect_available()?;
                Ok(EngineKind::Nccl)
            }
            (EngineKind::Local, _) => Err(unavailable(
                EngineKind::Local,
                "it joins threads of one process, and this is a process per rank",
                "choose \"host\", or start the ranks as threads",
            )),
            (engine, _) => Ok(engine),
        }
    }

    pub(super) fn transport(&self) -> Result<Transport> {
        let named = std::env::var("BONFIRE_TRANSPORT").ok().filter(|name| !name.is_empty());
        match (self.transport, named) {
            (Some(transport), _) => Ok(transport),
            (None, Some(text)) => text.parse().map_err(|detail| CommError::System {
                what: "read BONFIRE_TRANSPORT".into(),
                detail,
            }),
            (None, None) => Ok(Transport::Auto),
        }
    }

    /// The number of this rank's machine.
    pub(super) fn machine(&self) -> u64 {
        self.named_machine().unwrap_or_else(machine_id)
    }

    /// The number that the user has given this rank's machine.
    pub(crate) fn named_machine(&self) -> Option<u64> {
        let named = || std::env::var("BONFIRE_MACHINE").ok().filter(|name| !name.is_empty());
        self.machine.or_else(|| named().map(|name| xxh3_64(name.as_bytes())))
    }

    pub(super) fn meeting_time(&self) -> Duration {
        self.rendezvous_timeout.unwrap_or(self.timeout)
    }

    /// Lets ranks on several machines meet without a token, on a network that is trusted.
    #[must_use]
    pub fn with_insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }
}

/// A number that is the same for all processes of a machine since it was started.
fn machine_id() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let boot = read("/proc/sys/kernel/random/boot_id");
    let host = read("/proc/sys/kernel/hostname");
    // Processes that do not see each other cannot open each other's memory.
    let processes = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    xxh3_64(format!("{boot}{host}{}", processes.display()).as_bytes())
}
