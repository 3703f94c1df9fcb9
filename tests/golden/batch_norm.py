"""Writes the golden values that `tests/batch_norm.rs` holds Bonfire's batch normalisation against.

Run it as `OMP_NUM_THREADS=1 python batch_norm.py` with PyTorch installed. It writes, beside itself,
batch_norm.safetensors. For every case, all in f64, of a layer that takes two training steps:

- <case>/gamma, beta, running_mean, running_var: the layer before the first step;
- <case>/x/<step>, weights/<step>: the batch, and the weights w of the loss sum(w * y);
- <case>/y/<step>, dx/<step>, dgamma/<step>, dbeta/<step>: output and gradients;
- <case>/running_mean/<step>, running_var/<step>: the statistics after the step;
- <case>/evaluated: the output in evaluation mode, for the last batch, after the last step.

PyTorch's SyncBatchNorm runs on GPUs only. What it computes on N ranks is by its definition what
BatchNorm computes of the concatenated batch: the rank that has samples i..j gets these samples of y
and dx, every rank gets the same statistics, and the gradients of gamma and beta are the sums of
those of the ranks. So the same values hold for every way to deal the samples out, among them uneven
ones and those that leave a rank without any; the tests choose the ways.

Inputs are drawn by Python's own generator and exact in f32. PyTorch must come within CONDITIONING of
the f64 outputs in f32, or the inputs are too sensitive to hold anybody else's f32 against them.
"""

import random
from dataclasses import dataclass

import torch
from torch import nn

from generate import HERE, write

SEED = 2026
STEPS = 2
CONDITIONING = 5e-6


@dataclass
class Case:
    # Samples, channels, and what is behind them.
    shape: tuple
    # Mean of the inputs in their standard deviations: sums of squares would lose its square.
    offset: float = 0.5
    momentum: float = 0.1
    eps: float = 1e-5


CASES = {
    "rank2": Case((12, 5)),
    "rank3": Case((12, 4, 7)),
    "rank4": Case((12, 3, 4, 5)),
    "rank4_narrow": Case((12, 3, 2, 2)),
    "rank5": Case((12, 2, 3, 2, 4)),
    "far_from_zero": Case((12, 3, 5, 5), offset=20.0),
    "settings": Case((12, 3, 5, 4), momentum=0.3, eps=1e-2),
}
LAYERS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tensors = {}
    for name, case in CASES.items():
        inputs = draw(case, random.Random(f"{SEED} {name}"))
        expected = run(case, inputs, torch.float64)
        in_f32 = run(case, inputs, torch.float32)
        for key, value in expected.items():
            error = (in_f32[key].double() - value).abs().max() / value.abs().max()
            assert error < CONDITIONING, f"{key} of {name} has an error of {error:.1e} in f32"
        tensors |= {f"{name}/{key}": value for key, value in (inputs | expected).items()}
    write(HERE / "batch_norm.safetensors", tensors, {"torch": torch.__version__})


def draw(case, generator):
    def uniform(low, high, shape):
        count = torch.Size(shape).numel()
        values = [generator.uniform(low, high) for _ in range(count)]
        return torch.tensor(values, dtype=torch.float32).reshape(shape).double()

    channels = case.shape[1]
    inputs = {
        "gamma": uniform(0.5, 1.5, (channels,)),
        "beta": uniform(-0.5, 0.5, (channels,)),
        "running_mean": uniform(-0.5, 0.5, (channels,)),
        "running_var": uniform(0.5, 1.5, (channels,)),
    }
    for step in range(STEPS):
        x = uniform(case.offset - 1.7, case.offset + 1.7, case.shape)
        inputs[f"x/{step}"] = x
        inputs[f"weights/{step}"] = uniform(-1.0, 1.0, case.shape)
    return inputs


def run(case, inputs, dtype):
    layer = LAYERS[len(case.shape)](case.shape[1], eps=case.eps, momentum=case.momentum).to(dtype)
    with torch.no_grad():
        for name, tensor in [("gamma", layer.weight), ("beta", layer.bias)]:
            tensor.copy_(inputs[name])
        layer.running_mean.copy_(inputs["running_mean"])
        layer.running_var.copy_(inputs["running_var"])
    outputs = {}
    for step in range(STEPS):
        x = inputs[f"x/{step}"].clone().to(dtype).requires_grad_()
        y = layer(x)
        layer.zero_grad()
        (y * inputs[f"weights/{step}"].to(dtype)).sum().backward()
        outputs[f"y/{step}"] = y.detach()
        outputs[f"dx/{step}"] = x.grad
        outputs[f"dgamma/{step}"] = layer.weight.grad.clone()
        outputs[f"dbeta/{step}"] = layer.bias.grad.clone()
        outputs[f"running_mean/{step}"] = layer.running_mean.clone()
        outputs[f"running_var/{step}"] = layer.running_var.clone()
    outputs["evaluated"] = layer.eval()(inputs[f"x/{STEPS - 1}"].to(dtype)).detach()
    return outputs


if __name__ == "__main__":
    main()
