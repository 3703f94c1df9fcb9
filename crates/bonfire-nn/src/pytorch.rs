/// Where PyTorch keeps a tensor of a module, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PyTorchTensor {
    /// Its key in the module's `state_dict`.
    pub name: String,
    /// Whether rows and columns change places: the weight of a linear layer is `[input, output]` in
    /// Burn and `[output, input]` in PyTorch.
    pub transposed: bool,
}

impl PyTorchTensor {
    /// Names a tensor that has the same layout in Burn and in PyTorch.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), transposed: false }
    }

    /// Names the weight of a linear layer.
    pub fn transposed(name: impl Into<String>) -> Self {
        Self { name: name.into(), transposed: true }
    }
}
