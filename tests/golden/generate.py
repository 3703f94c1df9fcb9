"""Writes the golden values that `tests/golden.rs` holds Bonfire's optimizers against.

Run it as `OMP_NUM_THREADS=1 python generate.py` with PyTorch installed. It writes, beside itself:

- inputs.safetensors: the initial parameters and 50 batches of 16 samples, in f64, drawn by
  Python's own generator, so that they depend on no version of PyTorch;
- expected.safetensors: for each rule (sgd, nesterov, adam, adamw) and precision (f64, f32), the loss of
  every batch before its step and the parameters after the last one, all written as f64.

The model is a perceptron 20-16-10 with ReLU, the loss the mean cross-entropy. Weights are stored
in Burn's layout [in, out], the transpose of PyTorch's, under Burn's module paths. A safetensors
file is the length of a JSON header (u64, little-endian), the header, and the tensors' bytes.
"""

import json
import pathlib
import random
import struct

import torch

SEED = 2024
SIZES = [20, 16, 10]
STEPS, BATCH = 50, 16
HERE = pathlib.Path(__file__).parent

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, weight_decay=1e-3, foreach=False
    ),
    "nesterov": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True, foreach=False
    ),
    "adam": lambda parameters: torch.optim.Adam(
        parameters, lr=1e-2, weight_decay=1e-3, foreach=False
    ),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=False),
}
PRECISIONS = {"f64": torch.float64, "f32": torch.float32}
# Names of element types in a safetensors file, and in Python's struct.
CODES = {torch.float64: ("F64", "d"), torch.float32: ("F32", "f"), torch.int64: ("I64", "q")}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    inputs = make_inputs(random.Random(SEED))
    write(HERE / "inputs.safetensors", inputs, {"seed": str(SEED)})
    expected = {}
    for rule in OPTIMIZERS:
        for precision, dtype in PRECISIONS.items():
            for name, tensor in train(rule, dtype, inputs).items():
                expected[f"{rule}/{precision}/{name}"] = tensor
    write(HERE / "expected.safetensors", expected, {"torch": torch.__version__})


def make_inputs(generator):
    """Draws parameters as nn.Linear does, and samples whose label a hidden linear map decides."""

    def uniform(bound, *shape):
        count = torch.Size(shape).numel()
        values = [generator.uniform(-bound, bound) for _ in range(count)]
        return torch.tensor(values, dtype=torch.float64).reshape(shape)

    inputs = {}
    for index, (fan_in, fan_out) in enumerate(zip(SIZES, SIZES[1:])):
        bound = fan_in**-0.5
        inputs[f"layers.{index}.weight"] = uniform(bound, fan_in, fan_out)
        inputs[f"layers.{index}.bias"] = uniform(bound, fan_out)
    inputs["features"] = uniform(1.0, STEPS, BATCH, SIZES[0])
    teacher = uniform(1.0, SIZES[0], SIZES[-1])
    inputs["labels"] = (inputs["features"] @ teacher).argmax(2)
    return inputs


def train(rule, dtype, inputs):
    """Returns the losses and the final parameters, by name."""
    layers = [torch.nn.Linear(a, b).to(dtype) for a, b in zip(SIZES, SIZES[1:])]
    with torch.no_grad():
        for index, layer in enumerate(layers):
            layer.weight.copy_(inputs[f"layers.{index}.weight"].T)
            layer.bias.copy_(inputs[f"layers.{index}.bias"])
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    optimizer = OPTIMIZERS[rule](model.parameters())
    losses = []
    for features, labels in zip(inputs["features"].to(dtype), inputs["labels"]):
        loss = torch.nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    outputs = {"losses": torch.tensor(losses, dtype=torch.float64)}
    for index, layer in enumerate(layers):
        outputs[f"layers.{index}.weight"] = layer.weight.detach().T.double()
        outputs[f"layers.{index}.bias"] = layer.bias.detach().double()
    return outputs


def write(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in sorted(tensors.items()):
        code, letter = CODES[tensor.dtype]
        values = tensor.contiguous().flatten().tolist()
        start = len(data)
        data += struct.pack(f"<{len(values)}{letter}", *values)
        header[name] = {
            "dtype": code,
            "shape": list(tensor.shape),
            "data_offsets": [start, len(data)],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()
