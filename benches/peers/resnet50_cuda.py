"""Training throughput of ResNet-50 on one NVIDIA GPU with PyTorch, beside ours.

Run: python resnet50_cuda.py --precision bf16 [--compile] [--profile] [--loss-curve N]
To try it without a GPU: --device cpu --batch 2 --image 64 --warmup 1 --steps 1 --rounds 1
One synthetic batch stays on the device, so loading is not measured. The last line of stdout is a JSON object; a
loss that is not finite is null in it. A missing GPU is an error of one line and exit code 2.
"""
import argparse
import json
import math
import platform
import statistics
import sys
import time
from collections import Counter

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

CLASSES, PARAMETERS, PROFILED_STEPS, TOP_KERNELS, NAME_LENGTH = 1000, 25_557_032, 3, 15, 80
AUTOCAST = {"f32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Bottleneck(nn.Module):
    """Version 1.5: the 3x3 convolution has the stride."""

    def __init__(self, channels, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != 4 * planes:
            projection = nn.Conv2d(channels, 4 * planes, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(4 * planes))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += shortcut
        return self.relu(x)


class ResNet50(nn.Module):
    """The names, shapes and initial distributions of torchvision's."""

    def __init__(self, zero_gamma=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self.stage(64, 64, 3, 1)
        self.layer2 = self.stage(256, 128, 4, 2)
        self.layer3 = self.stage(512, 256, 6, 2)
        self.layer4 = self.stage(1024, 512, 3, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_gamma and isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)

    @staticmethod
    def stage(channels, planes, blocks, stride):
        rest = [Bottleneck(4 * planes, planes, 1) for _ in range(blocks - 1)]
        return nn.Sequential(Bottleneck(channels, planes, stride), *rest)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Trainer:
    def __init__(self, args, device):
        torch.manual_seed(args.seed)
        self.device, self.dtype = device, AUTOCAST[args.precision]
        layout = torch.channels_last if args.channels_last else torch.contiguous_format
        network = ResNet50(args.zero_gamma)
        assert sum(parameter.numel() for parameter in network.parameters()) == PARAMETERS
        network = network.to(device, memory_format=layout)
        self.optimizer = torch.optim.SGD(
            network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4,
            fused=True if device.type == "cuda" else None,
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")
        self.network = torch.compile(network) if args.compile else network
        images = torch.randn(args.batch, 3, args.image, args.image, device=device)
        self.images = images.contiguous(memory_format=layout)
        self.classes = torch.randint(0, CLASSES, (args.batch,), device=device)

    def step(self):
        """The loss stays on the device: reading it would wait for the step."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            loss = F.cross_entropy(self.network(self.images), self.classes)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def train(self, steps):
        """The last loss and the seconds of so many steps; events time them on a GPU."""
        if self.device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(steps):
                loss = self.step()
            end.record()
            end.synchronize()
            return loss, start.elapsed_time(end) / 1e3
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        return loss, time.perf_counter() - start


def measure(trainer, args):
    # The host's clock for the first step: compiling is the host's work, and so is much of cuDNN's search.
    start = time.perf_counter()
    loss = trainer.step()
    trainer.synchronize()
    first = time.perf_counter() - start
    second = time.perf_counter()
    for _ in range(args.warmup - 1):
        loss = trainer.step()
    trainer.synchronize()
    warm_up_s = time.perf_counter() - second
    result = {"compile_s": first if args.compile else 0.0, "first_step_s": first, "warm_up_s": warm_up_s}
    cuda = trainer.device.type == "cuda"
    if cuda:
        highest = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    rates, start = [], time.perf_counter()
    while len(rates) < args.rounds and (not rates or time.perf_counter() - start < args.limit_s):
        loss, seconds = trainer.train(args.steps)
        rates.append(args.steps * args.batch / seconds)
    median = statistics.median(rates)
    result |= {"images_per_s": median, "rounds": rates, "median_step_ms": args.batch / median * 1e3}
    if cuda:
        # cuDNN's search may have tried workspaces that no later step needs: the rounds' own peak stands beside.
        rounds = torch.cuda.max_memory_allocated()
        result |= {"peak_memory_bytes": max(highest, rounds), "rounds_peak_memory_bytes": rounds}
    else:
        result |= {"peak_memory_bytes": None, "rounds_peak_memory_bytes": None}
    return result | {"final_loss": finite(loss)}


def kernel_shares(trainer):
    """Kernels, copies and fills of a GPU by their time, operators by their own time on a CPU."""
    cuda = trainer.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED_STEPS):
            trainer.step()
        trainer.synchronize()
    times = Counter()
    for event in profiler.events():
        if cuda != (event.device_type == DeviceType.CUDA):
            continue
        # A range on the GPU's time line that only names the kernels below it would count them twice.
        annotation = getattr(event, "is_user_annotation", False)
        if cuda and (annotation or getattr(event, "activity_type", None) in ("gpu_user_annotation", "cuda_sync")):
            continue
        times[event.name] += event.time_range.elapsed_us() if cuda else event.self_cpu_time_total
    total = sum(times.values())
    shares = [
        {"name": name[:NAME_LENGTH], "us_per_step": us / PROFILED_STEPS, "share": us / total}
        for name, us in times.most_common(TOP_KERNELS)
    ]
    return {"kernel_us_per_step": total / PROFILED_STEPS, "kernel_shares": shares}


def finite(loss):
    loss = float(loss)
    return loss if math.isfinite(loss) else None


def fail(message):
    print(f"resnet50_cuda.py: error: {message}", file=sys.stderr)
    sys.exit(2)


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def device_of(args):
    if args.device == "cpu":
        if args.precision == "tf32":
            fail("--precision tf32 needs a GPU")
        return torch.device("cpu")
    try:
        torch.zeros(1, device="cuda")
    except (AssertionError, RuntimeError) as error:  # a PyTorch without CUDA asserts
        fail(f"no usable CUDA device, see --device cpu: {str(error).splitlines()[0]}")
    return torch.device("cuda", torch.cuda.current_device())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--precision", choices=AUTOCAST, default="f32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--channels-last", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--zero-gamma", action="store_true", help="start each block's last scale at zero")
    parser.add_argument("--batch", type=positive, default=256)
    parser.add_argument("--image", type=positive, default=224)
    parser.add_argument("--warmup", type=positive, default=10)
    parser.add_argument("--steps", type=positive, default=30)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--limit-s", type=float, default=60.0, help="start no round after so long of measuring")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--loss-curve", type=positive, metavar="N", help="the losses of N steps, without timing")
    args = parser.parse_args()
    if args.profile and args.loss_curve:
        fail("--profile and --loss-curve exclude each other")
    device = device_of(args)
    # Where half precision leaves anything in f32, it may go by TF32: only f32 itself is to be exact.
    torch.backends.cuda.matmul.allow_tf32 = args.precision != "f32"
    torch.backends.cudnn.allow_tf32 = args.precision != "f32"
    torch.backends.cudnn.benchmark = device.type == "cuda"
    result = {
        "precision": args.precision, "compile": args.compile, "channels_last": args.channels_last,
        "zero_gamma": args.zero_gamma, "batch": args.batch, "image": args.image, "seed": args.seed,
        "parameters": PARAMETERS,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine() + " CPU",
        "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    }
    trainer = Trainer(args, device)
    if args.loss_curve:
        losses = [trainer.step() for _ in range(args.loss_curve)]
        result["losses"] = [finite(loss) for loss in losses]
    else:
        result |= {"warmup": args.warmup, "steps": args.steps} | measure(trainer, args)
        if args.profile:
            result |= kernel_shares(trainer)
    if args.precision == "fp16":
        # Lower than the first 65536 after skipped steps.
        result["loss_scale"] = trainer.scaler.get_scale()
    print(json.dumps(result), flush=True)


main()
