"""Training throughput of two processes with and without DistributedDataParallel, beside ours.

Run: OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 ddp.py --network mlp [--alone] --seconds 4
Prints a line of JSON: images per second over all ranks and milliseconds of a step, in a window that all
ranks begin together. With --alone every rank trains by itself, at the same time as the others.
"""
import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WARM_UP_S, WARM_UP_STEPS, LEAST_STEPS, BATCHES = 1.0, 2, 3, 8


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def cnn():
    convolutions = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    linear = [nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*convolutions, nn.Flatten(), *linear)


class Block(nn.Module):
    def __init__(self, channels, planes, stride):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes), nn.ReLU(),
            nn.Conv2d(planes, planes, 3, 1, 1, bias=False), nn.BatchNorm2d(planes),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or channels != planes:
            projection = nn.Conv2d(channels, planes, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(planes))

    def forward(self, x):
        return F.relu(self.branch(x) + self.shortcut(x))


def resnet18():
    layers, channels = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for planes, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [Block(channels, planes, stride), Block(planes, planes, 1)]
        channels = planes
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


NETWORKS = {"mlp": (mlp, (1, 28, 28), 64), "cnn": (cnn, (1, 28, 28), 64), "resnet18": (resnet18, (3, 32, 32), 32)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    make, shape, batch_size = NETWORKS[args.network]
    network = make() if args.alone else nn.parallel.DistributedDataParallel(make())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    images = [torch.rand(batch_size, *shape) for _ in range(BATCHES)]
    targets = [torch.randint(0, 10, (batch_size,)) for _ in range(BATCHES)]

    def train(steps):
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(network(images[step % BATCHES]), targets[step % BATCHES]).backward()
            optimizer.step()

    def seconds(steps):
        start = time.perf_counter()
        train(steps)
        return time.perf_counter() - start

    def agreed(wanted):
        """Rank 0's number of steps; a rank alone could go by its clock, but not ranks that exchange."""
        steps = torch.tensor([max(LEAST_STEPS, int(wanted))])
        dist.broadcast(steps, 0)
        return int(steps)

    train(WARM_UP_STEPS)
    train(agreed(WARM_UP_S / seconds(WARM_UP_STEPS) * WARM_UP_STEPS))
    steps = agreed(args.seconds / seconds(WARM_UP_STEPS) * WARM_UP_STEPS)
    dist.barrier()
    elapsed = seconds(steps)
    if args.alone:
        # Busy until the last rank has measured, as ours.
        others = dist.barrier(async_op=True)
        while not others.is_completed():
            train(1)
    rates = torch.tensor([steps * batch_size / elapsed], dtype=torch.float64)
    dist.all_reduce(rates)
    if dist.get_rank() == 0:
        print(json.dumps({"images_per_s": float(rates), "step_ms": elapsed / steps * 1e3}), flush=True)
    dist.destroy_process_group()


main()
