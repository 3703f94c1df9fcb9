"""Writes the golden values that `tests/clip.rs` holds gradient clipping against.

Run it as `OMP_NUM_THREADS=1 python clip.py` with PyTorch installed. The perceptron of generate.py takes 20
steps of SGD over the first batches of inputs.safetensors, its gradients clipped by each of RULES. It
writes, beside itself, clip.safetensors with, in f64, for each rule and precision:

- {rule}/{precision}/norms: what clip_grad_norm_ returned before every step (2-norm for "value");
- {rule}/{precision}/{path}: the parameters after the last step, weights transposed as Burn stores them.
"""

import math
import pathlib
import random

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from generate import PRECISIONS, SEED, SIZES, make_inputs, write

STEPS, RATE = 20, 0.5
FILE = pathlib.Path(__file__).parent / "clip.safetensors"


def by_value(parameters):
    norm = clip_grad_norm_(parameters, math.inf)
    clip_grad_value_(parameters, 0.02)
    return norm


RULES = {
    # Most steps are above the bound.
    "norm": lambda parameters: clip_grad_norm_(parameters, 0.3),
    # Some are above, some below.
    "between": lambda parameters: clip_grad_norm_(parameters, 0.55),
    "largest": lambda parameters: clip_grad_norm_(parameters, 0.05, norm_type=math.inf),
    "value": by_value,
}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    inputs = make_inputs(random.Random(SEED))
    outputs = {}
    for rule, clip in RULES.items():
        for precision, dtype in PRECISIONS.items():
            for name, tensor in train(clip, dtype, inputs).items():
                outputs[f"{rule}/{precision}/{name}"] = tensor
    write(FILE, outputs, {"torch": torch.__version__})


def train(clip, dtype, inputs):
    layers = [torch.nn.Linear(a, b).to(dtype) for a, b in zip(SIZES, SIZES[1:])]
    with torch.no_grad():
        for index, layer in enumerate(layers):
            layer.weight.copy_(inputs[f"layers.{index}.weight"].T)
            layer.bias.copy_(inputs[f"layers.{index}.bias"])
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, foreach=False)
    norms = []
    for features, labels in zip(inputs["features"][:STEPS].to(dtype), inputs["labels"]):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()
        norms.append(clip(list(model.parameters())).item())
        optimizer.step()
    outputs = {"norms": torch.tensor(norms, dtype=torch.float64)}
    for index, layer in enumerate(layers):
        outputs[f"layers.{index}.weight"] = layer.weight.detach().T.double()
        outputs[f"layers.{index}.bias"] = layer.bias.detach().double()
    return outputs


if __name__ == "__main__":
    main()
