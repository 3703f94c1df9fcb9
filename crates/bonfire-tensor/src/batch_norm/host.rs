//! Kernels over the flat memory of the CPU.
//!
//! Sums run over blocks of [`BLOCK`] values in [`LANES`] partial sums of the tensor's own type and
//! over blocks in f64: as fast as the memory, and as exact as sums in f64 but for the last digits.
//! The order of all sums depends on the shape alone, never on the number of threads.

use super::moments::{Moment, Moments};
use super::step::Saved;
use crate::host::{HostFloat, HostTensorMut};
use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape, TensorData};
use rayon::prelude::*;
use std::ops::{Add, Mul, Sub};

const LANES: usize = 16;
const BLOCK: usize = 4096;
/// Elements for which a second thread pays.
const PARALLEL: usize = 1 << 16;

/// Element types that arithmetic is done in.
trait Real:
    HostFloat + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Send + Sync
{
    const ZERO: Self;
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
}

impl Real for f32 {
    const ZERO: Self = 0.0;

    fn of(value: f64) -> Self {
        value as Self
    }

    fn wide(self) -> f64 {
        f64::from(self)
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;

    fn of(value: f64) -> Self {
        value
    }

    fn wide(self) -> f64 {
        self
    }
}

/// How a batch `[samples, channels, ...]` lies in memory.
#[derive(Debug, Clone, Copy)]
struct Extent {
    samples: usize,
    channels: usize,
    /// Values of one channel of one sample, which lie side by side.
    spatial: usize,
}

impl Extent {
    fn of(tensor: &FloatTensor<Flex>) -> Self {
        let shape = tensor.layout().shape();
        let dims = shape.as_slice();
        let (samples, channels) = (dims[0], dims[1]);
        Self { samples, channels, spatial: dims[2..].iter().product() }
    }

    /// Values of one sample.
    fn row(self) -> usize {
        self.channels * self.spatial
    }

    fn len(self) -> usize {
        self.samples * self.row()
    }

    /// Whether so few values of a channel lie side by side that loops had better run over channels.
    fn is_narrow(self) -> bool {
        self.spatial < LANES
    }

    /// Where the values of a channel of a sample are.
    fn run(self, sample: usize, channel: usize) -> std::ops::Range<usize> {
        let start = (sample * self.channels + channel) * self.spatial;
        start..start + self.spatial
    }

    /// Computes something of every channel, on several threads if it is worth it.
    fn map_channels<T: Send>(self, of: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
        match self.len() < PARALLEL {
            true => (0..self.channels).map(of).collect(),
            false => (0..self.channels).into_par_iter().map(of).collect(),
        }
    }
}

macro_rules! by_type {
    ($tensor:expr, $real:ident => $body:expr) => {
        match $tensor.dtype() {
            DType::F64 => {
                type $real = f64;
                $body
            }
            _ => {
                type $real = f32;
                $body
            }
        }
    };
}

/// Moments of every channel of a batch of any float type, computed in type `wide`.
pub(super) fn moments(input: FloatTensor<Flex>, wide: DType) -> Moments {
    let input = match input.dtype() == wide {
        true => input,
        false => Flex::float_cast(input, wide.into()),
    };
    let (extent, input) = (Extent::of(&input), input.to_contiguous());
    by_type!(input, E => moments_of(extent, elements::<E>(&input)))
}

pub(super) fn normalize(saved: Saved<Flex>, beta: FloatTensor<Flex>) -> FloatTensor<Flex> {
    by_type!(saved.input, E => normalize_as::<E>(saved, beta))
}

/// `[sum(dy), sum(dy * (x - mean))]` of every channel, in f64.
pub(super) fn gradient_sums(
    saved: &Saved<Flex>,
    output_gradient: &FloatTensor<Flex>,
) -> FloatTensor<Flex> {
    by_type!(saved.input, E => gradient_sums_as::<E>(saved, output_gradient))
}

pub(super) fn input_gradient(
    saved: Saved<Flex>,
    output_gradient: FloatTensor<Flex>,
    sums: FloatTensor<Flex>,
    count: usize,
) -> FloatTensor<Flex> {
    by_type!(saved.input, E => input_gradient_as::<E>(saved, output_gradient, sums, count))
}

/// The elements of a contiguous tensor.
fn elements<E: HostFloat>(tensor: &FloatTensor<Flex>) -> &[E] {
    tensor.as_slice::<E>().unwrap_or_default()
}

/// The values of a small tensor of any float type.
fn values(tensor: FloatTensor<Flex>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

fn moments_of<E: Real>(extent: Extent, input: &[E]) -> Moments {
    if extent.is_narrow() {
        return narrow_moments(extent, input);
    }
    Moments(extent.map_channels(|channel| {
        let mut moment = Moment::default();
        for sample in 0..extent.samples {
            for block in input[extent.run(sample, channel)].chunks(BLOCK) {
                moment.merge(block_moment(block));
            }
        }
        moment
    }))
}

fn block_moment<E: Real>(block: &[E]) -> Moment {
    let count = block.len() as f64;
    let [sum] = lane_sums(block, block, |x, _| [x]);
    let about = E::of(sum / count);
    // The rounded mean is off a little, and so is every distance from it.
    let [off, squares] = lane_sums(block, block, |x, _| {
        let distance = x - about;
        [distance, distance * distance]
    });
    Moment { count, mean: about.wide() + off / count, squares: squares - off * off / count }
}

/// Sums of terms over two slices of equal length.
#[inline(always)]
fn lane_sums<E: Real, const K: usize>(
    x: &[E],
    y: &[E],
    terms: impl Fn(E, E) -> [E; K],
) -> [f64; K] {
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (y, y_rest) = y.as_chunks::<LANES>();
    let mut lanes = [[E::ZERO; K]; LANES];
    for (x, y) in x.iter().zip(y) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            let terms = terms(*x, *y);
            for (sum, term) in lane.iter_mut().zip(terms) {
                *sum += term;
            }
        }
    }
    let rest = x_rest.iter().zip(y_rest).map(|(x, y)| terms(*x, *y));
    let mut sums = [0.0; K];
    for part in lanes.into_iter().chain(rest) {
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum += part.wide();
        }
    }
    sums
}

/// Moments of the columns of the matrix `[samples, channels * spatial]`, merged by channel.
fn narrow_moments<E: Real>(extent: Extent, input: &[E]) -> Moments {
    let (row, count) = (extent.row(), extent.samples as f64);
    let mut channels = vec![Moment::default(); extent.channels];
    if extent.len() == 0 {
        return Moments(channels);
    }
    let mut means = vec![0.0; row];
    for sample in input.chunks_exact(row) {
        means.iter_mut().zip(sample).for_each(|(sum, x)| *sum += x.wide());
    }
    means.iter_mut().for_each(|sum| *sum /= count);
    let mut squares = vec![0.0; row];
    for sample in input.chunks_exact(row) {
        for ((sum, x), mean) in squares.iter_mut().zip(sample).zip(&means) {
            let distance = x.wide() - mean;
            *sum += distance * distance;
        }
    }
    let columns = means.chunks(extent.spatial).zip(squares.chunks(extent.spatial));
    for (channel, (means, squares)) in channels.iter_mut().zip(columns) {
        for (&mean, &squares) in means.iter().zip(squares) {
            channel.merge(Moment { count, mean, squares });
        }
    }
    Moments(channels)
}

fn normalize_as<E: Real>(saved: Saved<Flex>, beta: FloatTensor<Flex>) -> FloatTensor<Flex> {
    let input = saved.input.to_contiguous();
    let extent = Extent::of(&input);
    let (gamma, mean, scale) = (values(saved.gamma), values(saved.mean), values(saved.variance));
    let beta = values(beta);
    let coefficients: Vec<[E; 3]> = (0..extent.channels)
        .map(|channel| {
            let scale = gamma[channel] / (scale[channel] + saved.epsilon).sqrt();
            [mean[channel], scale, beta[channel]].map(E::of)
        })
        .collect();
    let mut output = vec![E::ZERO; extent.len()];
    update(extent, &mut output, elements(&input), &coefficients, |_, x, [mean, scale, beta]| {
        (x - *mean) * *scale + *beta
    });
    let shape = input.layout().shape().clone();
    FloatTensor::<Flex>::from_data(TensorData::new(output, shape))
}

fn gradient_sums_as<E: Real>(
    saved: &Saved<Flex>,
    output_gradient: &FloatTensor<Flex>,
) -> FloatTensor<Flex> {
    let (input, output_gradient) = (saved.input.to_contiguous(), output_gradient.to_contiguous());
    let extent = Extent::of(&input);
    let mean = values(saved.mean.clone());
    let (x, dy) = (elements::<E>(&input), elements::<E>(&output_gradient));
    let sums = match extent.is_narrow() {
        true => narrow_gradient_sums(extent, x, dy, &mean),
        false => extent.map_channels(|channel| {
            let mean = E::of(mean[channel]);
            let mut sums = [0.0; 2];
            for sample in 0..extent.samples {
                let run = extent.run(sample, channel);
                for (x, dy) in x[run.clone()].chunks(BLOCK).zip(dy[run].chunks(BLOCK)) {
                    let [sum, product] = lane_sums(x, dy, |x, dy| [dy, dy * (x - mean)]);
                    sums[0] += sum;
                    sums[1] += product;
                }
            }
            sums
        }),
    };
    let parts = [0, 1].map(|part| sums.iter().map(move |sums| sums[part]));
    let flat: Vec<f64> = parts.into_iter().flatten().collect();
    let shape = Shape::new([flat.len()]);
    FloatTensor::<Flex>::from_data(TensorData::new(flat, shape))
}

fn narrow_gradient_sums<E: Real>(extent: Extent, x: &[E], dy: &[E], mean: &[f64]) -> Vec<[f64; 2]> {
    let row = extent.row();
    let mut columns = vec![[0.0; 2]; row];
    let means: Vec<f64> = spread(extent, mean);
    if row > 0 {
        for (x, dy) in x.chunks_exact(row).zip(dy.chunks_exact(row)) {
            for (((sums, x), dy), mean) in columns.iter_mut().zip(x).zip(dy).zip(&means) {
                let dy = dy.wide();
                sums[0] += dy;
                sums[1] += dy * (x.wide() - mean);
            }
        }
    }
    let add = |a: [f64; 2], b: &[f64; 2]| [a[0] + b[0], a[1] + b[1]];
    let channel = |channel: usize| {
        let run = channel * extent.spatial..(channel + 1) * extent.spatial;
        columns[run].iter().fold([0.0; 2], add)
    };
    (0..extent.channels).map(channel).collect()
}

/// With the means over all values of a channel, of all ranks,
/// `dx = gamma / s * (dy - mean(dy) - (x - mean) / s^2 * mean(dy * (x - mean)))`,
/// where `s = sqrt(variance + epsilon)`.
fn input_gradient_as<E: Real>(
    saved: Saved<Flex>,
    output_gradient: FloatTensor<Flex>,
    sums: FloatTensor<Flex>,
    count: usize,
) -> FloatTensor<Flex> {
    let input = saved.input.to_contiguous();
    let extent = Extent::of(&input);
    let (gamma, mean, variance) = (values(saved.gamma), values(saved.mean), values(saved.variance));
    let sums = values(sums);
    let count = count as f64;
    let coefficients: Vec<[E; 4]> = (0..extent.channels)
        .map(|channel| {
            let squared = 1.0 / (variance[channel] + saved.epsilon);
            let scale = gamma[channel] * squared.sqrt();
            let (mean_dy, mean_product) =
                (sums[channel] / count, sums[extent.channels + channel] / count);
            [mean[channel], scale, mean_dy, squared * mean_product].map(E::of)
        })
        .collect();
    // In place if nobody else holds the gradient.
    let whole = output_gradient.is_contiguous() && output_gradient.layout().start_offset() == 0;
    let gradient = if whole { output_gradient } else { output_gradient.to_contiguous() };
    let mut gradient = HostTensorMut::from_primitive(gradient);
    if let Some(gradient) = gradient.slice_mut::<E>() {
        update(extent, gradient, elements(&input), &coefficients, |dy, x, coefficients| {
            let [mean, scale, mean_dy, slope] = *coefficients;
            (dy - mean_dy - (x - mean) * slope) * scale
        });
    }
    gradient.into_primitive()
}

/// Sets every `target` to a function of itself, of `x` at its place, and of its channel's
/// coefficients.
fn update<E: Real, const K: usize>(
    extent: Extent,
    target: &mut [E],
    x: &[E],
    coefficients: &[[E; K]],
    value: impl Fn(E, E, &[E; K]) -> E + Sync,
) {
    let (row, spatial) = (extent.row(), extent.spatial);
    if extent.len() == 0 {
        return;
    }
    let columns = if extent.is_narrow() { spread(extent, coefficients) } else { Vec::new() };
    let samples = |target: &mut [E], x: &[E]| {
        for (target, x) in target.chunks_exact_mut(row).zip(x.chunks_exact(row)) {
            if extent.is_narrow() {
                for ((target, x), column) in target.iter_mut().zip(x).zip(&columns) {
                    *target = value(*target, *x, column);
                }
                continue;
            }
            let runs = target.chunks_exact_mut(spatial).zip(x.chunks_exact(spatial));
            for ((target, x), channel) in runs.zip(coefficients) {
                target.iter_mut().zip(x).for_each(|(target, x)| {
                    *target = value(*target, *x, channel);
                });
            }
        }
    };
    if extent.len() < PARALLEL {
        return samples(target, x);
    }
    let part = row * (PARALLEL / 2).div_ceil(row);
    target.par_chunks_mut(part).zip(x.par_chunks(part)).for_each(|(target, x)| samples(target, x));
}

/// Repeats what belongs to a channel for each of its values in a sample.
fn spread<T: Copy>(extent: Extent, channels: &[T]) -> Vec<T> {
    channels.iter().flat_map(|of| std::iter::repeat_n(*of, extent.spatial)).collect()
}
