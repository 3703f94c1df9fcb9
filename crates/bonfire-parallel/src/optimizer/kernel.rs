//! Runs element-wise updates over flat tensors: as one fused pass over host memory, or as tensor
//! operations on any other device.

use super::{FlatUpdate, Run};
use crate::ParallelError;
use bonfire_tensor::TensorError;
use bonfire_tensor::host::{HostFloat, HostTensorMut, is_on_host};
use burn::tensor::{DType, Tensor};
use pulp::{Arch, Simd, WithSimd};
use std::ops::Range;

/// An element-wise update with `STATE` slots beside parameters and gradients.
pub(super) trait Kernel<const STATE: usize> {
    /// Writes the new parameters over the gradients, and the new state over the old.
    ///
    /// `#[inline(always)]`: it is compiled anew for each width of vectors, of which the processor's is
    /// chosen when it runs. Sums and products stay apart, so all widths give the same bits.
    fn host<E: KernelFloat>(&self, parameters: &[E], gradients: &mut [E], state: [&mut [E]; STATE]);

    /// The same with tensor operations.
    fn device(
        &self,
        parameters: Tensor<1>,
        gradients: Tensor<1>,
        state: [Tensor<1>; STATE],
    ) -> (Tensor<1>, [Tensor<1>; STATE]);
}

/// The arithmetic that kernels need.
pub(super) trait KernelFloat:
    HostFloat
    + core::ops::Add<Output = Self>
    + core::ops::Sub<Output = Self>
    + core::ops::Mul<Output = Self>
    + core::ops::Div<Output = Self>
{
    fn from_f64(value: f64) -> Self;
    fn sqrt(self) -> Self;
}

impl KernelFloat for f32 {
    fn from_f64(value: f64) -> Self {
        value as f32
    }
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
}

impl KernelFloat for f64 {
    fn from_f64(value: f64) -> Self {
        value
    }
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
}

/// Applies `kernel(run)` to every run; other elements stay as they are.
pub(super) fn apply<const STATE: usize, R, K: Kernel<STATE>>(
    update: FlatUpdate<'_>,
    runs: &[Run<R>],
    state: [Tensor<1>; STATE],
    kernel: impl Fn(&Run<R>) -> K,
) -> Result<(Tensor<1>, [Tensor<1>; STATE]), ParallelError> {
    let floats = matches!(update.gradients.dtype(), DType::F32 | DType::F64);
    let decided = update.only_if.is_none();
    if floats && decided && is_on_host(&update.gradients) && is_on_host(update.parameters) {
        on_host(update, runs, state, kernel)
    } else {
        Ok(on_device(&update, runs, state, kernel))
    }
}

fn on_host<const STATE: usize, R, K: Kernel<STATE>>(
    update: FlatUpdate<'_>,
    runs: &[Run<R>],
    state: [Tensor<1>; STATE],
    kernel: impl Fn(&Run<R>) -> K,
) -> Result<(Tensor<1>, [Tensor<1>; STATE]), ParallelError> {
    let mut host = HostUpdate::take(update.parameters.clone(), update.gradients, state)?;
    let mut done = 0;
    for run in runs {
        host.keep(done..run.range.start);
        done = run.range.end;
        host.run(run.range.clone(), &kernel(run));
    }
    let len = host.gradients.len();
    host.keep(done..len);
    Ok((host.gradients.into_tensor(), host.state.map(HostTensorMut::into_tensor)))
}

struct HostUpdate<const STATE: usize> {
    parameters: HostTensorMut,
    gradients: HostTensorMut,
    state: [HostTensorMut; STATE],
}

impl<const STATE: usize> HostUpdate<STATE> {
    fn take(
        parameters: Tensor<1>,
        gradients: Tensor<1>,
        state: [Tensor<1>; STATE],
    ) -> Result<Self, ParallelError> {
        let state: Option<Vec<HostTensorMut>> =
            state.map(HostTensorMut::take).into_iter().collect();
        let state = state.and_then(|state| state.try_into().ok());
        match (HostTensorMut::take(parameters), HostTensorMut::take(gradients), state) {
            (Some(parameters), Some(gradients), Some(state)) => {
                Ok(Self { parameters, gradients, state })
            }
            _ => {
                let reason = "optimizer state and gradients lie on different devices".to_string();
                Err(TensorError::Read { reason }.into())
            }
        }
    }

    fn run(&mut self, range: Range<usize>, kernel: &impl Kernel<STATE>) {
        match self.gradients.dtype() {
            DType::F64 => self.run_as::<f64>(range, kernel),
            _ => self.run_as::<f32>(range, kernel),
        }
    }

    fn run_as<E: KernelFloat>(&mut self, range: Range<usize>, kernel: &impl Kernel<STATE>) {
        let Some(parameters) = self.parameters.slice::<E>() else { return };
        let Some(gradients) = self.gradients.slice_mut::<E>() else { return };
        let state: Vec<&mut [E]> = self
            .state
            .iter_mut()
            .filter_map(|slot| slot.slice_mut::<E>()?.get_mut(range.clone()))
            .collect();
        if let Ok(state) = state.try_into() {
            let (parameters, gradients) = (&parameters[range.clone()], &mut gradients[range]);
            Arch::new().dispatch(Vectors { kernel, parameters, gradients, state });
        }
    }

    fn keep(&mut self, range: Range<usize>) {
        match self.gradients.dtype() {
            DType::F64 => self.keep_as::<f64>(range),
            _ => self.keep_as::<f32>(range),
        }
    }

    fn keep_as<E: KernelFloat>(&mut self, range: Range<usize>) {
        if let (Some(parameters), Some(gradients)) =
            (self.parameters.slice::<E>(), self.gradients.slice_mut::<E>())
        {
            gradients[range.clone()].copy_from_slice(&parameters[range]);
        }
    }
}

/// One call of [`Kernel::host`].
struct Vectors<'a, E, K, const STATE: usize> {
    kernel: &'a K,
    parameters: &'a [E],
    gradients: &'a mut [E],
    state: [&'a mut [E]; STATE],
}

impl<E: KernelFloat, K: Kernel<STATE>, const STATE: usize> WithSimd for Vectors<'_, E, K, STATE> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        self.kernel.host(self.parameters, self.gradients, self.state);
    }
}

fn on_device<const STATE: usize, R, K: Kernel<STATE>>(
    update: &FlatUpdate<'_>,
    runs: &[Run<R>],
    state: [Tensor<1>; STATE],
    kernel: impl Fn(&Run<R>) -> K,
) -> (Tensor<1>, [Tensor<1>; STATE]) {
    let len = update.gradients.dims()[0];
    let mut new = Pieces::new(update.parameters.clone());
    let mut new_state: Vec<Pieces> = state.iter().cloned().map(Pieces::new).collect();
    let end = update.segments.last().map_or(0, |segment| segment.range.end);
    for run in runs {
        // The zeros behind the last parameter go with it: what is not cut need not be copied.
        let range = run.range.start..if run.range.end == end { len } else { run.range.end };
        let part = |tensor: &Tensor<1>| match range.len() == len {
            true => tensor.clone(),
            false => tensor.clone().slice(range.clone()),
        };
        let (old, old_state) = (part(update.parameters), state.each_ref().map(part));
        let (parameters, state) =
            kernel(run).device(old.clone(), part(&update.gradients), old_state.clone());
        let chosen = |old: Tensor<1>, new: Tensor<1>| match &update.only_if {
            Some(condition) => old.mask_where(condition.clone().expand([range.len()]), new),
            None => new,
        };
        new.replace(range.clone(), chosen(old, parameters));
        for ((pieces, slot), old) in new_state.iter_mut().zip(state).zip(old_state) {
            pieces.replace(range.clone(), chosen(old, slot));
        }
    }
    let parameters = new.join(len);
    let mut joined = new_state.into_iter().map(|pieces| pieces.join(len));
    (parameters, state.map(|old| joined.next().unwrap_or(old)))
}

/// A flat tensor of which some runs are replaced.
struct Pieces {
    old: Tensor<1>,
    parts: Vec<Tensor<1>>,
    done: usize,
}

impl Pieces {
    fn new(old: Tensor<1>) -> Self {
        Self { old, parts: Vec::new(), done: 0 }
    }

    fn replace(&mut self, range: Range<usize>, values: Tensor<1>) {
        self.keep_until(range.start);
        self.parts.push(values);
        self.done = range.end;
    }

    fn keep_until(&mut self, end: usize) {
        if self.done < end {
            self.parts.push(self.old.clone().slice(self.done..end));
            self.done = end;
        }
    }

    fn join(mut self, len: usize) -> Tensor<1> {
        self.keep_until(len);
        match self.parts.len() {
            1 => self.parts.swap_remove(0),
            _ => Tensor::cat(self.parts, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Segment;
    use burn::tensor::Device;

    /// A kernel that mixes everything it is given.
    struct Mix(f64);

    impl Kernel<1> for Mix {
        fn host<E: KernelFloat>(
            &self,
            parameters: &[E],
            gradients: &mut [E],
            [state]: [&mut [E]; 1],
        ) {
            for ((g, s), p) in gradients.iter_mut().zip(state).zip(parameters) {
                *s += *g;
                *g = *p - E::from_f64(self.0) * *s;
            }
        }

        fn device(
            &self,
            parameters: Tensor<1>,
            gradients: Tensor<1>,
            [state]: [Tensor<1>; 1],
        ) -> (Tensor<1>, [Tensor<1>; 1]) {
            let state = state + gradients;
            (parameters - state.clone().mul_scalar(self.0), [state])
        }
    }

    #[test]
    fn host_memory_and_tensor_operations_agree() {
        let tensor = |factor: f32| {
            // Zeros behind the last parameter, as everywhere.
            let value = |k: i32| if k < 7 { factor * k as f32 } else { 0.0 };
            let values: Vec<f32> = (0..9).map(value).collect();
            Tensor::<1>::from_data(values.as_slice(), &Device::flex())
        };
        let segment = |range: Range<usize>| Segment {
            path: String::new(),
            shape: vec![range.len()],
            range,
            parameter: 0,
        };
        let segments = [segment(0..2), segment(2..5), segment(5..7)];
        let parameters = tensor(1.0);
        let update = || FlatUpdate {
            parameters: &parameters,
            gradients: tensor(0.25),
            gradient_scale: 1.0,
            segments: &segments,
            rates: &[Some(0.5), None, Some(2.0)],
            decays: &[None; 3],
            only_if: None,
        };
        let runs = update().runs(|_| ());
        let mix = |run: &Run<()>| Mix(run.rate);
        let (a, [state_a]) = on_host(update(), &runs, [tensor(3.0)], mix).unwrap();
        let (b, [state_b]) = on_device(&update(), &runs, [tensor(3.0)], mix);
        let values = |t: Tensor<1>| t.try_into_vec_as::<f32>().unwrap();
        assert_eq!(values(a.clone())[2..5], [2.0, 3.0, 4.0]);
        assert_eq!(values(a), values(b));
        assert_eq!(values(state_a), values(state_b));
    }
}
