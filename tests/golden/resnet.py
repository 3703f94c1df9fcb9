"""Writes the golden values that `tests/resnet.rs` holds Bonfire's residual networks against.

Run it as `OMP_NUM_THREADS=1 python resnet.py` with PyTorch installed. For every case it writes,
beside itself, resnet_<case>.safetensors, all in f32 but for the labels:

- images, labels: one batch;
- before/<path>: parameters and running statistics, none of them as at initialisation;
- logits, loss, gradient/<path>: of one training step;
- after/<path>: running statistics after it;
- evaluated: logits of the same images in evaluation mode after it.

Inputs are drawn by Python's own generator, so that they depend on no version of PyTorch, and
outputs are computed in f64, so that they depend on no order of sums. In f32 PyTorch must come within
CONDITIONING of them, or the inputs are too sensitive to hold anybody else's f32 against them. Paths
and layouts are Burn's.
The networks are torchvision's, with its names, and those of He et al. 2015, section 4.2, with
projections as shortcuts.

`python resnet.py --count` prints the numbers of trainable parameters that the tests assert.
"""

import copy
import math
import random
import sys
from dataclasses import dataclass

import torch
from torch import nn

from generate import HERE, write

SEED = 2025
CLASSES = 5
# Largest error of PyTorch's f32, relative to the largest number of a tensor.
CONDITIONING = 2e-5
LAYOUTS = {
    8: ("Basic", [1, 1, 1]),
    18: ("Basic", [2, 2, 2, 2]),
    34: ("Basic", [3, 4, 6, 3]),
    50: ("Bottleneck", [3, 4, 6, 3]),
    101: ("Bottleneck", [3, 4, 23, 3]),
    152: ("Bottleneck", [3, 8, 36, 3]),
}


@dataclass
class Case:
    depth: int
    stem: str
    width: int
    norm: str = "batch"
    groups: int = 2
    # Channels, height, width.
    image: tuple = (3, 12, 16)
    batch: int = 6


CASES = {
    "basic": Case(8, "cifar", 4),
    "bottleneck": Case(50, "cifar", 2, image=(3, 12, 12), batch=10),
    "imagenet": Case(18, "imagenet", 2, image=(1, 64, 48), batch=4),
    "group": Case(8, "cifar", 4, norm="group"),
    "none": Case(8, "cifar", 4, norm="none"),
}


class Layers:
    """Makes convolutions and normalisations of a case."""

    def __init__(self, case):
        self.case = case

    def conv(self, channels_in, channels_out, kernel, stride=1):
        bias = self.case.norm == "none"
        padding = (kernel - 1) // 2
        return nn.Conv2d(channels_in, channels_out, kernel, stride, padding, bias=bias)

    def norm(self, channels):
        return {
            "batch": lambda: nn.BatchNorm2d(channels),
            "group": lambda: nn.GroupNorm(self.case.groups, channels),
            "none": nn.Identity,
        }[self.case.norm]()


class Basic(nn.Module):
    expansion = 1

    def __init__(self, layers, channels, planes, stride):
        super().__init__()
        self.conv1 = layers.conv(channels, planes, 3, stride)
        self.bn1 = layers.norm(planes)
        self.conv2 = layers.conv(planes, planes, 3)
        self.bn2 = layers.norm(planes)
        self.downsample = downsample(layers, channels, planes, stride)

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(y)) + self.downsample(x)).relu()


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, layers, channels, planes, stride):
        super().__init__()
        self.conv1 = layers.conv(channels, planes, 1)
        self.bn1 = layers.norm(planes)
        self.conv2 = layers.conv(planes, planes, 3, stride)
        self.bn2 = layers.norm(planes)
        self.conv3 = layers.conv(planes, 4 * planes, 1)
        self.bn3 = layers.norm(4 * planes)
        self.downsample = downsample(layers, channels, 4 * planes, stride)

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        return (self.bn3(self.conv3(y)) + self.downsample(x)).relu()


def downsample(layers, channels, output, stride):
    if stride == 1 and channels == output:
        return nn.Identity()
    return nn.Sequential(layers.conv(channels, output, 1, stride), layers.norm(output))


class ResNet(nn.Module):
    def __init__(self, case, classes):
        super().__init__()
        layers, width = Layers(case), case.width
        kind, counts = LAYOUTS[case.depth]
        block = {"Basic": Basic, "Bottleneck": Bottleneck}[kind]
        kernel, stride = {"cifar": (3, 1), "imagenet": (7, 2)}[case.stem]
        self.conv1 = layers.conv(case.image[0], width, kernel, stride)
        self.bn1 = layers.norm(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if case.stem == "imagenet" else nn.Identity()
        self.stages, channels = [], width
        for index, count in enumerate(counts):
            blocks = []
            for number in range(count):
                stride = 2 if index > 0 and number == 0 else 1
                blocks.append(block(layers, channels, width << index, stride))
                channels = block.expansion * (width << index)
            stage = nn.Sequential(*blocks)
            self.add_module(f"layer{index + 1}", stage)
            self.stages.append(stage)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for stage in self.stages:
            x = stage(x)
        return self.fc(x.mean((2, 3)))


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name, case in CASES.items():
        tensors = run(case, random.Random(f"{SEED} {name}"))
        path = HERE / f"resnet_{name}.safetensors"
        write(path, tensors, {"torch": torch.__version__, "seed": str(SEED)})


def run(case, generator):
    model = ResNet(case, CLASSES).double()
    draw_parameters(model, case, generator)
    tensors = {f"before/{path}": value for path, value in burn_tensors(model, case).items()}
    tensors["images"] = uniform(generator, 1.0, (case.batch, *case.image))
    labels = [generator.randrange(CLASSES) for _ in range(case.batch)]
    tensors["labels"] = torch.tensor(labels)

    expected = step(copy.deepcopy(model), case, tensors["images"], tensors["labels"])
    in_f32 = step(model.float(), case, tensors["images"].float(), tensors["labels"])
    for name, value in expected.items():
        error = (in_f32[name].double() - value).abs().max() / value.abs().max()
        assert error < CONDITIONING, f"{name} of {case} has an error of {error:.1e} in f32"
    return {name: single(value) for name, value in (tensors | expected).items()}


def step(model, case, images, labels):
    logits = model(images)
    loss = nn.functional.cross_entropy(logits, labels)
    loss.backward()

    outputs = {"logits": logits.detach(), "loss": loss.detach().reshape(1)}
    for path, parameter in model.named_parameters():
        path, value = to_burn(path, parameter.grad, model, case)
        outputs[f"gradient/{path}"] = value
    for path, value in burn_tensors(model, case).items():
        if "running" in path:
            outputs[f"after/{path}"] = value
    outputs["evaluated"] = model.eval()(images).detach()
    return outputs


def draw_parameters(model, case, generator):
    """Gives every parameter and running statistic a value of its own, of a sensible size.

    Residual branches end with smaller gammas: they would amplify rounding errors from block to
    block.
    """
    last = {"Basic": ".bn2.weight", "Bottleneck": ".bn3.weight"}[LAYOUTS[case.depth][0]]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        if tensor.dim() == 4:
            fan_out = tensor.shape[0] * tensor.shape[2] * tensor.shape[3]
            value = uniform(generator, math.sqrt(6 / fan_out), tensor.shape)
        elif tensor.dim() == 2:
            value = uniform(generator, tensor.shape[1] ** -0.5, tensor.shape)
        elif name.endswith("running_var") or is_gamma(name, model):
            value = 1 + uniform(generator, 0.5, tensor.shape)
        else:
            value = uniform(generator, 0.5, tensor.shape)
        if name.endswith(last):
            value = value / 2
        tensor.data.copy_(value)


def uniform(generator, bound, shape):
    """Draws numbers that are exact in f32."""
    count = math.prod(shape)
    values = [generator.uniform(-bound, bound) for _ in range(count)]
    return torch.tensor(values).reshape(tuple(shape)).double()


def is_gamma(path, model):
    parent, _, name = path.rpartition(".")
    return name == "weight" and isinstance(
        model.get_submodule(parent), (nn.BatchNorm2d, nn.GroupNorm)
    )


def burn_tensors(model, case):
    tensors = [*model.named_parameters(), *model.named_buffers()]
    tensors = [(path, value) for path, value in tensors if value.is_floating_point()]
    return dict(to_burn(path, value, model, case) for path, value in tensors)


def to_burn(path, value, model, case):
    """Burn's path and layout for a tensor of torchvision's."""
    parent, _, name = path.rpartition(".")
    module = model.get_submodule(parent)
    parts = parent.split(".")
    if isinstance(module, nn.Linear) and name == "weight":
        value = value.T
    if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
        parts.append(case.norm.capitalize())
        name = {"weight": "gamma", "bias": "beta"}.get(name, name)
    if parts[0].startswith("layer"):
        parts.insert(2, LAYOUTS[case.depth][0])
    return ".".join([*parts, name]), value.detach().clone()


def single(tensor):
    return tensor.float() if tensor.is_floating_point() else tensor


def count():
    for depth, stem, width, classes in [
        (18, "imagenet", 64, 1000),
        (34, "imagenet", 64, 1000),
        (50, "imagenet", 64, 1000),
        (101, "imagenet", 64, 1000),
        (152, "imagenet", 64, 1000),
        (8, "cifar", 16, 10),
        (18, "cifar", 64, 10),
    ]:
        for norm in ["batch", "none"]:
            model = ResNet(Case(depth, stem, width, norm), classes)
            parameters = sum(parameter.numel() for parameter in model.parameters())
            print(depth, stem, classes, norm, parameters)


if __name__ == "__main__":
    count() if "--count" in sys.argv else main()
