//! Gradients of matrices that travel as two thin factors.
//!
//! For each matrix M (gradient plus residual) of n rows and m columns, with r columns in each factor
//! and Q (m x r) from the step before:
//!
//! 1. Q is made orthonormal; P = M Q; P is averaged over ranks;
//! 2. P is made orthonormal; Q = M^T P; Q is averaged over ranks;
//! 3. the gradient becomes P Q^T, the residual M - P Q^T.
//!
//! So a step is one step of a subspace iteration on the mean of all M, which warm start continues. All
//! P of a bucket travel in one all-reduce, together with the parameters that are not compressed, and
//! all Q in another.
//!
//! A column of Q that has vanished, as all have before the first step, is drawn from a generator that
//! is the same on every rank. A column vanishes when the gradients have fewer dimensions than the
//! factors; and all columns of a matrix do after a gradient that is not finite, which every rank gets as
//! NaN, and which leaves no residual.
//!
//! # Reference
//! Vogels et al. 2019, arXiv:1905.13727, algorithms 1 and 2;
//! `torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook`, with `orthogonalization_epsilon` 0 and
//! a column of zeros that stays one, where PyTorch's becomes NaN.

mod draw;
mod orthogonal;
mod plan;
mod product;

use super::float::HookFloat;
use super::layout::{Kept, PerBucket};
use super::residual::Residuals;
use super::vector::largest;
use super::{CommHook, FloatHook, HookBucket, plain_mean, reduce_by_type};
use crate::ParallelError;
use crate::bucket::Segment;
use bonfire_comm::{HostBuffer, ProcessGroup};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::{HostTensor, Scalar, State, StateError};
use draw::Generator;
use orthogonal::orthonormalise;
use plan::{Matrix, Plan};

/// Names in states: `q/<path>`, the factor Q transposed, (r, m); and the number of steps made.
const FACTOR: &str = "q/";
const STEPS: &str = "steps";

/// Settings as of [`Compression::PowerSgd`](super::Compression::PowerSgd), checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) rank: usize,
    pub(super) min_rate: f64,
    pub(super) start_iter: u64,
    pub(super) use_error_feedback: bool,
    pub(super) warm_start: bool,
    pub(super) seed: u64,
}

/// See the module.
pub(super) struct PowerSgd {
    settings: Settings,
    buckets: PerBucket<Factors>,
    residuals: Residuals,
    /// Factors that no bucket has asked for since a restore or a new layout.
    waiting: State,
    /// Steps begun, counted by their first bucket.
    steps: u64,
}

/// A bucket's matrices and their factors, transposed, so that a column is a run of memory.
struct Factors {
    plan: Plan,
    /// What is not compressed, then all P.
    message: HostBuffer,
    /// All Q.
    qs: HostBuffer,
}

impl PowerSgd {
    pub(super) fn new(settings: Settings) -> Self {
        let (buckets, residuals) = (PerBucket::new(), Residuals::new());
        Self { settings, buckets, residuals, waiting: State::default(), steps: 0 }
    }
}

impl FloatHook for PowerSgd {
    fn reduce_floats<E: HookFloat>(
        &mut self,
        bucket: &HookBucket<'_>,
        gradients: &mut [E],
        group: &ProcessGroup,
    ) -> Result<(), ParallelError> {
        let Self { settings, buckets, residuals, waiting, steps } = self;
        for kept in buckets.outdated(bucket.index, bucket.segments) {
            kept.value.export(waiting);
        }
        let Factors { plan, message, qs } =
            buckets.get_or_make(bucket.index, bucket.segments, || {
                Factors::import::<E>(bucket.segments, settings, waiting)
            })?;
        let compressed: &[Segment] =
            if settings.use_error_feedback { &plan.compressed } else { &[] };
        let residual = residuals.own::<E>(bucket.index, compressed)?;
        let (message, qs) = (message.as_mut_slice::<E>()?, qs.as_mut_slice::<E>()?);
        let (plain, ps) = message.split_at_mut(plan.num_plain);

        if !settings.warm_start {
            qs.fill(E::ZERO);
        }
        let generator = Generator { seed: settings.seed, step: *steps };
        for matrix in &plan.matrices {
            let q = &mut qs[matrix.q.clone()];
            generator.fill_vanished(q, matrix.cols, &matrix.path);
            orthonormalise(q, matrix.cols);
            let values = &mut gradients[matrix.range.clone()];
            let residual = residual.get(matrix.residual.clone());
            product::right(matrix.rows, values, residual, q, &mut ps[matrix.p.clone()]);
        }
        plan.gather_plain(gradients, plain);
        // The mean of P and its sum span the same space.
        plain_mean(message, group)?;

        let (plain, ps) = message.split_at_mut(plan.num_plain);
        plan.scatter_plain(plain, gradients);
        for matrix in &plan.matrices {
            let p = &mut ps[matrix.p.clone()];
            orthonormalise(p, matrix.rows);
            let values = &gradients[matrix.range.clone()];
            product::left(matrix.rows, values, p, &mut qs[matrix.q.clone()]);
        }
        if !qs.is_empty() {
            plain_mean(qs, group)?;
        }

        for matrix in &plan.matrices {
            let values = &mut gradients[matrix.range.clone()];
            let (p, q) = (&ps[matrix.p.clone()], &mut qs[matrix.q.clone()]);
            let residual = residual.get_mut(matrix.residual.clone());
            matrix.decompress(values, residual, p, q);
        }
        Ok(())
    }
}

impl Matrix {
    /// `residual = values - P Q^T`, then `values = P Q^T`.
    fn decompress<E: HookFloat>(
        &self,
        values: &mut [E],
        residual: Option<&mut [E]>,
        p: &[E],
        q: &mut [E],
    ) {
        if largest(p).is_finite() && largest(q).is_finite() {
            return product::outer(self.rows, p, q, values, residual);
        }
        // All ranks see the same factors, so all come here.
        values.fill(E::NAN);
        residual.unwrap_or_default().fill(E::ZERO);
        q.fill(E::ZERO);
    }
}

impl Factors {
    /// Makes a bucket's factors of those that are waiting; without one, zeros.
    fn import<E: HookFloat>(
        segments: &[Segment],
        settings: &Settings,
        waiting: &mut State,
    ) -> Result<Self, StateError> {
        let plan = Plan::new(segments, settings.rank, settings.min_rate);
        let mut qs = vec![E::ZERO; plan.num_q];
        for matrix in &plan.matrices {
            let name = format!("{FACTOR}{}", matrix.path);
            if waiting.tensors.contains_key(&name) {
                let shape = [matrix.rank, matrix.cols];
                let factor = waiting.take_tensor(&name, &shape, E::DTYPE)?;
                if let Ok(factor) = factor.as_slice::<E>() {
                    qs[matrix.q.clone()].copy_from_slice(factor);
                }
            }
        }
        let message = HostBuffer::zeros(E::DTYPE, plan.num_plain + plan.num_p);
        Ok(Self { plan, message, qs: qs.into() })
    }

    fn export(&self, state: &mut State) {
        for matrix in &self.plan.matrices {
            let size = self.qs.dtype().size_bytes();
            let mut data = HostBuffer::zeros(self.qs.dtype(), matrix.q.len());
            data.as_bytes_mut()
                .copy_from_slice(&self.qs.as_bytes()[matrix.q.start * size..matrix.q.end * size]);
            let tensor = HostTensor { shape: vec![matrix.rank, matrix.cols], data };
            state.tensors.insert(format!("{FACTOR}{}", matrix.path), tensor);
        }
    }
}

impl CommHook for PowerSgd {
    fn name(&self) -> &'static str {
        "powerSGD"
    }

    fn reduce(
        &mut self,
        bucket: &HookBucket<'_>,
        gradients: &mut HostBuffer,
        group: &ProcessGroup,
    ) -> Result<(), ParallelError> {
        if bucket.index == 0 {
            self.steps += 1;
        }
        reduce_by_type(self, bucket, gradients, group)
    }

    fn state(&self) -> Result<State, TensorError> {
        let mut state = self.residuals.state();
        state.scalars.insert(STEPS.into(), Scalar::Uint(self.steps));
        if self.settings.warm_start {
            state.tensors.extend(self.waiting.tensors.clone());
            self.buckets.values().for_each(|Kept { value, .. }| value.export(&mut state));
        }
        Ok(state)
    }

    fn rescale(&mut self, factor: f64) {
        self.residuals.rescale(factor);
    }

    fn load_state(
        &mut self,
        states: &[State],
        rank: usize,
        world_size: usize,
    ) -> Result<(), TensorError> {
        let mut state = self.residuals.load(states, rank, world_size)?;
        // The factors are the same on every rank.
        self.waiting = State {
            tensors: state.tensors.extract_if(.., |name, _| name.starts_with(FACTOR)).collect(),
            ..State::default()
        };
        self.buckets.clear();
        self.steps = if states.is_empty() { 0 } else { state.take_uint(STEPS)? };
        Ok(state.finish()?)
    }

    fn start_step(&self) -> u64 {
        self.settings.start_iter
    }
}
