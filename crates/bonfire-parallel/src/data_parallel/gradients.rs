//! The reduced gradients of a window, to look at before the optimizer uses them.

use super::DataParallel;
use crate::ParallelError;
use crate::reducer::Reduced;
use bonfire_tensor::TensorError;
use burn::module::Module;
use burn::tensor::{DType, Tensor};

/// What a rank has of the reduced gradient of a parameter.
#[derive(Debug, Clone)]
pub struct GradientPart<'a> {
    /// The parameter's path.
    pub path: &'a str,
    /// Values, flat.
    pub values: Tensor<1>,
    /// Whether the other ranks have the rest; else all ranks have the whole gradient.
    pub is_part: bool,
}

impl<M: Module> DataParallel<M> {
    /// Shows the gradients of every parameter after [`synchronize`](Self::synchronize), flat, in the order in
    /// which backward passes finish them. Where ranks share the gradients ([`ZeroStage`](crate::ZeroStage)),
    /// it is what this rank has of them.
    ///
    /// They have to be multiplied by [`gradient_factor`](Self::gradient_factor), and divided by the loss scale
    /// if there is one.
    ///
    /// # Errors
    /// [`ParallelError::NoGradients`] before synchronising.
    pub fn visit_gradients(
        &self,
        mut visit: impl FnMut(GradientPart<'_>) -> Result<(), ParallelError>,
    ) -> Result<(), ParallelError> {
        for (index, bucket) in self.reducer.layout().buckets().iter().enumerate() {
            let reduced = self.reducer.with_reduced(index, Clone::clone)?;
            let is_part = matches!(reduced, Reduced::Part(_) | Reduced::FlatPart(_));
            let flat = reduced.into_flat(&self.device);
            match self.sharding.filter(|_| is_part) {
                Some(sharding) => {
                    let padded = self.reducer.memory_len(index);
                    for piece in sharding.pieces(&bucket.segments, padded) {
                        let values = flat.clone().slice(piece.range);
                        visit(GradientPart { path: &piece.segment.path, values, is_part })?;
                    }
                }
                None => {
                    for segment in &bucket.segments {
                        let values = flat.clone().slice(segment.range.clone());
                        visit(GradientPart { path: &segment.path, values, is_part })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What the reduced gradients of this window have to be multiplied by to be those of the mean loss, after
    /// [`synchronize`](Self::synchronize).
    ///
    /// # Errors
    /// [`ParallelError::NoGradients`] before synchronising; [`ParallelError::NoSamples`].
    pub fn gradient_factor(&self) -> Result<f64, ParallelError> {
        match &self.totals {
            Some((totals, _)) => self.gradient_scale(*totals),
            None => Err(ParallelError::NoGradients { rank: self.control.rank() }),
        }
    }

    /// The first parameter, in the order of [`visit_gradients`](Self::visit_gradients), whose gradient has a
    /// value that is infinite or not a number; waits for the device.
    ///
    /// # Errors
    /// As `visit_gradients`; when a device fails.
    pub fn non_finite_gradient(&self) -> Result<Option<String>, ParallelError> {
        let (mut paths, mut sums) = (Vec::new(), Vec::new());
        self.visit_gradients(|gradient| {
            paths.push(gradient.path.to_owned());
            // Zero times infinity is NaN, and no sum of zeros overflows.
            sums.push(gradient.values.mul_scalar(0.0).sum().cast(DType::F32));
            Ok(())
        })?;
        if sums.is_empty() {
            return Ok(None);
        }
        // One wait for all of them.
        let sums = Tensor::cat(sums, 0).try_into_vec_as::<f32>();
        let sums = sums.map_err(|error| TensorError::Read { reason: format!("{error:?}") })?;
        let bad = sums.iter().position(|sum| *sum != 0.0);
        Ok(bad.map(|index| paths.swap_remove(index)))
    }
}
