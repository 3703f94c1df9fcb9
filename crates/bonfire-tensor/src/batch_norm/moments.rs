use super::{BatchStatistics, Count};
use crate::TensorError;
use bonfire_comm::ProcessGroup;
use burn::tensor::{DType, Device, Tensor, TensorData};

/// Mean of some values, and the sum of their squared distances from it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Moment {
    pub(super) count: f64,
    pub(super) mean: f64,
    pub(super) squares: f64,
}

impl Moment {
    /// Adds the values of another set.
    pub(super) fn merge(&mut self, other: Self) {
        if other.count == 0.0 {
            return;
        }
        let count = self.count + other.count;
        let (distance, share) = (other.mean - self.mean, other.count / count);
        self.mean += distance * share;
        self.squares += other.squares + distance * distance * self.count * share;
        self.count = count;
    }
}

/// The [`Moment`] of every channel of a batch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Moments(pub(super) Vec<Moment>);

impl Moments {
    /// Merges those of all ranks of a group, in the order of the ranks.
    pub(super) fn gather(self, group: Option<&ProcessGroup>) -> Result<Self, TensorError> {
        let Some(group) = group else { return Ok(self) };
        let channels = self.0.len();
        let own = self.encode();
        let mut all = vec![0.0; own.len() * group.world_size()];
        group.all_gather(&own, &mut all)?;
        let mut merged = vec![Moment::default(); channels];
        for part in all.chunks_exact(own.len()) {
            let (means, squares) = part[1..].split_at(channels);
            for (channel, merged) in merged.iter_mut().enumerate() {
                let (mean, squares) = (means[channel], squares[channel]);
                merged.merge(Moment { count: part[0], mean, squares });
            }
        }
        Ok(Self(merged))
    }

    /// Count, means and squares: what travels.
    fn encode(&self) -> Vec<f64> {
        let count = self.0.first().map_or(0.0, |moment| moment.count);
        let means = self.0.iter().map(|moment| moment.mean);
        let squares = self.0.iter().map(|moment| moment.squares);
        std::iter::once(count).chain(means).chain(squares).collect()
    }

    pub(super) fn into_statistics(
        self,
        device: &Device,
        dtype: DType,
    ) -> Result<BatchStatistics, TensorError> {
        let count = enough(self.0.first().map_or(0.0, |moment| moment.count) as usize)?;
        let tensor = |value: fn(&Moment) -> f64| {
            let values: Vec<f64> = self.0.iter().map(value).collect();
            let shape = [values.len()];
            Tensor::from_data(TensorData::new(values, shape), (device, dtype))
        };
        let variance = tensor(|moment| moment.squares / moment.count);
        let (mean, count) = (tensor(|moment| moment.mean), Count::Known(count));
        Ok(BatchStatistics { mean, variance, count })
    }
}

/// Refuses a count that leaves no variance to normalise by.
pub(super) fn enough(count: usize) -> Result<usize, TensorError> {
    match count {
        0 | 1 => Err(TensorError::TooFewValues { count }),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(values: &[f64]) -> Moment {
        let mut moment = Moment::default();
        for &mean in values {
            moment.merge(Moment { count: 1.0, mean, squares: 0.0 });
        }
        moment
    }

    #[test]
    fn parts_of_any_size_merge_to_the_moments_of_the_whole() {
        let values: Vec<f64> = (0..17).map(|k| 1e8 + f64::from(k * k % 7)).collect();
        let mean = values.iter().sum::<f64>() / 17.0;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        for cut in [0, 1, 5, 17] {
            let mut merged = moment(&values[..cut]);
            merged.merge(moment(&values[cut..]));
            assert_eq!(merged.count, 17.0);
            assert!((merged.mean - mean).abs() < 1e-6, "{merged:?} {mean}");
            // A mean of squares less the square of the mean would be off by about 1.
            assert!((merged.squares - squares).abs() < 1e-6, "{merged:?} {squares}");
        }
    }
}
