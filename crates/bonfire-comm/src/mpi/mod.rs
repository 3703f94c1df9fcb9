//! Engine `mpi`: ranks that `mpirun` has started, over whatever network the MPI library knows.
//!
//! ```text
//!  caller's threads            communication thread (the only one that calls MPI)
//!  ----------------            ------------------------------------------------
//!  MpiEngine  -- jobs -------> Lane: one operation after the other      } a task each,
//!  MpiEngine  -- jobs -------> Lane                                     } polled in turn
//!  Shared     <-- failure ---> Session: notes between the ranks         }
//! ```
//!
//! - `engine`: what a process group calls; `loan`: memory of a caller who waits; `shared`: what
//!   engines know of their session;
//! - `runtime`: the communication thread and how it ends;
//! - `lane`: the operations of a group; `collectives` and `message`: what they do; `wait`: what
//!   ends them otherwise;
//! - `session`: what the communication threads tell each other; `note`: the messages; `progress`:
//!   who is how far; `birth`: how groups are made;
//! - `sys`: the MPI calls, all of them nonblocking but the creation of communicators.
//!
//! MPI makes progress only when it is called, hence the thread: without it a rank that computes
//! would stop the others.

mod birth;
mod collectives;
mod engine;
mod lane;
mod loan;
mod message;
mod note;
mod progress;
mod runtime;
mod session;
mod shared;
mod sys;
mod wait;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded, unbounded};

use self::engine::{LaneEnds, MpiEngine};
use self::lane::Lane;
use self::runtime::{Context, Runtime, ended_early};
use self::session::{Session, hash};
use self::shared::{NewGroup, Shared};
use self::sys::{Comm, Memory, Pending};
use crate::group::deadline_after;
use crate::{Algorithm, CommError, InitOptions, ProcessGroup, RankEnv, Result, Transport};

/// Name of the first group.
const WORLD: &str = "world";

/// Makes the world of the ranks that `mpirun` has started, engine `mpi`.
///
/// The first call initialises MPI; it is finalised when the process ends, which waits until all
/// ranks have come to their end. A later call makes a new world, after a failure perhaps.
///
/// # Collective
/// Called by every rank of the job; blocks until all have.
///
/// # Errors
/// [`CommError::EngineUnavailable`] when something else has initialised MPI,
/// [`CommError::Unsupported`] for an algorithm or a transport, which are the library's to choose,
/// [`CommError::Timeout`] when not every rank calls it in time.
pub fn init_mpi(options: &InitOptions) -> Result<ProcessGroup> {
    let choices = [
        (options.algorithm != Algorithm::Auto).then(|| format!("algorithm {}", options.algorithm)),
        options
            .transport
            .filter(|&transport| transport != Transport::Auto)
            .map(|transport| format!("transport {transport}")),
    ];
    if let Some(what) = choices.into_iter().flatten().next() {
        return Err(CommError::Unsupported { engine: engine::NAME, what });
    }
    let meeting_time = options.rendezvous_timeout.unwrap_or(options.timeout);
    let deadline = deadline_after(meeting_time);
    let runtime = Runtime::get(deadline)?;
    let (reply, answer) = bounded(1);
    let plan = Plan { runtime, options: options.clone(), deadline };
    runtime.spawn(move |context| {
        Box::pin(async move {
            let _ = reply.send(plan.open(context).await);
        })
    })?;
    // The task sees the deadline itself; a second is for its answer.
    match answer.recv_deadline(deadline + Duration::from_secs(1)) {
        Ok(engine) => Ok(ProcessGroup::from_engine(Arc::new(engine?), WORLD, options.timeout)),
        Err(RecvTimeoutError::Timeout) => Err(plan_timed_out(0, meeting_time)),
        Err(RecvTimeoutError::Disconnected) => Err(ended_early()),
    }
}

/// As [`init_mpi`], for a process whose rank is known from its environment.
pub(crate) fn init_rank(env: &RankEnv, options: &InitOptions) -> Result<ProcessGroup> {
    let group = init_mpi(options)?;
    if (group.rank(), group.world_size()) == (env.rank, env.world_size) {
        return Ok(group);
    }
    let reason = format!(
        "MPI says rank {} of {}, the environment rank {} of {}",
        group.rank(),
        group.world_size(),
        env.rank,
        env.world_size
    );
    Err(sys::unavailable(&reason, "start the ranks with mpirun and leave RANK unset"))
}

/// How a session begins.
struct Plan {
    runtime: &'static Runtime,
    options: InitOptions,
    deadline: Instant,
}

impl Plan {
    /// Makes the communicators of a session, tells on which machines its ranks are, and starts
    /// the tasks.
    async fn open(self, context: Rc<Context>) -> Result<MpiEngine> {
        let world = context.mpi.world()?;
        let waiting = context.pace.waiting();
        let control = self.duplicate(&world).await?;
        let data = self.duplicate(&world).await?;
        let machines = self.machines(&context, &data).await?;
        drop(waiting);
        let (requests, wishes) = unbounded::<NewGroup>();
        let shared = Arc::new(Shared::new(self.runtime, &world, machines, requests));
        let timeout = self.options.timeout;
        let session = Session::new(context.clone(), shared.clone(), control, timeout);
        let session = Rc::new(session);
        let members: Vec<usize> = (0..world.size()).collect();
        let (engine, LaneEnds { jobs, bytes_sent }) =
            MpiEngine::new(shared, WORLD, members.clone(), timeout)?;
        let lane = Lane::new(session.clone(), data, WORLD.to_owned(), members, bytes_sent);
        session.start_world(lane, jobs);
        context.add(session.serve(wishes));
        Ok(engine)
    }

    async fn duplicate(&self, comm: &Comm) -> Result<Comm> {
        let handle = self.wait(comm, comm.duplicate()?).await?;
        comm.finish_duplicate(&handle)
    }

    /// Tells every rank on which machine this one is, and hears it of them.
    async fn machines(&self, context: &Context, comm: &Comm) -> Result<Vec<u64>> {
        let named = self.options.named_machine();
        let machine = named.unwrap_or_else(|| hash(&context.mpi.machine_name()));
        let (mut own, all) = (Memory::new(8), Memory::new(8 * comm.size()));
        own.bytes_mut().copy_from_slice(&machine.to_le_bytes());
        let (_, all) = self.wait(comm, comm.all_gather(own, all, 8)?).await?;
        Ok(all.bytes().as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect())
    }

    async fn wait<M: Unpin>(&self, comm: &Comm, mut pending: Pending<M>) -> Result<M> {
        poll_fn(|_| match pending.test() {
            Ok(Some(memory)) => Poll::Ready(Ok(memory)),
            Err(error) => Poll::Ready(Err(error)),
            Ok(None) if Instant::now() < self.deadline => Poll::Pending,
            Ok(None) => {
                let meeting_time = self.options.rendezvous_timeout.unwrap_or(self.options.timeout);
                Poll::Ready(Err(plan_timed_out(comm.rank(), meeting_time)))
            }
        })
        .await
    }
}

fn plan_timed_out(rank: usize, timeout: Duration) -> CommError {
    CommError::Timeout {
        group: WORLD.into(),
        rank,
        operation: "the start of the session".into(),
        timeout,
        missing: "some ranks have not come, and MPI does not say which".into(),
    }
}
