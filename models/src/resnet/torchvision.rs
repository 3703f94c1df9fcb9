use bonfire_nn::PyTorchTensor;

/// Variants of enums, which are parts of a path in Burn and of none in PyTorch.
const VARIANTS: [&str; 4] = ["Basic", "Bottleneck", "Batch", "Group"];

/// Says where torchvision keeps the tensor at a module path of a [`ResNet`](super::ResNet).
///
/// `layer2.0.Basic.downsample.1.Batch.gamma` is `layer2.0.downsample.1.weight`; the weight of `fc`,
/// the only linear layer, is transposed.
///
/// # Reference
/// `torchvision.models.resnet.ResNet`, whose fields have the same names.
pub fn torchvision_tensor(path: &str) -> PyTorchTensor {
    let parts = path.split('.').filter(|part| !VARIANTS.contains(part));
    let parts = parts.map(|part| match part {
        "gamma" => "weight",
        "beta" => "bias",
        other => other,
    });
    let name = parts.collect::<Vec<_>>().join(".");
    PyTorchTensor { transposed: name == "fc.weight", name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_keys_of_a_state_dict() {
        for (path, name) in [
            ("conv1.weight", "conv1.weight"),
            ("bn1.Batch.gamma", "bn1.weight"),
            ("bn1.Batch.running_var", "bn1.running_var"),
            ("layer1.0.Basic.conv2.weight", "layer1.0.conv2.weight"),
            ("layer4.2.Bottleneck.bn3.Group.beta", "layer4.2.bn3.bias"),
            ("layer2.0.Bottleneck.downsample.0.weight", "layer2.0.downsample.0.weight"),
            (
                "layer2.0.Basic.downsample.1.Batch.running_mean",
                "layer2.0.downsample.1.running_mean",
            ),
            ("fc.bias", "fc.bias"),
        ] {
            assert_eq!(torchvision_tensor(path), PyTorchTensor::new(name));
        }
        let weight = PyTorchTensor::transposed("fc.weight");
        assert_eq!(torchvision_tensor("fc.weight"), weight);
    }
}
