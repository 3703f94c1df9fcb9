//! A trained model, applied to images.

use crate::CliError;
use crate::data::collate;
use crate::model_folder::{ModelDescription, ModelFolder, ModelTensors, of_description};
use crate::registry::{ModelConfig, Registry};
use bonfire_comm::HostBuffer;
use bonfire_data::transform::Transforms;
use bonfire_tensor::parameters;
use bonfire_tensor::state::{HostTensor, State};
use bonfire_trainer::config::RunConfig;
use bonfire_trainer::weights::{Mismatch, WeightsError, WrongShape};
use bonfire_trainer::{ImageBatch, ImageCollate, Learnable, StepContext, StepOutput, TrainError};
use burn::tensor::{Device, Tensor};
use std::collections::BTreeSet;
use std::path::Path;

/// A model that was trained, with its type forgotten.
pub(crate) trait TrainedModel {
    /// Scores of all classes, `[batch, classes]`, if the model gives any.
    fn scores(&self, batch: &ImageBatch) -> Option<Tensor<2>>;

    /// Loss and metrics of a batch, as in a validation.
    fn validate(&self, batch: ImageBatch) -> StepOutput;
}

/// A trained model and what it needs.
pub(crate) struct Classifier {
    pub(crate) description: ModelDescription,
    pub(crate) model: Box<dyn TrainedModel>,
    device: Device,
}

impl Classifier {
    /// Loads the model of a folder, or one of its averages. It computes in f32, whatever the types it
    /// was trained in.
    pub(crate) fn open(
        registry: &Registry,
        folder: &Path,
        variant: Option<&str>,
    ) -> Result<Self, CliError> {
        let folder = ModelFolder::open(folder)?;
        let (description, tensors) = (&folder.description, folder.tensors(variant)?);
        let restore = || registry.kind(&description.kind)?.restore(description, tensors);
        let model = restore().map_err(of_description(&folder.description_file()))?;
        Ok(Self { description: folder.description, model, device: Device::flex() })
    }

    /// Makes batches as the model was trained on.
    pub(crate) fn collate(&self) -> Result<ImageCollate, CliError> {
        let description = &self.description;
        Ok(collate(description.image_shape(), description.normalize.as_ref(), &self.device)?)
    }

    /// What becomes of an image before the model sees it.
    pub(crate) fn transforms(&self) -> Result<Transforms, CliError> {
        let normalize = self.description.normalize.as_ref();
        Ok(self.description.transforms()?.transforms(normalize))
    }
}

struct Restored<M> {
    model: M,
    device: Device,
}

impl<M: Learnable<Batch = ImageBatch>> TrainedModel for Restored<M> {
    fn scores(&self, batch: &ImageBatch) -> Option<Tensor<2>> {
        self.model.class_scores(batch)
    }

    fn validate(&self, batch: ImageBatch) -> StepOutput {
        let context = StepContext::outside(self.device.clone());
        self.model.validation_step(batch, &context)
    }
}

/// Makes the model that a description tells of, with new values.
pub(crate) fn build<C: ModelConfig>(
    description: &ModelDescription,
) -> Result<(C, C::Model), CliError> {
    let mut keys = RunConfig::default();
    keys.model.keys = description.config.clone();
    let config = keys.parse_model::<C>()?;
    let device = Device::flex();
    let model =
        config.init(description.image_shape(), description.num_classes, &device.autodiff())?;
    Ok((config, model))
}

/// Makes the model again and gives it its tensors.
pub(crate) fn with_tensors<C: ModelConfig>(
    description: &ModelDescription,
    stored: ModelTensors,
) -> Result<(C, C::Model), CliError> {
    let (config, model) = build::<C>(description)?;
    check_fit(&parameters::shapes(&model), &stored)?;
    let tensors = stored.tensors.into_iter().map(|(name, tensor)| (name, in_f32(tensor))).collect();
    let state = State { tensors, ..State::default() };
    Ok((config, parameters::write(model, state).map_err(TrainError::from)?))
}

/// Checks that a file has the tensors of a model, before the model takes any memory.
fn check_fit(model: &[(String, Vec<usize>)], stored: &ModelTensors) -> Result<(), WeightsError> {
    let mut mismatch = Mismatch::new(&stored.path, "module paths");
    for (path, shape) in model {
        match stored.tensors.get(path) {
            None => mismatch.missing.push(path.clone()),
            Some(tensor) if tensor.shape != *shape => mismatch.wrong.push(WrongShape {
                name: path.clone(),
                expected: format!("{shape:?}"),
                got: format!("{:?}", tensor.shape),
            }),
            Some(_) => {}
        }
    }
    let known: BTreeSet<&String> = model.iter().map(|(path, _)| path).collect();
    let unexpected = stored.tensors.keys().filter(|path| !known.contains(path));
    mismatch.unexpected.extend(unexpected.cloned());
    mismatch.into_result()
}

/// Restores a model for applying it.
pub(crate) fn restore<C: ModelConfig>(
    description: &ModelDescription,
    stored: ModelTensors,
) -> Result<Box<dyn TrainedModel>, CliError> {
    use burn::module::Module;
    let (_, model) = with_tensors::<C>(description, stored)?;
    Ok(Box::new(Restored { model: model.valid(), device: Device::flex() }))
}

fn in_f32(tensor: HostTensor) -> HostTensor {
    let data = match tensor.data {
        HostBuffer::F64(values) => {
            values.iter().map(|value| *value as f32).collect::<Vec<_>>().into()
        }
        HostBuffer::F16(values) => {
            values.iter().map(|value| value.to_f32()).collect::<Vec<_>>().into()
        }
        HostBuffer::BF16(values) => {
            values.iter().map(|value| value.to_f32()).collect::<Vec<_>>().into()
        }
        other => other,
    };
    HostTensor { data, ..tensor }
}
