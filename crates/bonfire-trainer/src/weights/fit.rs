//! Which tensor of a file goes where in a model.

use super::file::WeightsFile;
use super::{Mismatch, WeightNames, WeightsError, WrongShape, transpose};
use bonfire_comm::DType;
use bonfire_nn::PyTorchTensor;
use bonfire_tensor::parameters::{self, ParameterSpec};
use bonfire_tensor::state::{HostTensor, State};
use burn::module::Module;
use std::collections::BTreeSet;
use std::path::Path;

/// What PyTorch programs put a `state_dict` under, in a file of other things too.
const ROOTS: [&str; 4] = ["", "state_dict.", "model_state_dict.", "model."];
/// What `DistributedDataParallel` puts before every name.
const WRAPPERS: [&str; 2] = ["", "module."];
/// PyTorch's count of the batches that running statistics have seen; nothing in Burn needs it.
const COUNTER: &str = "num_batches_tracked";

/// What becomes of the weights that give the scores of the classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// They are loaded as all others are.
    Load,
    /// They stay as the model has them, and the file may have others or none.
    Keep,
}

/// A model that weights were loaded into.
#[derive(Debug)]
pub struct Fitted<M> {
    /// The model.
    pub model: M,
    /// Tensors that came from the file.
    pub num_loaded: usize,
    /// Paths of those that stayed as they were.
    pub kept: Vec<String>,
    /// By which names they were found: `"module paths"` or `"PyTorch's names"`.
    pub names: &'static str,
}

/// Loads the weights in a `.safetensors`, `.pt` or `.pth` file into a model, running statistics
/// included.
///
/// Floating-point types are converted to the model's; PyTorch's `num_batches_tracked` is ignored.
///
/// # Errors
/// [`WeightsError::Mismatch`] with everything that does not fit; the model is then gone.
pub fn load_weights<M: Module>(
    model: M,
    path: &Path,
    names: &WeightNames,
    head: Head,
) -> Result<Fitted<M>, WeightsError> {
    if head == Head::Keep && names.head.is_none() {
        return Err(WeightsError::NoHead);
    }
    let mut file = WeightsFile::open(path)?;
    let specs = parameters::inspect(&model)?;
    let places = Places::find(&specs, &file.names(), names);
    let kept = |place: &&Place| head == Head::Keep && place.in_head;
    let (kept, wanted): (Vec<&Place>, Vec<&Place>) = places.list.iter().partition(kept);
    let unexpected = places.unexpected(&file.names(), head);
    let missing: Vec<String> = wanted
        .iter()
        .filter(|place| file.shape(&place.foreign.name).is_none())
        .map(|place| place.foreign.name.clone())
        .collect();

    let (mut state, mut wrong, mut wrong_head) = (State::default(), Vec::new(), None);
    for place in wanted.iter().filter(|place| !missing.contains(&place.foreign.name)) {
        match place.take(&mut file)? {
            Ok(tensor) => drop(state.tensors.insert(place.path.clone(), tensor)),
            Err(shape) => {
                wrong.push(shape);
                wrong_head = wrong_head.or(names.head.clone().filter(|_| place.in_head));
            }
        }
    }
    let head = wrong_head;
    let mismatch = Mismatch::new(file.path(), places.names);
    Mismatch { missing, unexpected, wrong, head, ..mismatch }.into_result()?;
    let kept = kept.into_iter().map(|place| place.path.clone()).collect();
    let num_loaded = state.tensors.len();
    let model = parameters::write(model, state)?;
    Ok(Fitted { model, num_loaded, kept, names: places.names })
}

/// Where a tensor of the model stands in the file.
struct Place {
    path: String,
    shape: Vec<usize>,
    dtype: DType,
    foreign: PyTorchTensor,
    in_head: bool,
}

impl Place {
    /// Takes the tensor out of the file, in the model's layout, or says how it differs.
    fn take(&self, file: &mut WeightsFile) -> Result<Result<HostTensor, WrongShape>, WeightsError> {
        let name = &self.foreign.name;
        let mut expected = self.shape.clone();
        if self.foreign.transposed {
            expected.reverse();
        }
        let got = file.shape(name).unwrap_or_default().to_vec();
        let wrong =
            |expected: String, got: String| WrongShape { name: name.clone(), expected, got };
        if got != expected {
            return Ok(Err(wrong(format!("{expected:?}"), format!("{got:?}"))));
        }
        Ok(match file.take(name, self.dtype)? {
            Some(tensor) if self.foreign.transposed => Ok(transpose(tensor)),
            Some(tensor) => Ok(tensor),
            None => Err(wrong(self.dtype.to_string(), "of another kind of number".to_string())),
        })
    }
}

/// Where all tensors of the model stand in the file.
struct Places {
    list: Vec<Place>,
    names: &'static str,
    /// What stands before every name.
    prefix: String,
}

impl Places {
    /// Finds the names under which most tensors are there.
    fn find(specs: &[ParameterSpec], there: &BTreeSet<&str>, names: &WeightNames) -> Self {
        let own: fn(&str) -> PyTorchTensor = |path| PyTorchTensor::new(path);
        let ways = [("module paths", Some(own)), ("PyTorch's names", names.pytorch)];
        let mut best: Option<(usize, Self)> = None;
        for (names_of, translate) in ways {
            let Some(translate) = translate else { continue };
            for prefix in
                ROOTS.iter().flat_map(|root| WRAPPERS.map(|inner| format!("{root}{inner}")))
            {
                let list: Vec<Place> =
                    specs.iter().map(|spec| place(spec, translate, &prefix, names)).collect();
                let found = list.iter().filter(|p| there.contains(p.foreign.name.as_str())).count();
                if best.as_ref().is_none_or(|(most, _)| found > *most) {
                    best = Some((found, Self { list, names: names_of, prefix }));
                }
            }
        }
        best.map_or_else(
            || Self { list: Vec::new(), names: "", prefix: String::new() },
            |(_, it)| it,
        )
    }

    /// Tensors of the file that have no place, but for those that a checkpoint keeps beside the
    /// weights.
    fn unexpected(&self, there: &BTreeSet<&str>, head: Head) -> Vec<String> {
        let known: BTreeSet<&str> = self.list.iter().map(|p| p.foreign.name.as_str()).collect();
        let heads: BTreeSet<&str> =
            self.list.iter().filter(|place| place.in_head).map(module).collect();
        let in_head = |name: &str| {
            head == Head::Keep
                && heads
                    .iter()
                    .any(|head| name.strip_prefix(head).is_some_and(|rest| rest.starts_with('.')))
        };
        let unexpected = |name: &&&str| {
            name.starts_with(&self.prefix)
                && !known.contains(**name)
                && name.rsplit('.').next() != Some(COUNTER)
                && !in_head(name)
        };
        there.iter().filter(unexpected).map(ToString::to_string).collect()
    }
}

fn place(
    spec: &ParameterSpec,
    translate: fn(&str) -> PyTorchTensor,
    prefix: &str,
    names: &WeightNames,
) -> Place {
    let PyTorchTensor { name, transposed } = translate(&spec.path);
    let beneath = |head: &String| {
        spec.path.strip_prefix(head.as_str()).is_some_and(|rest| rest.starts_with('.'))
    };
    Place {
        path: spec.path.clone(),
        shape: spec.shape.clone(),
        dtype: spec.dtype,
        foreign: PyTorchTensor { name: format!("{prefix}{name}"), transposed },
        in_head: names.head.as_ref().is_some_and(beneath),
    }
}

/// The module that a tensor belongs to, by the names of the file.
fn module(place: &Place) -> &str {
    place.foreign.name.rsplit_once('.').map_or("", |(module, _)| module)
}
