//! Gradient checkpointing: activations that are computed again instead of being kept.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor};

/// Gives the parameters and running statistics of a module a device's strategy of gradient
/// checkpointing. With the strategy of [`Device::gradient_checkpointing`], what is cheap to compute is
/// computed again in the backward pass. Inputs need the same strategy.
///
/// Every tensor of Burn has a strategy of its own, which moving the tensor to another device leaves as
/// it was. Running statistics change in all clones of the module. Tensors without autodiff stay as they
/// are, and so does everything where the device has no autodiff.
pub fn follow_device<M: Module>(model: M, device: &Device) -> M {
    drop(model.valid());
    model.map(&mut Follower { device })
}

struct Follower<'a> {
    device: &'a Device,
}

impl ModuleMapper for Follower<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, old, mapper) = param.consume();
        let strategy = self.device.gradient_checkpointing_strategy();
        let strategy = strategy.filter(|_| old.gradient_checkpointing_strategy().is_some());
        let Some(strategy) = strategy else {
            return Param::from_mapped_value(id, old, mapper);
        };
        let trains = old.is_require_grad();
        let new = old.without_autodiff().autodiff().with_gradient_checkpointing_strategy(strategy);
        Param::from_mapped_value(id, new.set_require_grad(trains), mapper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
    use burn::tensor::Distribution;

    #[derive(Module, Debug)]
    struct Net {
        first: Linear,
        norm: BatchNorm,
        frozen: Linear,
    }

    #[test]
    fn a_module_trains_on_inputs_of_the_strategy_with_the_same_gradients() {
        let device = Device::flex().autodiff();
        let net = Net {
            first: LinearConfig::new(4, 6).init(&device),
            norm: BatchNormConfig::new(6).init(&device),
            frozen: LinearConfig::new(6, 2).init(&device).no_grad(),
        };
        let x = Tensor::<2>::random([5, 4], Distribution::Default, &device);
        let gradient = |net: &Net, x: Tensor<2>| {
            let y = net.frozen.forward(net.norm.forward(net.first.forward(x)));
            let gradients = (y.clone() * y).sum().backward();
            net.first.weight.grad(&gradients).unwrap().into_data().try_to_vec::<f32>().unwrap()
        };
        let expected = gradient(&net, x.clone());
        let device = device.gradient_checkpointing();
        let balanced = device.gradient_checkpointing_strategy().unwrap();
        let net = follow_device(net, &device);
        assert!(!net.frozen.weight.is_require_grad());
        let x = x.without_autodiff().autodiff().with_gradient_checkpointing_strategy(balanced);
        assert_eq!(gradient(&net, x), expected);
    }
}
