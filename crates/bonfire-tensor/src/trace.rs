//! In which order does a forward pass use the parameters of a model?
//!
//! Gradients leave the backward pass in the reverse of that order, which is that of a module's
//! fields only by good habit. A traced replica finds it out: its parameters are lazy, and the first
//! use of one notes its index and puts the hook behind it, at the level that the order found so far
//! asks for.

use crate::cast::{Caster, Casting, cast_to};
use crate::hook::{Anchors, GradientSink, hooked};
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::Tensor;
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Indices of trainable parameters in the order of their first use.
#[derive(Debug, Default)]
pub struct Trace(Mutex<Vec<usize>>);

impl Trace {
    /// Notes a use; returns the parameter's place in the order.
    fn note(&self, index: usize) -> usize {
        let mut order = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        order.iter().position(|seen| *seen == index).unwrap_or_else(|| {
            order.push(index);
            order.len() - 1
        })
    }

    /// The order found so far; parameters that were not used are missing.
    pub fn order(&self) -> Vec<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns `model` with hooks and casts as [`hook_parameters`](crate::hook::hook_parameters) makes
/// them, for one forward and backward pass in which `trace` notes the order of use.
///
/// Clones of the result share its trace. A parameter that is never used has no hook.
pub fn trace_parameters<M: Module>(
    model: M,
    anchors: &Anchors,
    sink: &Arc<dyn GradientSink>,
    trace: &Arc<Trace>,
    casting: Option<&Casting>,
) -> M {
    let (anchors, caster) = (Arc::new(anchors.clone()), Caster::new(casting));
    model.map(&mut TraceMapper { anchors, sink, trace, caster, traced: HashMap::new() })
}

struct TraceMapper<'a> {
    anchors: Arc<Anchors>,
    sink: &'a Arc<dyn GradientSink>,
    trace: &'a Arc<Trace>,
    caster: Caster<'a>,
    /// Lazy parameters by identity: a tied one is one hook.
    traced: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleMapper for TraceMapper<'_> {
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
        let tied = self.traced.get(&param.id).and_then(|seen| seen.downcast_ref());
        if let Some(tied) = tied {
            return Param::clone(tied);
        }
        let index = self.traced.len();
        let (id, tensor, _) = param.consume();
        let (device, shape) = (tensor.device(), tensor.shape());
        let (anchors, sink, trace) = (self.anchors.clone(), self.sink.clone(), self.trace.clone());
        let dtype = self.caster.dtype();
        let first_use = move |_: &_, _| {
            let used = match anchors.at_level(trace.note(index)) {
                Some(anchor) => hooked(tensor, anchor.clone(), index, &sink),
                None => tensor,
            };
            cast_to(used, dtype)
        };
        let lazy = Param::<Tensor<D>>::uninitialized(id, first_use, device, true, shape);
        self.traced.insert(id, Box::new(lazy.clone()));
        lazy
    }
}
