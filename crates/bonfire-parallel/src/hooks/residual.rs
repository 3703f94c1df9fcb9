//! Error feedback: what compression has left out so far.
//!
//! A *residual* is what a rank has not told the others of its own gradients. A hook that compresses a
//! second time, after averaging, has a *server residual* beside it, over the chunk of the bucket that
//! this rank averages. What the ranks owe together is the mean of the residuals plus the server
//! residuals, one behind the other; the optimizer has seen the sum of all exact means but for that.
//!
//! INVARIANT: what is owed together never changes but by a step. A server residual whose chunk this
//! rank no longer averages therefore moves into its residual times the number of ranks, since the mean
//! over ranks divides by that.

use super::float::HookFloat;
use super::layout::{Kept, PerBucket};
use super::vector::{add_scaled, divide};
use crate::bucket::Segment;
use bonfire_comm::{DType, HostBuffer};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::{HostTensor, State, StateError};
use std::collections::BTreeSet;
use std::ops::Range;

/// Names in states: `residual/<path>`, and `server_residual/<path>` for parameters of which this rank
/// averages a part, zero outside it.
const RESIDUAL: &str = "residual/";
const SERVER: &str = "server_residual/";

/// All residuals of a rank, in the element types of their buckets.
pub(super) struct Residuals {
    buckets: PerBucket<Residual>,
    /// By path: of parameters that no bucket has asked for since a restore or a new layout.
    waiting: State,
}

struct Residual {
    own: HostBuffer,
    server: HostBuffer,
    /// Elements of the bucket that `server` is for.
    chunk: Range<usize>,
    ranks: usize,
}

impl Residuals {
    pub(super) fn new() -> Self {
        Self { buckets: PerBucket::new(), waiting: State::default() }
    }

    /// The residual of a bucket, and the server residual of its elements `chunk`.
    pub(super) fn of<E: HookFloat>(
        &mut self,
        index: usize,
        segments: &[Segment],
        chunk: Range<usize>,
        ranks: usize,
    ) -> Result<(&mut [E], &mut [E]), TensorError> {
        let Self { buckets, waiting } = self;
        for kept in buckets.outdated(index, segments) {
            kept.value.folded()?.export(&kept.segments, waiting);
        }
        let residual = buckets.get_or_make(index, segments, || {
            Residual::import::<E>(segments, chunk, ranks, waiting)
        })?;
        Ok((residual.own.as_mut_slice()?, residual.server.as_mut_slice()?))
    }

    /// The residual of a bucket, for hooks without a second compression.
    pub(super) fn own<E: HookFloat>(
        &mut self,
        index: usize,
        segments: &[Segment],
    ) -> Result<&mut [E], TensorError> {
        Ok(self.of(index, segments, 0..0, 1)?.0)
    }

    pub(super) fn state(&self) -> State {
        let mut state = self.waiting.clone();
        for Kept { segments, value } in self.buckets.values() {
            value.export(segments, &mut state);
        }
        state
    }

    /// Multiplies all residuals by `factor`.
    pub(super) fn rescale(&mut self, factor: f64) {
        for residual in self.buckets.values_mut() {
            multiply(&mut residual.own, factor);
            multiply(&mut residual.server, factor);
        }
        self.waiting.tensors.values_mut().for_each(|tensor| multiply(&mut tensor.data, factor));
    }

    /// Restores the states of all ranks, and returns what else is in this rank's, or in rank 0's when
    /// the number of ranks has changed.
    pub(super) fn load(
        &mut self,
        states: &[State],
        rank: usize,
        world_size: usize,
    ) -> Result<State, TensorError> {
        let same_ranks = states.len() == world_size;
        let mut rest = states.get(if same_ranks { rank } else { 0 }).cloned().unwrap_or_default();
        let own = rest.tensors.extract_if(.., |name, _| is_residual(name)).collect();
        self.buckets.clear();
        self.waiting = if same_ranks {
            State { tensors: own, ..State::default() }
        } else {
            owed_together(states)?
        };
        Ok(rest)
    }
}

fn multiply(buffer: &mut HostBuffer, factor: f64) {
    match buffer {
        HostBuffer::F64(values) => values.iter_mut().for_each(|value| *value *= factor),
        HostBuffer::F32(values) => values.iter_mut().for_each(|value| *value *= factor as f32),
        // Hooks keep nothing of other types.
        _ => {}
    }
}

fn is_residual(name: &str) -> bool {
    name.starts_with(RESIDUAL) || name.starts_with(SERVER)
}

impl Residual {
    /// Makes a bucket's residual of what is waiting for its parameters; of nothing, zeros.
    fn import<E: HookFloat>(
        segments: &[Segment],
        chunk: Range<usize>,
        ranks: usize,
        waiting: &mut State,
    ) -> Result<Self, TensorError> {
        let len = segments.last().map_or(0, |segment| segment.range.end);
        let (mut own, mut server) = (vec![E::ZERO; len], vec![E::ZERO; chunk.len()]);
        for segment in segments {
            if let Some(values) = take::<E>(waiting, RESIDUAL, segment)? {
                own[segment.range.clone()].copy_from_slice(values.as_slice()?);
            }
            let Some(values) = take::<E>(waiting, SERVER, segment)? else { continue };
            let values = values.as_slice::<E>()?;
            let kept = overlap(&segment.range, &chunk);
            let in_segment = shift(&kept, segment.range.start);
            let factor = E::from_f64(ranks as f64);
            let target = &mut own[segment.range.clone()];
            add_scaled(&mut target[..in_segment.start], factor, &values[..in_segment.start]);
            add_scaled(&mut target[in_segment.end..], factor, &values[in_segment.end..]);
            server[shift(&kept, chunk.start)].copy_from_slice(&values[in_segment]);
        }
        Ok(Self { own: own.into(), server: server.into(), chunk, ranks })
    }

    /// Moves the server residual into the other one.
    fn folded(mut self) -> Result<Self, TensorError> {
        match self.own.dtype() {
            DType::F64 => self.fold::<f64>()?,
            _ => self.fold::<f32>()?,
        }
        self.chunk = 0..0;
        Ok(self)
    }

    fn fold<E: HookFloat>(&mut self) -> Result<(), TensorError> {
        let factor = E::from_f64(self.ranks as f64);
        let own = &mut self.own.as_mut_slice::<E>()?[self.chunk.clone()];
        add_scaled(own, factor, self.server.as_slice()?);
        Ok(())
    }

    fn export(&self, segments: &[Segment], state: &mut State) {
        for Segment { path, shape, range, .. } in segments {
            let mut insert = |kind: &str, data| {
                let tensor = HostTensor { shape: shape.clone(), data };
                state.tensors.insert(format!("{kind}{path}"), tensor);
            };
            insert(RESIDUAL, part(&self.own, range));
            let kept = overlap(range, &self.chunk);
            if !kept.is_empty() {
                let mut data = HostBuffer::zeros(self.own.dtype(), range.len());
                let size = data.dtype().size_bytes();
                let source = part(&self.server, &shift(&kept, self.chunk.start));
                let target = shift(&kept, range.start);
                data.as_bytes_mut()[target.start * size..target.end * size]
                    .copy_from_slice(source.as_bytes());
                insert(SERVER, data);
            }
        }
    }
}

fn take<E: HookFloat>(
    waiting: &mut State,
    kind: &str,
    segment: &Segment,
) -> Result<Option<HostBuffer>, StateError> {
    let name = format!("{kind}{}", segment.path);
    if !waiting.tensors.contains_key(&name) {
        return Ok(None);
    }
    waiting.take_tensor(&name, &segment.shape, E::DTYPE).map(Some)
}

fn part(buffer: &HostBuffer, range: &Range<usize>) -> HostBuffer {
    let size = buffer.dtype().size_bytes();
    let mut part = HostBuffer::zeros(buffer.dtype(), range.len());
    part.as_bytes_mut().copy_from_slice(&buffer.as_bytes()[range.start * size..range.end * size]);
    part
}

/// What two ranges share; empty at the start of the first if nothing.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let shared = a.start.max(b.start)..a.end.min(b.end);
    if shared.is_empty() { a.start..a.start } else { shared }
}

fn shift(range: &Range<usize>, origin: usize) -> Range<usize> {
    if range.is_empty() {
        return 0..0;
    }
    range.start - origin..range.end - origin
}

/// What the ranks of `states` owe together, as a residual by path that each of any number of ranks can
/// take over.
fn owed_together(states: &[State]) -> Result<State, TensorError> {
    let names: BTreeSet<&String> = states.iter().flat_map(|state| state.tensors.keys()).collect();
    let mut owed = State::default();
    for name in names {
        let Some(path) = name.strip_prefix(RESIDUAL) else { continue };
        let missing = || StateError::Missing { kind: "tensor", name: name.clone() };
        let mut sum: Option<(&HostTensor, Vec<f64>)> = None;
        for state in states {
            let tensor = state.tensors.get(name).ok_or_else(missing)?;
            let (first, sum) = sum.get_or_insert_with(|| (tensor, vec![0.0; tensor.data.len()]));
            add_wide(sum, name, first, tensor)?;
        }
        let Some((first, mut sum)) = sum else { continue };
        divide(&mut sum, states.len() as f64);
        let server = format!("{SERVER}{path}");
        for tensor in states.iter().filter_map(|state| state.tensors.get(&server)) {
            add_wide(&mut sum, &server, first, tensor)?;
        }
        let data = match first.data.dtype() {
            DType::F64 => HostBuffer::from(sum),
            _ => sum.iter().map(|value| *value as f32).collect::<Vec<_>>().into(),
        };
        owed.tensors.insert(name.clone(), HostTensor { shape: first.shape.clone(), data });
    }
    Ok(owed)
}

/// Adds a tensor that must be like `first`.
fn add_wide(
    sum: &mut [f64],
    name: &str,
    first: &HostTensor,
    tensor: &HostTensor,
) -> Result<(), StateError> {
    match &tensor.data {
        HostBuffer::F32(values) if fits(first, tensor) => {
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        HostBuffer::F64(values) if fits(first, tensor) => {
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += *value);
        }
        other => {
            return Err(StateError::Shape {
                name: name.to_string(),
                expected: first.shape.clone(),
                expected_dtype: first.data.dtype(),
                got: tensor.shape.clone(),
                got_dtype: other.dtype(),
            });
        }
    }
    Ok(())
}

fn fits(first: &HostTensor, tensor: &HostTensor) -> bool {
    (&first.shape, first.data.dtype()) == (&tensor.shape, tensor.data.dtype())
}
