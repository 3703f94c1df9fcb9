"""Writes the golden course that `tests/resnet_training.rs` holds a whole training against.

Run it as `OMP_NUM_THREADS=1 python resnet_training.py` with PyTorch installed. A ResNet-8 trains for 100 steps
with all that a recipe has: SGD with Nesterov momentum, weight decay on neither norms nor biases, label
smoothing, a warm-up before a cosine, and clipping by the global norm. It writes, beside itself,
resnet_training.safetensors with

- images, labels: 8 batches, taken in turns; images in f32;
- before/{path}: parameters and running statistics in f32;
- f64/loss, f64/norm, f64/rate: loss, gradient norm before clipping and learning rate of every step;
- f64/after/{path}: parameters and running statistics after the last step;
- f32/loss: the losses of the same run in f32.

Paths and layouts are Burn's, and what is drawn depends on no version of PyTorch; see resnet.py.

Where the input of a ReLU passes through 0 its gradient jumps, so that a rounding error becomes one of the
size of a gradient. Of the seeds 0, 1, 2 and so on the first is taken with which no input of a ReLU comes
closer to 0 than MARGIN in the run in f64.
"""

import copy
import random

import torch
from torch import nn
from torch.optim import lr_scheduler as lrs
from torch.overrides import TorchFunctionMode

from generate import HERE, write
from resnet import CLASSES, Case, ResNet, burn_tensors, draw_parameters, single, uniform

STEPS, WARMUP, BATCHES, BATCH = 100, 10, 8, 8
MARGIN = 3e-6
CASE = Case(8, "cifar", 4, image=(3, 8, 8), batch=BATCH)
LR, MOMENTUM, DECAY, SMOOTHING, MAX_NORM = 0.1, 0.9, 0.005, 0.1, 0.5


class Margin(TorchFunctionMode):
    """Finds the smallest input of any ReLU."""

    smallest = float("inf")

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.relu:
            self.smallest = min(self.smallest, args[0].detach().abs().min().item())
        return function(*args, **(kwargs or {}))


def train(model, images, labels):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM, nesterov=True)
    schedule = lrs.SequentialLR(
        optimizer,
        [
            lrs.LinearLR(optimizer, start_factor=0.1, total_iters=WARMUP),
            lrs.CosineAnnealingLR(optimizer, T_max=STEPS - WARMUP),
        ],
        milestones=[WARMUP],
    )
    losses, norms, rates = [], [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        scores = model(images[step % BATCHES])
        loss = nn.functional.cross_entropy(
            scores, labels[step % BATCHES], label_smoothing=SMOOTHING
        )
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        losses.append(loss.item())
        norms.append(norm.item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return {"loss": losses, "norm": norms, "rate": rates}


def draw(seed):
    generator = random.Random(f"resnet training {seed}")
    model = ResNet(CASE, CLASSES).double()
    draw_parameters(model, CASE, generator)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            # Exact in f32.
            tensor.data.copy_(tensor.data.float().double())
    images = uniform(generator, 1.0, (BATCHES, BATCH, *CASE.image))
    labels = [[generator.randrange(CLASSES) for _ in range(BATCH)] for _ in range(BATCHES)]
    return model, images, torch.tensor(labels)


def find():
    for seed in range(1000):
        model, images, labels = draw(seed)
        before = copy.deepcopy(model)
        with Margin() as margin:
            course = train(model, images, labels)
        clipped = sum(norm > MAX_NORM for norm in course["norm"])
        print("seed", seed, "margin", margin.smallest, "clipped", clipped)
        if margin.smallest > MARGIN and 20 < clipped < 90:
            return seed, before, model, images, labels, course


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    seed, before, model, images, labels, course = find()

    tensors = {"images": images.float(), "labels": labels}
    values = burn_tensors(before, CASE)
    tensors |= {f"before/{path}": single(value) for path, value in values.items()}
    for name, values in course.items():
        tensors[f"f64/{name}"] = torch.tensor(values, dtype=torch.float64)
    for path, value in burn_tensors(model, CASE).items():
        tensors[f"f64/after/{path}"] = value
    in_f32 = train(before.float(), images.float(), labels)
    tensors["f32/loss"] = torch.tensor(in_f32["loss"], dtype=torch.float64)
    print("loss", course["loss"][0], "to", course["loss"][-1])
    distance = [abs(a - b) for a, b in zip(course["loss"], in_f32["loss"])]
    print("f32 at 5 steps", max(distance[:5]), "at the end", max(distance))
    metadata = {"torch": torch.__version__, "seed": str(seed)}
    write(HERE / "resnet_training.safetensors", tensors, metadata)


if __name__ == "__main__":
    main()
