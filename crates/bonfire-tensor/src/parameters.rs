//! What a module is made of, by module path.
//!
//! A path is the chain of field names and indices that leads to a tensor, joined by dots:
//! `blocks.3.conv1.weight`. Unlike Burn's `ParamId` it is the same in every process.

mod flat;

pub use flat::{float_buffers, set_float_buffers, set_trainable, trainable_tensors};

use crate::TensorError;
use crate::host::{burn_type, host_to_data, to_host, wire_type};
use crate::state::{HostTensor, State, StateError};
use bonfire_comm::DType;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};
use std::collections::{HashMap, HashSet};

/// What the training loop does with a tensor of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Requires gradients: hooked, reduced, updated by the optimizer.
    Trainable,
    /// A parameter that does not require gradients: never changes.
    Frozen,
    /// Changed by the forward pass or by hand: running statistics, integer and boolean tensors.
    Buffer,
}

/// One tensor of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterSpec {
    /// Where it stands.
    pub path: String,
    /// Sizes of its dimensions.
    pub shape: Vec<usize>,
    /// Its element type on the wire (booleans travel as bytes).
    pub dtype: DType,
    /// What becomes of it.
    pub role: Role,
    /// Burn's identity of it, of this process only.
    pub id: ParamId,
}

impl ParameterSpec {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The path to the tensor at hand, while a module is visited.
#[derive(Debug, Default)]
pub(crate) struct ModulePath(Vec<String>);

impl ModulePath {
    pub(crate) fn enter(&mut self, name: &str) {
        self.0.push(name.to_string());
    }

    pub(crate) fn exit(&mut self) {
        self.0.pop();
    }

    fn joined(&self) -> String {
        self.0.join(".")
    }
}

macro_rules! track_path {
    () => {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.enter(name);
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.exit();
        }
    };
}

/// Lists the distinct tensors of a module in visiting order.
///
/// A tensor that stands in several places (tied weights) is listed once, under its first path.
///
/// # Errors
/// [`TensorError::UnsupportedDType`] naming the path.
pub fn inspect<M: Module>(model: &M) -> Result<Vec<ParameterSpec>, TensorError> {
    // Only a running statistic stays without gradients when gradients are asked for everywhere.
    let mut parameters = Inspector::default();
    model.clone().set_require_grad(true).visit(&mut parameters);
    let parameters: HashSet<ParamId> =
        trainable(&parameters.result?).into_iter().map(|spec| spec.id).collect();

    let mut visitor = Inspector::default();
    model.visit(&mut visitor);
    let mut specs = visitor.result?;
    for spec in &mut specs {
        if spec.role == Role::Buffer && parameters.contains(&spec.id) {
            spec.role = Role::Frozen;
        }
    }
    Ok(specs)
}

/// Lists paths and shapes of all tensors of a module in visiting order, without making the values of those
/// that Burn has put off: it takes no memory, however large the module would be.
pub fn shapes<M: Module>(model: &M) -> Vec<(String, Vec<usize>)> {
    let mut visitor = Shapes::default();
    model.visit(&mut visitor);
    visitor.found
}

#[derive(Default)]
struct Shapes {
    path: ModulePath,
    seen: HashSet<ParamId>,
    found: Vec<(String, Vec<usize>)>,
}

impl Shapes {
    fn add(&mut self, id: ParamId, shape: &burn::tensor::Shape) {
        if self.seen.insert(id) {
            self.found.push((self.path.joined(), shape.to_vec()));
        }
    }
}

impl ModuleVisitor for Shapes {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param.id, &param.lazy_shape());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id, &param.lazy_shape());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.id, &param.lazy_shape());
    }
}

/// The trainable ones of `specs`, in order: the k-th has gradient hook k.
pub fn trainable(specs: &[ParameterSpec]) -> Vec<ParameterSpec> {
    specs.iter().filter(|spec| spec.role == Role::Trainable).cloned().collect()
}

struct Inspector {
    path: ModulePath,
    seen: HashSet<ParamId>,
    result: Result<Vec<ParameterSpec>, TensorError>,
}

impl Default for Inspector {
    fn default() -> Self {
        Self { path: ModulePath::default(), seen: HashSet::new(), result: Ok(Vec::new()) }
    }
}

impl Inspector {
    fn add(&mut self, id: ParamId, shape: Vec<usize>, dtype: burn::tensor::DType, role: Role) {
        let Ok(specs) = &mut self.result else { return };
        if !self.seen.insert(id) {
            return;
        }
        let path = self.path.joined();
        match wire_type(dtype, &format!("\"{path}\"")) {
            Ok(dtype) => specs.push(ParameterSpec { path, shape, dtype, role, id }),
            Err(error) => self.result = Err(error),
        }
    }
}

impl ModuleVisitor for Inspector {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let role = if tensor.is_require_grad() { Role::Trainable } else { Role::Buffer };
        self.add(param.id, tensor.dims().to_vec(), tensor.dtype(), role);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.val();
        self.add(param.id, tensor.dims().to_vec(), tensor.dtype(), Role::Buffer);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let shape = param.val().dims().to_vec();
        self.add(param.id, shape, burn::tensor::DType::U8, Role::Buffer);
    }
}

/// Reads tensors of a module into a state, keyed by path.
///
/// Only the tensors that `wanted` names; all of them with `|_| true`. Running statistics are brought up to date first: a module
/// keeps the latest update of each thread aside until it is asked for.
///
/// # Errors
/// [`TensorError`] when a tensor cannot be read or has no place on the wire.
pub fn read<M: Module>(
    model: &M,
    wanted: impl Fn(&ParameterSpec) -> bool,
) -> Result<State, TensorError> {
    drop(model.valid());
    let wanted = inspect(model)?.into_iter().filter(wanted).map(|spec| spec.id).collect();
    let mut reader = Reader { path: ModulePath::default(), wanted, result: Ok(State::default()) };
    model.visit(&mut reader);
    reader.result
}

struct Reader {
    path: ModulePath,
    wanted: HashSet<ParamId>,
    result: Result<State, TensorError>,
}

impl Reader {
    fn add(&mut self, id: ParamId, read: impl FnOnce() -> Result<HostTensor, TensorError>) {
        if !self.wanted.remove(&id) {
            return;
        }
        let Ok(state) = &mut self.result else { return };
        match read() {
            Ok(tensor) => drop(state.tensors.insert(self.path.joined(), tensor)),
            Err(error) => self.result = Err(error),
        }
    }
}

impl ModuleVisitor for Reader {
    track_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let shape = tensor.dims().to_vec();
        self.add(param.id, || Ok(HostTensor { shape, data: to_host(tensor)? }));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.val();
        let shape = tensor.dims().to_vec();
        self.add(param.id, || {
            let data = tensor
                .try_into_data()
                .map_err(|error| TensorError::Read { reason: format!("{error:?}") })?;
            Ok(HostTensor { shape, data: crate::host::data_to_host(data)? })
        });
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let tensor = param.val();
        let shape = tensor.dims().to_vec();
        self.add(param.id, || {
            let values = tensor
                .int()
                .try_into_vec_as::<i64>()
                .map_err(|error| TensorError::Read { reason: format!("{error:?}") })?;
            let bytes: Vec<u8> = values.into_iter().map(|value| u8::from(value != 0)).collect();
            Ok(HostTensor { shape, data: bytes.into() })
        });
    }
}

/// Writes the tensors of `state` into a module, by path; others stay as they are.
///
/// A running statistic is written into memory that all clones of the module share.
///
/// # Errors
/// [`StateError`] for an entry whose shape or type differs, or that the module does not have.
pub fn write<M: Module>(model: M, state: State) -> Result<M, TensorError> {
    drop(model.valid());
    let mut writer =
        Writer { path: ModulePath::default(), state, tied: HashMap::new(), error: None };
    let mut written = HashSet::new();
    for spec in inspect(&model)? {
        written.insert(spec.path);
    }
    let unknown = writer.state.tensors.keys().find(|name| !written.contains(*name));
    if let Some(name) = unknown {
        return Err(StateError::Unexpected { name: name.clone() }.into());
    }
    let model = model.map(&mut writer);
    match writer.error {
        Some(error) => Err(error),
        None => Ok(model),
    }
}

struct Writer {
    path: ModulePath,
    state: State,
    /// First path of each tensor: a tied one is stored once, under it.
    tied: HashMap<ParamId, String>,
    error: Option<TensorError>,
}

impl Writer {
    fn find(
        &mut self,
        id: ParamId,
        shape: &[usize],
        dtype: burn::tensor::DType,
    ) -> Option<HostTensor> {
        if self.error.is_some() {
            return None;
        }
        let path = self.path.joined();
        let name = self.tied.entry(id).or_insert(path).clone();
        let tensor = self.state.tensors.get(&name)?.clone();
        let expected_dtype = wire_type(dtype, &name).ok()?;
        if tensor.shape == shape && tensor.data.dtype() == expected_dtype {
            return Some(tensor);
        }
        let error = StateError::Shape {
            name,
            expected: shape.to_vec(),
            expected_dtype,
            got_dtype: tensor.data.dtype(),
            got: tensor.shape,
        };
        self.error = Some(error.into());
        None
    }
}

impl ModuleMapper for Writer {
    track_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, old, mapper) = param.consume();
        let Some(found) = self.find(id, &old.dims(), old.dtype()) else {
            return Param::from_mapped_value(id, old, mapper);
        };
        let options = (&old.device(), burn_type(found.data.dtype()));
        let new = Tensor::from_data(host_to_data(found.data, &found.shape), options);
        let new = new.set_require_grad(old.is_require_grad());
        Param::from_mapped_value(id, new, mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (id, old, mapper) = param.consume();
        let Some(found) = self.find(id, &old.dims(), old.dtype()) else {
            return Param::from_mapped_value(id, old, mapper);
        };
        let options = (&old.device(), burn_type(found.data.dtype()));
        let new = Tensor::from_data(host_to_data(found.data, &found.shape), options);
        Param::from_mapped_value(id, new, mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let (id, old, mapper) = param.consume();
        let Some(found) = self.find(id, &old.dims(), burn::tensor::DType::U8) else {
            return Param::from_mapped_value(id, old, mapper);
        };
        let options = (&old.device(), burn::tensor::DType::U8);
        let bytes = Tensor::<D, Int>::from_data(host_to_data(found.data, &found.shape), options);
        Param::from_mapped_value(id, bytes.bool(), mapper)
    }
}

/// Lets the trainable parameters of a module go: each becomes a view of a single zero, of its shape,
/// so that nobody but the caller holds their memory.
pub fn hide_trainable<M: Module>(model: M) -> M {
    model.map(&mut Hider)
}

struct Hider;

impl ModuleMapper for Hider {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        let (id, old, mapper) = param.consume();
        let options = (&old.device(), old.dtype());
        let hidden = Tensor::<D>::zeros([1; D], options).expand(old.dims()).require_grad();
        Param::from_mapped_value(id, hidden, mapper)
    }
}

/// Fingerprint of the tensors of a state: xxh3 over name, shape, type and bytes, in path order.
pub fn fingerprint(state: &State) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    for (name, tensor) in &state.tensors {
        hasher.update(name.as_bytes());
        hasher.update(format!("{:?}{:?}", tensor.shape, tensor.data.dtype()).as_bytes());
        hasher.update(tensor.data.as_bytes());
    }
    hasher.digest()
}
