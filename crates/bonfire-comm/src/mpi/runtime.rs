//! The communication thread: the only one that calls MPI.
//!
//! Every group and every session is a task on it, a future that asks MPI again and again whether
//! its call is done. The thread polls all tasks in turn; MPI makes progress inside those polls.
//! No task ever waits inside MPI, with two exceptions: the initialisation and the creation of a
//! communicator, which begins when all its members are known to be there.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use super::sys::{self, Mpi};
use crate::{CommError, Result};

/// Time without news during which the thread only gives way to others.
const SPIN: Duration = Duration::from_micros(200);
/// The same while data moves, which needs the thread.
const SPIN_MOVING: Duration = Duration::from_millis(50);
/// Time without news after which the pauses become long.
const PATIENCE: Duration = Duration::from_millis(10);
/// Pause while an operation waits for other ranks.
const SHORT_PAUSE: Duration = Duration::from_micros(50);
const LONG_PAUSE: Duration = Duration::from_micros(500);
/// Pause while there is nothing to do, after which the control plane is looked at.
const REST: Duration = Duration::from_millis(10);
/// Time for `MPI_Finalize`, in which all ranks are when it begins.
const FINALIZE: Duration = Duration::from_secs(10);

pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;
/// Makes a task on the communication thread.
type Start = Box<dyn FnOnce(Rc<Context>) -> Task + Send>;

/// The communication thread, as other threads see it.
pub(super) struct Runtime {
    starts: Sender<Start>,
    thread: Thread,
    exiting: AtomicBool,
    ended: Receiver<End>,
}

/// The steps in which the communication thread ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Finalizing,
    Finalized,
}

/// One thread per process, because MPI can be initialised only once.
static RUNTIME: OnceLock<Result<Runtime>> = OnceLock::new();

impl Runtime {
    /// Returns the communication thread, which the first call starts. MPI's initialisation waits
    /// for all processes of the job, but the caller only until `deadline`.
    pub(super) fn get(deadline: Instant) -> Result<&'static Self> {
        RUNTIME.get_or_init(|| Self::start(deadline)).as_ref().map_err(Clone::clone)
    }

    fn start(deadline: Instant) -> Result<Self> {
        let (starts, incoming) = unbounded();
        let (ready, is_ready) = bounded(1);
        let (end, ended) = bounded(2);
        let begin = Instant::now();
        let handle = std::thread::Builder::new()
            .name("comm mpi".into())
            .spawn(move || match Mpi::init() {
                Ok(mpi) => {
                    let _ = ready.send(Ok(()));
                    work(mpi, &incoming, &end);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            })
            .map_err(|error| CommError::system("start the communication thread", &error))?;
        match is_ready.recv_deadline(deadline) {
            Ok(result) => result?,
            Err(RecvTimeoutError::Timeout) => return Err(not_initialised(begin.elapsed())),
            Err(RecvTimeoutError::Disconnected) => return Err(ended_early()),
        }
        sys::at_exit(end_runtime);
        let thread = handle.thread().clone();
        Ok(Self { starts, thread, exiting: AtomicBool::new(false), ended })
    }

    /// Starts a task.
    pub(super) fn spawn(
        &self,
        start: impl FnOnce(Rc<Context>) -> Task + Send + 'static,
    ) -> Result<()> {
        self.starts.send(Box::new(start)).map_err(|_| ended_early())?;
        self.wake();
        Ok(())
    }

    /// Makes the thread look at its tasks now.
    pub(super) fn wake(&self) {
        self.thread.unpark();
    }

    /// Waits until MPI is finalised, which it is when all ranks have come to their end. Only a
    /// finalisation that hangs, after a failure perhaps, is given up.
    fn end(&self) {
        self.exiting.store(true, Ordering::Release);
        self.wake();
        let is_finalizing = matches!(self.ended.recv(), Ok(End::Finalizing));
        if is_finalizing && self.ended.recv_timeout(FINALIZE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("MPI_Finalize does not end; leaving without it");
        }
    }
}

extern "C" fn end_runtime() {
    if let Some(Ok(runtime)) = RUNTIME.get() {
        runtime.end();
    }
}

fn not_initialised(timeout: Duration) -> CommError {
    CommError::Timeout {
        group: "world".into(),
        rank: 0,
        operation: "MPI_Init".into(),
        timeout,
        missing: "some processes of the job have not called it, and MPI does not say which".into(),
    }
}

pub(super) fn ended_early() -> CommError {
    CommError::Internal { detail: "the communication thread ended".into() }
}

/// What the tasks share.
pub(super) struct Context {
    pub(super) mpi: Rc<Mpi>,
    pub(super) pace: Pace,
    /// Tasks that tasks have started.
    started: RefCell<Vec<Task>>,
    /// Whether some rank will not come to `MPI_Finalize`.
    abandoned: Cell<bool>,
}

impl Context {
    /// Starts another task.
    pub(super) fn add(&self, task: impl Future<Output = ()> + 'static) {
        self.started.borrow_mut().push(Box::pin(task));
    }

    /// Has the process end without `MPI_Finalize`, which would wait for ranks that do not come.
    pub(super) fn abandon(&self) {
        self.abandoned.set(true);
    }

    /// Tells whether the process is about to end.
    pub(super) fn is_exiting(&self) -> bool {
        matches!(RUNTIME.get(), Some(Ok(runtime)) if runtime.exiting.load(Ordering::Acquire))
    }
}

/// How eagerly the thread polls.
#[derive(Default)]
pub(super) struct Pace {
    /// Whether something happened since the last look.
    news: Cell<bool>,
    /// Operations that wait for other ranks.
    waiting: Cell<usize>,
    /// Operations whose data is under way.
    moving: Cell<usize>,
}

/// Counts an operation in while it lives.
pub(super) struct Counted<'a>(&'a Cell<usize>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Pace {
    pub(super) fn news(&self) {
        self.news.set(true);
    }

    pub(super) fn waiting(&self) -> Counted<'_> {
        count(&self.waiting)
    }

    pub(super) fn moving(&self) -> Counted<'_> {
        count(&self.moving)
    }

    /// Gives way to other threads for as long as it is worth.
    fn pause(&self, last_news: &mut Instant) {
        if self.news.replace(false) {
            *last_news = Instant::now();
        }
        let idle = last_news.elapsed();
        let is_moving = self.moving.get() > 0;
        if idle < SPIN || is_moving && idle < SPIN_MOVING {
            std::thread::yield_now();
        } else if self.waiting.get() == 0 && !is_moving {
            std::thread::park_timeout(REST);
        } else {
            std::thread::park_timeout(if idle < PATIENCE { SHORT_PAUSE } else { LONG_PAUSE });
        }
    }
}

fn count(cell: &Cell<usize>) -> Counted<'_> {
    cell.set(cell.get() + 1);
    Counted(cell)
}

/// Returns at the next poll.
pub(super) async fn turn() {
    let mut polled = false;
    poll_fn(|_| if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending })
        .await;
}

/// Returns after `time`.
pub(super) async fn sleep(time: Duration) {
    let limit = Instant::now() + time;
    while Instant::now() < limit {
        turn().await;
    }
}

/// Polls all tasks until the process ends.
fn work(mpi: Rc<Mpi>, starts: &Receiver<Start>, end: &Sender<End>) {
    let context = Rc::new(Context {
        mpi,
        pace: Pace::default(),
        started: RefCell::default(),
        abandoned: Cell::new(false),
    });
    let mut tasks: Vec<Task> = Vec::new();
    let mut last_news = Instant::now();
    let mut waker = std::task::Context::from_waker(Waker::noop());
    while !(context.is_exiting() && tasks.is_empty()) {
        while let Ok(start) = starts.try_recv() {
            tasks.push(start(context.clone()));
            context.pace.news();
        }
        tasks.retain_mut(|task| task.as_mut().poll(&mut waker).is_pending());
        tasks.append(&mut context.started.borrow_mut());
        context.pace.pause(&mut last_news);
    }
    if context.abandoned.get() {
        tracing::warn!("leaving without MPI_Finalize, because a rank does not come to its end");
        // MPI is finalised when its last handle is dropped.
        std::mem::forget(context);
        return;
    }
    let _ = end.send(End::Finalizing);
    // INVARIANT: the tasks held the only other handles of MPI, so this finalises it.
    drop(context);
    let _ = end.send(End::Finalized);
}
