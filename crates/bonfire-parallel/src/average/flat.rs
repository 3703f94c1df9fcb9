//! Averages that lie as the parameters do: one flat tensor for each bucket.

use super::ModelValues;
use crate::ParallelError;
use crate::bucket::{Bucket, Segment};
use crate::joined::joined;
use bonfire_tensor::TensorError;
use bonfire_tensor::host::{
    HostFloat, HostTensorMut, burn_type, flat_from_host, to_host, wire_type,
};
use bonfire_tensor::state::{HostTensor, State};
use burn::tensor::{DType, Tensor};
use std::collections::BTreeMap;

/// Averages in buckets. The layout of parameters changes once, in the first steps of a run, or at a
/// resume; the averages then move.
#[derive(Debug)]
pub(super) struct FlatAverage {
    buckets: Vec<(Bucket, Tensor<1>)>,
}

impl FlatAverage {
    /// Takes parameters over as they are.
    pub(super) fn copy_of(values: &ModelValues<'_>) -> Self {
        let flat = |bucket: &Bucket, flat: &Tensor<1>| flat.clone().cast(average_type(bucket));
        let buckets = values.layout.buckets().iter().zip(values.flat);
        Self { buckets: buckets.map(|(b, f)| (b.clone(), flat(b, f))).collect() }
    }

    /// Lays averages out as parameters are laid out.
    pub(super) fn restore(
        tensors: BTreeMap<String, HostTensor>,
        values: &ModelValues<'_>,
    ) -> Result<Self, TensorError> {
        let mut state = State { tensors, ..State::default() };
        let mut buckets = Vec::new();
        for (bucket, flat) in values.layout.buckets().iter().zip(values.flat) {
            let (device, dtype) = (flat.device(), average_type(bucket));
            let wire = wire_type(dtype, "an average")?;
            let mut parts = Vec::new();
            for segment in &bucket.segments {
                let data = state.take_tensor(&segment.path, &segment.shape, wire)?;
                parts.push(Some(flat_from_host(data, &device)));
            }
            let whole = joined(&bucket.segments, parts, flat.dims()[0], (&device, dtype));
            buckets.push((bucket.clone(), whole));
        }
        state.finish()?;
        Ok(Self { buckets })
    }

    /// Moves every average towards the parameters, by `weight` of the way.
    pub(super) fn update(
        &mut self,
        values: &ModelValues<'_>,
        weight: f64,
    ) -> Result<(), ParallelError> {
        self.follow(values);
        for ((_, average), flat) in self.buckets.iter_mut().zip(values.flat) {
            let old = std::mem::replace(average, flat.clone());
            *average = moved(old, flat, weight);
        }
        Ok(())
    }

    /// The averages by module path; with `own_types` in the types of the parameters.
    pub(super) fn values(
        &self,
        own_types: bool,
    ) -> Result<BTreeMap<String, HostTensor>, TensorError> {
        let mut values = BTreeMap::new();
        for (bucket, average) in &self.buckets {
            let dtype = if own_types { burn_type(bucket.dtype) } else { average_type(bucket) };
            for Segment { path, shape, range, .. } in &bucket.segments {
                let data = to_host(average.clone().slice(range.clone()).cast(dtype))?;
                values.insert(path.clone(), HostTensor { shape: shape.clone(), data });
            }
        }
        Ok(values)
    }

    /// The types of the parameters by module path.
    pub(super) fn types(&self) -> Vec<(String, bonfire_comm::DType)> {
        let of = |bucket: &Bucket| {
            let paths = bucket.segments.iter().map(|segment| segment.path.clone());
            paths.map(|path| (path, bucket.dtype)).collect::<Vec<_>>()
        };
        self.buckets.iter().flat_map(|(bucket, _)| of(bucket)).collect()
    }

    /// Takes over the layout of the parameters.
    fn follow(&mut self, values: &ModelValues<'_>) {
        let layout = values.layout.buckets();
        if self.buckets.iter().map(|(bucket, _)| bucket).eq(layout) {
            return;
        }
        let mut places: BTreeMap<usize, Tensor<1>> = BTreeMap::new();
        for (bucket, average) in &self.buckets {
            for segment in &bucket.segments {
                places.insert(segment.parameter, average.clone().slice(segment.range.clone()));
            }
        }
        let gather = |bucket: &Bucket, flat: &Tensor<1>| {
            let parts = bucket.segments.iter();
            let parts = parts.map(|segment| places.get(&segment.parameter).cloned());
            let options = (&flat.device(), average_type(bucket));
            joined(&bucket.segments, parts, flat.dims()[0], options)
        };
        let buckets = layout.iter().zip(values.flat);
        self.buckets = buckets.map(|(b, flat)| (b.clone(), gather(b, flat))).collect();
    }
}

/// The type in which parameters are averaged: a 16-bit one has no room for small moves.
fn average_type(bucket: &Bucket) -> DType {
    match burn_type(bucket.dtype) {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// `average + weight * (values - average)`, in the memory of the average where it is the CPU's.
fn moved(average: Tensor<1>, values: &Tensor<1>, weight: f64) -> Tensor<1> {
    let dtype = average.dtype();
    let values = values.clone().cast(dtype);
    let (Some(mut host), Some(new)) =
        (HostTensorMut::take(average.clone()), HostTensorMut::take(values.clone()))
    else {
        let way = values - average.clone();
        return average + way.mul_scalar(weight);
    };
    drop(average);
    match dtype {
        DType::F64 => move_towards::<f64>(&mut host, &new, weight),
        _ => move_towards::<f32>(&mut host, &new, weight as f32),
    }
    host.into_tensor()
}

fn move_towards<E>(average: &mut HostTensorMut, values: &HostTensorMut, weight: E)
where
    E: HostFloat
        + std::ops::Sub<Output = E>
        + std::ops::Mul<Output = E>
        + std::ops::Add<Output = E>,
{
    if let (Some(average), Some(values)) = (average.slice_mut::<E>(), values.slice::<E>()) {
        for (average, value) in average.iter_mut().zip(values) {
            *average = *average + weight * (*value - *average);
        }
    }
}
