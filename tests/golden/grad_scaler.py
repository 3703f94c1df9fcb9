"""Writes the golden values that `tests/grad_scaler.rs` holds Bonfire's GradScaler against.

Run it as `OMP_NUM_THREADS=1 python grad_scaler.py` with PyTorch installed. PyTorch's `torch.amp.GradScaler`
steps a parameter 5,000 times; the gradient is not finite in the steps that Python's own generator
chooses. It writes, beside itself, grad_scaler.safetensors with, for each of CONFIGS and every step, in f32:

- {name}/overflow: 1 where the gradient was not finite, so that PyTorch skipped the step;
- {name}/scale and {name}/tracker: scale and growth tracker after the update.
"""

import pathlib
import random

import torch

from generate import write

SEED, STEPS = 11, 5000
FILE = pathlib.Path(__file__).parent / "grad_scaler.safetensors"
# Settings of the scaler, and the probability of an overflow.
CONFIGS = {
    "default": ({}, 1 / 1500),
    "uneven": (
        dict(init_scale=3.0, growth_factor=1.5, backoff_factor=0.6, growth_interval=7),
        0.06,
    ),
    # Reaches the largest f32.
    "ceiling": (dict(init_scale=2.0**120, growth_interval=3), 0.01),
}


def main():
    torch.set_num_threads(1)
    outputs = {}
    for name, (settings, probability) in CONFIGS.items():
        for key, values in run(settings, probability, random.Random(SEED)).items():
            outputs[f"{name}/{key}"] = torch.tensor(values, dtype=torch.float32)
    write(FILE, outputs, {"torch": torch.__version__})


def run(settings, probability, generator):
    scaler = torch.amp.GradScaler("cpu", **settings)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    outputs = {"overflow": [], "scale": [], "tracker": []}
    for _ in range(STEPS):
        overflow = generator.random() < probability
        bad = generator.choice([float("inf"), float("-inf"), float("nan")])
        scaler.scale(torch.zeros(1))
        parameter.grad = torch.tensor([bad if overflow else 1.0])
        parameter.data.zero_()
        scaler.step(optimizer)
        assert overflow == (parameter.item() == 0.0)
        scaler.update()
        outputs["overflow"].append(float(overflow))
        outputs["scale"].append(scaler.get_scale())
        outputs["tracker"].append(float(scaler._get_growth_tracker()))
    return outputs


if __name__ == "__main__":
    main()
