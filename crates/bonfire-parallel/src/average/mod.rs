//! Averages of a model's parameters over the steps of a run.

mod buffers;
mod flat;
#[cfg(test)]
mod tests;

use crate::ParallelError;
use crate::bucket::BucketLayout;
use bonfire_comm::DType;
use bonfire_tensor::TensorError;
use bonfire_tensor::host::{burn_type, flat_from_host, to_host};
use bonfire_tensor::state::{HostTensor, Scalar, State, StateError, Stateful};
use burn::tensor::{Device, Tensor};
use flat::FlatAverage;
use std::collections::BTreeMap;
use std::fmt;

/// The values of a model that trains, whatever its type: what an average is made from.
///
/// Made by [`DataParallel::values`](crate::DataParallel::values).
pub struct ModelValues<'a> {
    pub(crate) flat: &'a [Tensor<1>],
    pub(crate) layout: &'a BucketLayout,
    pub(crate) buffers: Box<dyn Fn() -> Result<State, TensorError> + 'a>,
}

impl ModelValues<'_> {
    /// The trainable parameters: a flat tensor for each bucket of the layout. A flat tensor may be
    /// longer than its bucket's parameters.
    pub fn flat(&self) -> &[Tensor<1>] {
        self.flat
    }

    /// Where each parameter lies.
    pub fn layout(&self) -> &BucketLayout {
        self.layout
    }

    /// A copy of the buffers (running statistics) by module path.
    ///
    /// # Errors
    /// When a tensor cannot be read from its device.
    pub fn buffers(&self) -> Result<State, TensorError> {
        (self.buffers)()
    }
}

impl fmt::Debug for ModelValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelValues").field("layout", self.layout).finish_non_exhaustive()
    }
}

/// How much the newest values count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Averaging {
    /// `average = decay * average + (1 - decay) * values`.
    Exponential {
        /// Share of the old average that stays; in [0, 1].
        decay: f64,
    },
    /// `average = average + (values - average) / (n + 1)` after n values: all count alike.
    Equal,
}

/// A running average of a model's parameters and buffers.
///
/// The first values are taken over as they are. Parameters of 16 bits are averaged in f32. Floating
/// buffers are averaged too, others are the newest.
///
/// # Collective
/// None: ranks whose parameters are equal have equal averages.
///
/// # Reference
/// `torch.optim.swa_utils.AveragedModel` with `use_buffers=True`, `get_ema_avg_fn` and `get_swa_avg_fn`;
/// Polyak and Juditsky 1992; Izmailov et al., "Averaging Weights Leads to Wider Optima and Better
/// Generalization", UAI 2018, arXiv:1803.05407.
#[derive(Debug)]
pub struct ParameterAverage {
    averaging: Averaging,
    count: u64,
    parameters: Parameters,
    buffers: BTreeMap<String, HostTensor>,
}

/// Averages of the parameters, where they are.
#[derive(Debug)]
enum Parameters {
    /// From a checkpoint, or none yet; with the model's own types.
    Restored(BTreeMap<String, (HostTensor, DType)>),
    /// Beside the parameters that train.
    Flat(FlatAverage),
}

impl ParameterAverage {
    /// Makes an average of no values.
    ///
    /// # Errors
    /// [`ParallelError::Setting`] for a decay outside of [0, 1].
    pub fn new(averaging: Averaging) -> Result<Self, ParallelError> {
        if let Averaging::Exponential { decay } = averaging
            && !(0.0..=1.0).contains(&decay)
        {
            return Err(ParallelError::Setting {
                name: "decay",
                value: decay.to_string(),
                reason: "must be from 0 to 1",
            });
        }
        let parameters = Parameters::Restored(BTreeMap::new());
        Ok(Self { averaging, count: 0, parameters, buffers: BTreeMap::new() })
    }

    /// Values taken in so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Takes in the values of a model.
    ///
    /// # Errors
    /// When a tensor cannot be read, or a restored average is of another model.
    pub fn update(&mut self, values: &ModelValues<'_>) -> Result<(), ParallelError> {
        let weight = match self.averaging {
            _ if self.count == 0 => 1.0,
            Averaging::Exponential { decay } => 1.0 - decay,
            Averaging::Equal => 1.0 / (self.count + 1) as f64,
        };
        match &mut self.parameters {
            _ if self.count == 0 => {
                self.parameters = Parameters::Flat(FlatAverage::copy_of(values));
            }
            Parameters::Restored(restored) => {
                let restored = std::mem::take(restored).into_iter();
                let restored = restored.map(|(path, (tensor, _))| (path, tensor)).collect();
                let mut flat = FlatAverage::restore(restored, values)?;
                flat.update(values, weight)?;
                self.parameters = Parameters::Flat(flat);
            }
            Parameters::Flat(flat) => flat.update(values, weight)?,
        }
        buffers::update(&mut self.buffers, values.buffers()?.tensors, weight)?;
        self.count += 1;
        Ok(())
    }

    /// The averages of parameters and buffers by module path, in the model's own types: what
    /// [`parameters::write`](bonfire_tensor::parameters::write) writes into a model. Empty before the
    /// first values.
    ///
    /// # Errors
    /// When a tensor cannot be read.
    pub fn values(&self) -> Result<State, TensorError> {
        let mut tensors = match &self.parameters {
            Parameters::Restored(restored) => restored
                .iter()
                .map(|(path, (tensor, dtype))| Ok((path.clone(), converted(tensor, *dtype)?)))
                .collect::<Result<_, TensorError>>()?,
            Parameters::Flat(flat) => flat.values(true)?,
        };
        tensors.extend(self.buffers.clone());
        Ok(State { tensors, ..State::default() })
    }
}

impl ParameterAverage {
    /// The model's own types of the parameters.
    fn types(&self) -> Vec<(String, DType)> {
        match &self.parameters {
            Parameters::Restored(restored) => {
                restored.iter().map(|(path, (_, dtype))| (path.clone(), *dtype)).collect()
            }
            Parameters::Flat(flat) => flat.types(),
        }
    }
}

/// Prefix of the scalars that name 16-bit types.
const TYPE: &str = "type/";

fn name_of(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

fn half_type(name: &str) -> Option<DType> {
    [DType::F16, DType::BF16].into_iter().find(|dtype| name_of(*dtype) == Some(name))
}

/// A tensor in another type.
fn converted(tensor: &HostTensor, dtype: DType) -> Result<HostTensor, TensorError> {
    if tensor.data.dtype() == dtype {
        return Ok(tensor.clone());
    }
    let flat = flat_from_host(tensor.data.clone(), &Device::flex());
    Ok(HostTensor { shape: tensor.shape.clone(), data: to_host(flat.cast(burn_type(dtype)))? })
}

impl Stateful for ParameterAverage {
    fn state(&self) -> Result<State, TensorError> {
        let mut state = State::default();
        let parameters = match &self.parameters {
            Parameters::Restored(restored) => {
                restored.iter().map(|(path, (tensor, _))| (path.clone(), tensor.clone())).collect()
            }
            Parameters::Flat(flat) => flat.values(false)?,
        };
        for (path, dtype) in self.types() {
            if let Some(name) = name_of(dtype) {
                state.scalars.insert(format!("{TYPE}{path}"), Scalar::Text(name.to_string()));
            }
        }
        state.insert_under("parameters", State { tensors: parameters, ..State::default() });
        let buffers = State { tensors: self.buffers.clone(), ..State::default() };
        state.insert_under("buffers", buffers);
        state.scalars.insert("count".to_string(), Scalar::Uint(self.count));
        Ok(state)
    }

    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        let count = state.take_uint("count")?;
        let parameters = state.take_under("parameters").tensors;
        let buffers = state.take_under("buffers").tensors;
        let mut typed = BTreeMap::new();
        for (path, tensor) in parameters {
            let dtype = match state.scalars.remove(&format!("{TYPE}{path}")) {
                Some(Scalar::Text(name)) => half_type(&name),
                _ => None,
            };
            let dtype = dtype.unwrap_or(tensor.data.dtype());
            typed.insert(path, (tensor, dtype));
        }
        state.finish()?;
        if count > 0 && typed.is_empty() {
            let name = "parameters".to_string();
            return Err(StateError::Missing { kind: "tensor", name }.into());
        }
        self.count = count;
        self.parameters = Parameters::Restored(typed);
        self.buffers = buffers;
        Ok(())
    }
}
