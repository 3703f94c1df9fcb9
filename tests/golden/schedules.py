"""Writes the golden values that `tests/schedules.rs` holds Bonfire's learning rates against.

Run it as `OMP_NUM_THREADS=1 python schedules.py` with PyTorch installed. It writes, beside itself,
schedules.safetensors with, in f64,

- {schedule}/lr: the rate of each of 1,000 optimizer steps, for every entry of SCHEDULES; one_cycle also
  {schedule}/momentum;
- plateau/{name}/losses and plateau/{name}/lr: a figure for each of 200 validations, drawn by Python's own
  generator, and the rate after each, for every entry of PLATEAUS;
- smoothing/logits, smoothing/targets, and smoothing/{value}/loss and /gradient: cross_entropy with
  label_smoothing;
- groups/{rule}/...: 30 steps of a perceptron without its activation with parameter groups, in which
  the rate falls twice; {rule}/losses and the parameters before the first and after the last step.

A warm-up comes before cosine and polynomial (SequentialLR), and multiplies what step and multi_step
make of the rate (ChainedScheduler), whose places are then counted from the start of the run.
"""

import pathlib
import random
import warnings

import torch
from torch.optim import lr_scheduler as lrs

from generate import write

SEED, STEPS, WARMUP, EPOCH, LR = 11, 1000, 50, 20, 0.4
HERE = pathlib.Path(__file__).parent


def warmup(optimizer):
    return lrs.LinearLR(optimizer, start_factor=0.1, total_iters=WARMUP)


def then(main):
    return lambda optimizer: lrs.SequentialLR(
        optimizer, [warmup(optimizer), main(optimizer)], milestones=[WARMUP]
    )


def times(main):
    return lambda optimizer: lrs.ChainedScheduler([warmup(optimizer), main(optimizer)], optimizer)


def step(optimizer):
    return lrs.StepLR(optimizer, step_size=15 * EPOCH, gamma=0.3)


def multi_step(optimizer):
    return lrs.MultiStepLR(optimizer, [epoch * EPOCH for epoch in [1, 15, 30, 40]], gamma=0.1)


def one_cycle(**settings):
    return lambda optimizer: lrs.OneCycleLR(optimizer, max_lr=LR, total_steps=STEPS, **settings)


SCHEDULES = {
    "constant": lambda optimizer: lrs.LambdaLR(optimizer, lambda step: 1.0),
    "constant_warmup": warmup,
    "step": step,
    "step_warmup": times(step),
    "multi_step": multi_step,
    "multi_step_warmup": times(multi_step),
    "cosine": lambda optimizer: lrs.CosineAnnealingLR(optimizer, T_max=STEPS, eta_min=0.001),
    "cosine_warmup": then(
        lambda optimizer: lrs.CosineAnnealingLR(optimizer, T_max=STEPS - WARMUP, eta_min=0.001)
    ),
    "polynomial": lambda optimizer: lrs.PolynomialLR(optimizer, total_iters=STEPS, power=2.0),
    "polynomial_warmup": then(
        lambda optimizer: lrs.PolynomialLR(optimizer, total_iters=STEPS - WARMUP, power=0.9)
    ),
    "one_cycle": one_cycle(),
    "one_cycle_linear": one_cycle(
        anneal_strategy="linear",
        pct_start=0.25,
        div_factor=10.0,
        final_div_factor=100.0,
        base_momentum=0.8,
        max_momentum=0.9,
    ),
}
PLATEAUS = {
    "default": {},
    "max": dict(mode="max", factor=0.5, patience=3, cooldown=2, min_lr=0.01),
    "abs": dict(factor=0.3, patience=2, threshold=0.05, threshold_mode="abs"),
}


def main():
    torch.set_num_threads(1)
    # The step of a scheduler before that of the optimizer is meant: nothing is optimized.
    warnings.simplefilter("ignore")
    outputs = {}
    for name, make in SCHEDULES.items():
        outputs |= {f"{name}/{key}": value for key, value in rates(make).items()}
    generator = random.Random(SEED)
    for name, settings in PLATEAUS.items():
        outputs |= {f"plateau/{name}/{key}": value for key, value in plateau(settings, generator).items()}
    outputs |= smoothing(generator)
    for rule in ["sgd", "adamw"]:
        outputs |= {f"groups/{rule}/{key}": value for key, value in groups(rule, generator).items()}
    write(HERE / "schedules.safetensors", outputs, {"torch": torch.__version__, "seed": str(SEED)})


def sgd():
    return torch.optim.SGD([torch.zeros(1)], lr=LR, momentum=0.9)


def rates(make):
    optimizer = sgd()
    scheduler = make(optimizer)
    lr, momentum = [], []
    for index in range(STEPS):
        lr.append(float(optimizer.param_groups[0]["lr"]))
        momentum.append(optimizer.param_groups[0]["momentum"])
        if index + 1 < STEPS:
            scheduler.step()
    values = {"lr": torch.tensor(lr, dtype=torch.float64)}
    if isinstance(scheduler, lrs.OneCycleLR):
        values["momentum"] = torch.tensor(momentum, dtype=torch.float64)
    return values


def plateau(settings, generator):
    optimizer = sgd()
    scheduler = lrs.ReduceLROnPlateau(optimizer, **settings)
    losses, lr = [], []
    for index in range(200):
        losses.append(2.0 / (1 + index // 40) + 0.2 * generator.random())
        scheduler.step(losses[-1])
        lr.append(optimizer.param_groups[0]["lr"])
    double = lambda values: torch.tensor(values, dtype=torch.float64)
    return {"losses": double(losses), "lr": double(lr)}


def normal(generator, *shape):
    values = [generator.gauss(0.0, 1.0) for _ in range(torch.Size(shape).numel())]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def smoothing(generator):
    logits = (3 * normal(generator, 7, 5)).requires_grad_()
    targets = torch.tensor([generator.randrange(5) for _ in range(7)])
    outputs = {"smoothing/logits": logits.detach(), "smoothing/targets": targets}
    for value in [0.0, 0.1, 1.0]:
        loss = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=value)
        outputs[f"smoothing/{value}/loss"] = loss.detach().reshape(1)
        outputs[f"smoothing/{value}/gradient"] = torch.autograd.grad(loss, logits)[0]
    return outputs


def groups(rule, generator):
    """Two layers, of which the second learns 10 times as fast; no decay on biases."""
    shapes = {"hidden.weight": (4, 6), "hidden.bias": (6,), "head.weight": (6, 3), "head.bias": (3,)}
    parameters = {path: (0.5 * normal(generator, *shape)).requires_grad_() for path, shape in shapes.items()}
    features = normal(generator, 8, 4)
    targets = torch.tensor([generator.randrange(3) for _ in range(8)])
    outputs = {f"before/{path}": value.detach().clone() for path, value in parameters.items()}
    outputs |= {"features": features, "targets": targets}
    base = 0.02
    sets = [
        dict(
            params=[parameter],
            lr=base * (10.0 if path.startswith("head") else 1.0),
            weight_decay=0.0 if path.endswith("bias") else 0.1,
        )
        for path, parameter in parameters.items()
    ]
    if rule == "sgd":
        optimizer = torch.optim.SGD(sets, momentum=0.9, nesterov=True, foreach=False)
    else:
        optimizer = torch.optim.AdamW(sets, foreach=False)
    scheduler = lrs.MultiStepLR(optimizer, [10, 20], gamma=0.3)
    losses = []
    for _ in range(30):
        hidden = features @ parameters["hidden.weight"] + parameters["hidden.bias"]
        logits = hidden @ parameters["head.weight"] + parameters["head.bias"]
        loss = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    outputs["losses"] = torch.tensor(losses, dtype=torch.float64)
    outputs |= {f"after/{path}": value.detach() for path, value in parameters.items()}
    return outputs


if __name__ == "__main__":
    main()
