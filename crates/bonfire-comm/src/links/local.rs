//! Links between threads of one process: a bounded ring of bytes for each direction.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Connector, Links, NoLinks};
use crate::Result;
use crate::sync::lock;

/// Bytes in flight per direction. Larger than the spans that the ring algorithm moves at a time,
/// small enough to stay in the L2 cache between the two copies.
const CAPACITY: usize = 256 * 1024;

/// A bounded queue of bytes; its memory is taken at the first use.
#[derive(Default)]
struct Pipe {
    bytes: Box<[u8]>,
    head: usize,
    len: usize,
    closed: bool,
}

impl Pipe {
    fn push(&mut self, part: &[u8]) -> usize {
        if self.bytes.is_empty() && !part.is_empty() {
            self.bytes = vec![0; CAPACITY].into_boxed_slice();
        }
        let count = part.len().min(self.bytes.len() - self.len);
        let tail = (self.head + self.len) % CAPACITY;
        let first = count.min(CAPACITY - tail);
        if count > 0 {
            self.bytes[tail..tail + first].copy_from_slice(&part[..first]);
            self.bytes[..count - first].copy_from_slice(&part[first..count]);
        }
        self.len += count;
        count
    }

    fn pop(&mut self, part: &mut [u8]) -> usize {
        let count = part.len().min(self.len);
        let first = count.min(CAPACITY - self.head);
        if count > 0 {
            part[..first].copy_from_slice(&self.bytes[self.head..self.head + first]);
            part[first..count].copy_from_slice(&self.bytes[..count - first]);
        }
        self.head = (self.head + count) % CAPACITY;
        self.len -= count;
        count
    }
}

/// Wakes a rank when something changed in one of its pipes.
#[derive(Default)]
struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    fn ring(&self) {
        *lock(&self.rings) += 1;
        self.rung.notify_all();
    }
}

/// The pipes and bells of one group.
struct Fabric {
    size: usize,
    pipes: Vec<Mutex<Pipe>>,
    bells: Vec<Bell>,
}

impl Fabric {
    fn new(size: usize) -> Self {
        let pipes = (0..size * size).map(|_| Mutex::default()).collect();
        Self { size, pipes, bells: (0..size).map(|_| Bell::default()).collect() }
    }

    fn pipe(&self, from: usize, to: usize) -> &Mutex<Pipe> {
        &self.pipes[from * self.size + to]
    }
}

/// The links of one rank-thread.
struct LocalLinks {
    rank: usize,
    fabric: Arc<Fabric>,
    /// INVARIANT: rings up to this one happened before the last attempts to send and receive, so
    /// `wait` can sleep only while nothing has changed since.
    seen: u64,
}

impl Links for LocalLinks {
    fn try_send(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut pipe = lock(self.fabric.pipe(self.rank, peer));
        if pipe.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = parts.iter().map(|part| pipe.push(part)).sum();
        drop(pipe);
        if count > 0 {
            self.fabric.bells[peer].ring();
        }
        Ok(count)
    }

    fn try_recv(&mut self, peer: usize, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut pipe = lock(self.fabric.pipe(peer, self.rank));
        let count = parts.iter_mut().map(|part| pipe.pop(part)).sum();
        let closed = pipe.closed;
        drop(pipe);
        if count > 0 {
            self.fabric.bells[peer].ring();
        } else if closed {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(count)
    }

    fn wait(
        &mut self,
        _send: Option<usize>,
        _recv: Option<usize>,
        timeout: Duration,
    ) -> io::Result<()> {
        let bell = &self.fabric.bells[self.rank];
        let mut rings = lock(&bell.rings);
        if *rings == self.seen {
            rings =
                bell.rung.wait_timeout(rings, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.seen = *rings;
        Ok(())
    }
}

impl Drop for LocalLinks {
    fn drop(&mut self) {
        for peer in 0..self.fabric.size {
            lock(self.fabric.pipe(self.rank, peer)).closed = true;
            lock(self.fabric.pipe(peer, self.rank)).closed = true;
            self.fabric.bells[peer].ring();
        }
    }
}

/// Makes the links of the rank-threads of one process.
pub(crate) struct LocalConnector {
    world_size: usize,
    /// Fabrics of which some members have not taken their links yet, with how many have.
    open: Mutex<HashMap<String, (Arc<Fabric>, usize)>>,
}

impl LocalConnector {
    pub(crate) fn new(world_size: usize) -> Arc<Self> {
        Arc::new(Self { world_size, open: Mutex::default() })
    }
}

impl Connector for LocalConnector {
    fn engine(&self) -> &'static str {
        "local"
    }

    fn connect(
        &self,
        identity: &str,
        members: &[usize],
        rank: usize,
        _deadline: Instant,
    ) -> Result<Box<dyn Links>> {
        if members.len() == 1 {
            return Ok(Box::new(NoLinks));
        }
        let mut open = lock(&self.open);
        let entry = open
            .entry(identity.to_owned())
            .or_insert_with(|| (Arc::new(Fabric::new(members.len())), 0));
        entry.1 += 1;
        let (fabric, taken) = (entry.0.clone(), entry.1);
        if taken == members.len() {
            open.remove(identity);
        }
        Ok(Box::new(LocalLinks { rank, fabric, seen: 0 }))
    }

    fn machines(&self) -> Arc<[u64]> {
        vec![0; self.world_size].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_bounded_and_wraps() {
        let mut pipe = Pipe::default();
        let data: Vec<u8> = (0..CAPACITY + 10).map(|i| i as u8).collect();
        assert_eq!(pipe.push(&data), CAPACITY);
        let mut out = vec![0; 100];
        assert_eq!(pipe.pop(&mut out), 100);
        assert_eq!(out, data[..100]);
        assert_eq!(pipe.push(&data), 100);
        let mut rest = vec![0; CAPACITY + 1];
        assert_eq!(pipe.pop(&mut rest), CAPACITY);
        assert_eq!(rest[..CAPACITY - 100], data[100..CAPACITY]);
        assert_eq!(rest[CAPACITY - 100..CAPACITY], data[..100]);
    }
}
