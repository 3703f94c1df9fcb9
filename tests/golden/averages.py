"""Writes the golden values that `tests/averages.rs` holds Bonfire's averages of weights against.

Run it as `OMP_NUM_THREADS=1 python averages.py` with PyTorch installed. It writes, beside itself,
averages.safetensors with, in f64,

- walk/{path}: the values of the parameters and buffers of a small module after each of 40 steps of a
  random walk;
- ema/{path}, swa/{path}: what `AveragedModel` makes of them, with decay 0.9 and with equal weights;
- rate/{strategy}: the rate of each of 60 steps that `SWALR` takes from 0.4 to 0.05 in 40 of them,
  along a cosine and on a straight line.
"""

import pathlib

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from generate import write

SEED, STEPS = 5, 40
HERE = pathlib.Path(__file__).parent
SHAPES = {"first.weight": (3, 4), "first.bias": (4,), "norm.gamma": (4,), "norm.beta": (4,)}
BUFFERS = {"norm.running_mean": (4,), "norm.running_var": (4,)}


class Values(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for path, shape in SHAPES.items():
            value = torch.zeros(shape, dtype=torch.float64)
            self.register_parameter(path.replace(".", "_"), torch.nn.Parameter(value))
        for path, shape in BUFFERS.items():
            value = torch.zeros(shape, dtype=torch.float64)
            self.register_buffer(path.replace(".", "_"), value)


def rates(strategy):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=40, anneal_strategy=strategy)
    found = []
    for _ in range(60):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return torch.tensor(found, dtype=torch.float64)


def main():
    generator = torch.Generator().manual_seed(SEED)
    model = Values()
    averages = {
        "ema": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
        "swa": AveragedModel(model, use_buffers=True),
    }
    tensors = {}
    walk = {path: [] for path in {**SHAPES, **BUFFERS}}
    for _ in range(STEPS):
        for path in walk:
            value = getattr(model, path.replace(".", "_"))
            step = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            with torch.no_grad():
                value += step
            walk[path].append(value.detach().clone())
        for average in averages.values():
            average.update_parameters(model)
    for path, values in walk.items():
        tensors[f"walk/{path}"] = torch.stack(values)
        for name, average in averages.items():
            value = getattr(average.module, path.replace(".", "_"))
            tensors[f"{name}/{path}"] = value.detach().clone()
    for strategy in ["cos", "linear"]:
        tensors[f"rate/{strategy}"] = rates(strategy)
    metadata = {"torch": torch.__version__, "seed": str(SEED)}
    write(HERE / "averages.safetensors", tensors, metadata)


if __name__ == "__main__":
    main()
