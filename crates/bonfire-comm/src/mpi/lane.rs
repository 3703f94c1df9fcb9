//! The operations of one group, one after the other.
//!
//! A collective begins with an exchange of headers: every rank gathers those of all others and
//! compares. So either all ranks go on with the same call, or all return the same verdict, and
//! MPI never sees two ranks in different collectives, which it would answer with a hang or worse.
//! The exchange is a barrier, too. A message has its header before it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, TryRecvError};

use super::collectives::Collective;
use super::loan::Target;
use super::runtime::turn;
use super::session::{Session, hash};
use super::sys::{Comm, Memory};
use super::wait::{Halt, Wait};
use crate::header::{HEADER_BYTES, Header};
use crate::{Call, CommError, Operation, Result};

/// What an engine asks of its lane: an operation, or a batch of messages.
pub(super) struct Job {
    pub(super) messages: Vec<Message>,
    pub(super) call: Call,
    /// Set when the job's turn has come.
    pub(super) begun: Arc<AtomicBool>,
    pub(super) done: Sender<Result<Vec<Message>>>,
}

/// An operation and its memory.
pub(super) struct Message {
    pub(super) operation: Operation,
    pub(super) target: Target,
}

/// The communication thread's side of an engine.
pub(super) struct Lane {
    pub(super) session: Rc<Session>,
    pub(super) comm: Comm,
    pub(super) identity: String,
    pub(super) group: u64,
    /// World rank of each rank of this group.
    pub(super) members: Vec<usize>,
    entered: Rc<Cell<u64>>,
    /// Messages sent to and received from each rank.
    counts: RefCell<Vec<(u64, u64)>>,
    bytes_sent: Arc<AtomicU64>,
    /// Memory of earlier operations, to be used again.
    pool: RefCell<Vec<Memory>>,
}

impl Lane {
    pub(super) fn new(
        session: Rc<Session>,
        comm: Comm,
        identity: String,
        members: Vec<usize>,
        bytes_sent: Arc<AtomicU64>,
    ) -> Self {
        let group = hash(&identity);
        let entered = Rc::new(Cell::new(0));
        session.register(group, entered.clone());
        let counts = RefCell::new(vec![(0, 0); members.len()]);
        let pool = RefCell::default();
        Self { session, comm, identity, group, members, entered, counts, bytes_sent, pool }
    }

    /// Runs jobs until the engine is dropped; what it has started is finished first, because the
    /// other ranks count on it.
    pub(super) async fn serve(self, jobs: Receiver<Job>) {
        loop {
            match jobs.try_recv() {
                Ok(job) => {
                    self.session.context.pace.news();
                    self.carry_out(job).await;
                    self.session.context.pace.news();
                }
                Err(TryRecvError::Empty) if !self.session.context.is_exiting() => turn().await,
                Err(_) => break,
            }
        }
        self.session.leave(self.group, &self.members, &self.counts.borrow());
    }

    async fn carry_out(&self, job: Job) {
        let Job { mut messages, call, begun, done } = job;
        begun.store(true, Ordering::Release);
        let result = match self.session.shared.check() {
            Ok(()) if self.comm.size() == 1 => Ok(()),
            Ok(()) => match messages.as_mut_slice() {
                [message] => self.operate(message, &call).await,
                messages => self.batch(messages, &call).await,
            },
            Err(error) => Err(error),
        };
        call.record.finished(result.as_ref().err());
        // Nobody listens when the work was dropped.
        let _ = done.send(result.map(|()| messages));
    }

    /// Runs messages at the same time; those of the same kind and peer keep their order.
    async fn batch(&self, messages: &mut [Message], call: &Call) -> Result<()> {
        let mut queues: BTreeMap<(bool, usize), Vec<&mut Message>> = BTreeMap::new();
        for message in messages {
            let queue = match message.operation {
                Operation::Send { to } => (true, to),
                Operation::Recv { from } => (false, from),
                other => {
                    let detail = format!("{other} in a batch of messages");
                    return Err(CommError::Internal { detail });
                }
            };
            queues.entry(queue).or_default().push(message);
        }
        let run = |queue| Box::pin(self.operate_all(queue, call));
        let mut running: Vec<_> = queues.into_values().map(run).collect();
        poll_fn(|context| {
            let mut failed = None;
            running.retain_mut(|queue| match queue.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(result) => {
                    failed = failed.take().or(result.err());
                    false
                }
            });
            match failed {
                Some(error) => Poll::Ready(Err(error)),
                None if running.is_empty() => Poll::Ready(Ok(())),
                None => Poll::Pending,
            }
        })
        .await
    }

    async fn operate_all(&self, messages: Vec<&mut Message>, call: &Call) -> Result<()> {
        for message in messages {
            self.operate(message, call).await?;
        }
        Ok(())
    }

    async fn operate(&self, message: &mut Message, call: &Call) -> Result<()> {
        let Message { operation, target } = message;
        let (sequence, wait) = self.enter(*operation);
        call.record.started(sequence);
        let header = self.header(*operation, target, sequence);
        let result = match *operation {
            Operation::Send { to } => self.send(target, header, to, wait, call.deadline).await,
            Operation::Recv { from } => {
                self.receive(target, header, from, wait, call.deadline).await
            }
            _ => self.collective(*operation, target, header, wait, call.deadline).await,
        };
        match result {
            Ok(()) => Ok(()),
            Err(halt) => {
                let error = self.explain(halt, &header, wait, call.timeout).await;
                Err(self.session.shared.publish(error))
            }
        }
    }

    /// Counts an operation and returns its number.
    fn enter(&self, operation: Operation) -> (u64, Wait) {
        let next = |count: &mut u64| std::mem::replace(count, *count + 1);
        let mut counts = self.counts.borrow_mut();
        match operation {
            Operation::Send { to } => {
                let index = next(&mut counts[to].0);
                (index, Wait::ReceiptOf { peer: to, index })
            }
            Operation::Recv { from } => {
                let index = next(&mut counts[from].1);
                (index, Wait::SendOf { peer: from, index })
            }
            _ => {
                let sequence = self.entered.get();
                self.entered.set(sequence + 1);
                (sequence, Wait::Enter(sequence))
            }
        }
    }

    fn header(&self, operation: Operation, target: &Target, sequence: u64) -> Header {
        let dtype = target.dtype();
        let elements = target.len() / dtype.size_bytes();
        // All ranks tell the length of a part, which is what they have in common.
        let count = match operation {
            Operation::Gather { root } | Operation::Scatter { root }
                if root == self.comm.rank() =>
            {
                elements / self.comm.size()
            }
            _ => elements,
        };
        let rank = self.comm.rank();
        Header::new(operation, rank, dtype, count, sequence, self.group as u32)
    }

    async fn collective(
        &self,
        operation: Operation,
        target: &mut Target,
        header: Header,
        wait: Wait,
        deadline: Instant,
    ) -> Result<(), Halt> {
        self.meet(header, wait, deadline).await?;
        let _moving = self.session.context.pace.moving();
        Collective { lane: self, dtype: header.dtype, deadline }.run(operation, target).await
    }

    /// Exchanges headers.
    async fn meet(&self, header: Header, wait: Wait, deadline: Instant) -> Result<(), Halt> {
        let (mut own, all) = (self.take(HEADER_BYTES), self.take(HEADER_BYTES * self.comm.size()));
        own.bytes_mut()[..HEADER_BYTES].copy_from_slice(&header.encode());
        let _waiting = self.session.context.pace.waiting();
        let gathered = self.comm.all_gather(own, all, HEADER_BYTES);
        let (own, all) = self.until(deadline, wait, gathered).await?;
        let others = all.bytes().as_chunks::<HEADER_BYTES>().0;
        for (peer, bytes) in others.iter().take(self.comm.size()).enumerate() {
            expect(bytes, &header, peer)?;
        }
        self.give_back([own, all]);
        Ok(())
    }

    /// Returns memory of at least `bytes`, with unspecified contents.
    pub(super) fn take(&self, bytes: usize) -> Memory {
        let mut memory = self.pool.borrow_mut().pop().unwrap_or_default();
        memory.reserve(bytes);
        memory
    }

    pub(super) fn give_back<const N: usize>(&self, memories: [Memory; N]) {
        self.pool.borrow_mut().extend(memories);
    }

    /// Counts payload bytes that were given to MPI for other ranks.
    pub(super) fn add_sent(&self, bytes: usize) {
        self.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Compares the header of a peer with the own one.
pub(super) fn expect(bytes: &[u8; HEADER_BYTES], own: &Header, peer: usize) -> Result<(), Halt> {
    match Header::decode(bytes) {
        Some(remote) if remote == *own => Ok(()),
        Some(remote) => Err(Halt::Mismatch { peer, remote }),
        None => Err(Halt::Malformed { peer }),
    }
}

/// Cuts `len` bytes into spans of at most `most`, which is a multiple of every element's size.
pub(super) fn spans(len: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len).step_by(most).map(move |start| start..len.min(start + most))
}
