//! Figures as sums and counts: on the device while steps run, then over all ranks.

use crate::{RankFigures, StepOutput, TrainError};
use bonfire_comm::{HostBuffer, ProcessGroup, ReduceOp, Work};
use bonfire_parallel::LossReduction;
use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

/// A figure over all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricValue {
    /// Its name; the loss is called `loss`.
    pub name: String,
    /// Sum over all samples.
    pub sum: f64,
    /// What the sum is divided by.
    pub count: f64,
}

impl MetricValue {
    /// The mean, or NaN without samples; never -0, which the negated logarithms of a perfect model add up to.
    pub fn mean(&self) -> f64 {
        self.sum / self.count + 0.0
    }
}

/// Figures over all ranks, the loss first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics(pub Vec<MetricValue>);

impl Metrics {
    /// The mean of a figure, if it is there and has samples.
    pub fn mean(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|value| value.name == name && value.count > 0.0).map(MetricValue::mean)
    }

    /// The mean loss.
    pub fn loss(&self) -> Option<f64> {
        self.mean("loss")
    }

    /// Appends figures of other names.
    pub(crate) fn extend(&mut self, other: Metrics) {
        self.0.extend(other.0);
    }

    /// Adds the sums and counts of `other`.
    pub(crate) fn add(&mut self, other: &Metrics) {
        for value in &other.0 {
            match self.0.iter_mut().find(|own| own.name == value.name) {
                Some(own) => {
                    own.sum += value.sum;
                    own.count += value.count;
                }
                None => self.0.push(value.clone()),
            }
        }
    }
}

/// Sums of this rank since they were last taken; the device is not waited for.
#[derive(Default)]
pub(crate) struct LocalMetrics {
    entries: Vec<Entry>,
    /// Figures of the window at hand.
    window: Vec<Entry>,
    /// Those of the window before, which a skipped step takes back.
    closed: Vec<Entry>,
    /// Figures of optimizer steps. Apart, since a rank has them with and without samples: all ranks
    /// must have the same names in the same order.
    steps: Vec<MetricValue>,
}

struct Entry {
    name: String,
    sum: Tensor<1>,
    count: f64,
}

impl LocalMetrics {
    /// Adds loss and metrics of a micro-batch to the window at hand.
    pub(crate) fn add(&mut self, output: &StepOutput) {
        let loss = output.loss.clone().without_autodiff().reshape([1]);
        let sum = match output.reduction {
            LossReduction::Mean => loss.mul_scalar(output.weight),
            LossReduction::Sum => loss,
        };
        self.accumulate("loss", sum, output.weight);
        for metric in &output.metrics {
            let sum = metric.sum.clone().without_autodiff().reshape([1]);
            self.accumulate(metric.name, sum, metric.count);
        }
    }

    /// Adds a figure of an optimizer step, the same on all ranks; `None` if the step has none.
    pub(crate) fn add_step(&mut self, name: &str, value: Option<f64>) {
        let (sum, count) = value.map_or((0.0, 0.0), |value| (value, 1.0));
        match self.steps.iter_mut().find(|step| step.name == name) {
            Some(step) => {
                step.sum += sum;
                step.count += count;
            }
            None => self.steps.push(MetricValue { name: name.to_string(), sum, count }),
        }
    }

    fn accumulate(&mut self, name: &str, sum: Tensor<1>, count: f64) {
        accumulate(&mut self.window, name, sum, count);
    }

    /// Closes the window: what is added from now on is the next one's.
    pub(crate) fn close_window(&mut self) {
        self.end_window(false);
        self.closed = std::mem::take(&mut self.window);
    }

    /// Ends the window that was closed. Of a step that was skipped only the names stay: its loss may
    /// be infinite.
    pub(crate) fn end_window(&mut self, skipped: bool) {
        for Entry { name, sum, count } in std::mem::take(&mut self.closed) {
            match skipped {
                true => accumulate(&mut self.entries, &name, sum.zeros_like(), 0.0),
                false => accumulate(&mut self.entries, &name, sum, count),
            }
        }
    }

    /// Reads the sums from the device and begins anew; names stay.
    pub(crate) fn take(&mut self) -> Result<Metrics, TrainError> {
        self.close_window();
        self.end_window(false);
        let mut values = Vec::with_capacity(self.entries.len() + self.steps.len());
        for entry in &mut self.entries {
            let sum = scalar(entry.sum.clone())?;
            values.push(MetricValue { name: entry.name.clone(), sum, count: entry.count });
            entry.sum = entry.sum.zeros_like();
            entry.count = 0.0;
        }
        for step in &mut self.steps {
            values.push(step.clone());
            (step.sum, step.count) = (0.0, 0.0);
        }
        Ok(Metrics(values))
    }
}

fn accumulate(entries: &mut Vec<Entry>, name: &str, sum: Tensor<1>, count: f64) {
    match entries.iter_mut().find(|entry| entry.name == name) {
        Some(entry) => {
            entry.sum = entry.sum.clone() + sum;
            entry.count += count;
        }
        None => entries.push(Entry { name: name.to_string(), sum, count }),
    }
}

fn scalar(tensor: Tensor<1>) -> Result<f64, TrainError> {
    let values = tensor.cast(DType::F64).try_into_vec_as::<f64>();
    let values = values.map_err(|error| TrainError::ReadMetric { reason: format!("{error:?}") })?;
    Ok(values.into_iter().sum())
}

/// A reduction of metrics over ranks that runs while training goes on, and with it what each rank has
/// done since the last one.
pub(crate) struct PendingMetrics {
    names: Vec<String>,
    work: Work,
}

impl PendingMetrics {
    /// Starts to sum metrics of the same names over all ranks.
    ///
    /// # Collective
    /// All ranks of the group, in the same order.
    pub(crate) fn start(
        group: &ProcessGroup,
        local: Metrics,
        own: RankFigures,
    ) -> Result<Self, TrainError> {
        let mut values: Vec<f64> =
            local.0.iter().flat_map(|value| [value.sum, value.count]).collect();
        // Every rank fills its own place, and the others add nothing to it.
        let place = values.len() + group.rank() * RankFigures::WORDS;
        values.resize(values.len() + group.world_size() * RankFigures::WORDS, 0.0);
        values[place..place + RankFigures::WORDS].copy_from_slice(&own.to_words());
        let names = local.0.into_iter().map(|value| value.name).collect();
        let work = group.start_all_reduce(HostBuffer::from(values), ReduceOp::Sum)?;
        Ok(Self { names, work })
    }

    /// Waits for the sums.
    pub(crate) fn finish(self) -> Result<(Metrics, Vec<RankFigures>), TrainError> {
        let values = self.work.wait()?.into_vec::<f64>()?;
        let (sums, ranks) = values.split_at(values.len().min(2 * self.names.len()));
        let pairs = self.names.into_iter().zip(sums.chunks_exact(2));
        let value =
            |(name, pair): (String, &[f64])| MetricValue { name, sum: pair[0], count: pair[1] };
        let ranks = ranks.chunks_exact(RankFigures::WORDS).map(RankFigures::from_words);
        Ok((Metrics(pairs.map(value).collect()), ranks.collect()))
    }
}

/// Tells every rank what each has done, in the order of the ranks.
///
/// # Collective
/// All ranks of the group.
pub(crate) fn gather_figures(
    group: &ProcessGroup,
    own: RankFigures,
) -> Result<Vec<RankFigures>, TrainError> {
    let mut words = vec![0f64; group.world_size() * RankFigures::WORDS];
    group.all_gather(&own.to_words(), &mut words)?;
    Ok(words.chunks_exact(RankFigures::WORDS).map(RankFigures::from_words).collect())
}

/// Sums metrics over ranks of which some may have none, since they had no sample.
///
/// # Collective
/// All ranks of the group.
pub(crate) fn reduce(group: &ProcessGroup, local: &Metrics) -> Result<Metrics, TrainError> {
    let invalid = |reason: String| TrainError::ReadMetric { reason };
    let bytes = serde_json::to_vec(
        &local.0.iter().map(|v| (&v.name, v.sum.to_bits(), v.count.to_bits())).collect::<Vec<_>>(),
    )
    .map_err(|error| invalid(error.to_string()))?;
    let mut total = Metrics::default();
    for part in group.all_gather_bytes(&bytes)? {
        let values: Vec<(String, u64, u64)> =
            serde_json::from_slice(&part).map_err(|error| invalid(error.to_string()))?;
        let value = |(name, sum, count)| MetricValue {
            name,
            sum: f64::from_bits(sum),
            count: f64::from_bits(count),
        };
        total.add(&Metrics(values.into_iter().map(value).collect()));
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_comm::local;
    use burn::tensor::Device;

    #[test]
    fn a_perfect_loss_has_no_sign() {
        let logits = Tensor::<2>::from_data([[200.0f32, 0.0], [0.0, 200.0]], &Device::flex());
        let targets = Tensor::from_data([0, 1], &Device::flex());
        let loss = bonfire_nn::cross_entropy(logits, targets);
        let mut local = LocalMetrics::default();
        local.add(&StepOutput::mean(loss, 2));
        let metrics = local.take().unwrap();
        assert_eq!(format!("{:.4}", metrics.loss().unwrap()), "0.0000");
    }

    #[test]
    fn ranks_without_samples_take_part() {
        for result in local::spawn(3, |group| {
            let own = match group.rank() {
                1 => Metrics::default(),
                rank => Metrics(vec![MetricValue {
                    name: "loss".into(),
                    sum: rank as f64 + 1.0,
                    count: 2.0,
                }]),
            };
            reduce(&group, &own).unwrap()
        }) {
            assert_eq!(result.loss(), Some(1.0));
        }
    }
}
