//! How groups come into being.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::lane::{Job, Lane};
use super::note::Note;
use super::progress::describe_missing;
use super::runtime::turn;
use super::session::{Session, hash};
use super::shared::NewGroup;
use super::sys::Comm;
use crate::{CommError, Result};

impl Session {
    /// Runs the world's group, which needs no meeting.
    pub(super) fn start_world(self: &Rc<Self>, lane: Lane, jobs: Receiver<Job>) {
        self.active.set(self.active.get() + 1);
        let session = self.clone();
        self.context.add(async move {
            lane.serve(jobs).await;
            session.active.set(session.active.get() - 1);
        });
    }

    /// Gives the sign when the last member of a group is ready.
    ///
    /// ORDER: `MPI_Comm_create_group` blocks until all members are in it. Two groups that are
    /// made at the same time would block each other if two ranks began with different ones. So
    /// rank 0 alone gives all signs of a session; its messages to a rank keep their order, and
    /// every rank makes the groups that it is in when and as the signs come.
    pub(super) fn count_ready(&self, sender: usize, group: u64, size: u64) {
        let all_ready = {
            let mut state = self.state.borrow_mut();
            let ready = state.ready.entry(group).or_default();
            ready.push(sender);
            let is_last = ready.len() as u64 == size;
            is_last.then(|| state.ready.remove(&group)).flatten()
        };
        // This rank last, because it begins at once.
        let Some(members) = all_ready else { return };
        let (own, others): (Vec<_>, _) =
            members.into_iter().partition(|&rank| rank == self.shared.rank);
        for rank in others.into_iter().chain(own) {
            self.tell(rank, &Note::Go { group });
        }
    }

    pub(super) fn create(&self, group: u64) {
        let Some(members) = self.state.borrow_mut().wanted.remove(&group) else { return };
        // Every MPI library allows tags of 15 bits.
        let created = self.control.create_group(&members, (group & 0x7fff) as u16);
        self.state.borrow_mut().created.insert(group, created);
    }

    pub(super) async fn make_group(self: Rc<Self>, request: NewGroup) {
        let NewGroup { identity, members, timeout, deadline, jobs, bytes_sent, reply } = request;
        match self.meet(&identity, &members, timeout, deadline).await {
            Ok(comm) => {
                let lane = Lane::new(self.clone(), comm, identity, members, bytes_sent);
                let _ = reply.send(Ok(()));
                lane.serve(jobs).await;
            }
            Err(error) => {
                let _ = reply.send(Err(self.shared.publish(error)));
            }
        }
        self.active.set(self.active.get() - 1);
    }

    /// Waits for the other members of a new group and makes its communicator.
    async fn meet(
        &self,
        identity: &str,
        members: &[usize],
        timeout: Duration,
        deadline: Instant,
    ) -> Result<Comm> {
        if members.len() == 1 {
            return self.context.mpi.alone();
        }
        let group = hash(identity);
        self.state.borrow_mut().wanted.insert(group, members.to_vec());
        self.tell(0, &Note::Ready { group, size: members.len() as u64 });
        let _waiting = self.context.pace.waiting();
        loop {
            if let Some(created) = self.state.borrow_mut().created.remove(&group) {
                return created;
            }
            self.shared.check()?;
            if Instant::now() >= deadline {
                let answers = self.ask(group, members).await;
                return Err(CommError::Timeout {
                    group: identity.to_owned(),
                    rank: members.iter().position(|&rank| rank == self.shared.rank).unwrap_or(0),
                    operation: "creation of the group".into(),
                    timeout,
                    missing: describe_missing(&answers, 0),
                });
            }
            turn().await;
        }
    }
}
