//! How the values of parameters and gradients are distributed.

use crate::TrainError;
use crate::learnable::Learnable;
use crate::run::Run;
use bonfire_parallel::ZeroStage;
use bonfire_report::tensorboard::Histogram;
use burn::tensor::{DType, Tensor};
use std::collections::BTreeMap;

/// Histograms of every parameter and its gradient in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Histograms {
    /// Optimizer steps taken before it.
    pub step: u64,
    /// Of the values before the step, by path.
    pub parameters: BTreeMap<String, Histogram>,
    /// Of the gradients of the mean loss over all ranks, unscaled and before clipping, by path. In the steps of
    /// [`LocalSgd`](bonfire_parallel::LocalSgd) that exchange nothing, rank 0's own, as the parameters are.
    pub gradients: BTreeMap<String, Histogram>,
}

impl<M: Learnable> Run<'_, M> {
    /// Counts the values of parameters and gradients if it is time to, and shows them to rank 0's callbacks.
    ///
    /// # Collective
    /// All ranks, if it is time to.
    pub(crate) fn count_values(&mut self) -> Result<(), TrainError> {
        let (every, step) = (self.config.histograms_every_n_steps, self.position.step);
        if every == 0 || !step.is_multiple_of(every) {
            return Ok(());
        }
        let gradients = self.gradient_histograms()?;
        if self.control.rank() > 0 {
            return Ok(());
        }
        let parameters = self.parameter_histograms()?;
        let histograms = Histograms { step, parameters, gradients };
        self.notify(|callback| callback.on_histograms(&histograms))
    }

    fn parameter_histograms(&self) -> Result<BTreeMap<String, Histogram>, TrainError> {
        let values = self.parallel.values();
        let mut parameters = BTreeMap::new();
        for (bucket, segment) in values.layout().segments() {
            let values = values.flat()[bucket].clone().slice(segment.range.clone());
            parameters.insert(segment.path.clone(), histogram(values, 1.0)?);
        }
        Ok(parameters)
    }

    /// On rank 0 those of the whole gradients.
    ///
    /// # Collective
    /// All ranks, where each has a part of the gradients.
    fn gradient_histograms(&self) -> Result<BTreeMap<String, Histogram>, TrainError> {
        let shared = self.config.parallel.zero_stage == ZeroStage::Gradients
            && self.control.world_size() > 1;
        if !shared && self.control.rank() > 0 {
            return Ok(BTreeMap::new());
        }
        let scale = self.precision.scaler.as_ref().map_or(1.0, |scaler| scaler.inverse_scale());
        let factor = (self.parallel.gradient_factor()? * scale) as f32;
        let (mut own, mut failure) = (BTreeMap::new(), None);
        let first = self.control.rank() == 0;
        self.parallel.visit_gradients(|gradient| {
            // What all ranks have whole is told once.
            if !gradient.is_part && !first {
                return Ok(());
            }
            match histogram(gradient.values, factor) {
                Ok(found) => own.insert(gradient.path.to_owned(), found),
                Err(error) => failure.replace(error).and(None),
            };
            Ok(())
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        if !shared {
            return Ok(own);
        }
        let own: Vec<(&String, Vec<u8>)> =
            own.iter().map(|(path, histogram)| (path, histogram.to_bytes())).collect();
        let own = serde_json::to_vec(&own).map_err(garbled)?;
        let mut all: BTreeMap<String, Histogram> = BTreeMap::new();
        for part in self.control.all_gather_bytes(&own)? {
            let part: Vec<(String, Vec<u8>)> = serde_json::from_slice(&part).map_err(garbled)?;
            for (path, bytes) in part {
                let part = Histogram::from_bytes(&bytes).ok_or_else(|| garbled("histogram"))?;
                all.entry(path).or_default().merge(&part);
            }
        }
        Ok(all)
    }
}

fn histogram(values: Tensor<1>, factor: f32) -> Result<Histogram, TrainError> {
    let values = values.cast(DType::F32).try_into_vec_as::<f32>();
    let values = values.map_err(|error| TrainError::ReadMetric { reason: format!("{error:?}") })?;
    Ok(Histogram::of(values.into_iter().map(|value| value * factor)))
}

fn garbled(reason: impl std::fmt::Display) -> TrainError {
    TrainError::ReadMetric { reason: format!("histograms of the other ranks: {reason}") }
}
