//! Links between threads of one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::{Connector, Links, Neighbours};
use crate::shm::Segment;
use crate::sync::lock;
use crate::{CommError, Result};

/// Makes the links of the rank-threads of one process: memory that is not even shared.
pub(crate) struct LocalConnector {
    machines: Arc<[u64]>,
    /// Segments that some members have not taken yet, with how many have.
    open: Mutex<HashMap<String, (Arc<Segment>, usize)>>,
}

impl LocalConnector {
    pub(crate) fn new(world_size: usize) -> Arc<Self> {
        Arc::new(Self { machines: vec![0; world_size].into(), open: Mutex::default() })
    }

    fn segment(&self, identity: &str, ranks: usize) -> Result<Arc<Segment>> {
        let mut open = lock(&self.open);
        let (segment, taken) = match open.remove(identity) {
            Some((segment, taken)) => (segment, taken + 1),
            None => {
                let made = Segment::anonymous(ranks)
                    .map_err(|error| CommError::system("map memory for the ranks", &error))?;
                (made, 1)
            }
        };
        if taken < ranks {
            open.insert(identity.to_owned(), (segment.clone(), taken));
        }
        Ok(segment)
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
    ) -> Result<Links> {
        let size = members.len();
        if size == 1 {
            return Ok(Links::none());
        }
        let segment = self.segment(identity, size)?;
        let near = Neighbours { segment, ranks: (0..size).collect(), place: rank };
        let streams = (0..size).map(|_| None).collect();
        Links::new(Some(near), streams)
            .map_err(|error| CommError::system("connect rank-threads", &error))
    }

    fn machines(&self) -> Arc<[u64]> {
        self.machines.clone()
    }

    fn shares_memory(&self) -> bool {
        true
    }
}
