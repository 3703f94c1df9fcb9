"""Writes the golden values that `tests/power_sgd.rs` holds Bonfire's PowerSGD hook against.

Run it as `OMP_NUM_THREADS=1 python power_sgd.py` with PyTorch installed. Two ranks (gloo) hand 5 steps
of gradients, drawn by Python's own generator, to PyTorch's `powerSGD_hook`, with error feedback and warm
start, once for each number of columns of the factors. It writes, beside itself, power_sgd.safetensors
with, in f64,

- gradients: (ranks, steps, elements of the bucket);
- {columns}/q/{path}: the factor before the first step, transposed: (columns, m);
- {columns}/reduced: what the hook makes of the gradients, (steps, elements).
"""

import pathlib
import random

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from generate import write

SEED, RANKS, STEPS = 7, 2, 5
COLUMNS = [1, 2, 3]
# Path and shape of the bucket's parameters, as in tests/power_sgd.rs.
PARAMETERS = [("head.weight", (9, 8)), ("head.bias", (8,)), ("conv.weight", (6, 2, 3, 3))]
ELEMENTS = sum(torch.Size(shape).numel() for _, shape in PARAMETERS)
FILE = pathlib.Path(__file__).parent / "power_sgd.safetensors"


class Bucket:
    """The part of `dist.GradBucket` that the hook uses; the only bucket of a step."""

    def __init__(self, flat):
        self.flat = flat

    def index(self):
        return 0

    def is_last(self):
        return True

    def buffer(self):
        return self.flat

    def gradients(self):
        parts = self.flat.split([torch.Size(shape).numel() for _, shape in PARAMETERS])
        return [part.view(shape) for part, (_, shape) in zip(parts, PARAMETERS)]


def main():
    inputs = make_inputs(random.Random(SEED))
    outputs = processes.Manager().dict()
    processes.spawn(run_rank, args=(inputs, outputs), nprocs=RANKS)
    write(FILE, inputs | dict(outputs), {"torch": torch.__version__, "seed": str(SEED)})


def make_inputs(generator):
    def normal(*shape):
        values = [generator.gauss(0.0, 1.0) for _ in range(torch.Size(shape).numel())]
        return torch.tensor(values, dtype=torch.float64).reshape(shape)

    inputs = {"gradients": normal(RANKS, STEPS, ELEMENTS)}
    for columns in COLUMNS:
        for path, shape in PARAMETERS:
            if len(shape) > 1:
                inputs[f"{columns}/q/{path}"] = normal(columns, torch.Size(shape[1:]).numel())
    return inputs


def run_rank(rank, inputs, outputs):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29611", rank=rank, world_size=RANKS)
    for columns in COLUMNS:
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=columns,
            start_powerSGD_iter=2,
            min_compression_rate=1.1,
        )
        state.iter = 2
        factors = [inputs[f"{columns}/q/{path}"].T for path, shape in PARAMETERS if len(shape) > 1]
        rows = sum(shape[0] for _, shape in PARAMETERS if len(shape) > 1)
        # As if the step before had left these factors.
        state.q_memory_dict[0] = torch.cat([factor.flatten() for factor in factors])
        state.p_memory_dict[0] = torch.empty(rows * columns, dtype=torch.float64)
        reduced = [
            powerSGD_hook.powerSGD_hook(state, Bucket(gradient.clone())).wait()
            for gradient in inputs["gradients"][rank]
        ]
        if rank == 0:
            outputs[f"{columns}/reduced"] = torch.stack(reduced)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
