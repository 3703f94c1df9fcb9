"""Writes weights files by torchvision's names, and the logits that tests/resnet_weights.rs expects.

Run it as `OMP_NUM_THREADS=2 python resnet_weights.py` with PyTorch, torchvision and NumPy installed. It
writes, beside itself:

- resnet18_narrow.pt: a training checkpoint of a ResNet-18 of width 4 under DistributedDataParallel, as
  torch.save writes it, with an optimizer's state beside the weights;
- resnet50_narrow.safetensors: the plain weights of a ResNet-50 of width 2;
- resnet_weights.safetensors: the logits of both in evaluation mode, and those of torchvision's resnet18
  and resnet50.

Every number, images included, follows by one formula from the name of its tensor and its index
(`drawn`), which the tests have too, so that full networks need no file. Logits are computed in f64. In
f32 PyTorch must come within CONDITIONING of them.

torchvision makes no networks of less width, so the narrow ones are those of resnet.py; of full width, these
must have torchvision's tensors and give its logits.
"""

import math

import numpy
import torch
import torchvision
from torch import nn

from generate import HERE, write
from resnet import LAYOUTS, Case, ResNet

# Largest error of PyTorch's f32, relative to the largest logit.
CONDITIONING = 2e-5
IMAGES = (2, 3, 64, 64)
# Name, case, classes.
NETWORKS = [
    ("resnet18", Case(18, "imagenet", 64), 1000),
    ("resnet50", Case(50, "imagenet", 64), 1000),
    ("resnet18_narrow", Case(18, "imagenet", 4), 10),
    ("resnet50_narrow", Case(50, "imagenet", 2), 10),
]


def main():
    torch.set_num_threads(2)
    logits, images = {}, torch.from_numpy(drawn("images", IMAGES, -1, 1))
    for name, case, classes in NETWORKS:
        model = ResNet(case, classes).eval()
        if case.width == 64:
            model = torchvision_model(name, model)
        fill(model, case)
        logits[name] = scores(model, images, name)
        if name == "resnet18_narrow":
            save_checkpoint(HERE / f"{name}.pt", model)
        elif name == "resnet50_narrow":
            write(HERE / f"{name}.safetensors", model.state_dict(), {"torch": torch.__version__})
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    write(HERE / "resnet_weights.safetensors", logits, versions)


def torchvision_model(name, ours):
    """torchvision's network, of which `ours` has all names and shapes."""
    model = getattr(torchvision.models, name)(weights=None).eval()
    shapes = [
        {key: value.shape for key, value in network.state_dict().items() if value.is_floating_point()}
        for network in (model, ours)
    ]
    assert shapes[0] == shapes[1], name
    return model


def scores(model, images, name):
    with torch.no_grad():
        single, double = model(images.float()), model.double()(images.double())
    model.float()
    error = (single.double() - double).abs().max() / double.abs().max()
    assert error < CONDITIONING, f"{name} has an error of {error:.1e} in f32"
    return double.float()


def save_checkpoint(path, model):
    weights = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1, momentum=0.9)
    model.fc.weight.grad = torch.zeros_like(model.fc.weight)
    optimizer.step()
    content = {"state_dict": weights, "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(content, path)


def fill(model, case):
    """Gives every tensor values of a sensible size; residual branches end with smaller gammas, since
    they would amplify rounding errors from block to block."""
    last = {"Basic": ".bn2.weight", "Bottleneck": ".bn3.weight"}[LAYOUTS[case.depth][0]]
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            continue
        shape = tuple(tensor.shape)
        if tensor.dim() == 4:
            bound = math.sqrt(6 / (shape[0] * shape[2] * shape[3]))
            values = drawn(name, shape, -bound, bound)
        elif tensor.dim() == 2:
            bound = 1 / math.sqrt(shape[1])
            values = drawn(name, shape, -bound, bound)
        elif name.endswith(last):
            values = drawn(name, shape, 0.25, 0.75)
        elif name.endswith("running_var") or is_gamma(name, model):
            values = drawn(name, shape, 0.5, 1.5)
        else:
            values = drawn(name, shape, -0.5, 0.5)
        tensor.copy_(torch.from_numpy(values))


def is_gamma(name, model):
    parent, _, leaf = name.rpartition(".")
    return leaf == "weight" and isinstance(model.get_submodule(parent), nn.BatchNorm2d)


def drawn(name, shape, low, high):
    """Numbers in [low, high) that depend on the name of a tensor and on the index in it, row by row:
    FNV-1a over the name, a step of the golden ratio for each index, and MurmurHash3's finalizer."""
    start = 0x811C9DC5
    for byte in name.encode():
        start = (start ^ byte) * 0x01000193 % 2**32
    index = numpy.arange(math.prod(shape), dtype=numpy.uint64)
    bits = (start + index * 0x9E3779B9) % 2**32
    for shift, factor in [(16, 0x85EBCA6B), (13, 0xC2B2AE35)]:
        bits = (bits ^ (bits >> shift)) * factor % 2**32
    bits ^= bits >> 16
    share = (bits >> 8).astype(numpy.float64) / 2**24
    return (low + (high - low) * share).astype(numpy.float32).reshape(shape)


if __name__ == "__main__":
    main()
