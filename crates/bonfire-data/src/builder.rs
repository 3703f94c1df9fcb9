//! Builds one batch: reads its samples and collates them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    BatchContext, Collate, DataError, Dataset, LoadedBatch, Padding, SampleContext, ShardBatch,
};

/// What every worker needs to build batches of one epoch.
pub(crate) struct BatchBuilder<D: ?Sized, C: ?Sized> {
    pub(crate) dataset: Arc<D>,
    pub(crate) collate: Arc<C>,
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    pub(crate) padding: Padding,
    /// Set when nobody wants batches any more.
    pub(crate) stop: Arc<AtomicBool>,
}

/// What [`BatchBuilder::build`] returns.
pub(crate) type BuildResult<B> = Result<LoadedBatch<B>, DataError>;

impl<D, C> BatchBuilder<D, C>
where
    D: Dataset + ?Sized,
    C: Collate<D::Item> + ?Sized,
{
    /// Builds batch `number`, or returns `None` when told to stop meanwhile.
    ///
    /// A panic of the data set or of the collate function becomes an error: it must reach the
    /// consumer in order, where the rank can report it to its peers.
    pub(crate) fn build(&self, number: usize, plan: ShardBatch) -> Option<BuildResult<C::Batch>> {
        // Unwind safety: after a panic this iteration ends, and nothing of the builder's is half
        // written. The user's own types guard themselves, as they do when shared between threads.
        catch_unwind(AssertUnwindSafe(|| self.load(plan))).unwrap_or_else(|payload| {
            let message = panic_message(payload.as_ref());
            Some(Err(DataError::WorkerPanicked { batch: number, epoch: self.epoch, message }))
        })
    }

    fn load(&self, mut plan: ShardBatch) -> Option<BuildResult<C::Batch>> {
        if self.padding == Padding::Skip {
            plan.samples.retain(|sample| !sample.padding);
        }
        let mut items = Vec::with_capacity(plan.samples.len());
        let mut left_out = Vec::new();
        for sample in &plan.samples {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            match self.read(sample.index) {
                Ok(item) => items.push(item),
                Err(DataError::LeftOut { index, .. }) if self.padding == Padding::Skip => {
                    left_out.push(index);
                }
                Err(error) => return Some(Err(error)),
            }
        }
        plan.samples.retain(|sample| !left_out.contains(&sample.index));
        Some(self.join(&plan, items))
    }

    fn read(&self, index: usize) -> Result<D::Item, DataError> {
        let context = SampleContext { seed: self.seed, epoch: self.epoch, index };
        self.dataset.get(&context).map_err(|source| match source {
            left_out @ DataError::LeftOut { .. } => left_out,
            other => DataError::Sample { index, epoch: self.epoch, source: Box::new(other) },
        })
    }

    fn join(&self, plan: &ShardBatch, items: Vec<D::Item>) -> BuildResult<C::Batch> {
        let samples = items.len();
        let position = plan.cursor_after - plan.global_samples as u64;
        let context = BatchContext { seed: self.seed, epoch: self.epoch, position };
        let data = match items.is_empty() {
            true => None,
            false => Some(self.collate.collate_at(items, &context)?),
        };
        Ok(LoadedBatch {
            data,
            samples,
            indices: plan.samples.iter().map(|sample| sample.index).collect(),
            padding_mask: plan.samples.iter().map(|sample| sample.padding).collect(),
            global_samples: plan.global_samples,
            global_positions: plan.global_positions,
            cursor_after: plan.cursor_after,
        })
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}
