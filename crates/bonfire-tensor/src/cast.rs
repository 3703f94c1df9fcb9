//! In which element type a forward pass sees the parameters of a model.

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Tensor};
use std::collections::HashSet;
use std::sync::Arc;

/// Where a tensor stands in a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    steps: Vec<(String, String)>,
}

impl Place {
    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        self.steps.push((name.to_string(), container.to_string()));
    }

    pub(crate) fn exit(&mut self) {
        self.steps.pop();
    }

    /// The module path, `blocks.3.norm.gamma`.
    pub fn path(&self) -> String {
        let names: Vec<&str> = self.steps.iter().map(|(name, _)| name.as_str()).collect();
        names.join(".")
    }

    /// Kinds and names of the types around the tensor, the outermost first: `Struct:Model`,
    /// `Vec`, `Struct:Block`, `Enum:Norm`.
    pub fn containers(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|(_, container)| container.as_str())
    }
}

/// Decides about the parameters of a model.
pub trait CastRule: Send + Sync {
    /// The type in which forward passes see the parameter at `place`; `None` for its own.
    fn dtype(&self, place: &Place) -> Option<DType>;
}

/// A rule, and what it is asked about besides trainable parameters.
#[derive(Clone)]
pub struct Casting {
    rule: Arc<dyn CastRule>,
    frozen: Arc<HashSet<ParamId>>,
}

impl Casting {
    /// Makes a casting of a model's trainable parameters and of those in `frozen`.
    ///
    /// Frozen parameters have to be named, since while a module is mapped they look like running
    /// statistics, and a cast of one of those would change every clone of the model for good.
    pub fn new(rule: Arc<dyn CastRule>, frozen: impl IntoIterator<Item = ParamId>) -> Self {
        Self { rule, frozen: Arc::new(frozen.into_iter().collect()) }
    }
}

/// Follows a mapper through a module and casts what it maps.
pub(crate) struct Caster<'a> {
    casting: Option<&'a Casting>,
    place: Place,
}

impl<'a> Caster<'a> {
    pub(crate) fn new(casting: Option<&'a Casting>) -> Self {
        Self { casting, place: Place::default() }
    }

    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        if self.casting.is_some() {
            self.place.enter(name, container);
        }
    }

    pub(crate) fn exit(&mut self) {
        self.place.exit();
    }

    /// The type for the parameter at hand.
    pub(crate) fn dtype(&self) -> Option<DType> {
        self.casting?.rule.dtype(&self.place)
    }

    /// What becomes of a tensor that requires no gradients.
    pub(crate) fn without_gradients<const D: usize>(
        &self,
        param: Param<Tensor<D>>,
    ) -> Param<Tensor<D>> {
        let frozen = self.casting.is_some_and(|casting| casting.frozen.contains(&param.id));
        let Some(dtype) = self.dtype().filter(|_| frozen) else { return param };
        let (id, tensor, mapper) = param.consume();
        Param::from_mapped_value(id, tensor.cast(dtype), mapper)
    }
}

/// Applies a type to a tensor, if there is one.
pub(crate) fn cast_to<const D: usize>(tensor: Tensor<D>, dtype: Option<DType>) -> Tensor<D> {
    match dtype {
        Some(dtype) if dtype != tensor.dtype() => tensor.cast(dtype),
        _ => tensor,
    }
}

/// Changes the element type of the parameters themselves, where `casting` says so.
///
/// Unlike the cast of a forward pass this one is for good: gradients, optimizer state and
/// checkpoints are then of that type too.
pub fn cast_parameters<M: Module>(model: M, casting: &Casting) -> M {
    model.map(&mut Converter(Caster::new(Some(casting))))
}

struct Converter<'a>(Caster<'a>);

impl ModuleMapper for Converter<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.0.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.0.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return self.0.without_gradients(param);
        }
        let Some(dtype) = self.0.dtype() else { return param };
        let (id, old, mapper) = param.consume();
        let strategy = old.gradient_checkpointing_strategy();
        let mut new = old.without_autodiff().cast(dtype).autodiff();
        if let Some(strategy) = strategy {
            new = new.with_gradient_checkpointing_strategy(strategy);
        }
        Param::from_mapped_value(id, new.require_grad(), mapper)
    }
}
