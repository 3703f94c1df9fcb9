//! Averages of parameters now and then, in place of averages of gradients in every step.

use crate::ParallelError;
use crate::bucket::BucketLayout;
use crate::exchange::copy_of;
use bonfire_comm::{Buffer, HostBuffer, ProcessGroup, ReduceOp};
use bonfire_tensor::TensorError;
use bonfire_tensor::host::to_host;
use bonfire_tensor::state::{HostTensor, State};
use burn::tensor::Tensor;

/// Between two averages every rank takes optimizer steps of its own.
///
/// # Reference
/// Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv:1805.09767; with
/// `outer`, Douillard et al., "DiLoCo", arXiv:2311.08105. PyTorch's peers are
/// `PeriodicModelAverager` and `post_localSGD`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalSgd {
    /// Optimizer steps from one average to the next.
    pub period: u64,
    /// Steps taken with averaged gradients before the first local one. Default 0.
    pub start_step: u64,
    /// The outer optimizer. Default none: the average itself becomes the parameters.
    pub outer: Option<OuterMomentum>,
}

impl LocalSgd {
    /// Averages every `period` steps.
    pub fn new(period: u64) -> Self {
        Self { period, start_step: 0, outer: None }
    }

    /// Sets the number of steps with averaged gradients before the first local one.
    pub fn with_start_step(self, start_step: u64) -> Self {
        Self { start_step, ..self }
    }

    /// Sets the outer optimizer.
    pub fn with_outer(self, outer: OuterMomentum) -> Self {
        Self { outer: Some(outer), ..self }
    }

    /// Whether a step, counted from 0, is taken on this rank's gradients alone.
    pub(crate) fn is_local(&self, step: u64) -> bool {
        step >= self.start_step
    }

    /// Whether the parameters are averaged after a step, counted from 0.
    pub(crate) fn averages_after(&self, step: u64) -> bool {
        self.is_local(step) && (step + 1 - self.start_step).is_multiple_of(self.period.max(1))
    }

    pub(crate) fn validate(&self) -> Result<(), ParallelError> {
        let setting =
            |name, value: String, reason| Err(ParallelError::Setting { name, value, reason });
        if self.period == 0 {
            let reason = "must be at least 1: the number of steps between two averages";
            return setting("local_sgd.period", "0".to_string(), reason);
        }
        let Some(outer) = self.outer else { return Ok(()) };
        if !(outer.learning_rate > 0.0 && outer.learning_rate.is_finite()) {
            let reason = "must be above 0";
            return setting("local_sgd.outer_lr", outer.learning_rate.to_string(), reason);
        }
        if !(0.0..1.0).contains(&outer.momentum) {
            let reason = "must lie in [0, 1)";
            return setting("local_sgd.outer_momentum", outer.momentum.to_string(), reason);
        }
        Ok(())
    }
}

/// SGD on the distance that the average has moved.
///
/// With the parameters `p` of the last average, the new mean `a` over ranks and momentum buffer `m`:
/// `d = p - a`; `m = momentum * m + d`; `p -= learning_rate * (d + momentum * m)` with `nesterov`,
/// `p -= learning_rate * m` without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterMomentum {
    /// Default 0.7.
    pub learning_rate: f64,
    /// Default 0.9.
    pub momentum: f64,
    /// Default true.
    pub nesterov: bool,
}

impl Default for OuterMomentum {
    fn default() -> Self {
        Self { learning_rate: 0.7, momentum: 0.9, nesterov: true }
    }
}

/// What the outer optimizer remembers, a buffer for each bucket; the same on every rank.
#[derive(Debug, Default)]
pub(crate) struct OuterState {
    /// Parameters as of the last average.
    start: Vec<HostBuffer>,
    momentum: Vec<HostBuffer>,
}

impl OuterState {
    /// Notes the parameters that the next average starts from, unless it is known.
    pub(crate) fn begin(&mut self, flat: &[Tensor<1>]) -> Result<(), ParallelError> {
        if self.start.is_empty() {
            self.start = flat.iter().cloned().map(to_host).collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Turns means over ranks into new parameters.
    pub(crate) fn step(&mut self, settings: OuterMomentum, means: &mut [HostBuffer]) {
        if self.momentum.len() != means.len() {
            self.momentum =
                means.iter().map(|mean| HostBuffer::zeros(mean.dtype(), mean.len())).collect();
        }
        for ((mean, start), momentum) in
            means.iter_mut().zip(&mut self.start).zip(&mut self.momentum)
        {
            outer_step(settings, mean, start, momentum);
            start.as_bytes_mut().copy_from_slice(mean.as_bytes());
        }
    }

    /// The buffers, cut up by module path.
    pub(crate) fn state(&self, layout: &BucketLayout) -> State {
        let mut state = State::default();
        for (name, buffers) in [("start", &self.start), ("momentum", &self.momentum)] {
            if buffers.is_empty() {
                continue;
            }
            for (bucket, segment) in layout.segments() {
                let data = copy_of(&buffers[bucket], segment.range.clone());
                let tensor = HostTensor { shape: segment.shape.clone(), data };
                state.tensors.insert(format!("{name}.{}", segment.path), tensor);
            }
        }
        state
    }

    /// Restores buffers for a layout whose buckets have `lens` elements, padding included.
    pub(crate) fn load(
        &mut self,
        mut state: State,
        layout: &BucketLayout,
        lens: impl Iterator<Item = usize> + Clone,
    ) -> Result<(), TensorError> {
        self.forget();
        for (name, buffers) in [("start", &mut self.start), ("momentum", &mut self.momentum)] {
            let mut part = state.take_under(name);
            if part.tensors.is_empty() {
                continue;
            }
            for (bucket, len) in layout.buckets().iter().zip(lens.clone()) {
                let mut buffer = HostBuffer::zeros(bucket.dtype, len);
                let size = bucket.dtype.size_bytes();
                for segment in &bucket.segments {
                    let values = part.take_tensor(&segment.path, &segment.shape, bucket.dtype)?;
                    buffer.as_bytes_mut()[segment.range.start * size..segment.range.end * size]
                        .copy_from_slice(values.as_bytes());
                }
                buffers.push(buffer);
            }
            part.finish()?;
        }
        Ok(state.finish()?)
    }
}

fn outer_step(
    settings: OuterMomentum,
    mean: &mut HostBuffer,
    start: &HostBuffer,
    momentum: &mut HostBuffer,
) {
    fn run<T: Copy>(
        settings: OuterMomentum,
        (mean, start, momentum): (&mut [T], &[T], &mut [T]),
        read: impl Fn(T) -> f64,
        write: impl Fn(f64) -> T,
    ) {
        for ((mean, start), momentum) in mean.iter_mut().zip(start).zip(momentum) {
            let start = read(*start);
            let distance = start - read(*mean);
            let kept = settings.momentum * read(*momentum) + distance;
            let change = match settings.nesterov {
                true => distance + settings.momentum * kept,
                false => kept,
            };
            *momentum = write(kept);
            *mean = write(start - settings.learning_rate * change);
        }
    }
    match (mean, start, momentum) {
        (HostBuffer::F32(mean), HostBuffer::F32(start), HostBuffer::F32(momentum)) => {
            run(settings, (mean, start, momentum), f64::from, |value| value as f32);
        }
        (HostBuffer::F64(mean), HostBuffer::F64(start), HostBuffer::F64(momentum)) => {
            run(settings, (mean, start, momentum), |value| value, |value| value);
        }
        (HostBuffer::F16(mean), HostBuffer::F16(start), HostBuffer::F16(momentum)) => {
            run(settings, (mean, start, momentum), half::f16::to_f64, half::f16::from_f64);
        }
        (HostBuffer::BF16(mean), HostBuffer::BF16(start), HostBuffer::BF16(momentum)) => {
            run(settings, (mean, start, momentum), half::bf16::to_f64, half::bf16::from_f64);
        }
        _ => {}
    }
}

/// The means over ranks of flat tensors.
///
/// # Collective
/// All ranks of the group.
pub(crate) fn mean_over_ranks(
    group: &ProcessGroup,
    flat: &[Tensor<1>],
) -> Result<Vec<HostBuffer>, ParallelError> {
    let mut works = Vec::with_capacity(flat.len());
    for tensor in flat {
        let buffer = Buffer::Host(to_host(tensor.clone())?);
        works.push(group.start_all_reduce(buffer, ReduceOp::Mean)?);
    }
    works.into_iter().map(|work| Ok(work.wait()?.into_host()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn averages_come_a_period_after_the_last_step_with_averaged_gradients() {
        let policy = LocalSgd::new(3).with_start_step(2);
        let averaged: Vec<u64> = (0..12).filter(|step| policy.averages_after(*step)).collect();
        assert_eq!(averaged, [4, 7, 10]);
        assert!(!policy.is_local(1) && policy.is_local(2));
    }

    #[test]
    fn without_momentum_and_with_rate_one_the_average_is_the_result() {
        let settings = OuterMomentum { learning_rate: 1.0, momentum: 0.0, nesterov: true };
        let flat = [Tensor::<1>::from_data([1.0f32, 2.0], &Device::flex())];
        let mut state = OuterState::default();
        state.begin(&flat).unwrap();
        let mut means = [HostBuffer::from(vec![0.5f32, 3.0])];
        state.step(settings, &mut means);
        assert_eq!(means[0], HostBuffer::from(vec![0.5f32, 3.0]));
    }

    #[test]
    fn nesterov_momentum_follows_its_formula() {
        let settings = OuterMomentum { learning_rate: 0.5, momentum: 0.5, nesterov: true };
        let (mut p, mut m) = (4.0f64, 0.0f64);
        let flat = [Tensor::<1>::from_data([4.0f32], &Device::flex())];
        let mut state = OuterState::default();
        state.begin(&flat).unwrap();
        for target in [3.0f32, 1.0, 2.0] {
            let mut means = [HostBuffer::from(vec![target])];
            state.step(settings, &mut means);
            let d = p - f64::from(target);
            m = 0.5 * m + d;
            p -= 0.5 * (d + 0.5 * m);
            assert_eq!(means[0], HostBuffer::from(vec![p as f32]));
        }
    }
}
