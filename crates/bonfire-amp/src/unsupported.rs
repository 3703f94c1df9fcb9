//! Layers that cannot run in a 16-bit type.

use crate::MixedPrecision;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// The module path of the first `BatchNorm` of Burn that stands outside of modules that the policy keeps in f32.
///
/// With its statistics left in f32 its forward pass panics, and with them cast those of the model
/// itself, which all clones share, would be cast too.
pub(crate) fn find_batch_norm<M: Module>(model: &M, policy: &MixedPrecision) -> Option<String> {
    let mut finder = Finder { policy, path: Vec::new(), found: None };
    model.visit(&mut finder);
    finder.found
}

struct Finder<'a> {
    policy: &'a MixedPrecision,
    /// Field name and container type of every level.
    path: Vec<(String, String)>,
    found: Option<String>,
}

impl ModuleVisitor for Finder<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push((name.to_string(), container.to_string()));
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
        let at = self.path.iter().position(|(_, container)| container == "Struct:BatchNorm");
        let Some(at) = at.filter(|_| self.found.is_none()) else { return };
        if !self.path.iter().any(|(_, container)| self.policy.keeps(container)) {
            let names: Vec<&str> = self.path[..at].iter().map(|(name, _)| name.as_str()).collect();
            self.found = Some(names.join("."));
        }
    }
}
