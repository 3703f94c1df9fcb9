//! Counts of a window that all ranks have to know; they travel behind a bucket.

use super::{Reduced, Reducer};
use crate::ParallelError;
use crate::exchange::Exchange;
use bonfire_comm::{HostBuffer, ProcessGroup, ReduceOp};

/// What a rank, or all ranks together, did in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Totals {
    /// Samples, or other units of weight.
    pub(crate) weight: f64,
    /// See [`DataParallel::vote`](crate::DataParallel::vote).
    pub(crate) votes: f64,
    /// Parameters without a gradient, where that is an error.
    pub(crate) unused: f64,
}

/// Elements that the totals take.
pub(super) const EXTRA: usize = 3;

impl Totals {
    /// Writes the totals at `at` in a bucket's memory, of which the mean over `ranks` is to come:
    /// multiplied beforehand, so that counts come back as whole numbers.
    pub(super) fn write(self, memory: &mut HostBuffer, at: usize, ranks: usize) {
        let values = [self.weight, self.votes, self.unused].map(|value| value * ranks as f64);
        match memory {
            HostBuffer::F32(memory) => {
                memory[at..at + EXTRA].copy_from_slice(&values.map(|value| value as f32));
            }
            HostBuffer::F64(memory) => memory[at..at + EXTRA].copy_from_slice(&values),
            _ => {}
        }
    }

    fn read(memory: &HostBuffer, at: usize) -> Option<[f64; EXTRA]> {
        match memory {
            HostBuffer::F32(memory) => {
                memory[at..].first_chunk::<EXTRA>().map(|values| values.map(f64::from))
            }
            HostBuffer::F64(memory) => memory[at..].first_chunk::<EXTRA>().copied(),
            _ => None,
        }
    }
}

impl Reducer {
    /// Adds this rank's vote to the window.
    pub(crate) fn vote(&self, value: f64) {
        self.lock().totals.votes = value;
    }

    /// The window's totals over all ranks that exchanged gradients, once every bucket is back; on
    /// `control` when they did not travel with the gradients.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn totals(&self, control: &ProcessGroup) -> Result<Totals, ParallelError> {
        let (own, exchange) = {
            let window = self.lock();
            (window.totals, window.exchange)
        };
        let [weight, votes, unused] = match (exchange, self.totals_in) {
            (Exchange::None, _) => return Ok(own),
            (Exchange::AllReduce, Some(bucket)) => {
                let at = self.layout.buckets()[bucket].num_elements();
                let sums = self.with_reduced(bucket, |reduced| match reduced {
                    Reduced::Host(memory) => Totals::read(memory, at),
                    Reduced::Part(_) | Reduced::Adopted(_) | Reduced::FlatPart(_) => None,
                })?;
                sums.unwrap_or_default()
            }
            _ => {
                let mut values = [own.weight, own.votes, own.unused];
                control.all_reduce(&mut values, ReduceOp::Sum)?;
                values
            }
        };
        Ok(Totals { weight, votes, unused })
    }
}
