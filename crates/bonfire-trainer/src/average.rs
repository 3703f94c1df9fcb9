use crate::TrainError;
use crate::callback::{Callback, StepEnd, Variant};
use bonfire_parallel::{Averaging, ModelValues, ParallelError, ParameterAverage};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::{Scalar, State, Stateful};

/// Scalar of a state: whether values are to be taken as soon as ranks have them in common.
const DUE: &str = "due";

/// Keeps an average of the model's values over the steps of a run, has it evaluated beside the
/// model, and saved with it.
///
/// [`ema`](Self::ema) is the exponential moving average, [`swa`](Self::swa) stochastic weight
/// averaging. Validations report its figures as `ema_loss`, `swa_accuracy` and so on, beginning with
/// the first values that it took in; [`FitReport::variants`](crate::FitReport::variants) holds it at
/// the end, and every checkpoint.
///
/// With [`LocalSgd`](bonfire_parallel::LocalSgd) it takes in what the ranks have agreed on: values
/// are due at a step, and taken at the next average of the ranks, or at the end of the run.
///
/// # Reference
/// `lightning.pytorch.callbacks.EMAWeightAveraging` and `WeightAveraging`, which average buffers too;
/// `torch.optim.swa_utils`.
#[derive(Debug)]
pub struct WeightAverage {
    name: String,
    average: ParameterAverage,
    when: When,
    /// Values should have been taken, but ranks had none in common.
    due: bool,
}

#[derive(Debug, Clone, Copy)]
enum When {
    /// After every so many steps, from a step on.
    Steps { every: u64, from: u64 },
    /// After every epoch, from one on.
    Epochs { from: u64 },
}

impl WeightAverage {
    /// The exponential moving average `average = decay * average + (1 - decay) * values` after every
    /// optimizer step.
    ///
    /// # Errors
    /// [`ParallelError::Setting`] for a decay outside of [0, 1].
    pub fn ema(decay: f64) -> Result<Self, ParallelError> {
        let averaging = Averaging::Exponential { decay };
        Self::new("ema", averaging, When::Steps { every: 1, from: 0 })
    }

    /// The mean of the values at the end of epoch `from`, counted from 0, and of all epochs after
    /// it.
    ///
    /// # Errors
    /// None at present.
    pub fn swa(from: u64) -> Result<Self, ParallelError> {
        Self::new("swa", Averaging::Equal, When::Epochs { from })
    }

    fn new(name: &str, averaging: Averaging, when: When) -> Result<Self, ParallelError> {
        let average = ParameterAverage::new(averaging)?;
        Ok(Self { name: name.to_string(), average, when, due: false })
    }

    /// Calls it otherwise than `ema` or `swa`, where a run has several: its figures, its file and its
    /// part of a checkpoint go by the name.
    pub fn with_name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Takes in values after every `every` optimizer steps, the first time after the first step that
    /// is not before step `from`.
    pub fn with_steps(self, every: u64, from: u64) -> Self {
        Self { when: When::Steps { every: every.max(1), from }, ..self }
    }

    /// Values taken in so far.
    pub fn count(&self) -> u64 {
        self.average.count()
    }

    /// Whether values are to be taken in after step `end.step`, which counts from 1.
    fn is_due(&self, end: &StepEnd) -> bool {
        match self.when {
            // A skipped step has nothing new.
            When::Steps { every, from } => {
                !end.skipped && end.step > from && (end.step - from - 1).is_multiple_of(every)
            }
            When::Epochs { from } => end.epoch >= from && end.last_of_epoch,
        }
    }
}

impl Callback for WeightAverage {
    fn name(&self) -> &str {
        &self.name
    }

    fn on_step_end(&mut self, end: &StepEnd) -> Result<(), TrainError> {
        self.due |= self.is_due(end);
        Ok(())
    }

    fn on_values(&mut self, values: &ModelValues<'_>) -> Result<(), TrainError> {
        if std::mem::take(&mut self.due) {
            self.average.update(values)?;
        }
        Ok(())
    }

    fn variant(&self) -> Result<Option<Variant>, TrainError> {
        if self.average.count() == 0 {
            return Ok(None);
        }
        Ok(Some(Variant { name: self.name.clone(), values: self.average.values()? }))
    }

    fn stateful(&mut self) -> Option<&mut dyn Stateful> {
        Some(self)
    }
}

impl Stateful for WeightAverage {
    fn state(&self) -> Result<State, TensorError> {
        let mut state = self.average.state()?;
        state.scalars.insert(DUE.to_string(), Scalar::Bool(self.due));
        Ok(state)
    }

    /// Takes an average over. A run that had none leaves this one as it is: it begins then.
    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        if state.scalars.is_empty() && state.tensors.is_empty() {
            return Ok(());
        }
        self.due = state.take_bool(DUE)?;
        self.average.load_state(state)
    }
}
