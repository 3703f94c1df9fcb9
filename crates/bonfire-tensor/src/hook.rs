//! Gradients leave the backward pass as soon as they exist.
//!
//! Burn has no public gradient hook, so [`hook_parameters`] puts an identity operation behind every
//! trainable parameter of a clone of the model. The operation's backward step takes the gradient
//! and hands it to a [`GradientSink`].
//!
//! **When a hook fires.** Burn runs the tape by depth from the leaves, the deepest step first. A
//! hook directly on a leaf has depth 1, so all hooks would fire after everything else. The depth of
//! an operation is 1 + the largest depth of its inputs, untracked inputs included: an [`Anchors`]
//! tensor, untracked and deepened beforehand, lifts the hook to the depth of the layer that follows
//! it. With depths that grow along the order of use, the last layer's hooks fire first, while the
//! layers before it are still to be run.

use crate::cast::{Caster, Casting, cast_to};
use crate::extension::{dispatch_deepen, dispatch_gradient_hook};
use crate::host;
use bonfire_comm::HostBuffer;
use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

/// Receives gradients during the backward pass, on the thread that runs it.
pub trait GradientSink: Send + Sync {
    /// Takes the gradient of the parameter with this index.
    ///
    /// A parameter used more than once arrives once, summed. Called with the graph's lock held: an
    /// implementation must not call an autodiff operation.
    fn gradient(&self, index: usize, gradient: Gradient);
}

/// A gradient on its device, outside the autodiff graph.
pub struct Gradient(DispatchTensor);

impl Gradient {
    pub(crate) fn new(tensor: DispatchTensor) -> Self {
        Self(tensor)
    }

    /// Shows the gradient as a flat tensor in row-major order, without a copy. `None` when it lies in
    /// another order, or not on the CPU.
    pub fn as_flat(&self) -> Option<Tensor<1>> {
        host::flat_dispatch(&self.0)
    }

    /// The gradient as a flat tensor in row-major order, on its device.
    pub fn into_flat(self) -> Tensor<1> {
        host::dispatch_to_flat(self.0)
    }

    /// Whether [`into_buffer`](Self::into_buffer) makes no copy: the gradient lies on the CPU in
    /// row-major order, and nobody else holds its memory.
    pub fn owns_memory(&self) -> bool {
        host::owns_memory(&self.0)
    }

    /// The gradient as host memory, in row-major order.
    ///
    /// # Errors
    /// [`TensorError`](crate::TensorError) when a device fails.
    pub fn into_buffer(self) -> Result<HostBuffer, crate::TensorError> {
        host::dispatch_to_host(self.0)
    }

    /// Copies the gradient into `output` in row-major order; with `accumulate`, adds it.
    ///
    /// # Errors
    /// [`TensorError::Mismatch`](crate::TensorError::Mismatch) when length or type differ.
    pub fn write_to<E: host::HostFloat>(
        self,
        output: &mut [E],
        accumulate: bool,
    ) -> Result<(), crate::TensorError> {
        host::write_dispatch(self.0, output, accumulate)
    }
}

/// What the backward step of a hooked parameter carries.
#[derive(Clone)]
pub(crate) struct Hook {
    index: usize,
    sink: Arc<dyn GradientSink>,
}

impl core::fmt::Debug for Hook {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Hook({})", self.index)
    }
}

impl Hook {
    pub(crate) fn fire(self, gradient: Gradient) {
        self.sink.gradient(self.index, gradient);
    }
}

/// Untracked one-element tensors, the k-th of which lies k + 1 levels deep in the graph, and which
/// of them lifts the hook of each parameter.
///
/// Built once per model and shared by all its steps.
///
/// INVARIANT: never shared by ranks that are threads of one process: sharing merges their graphs
/// under one lock, and a collective inside one backward pass would block the others.
#[derive(Clone, Debug)]
pub struct Anchors {
    levels: Vec<Tensor<1>>,
    /// Level of each trainable parameter.
    level_of: Vec<usize>,
}

impl Anchors {
    /// Makes anchors for `count` parameters on `device`, which must have autodiff. The parameters
    /// are taken to be used in their visiting order.
    pub fn new(count: usize, device: &Device) -> Self {
        let mut anchor = Tensor::<1>::zeros([1], device);
        let mut levels = Vec::with_capacity(count);
        for _ in 0..count {
            anchor = Tensor::from_dispatch(dispatch_deepen(anchor.into_dispatch()));
            levels.push(anchor.clone());
        }
        Self { levels, level_of: (0..count).collect() }
    }

    /// Lifts the hooks by the order in which the forward pass uses the parameters.
    ///
    /// `order` holds each parameter's index once; what is no such order is ignored.
    pub fn follow(&mut self, order: &[usize]) {
        let mut level_of = vec![usize::MAX; self.levels.len()];
        for (level, index) in order.iter().enumerate() {
            if let Some(slot) = level_of.get_mut(*index) {
                *slot = level;
            }
        }
        if order.len() == level_of.len() && !level_of.contains(&usize::MAX) {
            self.level_of = level_of;
        }
    }

    /// The anchor of a parameter, or `None` for one that came after the anchors were made.
    pub(crate) fn of(&self, index: usize) -> Option<&Tensor<1>> {
        self.levels.get(*self.level_of.get(index)?)
    }

    pub(crate) fn at_level(&self, level: usize) -> Option<&Tensor<1>> {
        self.levels.get(level)
    }
}

/// Puts the hook of parameter `index` behind it.
pub(crate) fn hooked<const D: usize>(
    parameter: Tensor<D>,
    anchor: Tensor<1>,
    index: usize,
    sink: &Arc<dyn GradientSink>,
) -> Tensor<D> {
    let hook = Hook { index, sink: sink.clone() };
    Tensor::from_dispatch(dispatch_gradient_hook(
        parameter.into_dispatch(),
        anchor.into_dispatch(),
        hook,
    ))
}

/// Returns `model` with a hook behind every parameter that requires gradients, and behind the hook,
/// if `casting` says so, a cast.
///
/// A hook carries the parameter's position among the distinct trainable parameters in the module's
/// visiting order, the order of [`trainable`](crate::parameters::trainable). A parameter that
/// stands in several places of the module (tied weights) has one hook, so its gradient arrives once,
/// summed; all places see it in the type of the first. Gradients arrive in the type of the parameter,
/// since the hook comes before the cast. Frozen parameters are cast and not hooked. Running
/// statistics pass through untouched: writing to one would change every clone of the model.
pub fn hook_parameters<M: Module>(
    model: M,
    anchors: &Anchors,
    sink: &Arc<dyn GradientSink>,
    casting: Option<&Casting>,
) -> M {
    let caster = Caster::new(casting);
    model.map(&mut HookMapper { anchors, sink, caster, hooked: HashMap::new() })
}

struct HookMapper<'a> {
    anchors: &'a Anchors,
    sink: &'a Arc<dyn GradientSink>,
    caster: Caster<'a>,
    hooked: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleMapper for HookMapper<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.caster.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.caster.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return self.caster.without_gradients(param);
        }
        let (id, tensor, mapper) = param.consume();
        let tied = self.hooked.get(&id).and_then(|seen| seen.downcast_ref::<Tensor<D>>());
        if let Some(tied) = tied {
            return Param::from_mapped_value(id, tied.clone(), mapper);
        }
        let index = self.hooked.len();
        let Some(anchor) = self.anchors.of(index) else {
            let cast = cast_to(tensor, self.caster.dtype());
            return Param::from_mapped_value(id, cast, mapper);
        };
        let hooked = hooked(tensor, anchor.clone(), index, self.sink);
        let hooked = cast_to(hooked, self.caster.dtype());
        self.hooked.insert(id, Box::new(hooked.clone()));
        Param::from_mapped_value(id, hooked, mapper)
    }
}
