//! Parameters and buffers as flat tensors, which stay on their device.

use super::{ParameterSpec, Role};
use crate::autodiff::with_autodiff_of;
use crate::host::view;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Gives the trainable parameters of a module new values, each a part of a flat tensor.
///
/// `part` maps the k-th distinct trainable parameter to its flat tensor (without autodiff) and its
/// elements there; on the CPU the parameter becomes a view of them.
pub fn set_trainable<M: Module>(
    model: M,
    part: impl Fn(usize) -> Option<(Tensor<1>, Range<usize>)>,
) -> M {
    model.map(&mut Setter { part, index: HashMap::new() })
}

struct Setter<F> {
    part: F,
    index: HashMap<ParamId, usize>,
}

impl<F: Fn(usize) -> Option<(Tensor<1>, Range<usize>)>> ModuleMapper for Setter<F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        let (id, old, mapper) = param.consume();
        let next = self.index.len();
        let index = *self.index.entry(id).or_insert(next);
        let Some((flat, range)) = (self.part)(index) else {
            return Param::from_mapped_value(id, old, mapper);
        };
        let new = with_autodiff_of(&old, view(&flat, range, old.dims()));
        Param::from_mapped_value(id, new.require_grad(), mapper)
    }
}

/// The distinct trainable parameters of a module as flat tensors without autodiff, in visiting order; on
/// their device, and not waited for.
pub fn trainable_tensors<M: Module>(model: &M) -> Vec<Tensor<1>> {
    let mut visitor = TrainableVisitor { seen: HashSet::new(), found: Vec::new() };
    model.visit(&mut visitor);
    visitor.found
}

struct TrainableVisitor {
    seen: HashSet<ParamId>,
    found: Vec<Tensor<1>>,
}

impl ModuleVisitor for TrainableVisitor {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() && self.seen.insert(param.id) {
            let tensor = param.val().without_autodiff();
            let len = tensor.shape().num_elements();
            self.found.push(tensor.reshape([len]));
        }
    }
}

/// The floating-point buffers of a module (its running statistics) as flat tensors without autodiff, in
/// visiting order; on their device, and not waited for.
///
/// `specs` are those of the module. Statistics are brought up to date first, as [`read`](super::read) does.
pub fn float_buffers<M: Module>(model: &M, specs: &[ParameterSpec]) -> Vec<Tensor<1>> {
    drop(model.valid());
    let mut visitor = BufferVisitor { wanted: buffer_ids(specs), found: Vec::new() };
    model.visit(&mut visitor);
    visitor.found
}

/// Gives the floating-point buffers of a module the values that [`float_buffers`] returns.
pub fn set_float_buffers<M: Module>(
    model: M,
    specs: &[ParameterSpec],
    values: Vec<Tensor<1>>,
) -> M {
    drop(model.valid());
    let wanted = buffer_ids(specs);
    model.map(&mut BufferSetter { wanted, values: values.into_iter(), seen: HashMap::new() })
}

fn buffer_ids(specs: &[ParameterSpec]) -> HashSet<ParamId> {
    specs.iter().filter(|spec| spec.role == Role::Buffer).map(|spec| spec.id).collect()
}

struct BufferVisitor {
    wanted: HashSet<ParamId>,
    found: Vec<Tensor<1>>,
}

impl ModuleVisitor for BufferVisitor {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.wanted.remove(&param.id) {
            let tensor = param.val().without_autodiff();
            let len = tensor.shape().num_elements();
            self.found.push(tensor.reshape([len]));
        }
    }
}

struct BufferSetter {
    wanted: HashSet<ParamId>,
    values: std::vec::IntoIter<Tensor<1>>,
    /// Values of buffers that stand in several places.
    seen: HashMap<ParamId, Tensor<1>>,
}

impl ModuleMapper for BufferSetter {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.wanted.contains(&param.id) {
            return param;
        }
        let (id, old, mapper) = param.consume();
        let value = match self.seen.get(&id) {
            Some(value) => Some(value.clone()),
            None => self.values.next(),
        };
        let Some(value) = value else { return Param::from_mapped_value(id, old, mapper) };
        self.seen.insert(id, value.clone());
        let new = with_autodiff_of(&old, value.reshape(old.dims()));
        Param::from_mapped_value(id, new.set_require_grad(old.is_require_grad()), mapper)
    }
}
