"""Writes the golden values that `bonfire-data` holds its transforms against.

Run it as `OMP_NUM_THREADS=1 python transforms.py` with PyTorch and torchvision installed. It writes, beside
itself, transforms.safetensors with images as bytes, [height, width, channels]:

- input, grey: an image of 29 x 23 with 3 channels, soft shapes and noise, and its first channel;
- resize/..., center_crop/..., pad/..., flip, rotate/..., jitter/...: what torchvision.transforms.v2 makes of
  it as uint8 tensor;
- {RandAugment or TrivialAugmentWide}/{operation}/{plus or minus}/{interpolation}: one operation at magnitude
  9 of 31;
- mixup, cutmix: batches of 3 x 2 x 4 x 5 in f32, mixed with lambda 0.3 and with the box of rows 1..3 and
  columns 2..4; batch: what they were;
- loss/...: scores, classes (0.3 own, 0.7 of the partner) and the cross-entropy of the mixed targets without and
  with label smoothing 0.1, in f64.
"""

import pathlib

import torch
import torchvision
from torch.nn.functional import cross_entropy, one_hot
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from generate import CODES, write

FILE = pathlib.Path(__file__).parent / "transforms.safetensors"
HEIGHT, WIDTH = 29, 23
MAPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def make_input():
    torch.manual_seed(6)
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    channels = [torch.sin(x / 5 + k) * torch.cos(y / (4 + k)) * 90 + 128 for k in range(3)]
    image = torch.stack(channels) + torch.randint(-30, 31, (3, HEIGHT, WIDTH))
    return image.clamp(10, 240).to(torch.uint8)


def plain(image):
    outputs = {
        "resize/shorter_12": F.resize(image, [12]),
        "resize/shorter_50": F.resize(image, [50]),
        "resize/exact_9_31": F.resize(image, [9, 31]),
        "center_crop/14_15": F.center_crop(image, [14, 15]),
        "center_crop/40_20": F.center_crop(image, [40, 20]),
        "flip": F.horizontal_flip(image),
        "rotate/nearest": F.rotate(image, 30.0, fill=[7.0, 8.0, 9.0]),
        "rotate/bilinear": F.rotate(image, -47.5, interpolation=v2.InterpolationMode.BILINEAR),
    }
    for mode in ("constant", "edge", "reflect", "symmetric"):
        outputs[f"pad/{mode}"] = F.pad(image, [1, 2, 3, 4], fill=9, padding_mode=mode)
    for factor in (0.4, 1.7):
        outputs[f"jitter/brightness_{factor}"] = F.adjust_brightness(image, factor)
        outputs[f"jitter/contrast_{factor}"] = F.adjust_contrast(image, factor)
        outputs[f"jitter/saturation_{factor}"] = F.adjust_saturation(image, factor)
    for turn in (-0.2, 0.35):
        outputs[f"jitter/hue_{turn}"] = F.adjust_hue(image, turn)
    return outputs


def operations(image):
    outputs = {}
    for interpolation in ("nearest", "bilinear"):
        for transform in [kind(interpolation=interpolation) for kind in (v2.RandAugment, v2.TrivialAugmentWide)]:
            for name, (magnitudes, signed) in transform._AUGMENTATION_SPACE.items():
                if interpolation == "bilinear" and name not in MAPS:
                    continue
                values = magnitudes(31, HEIGHT, WIDTH)
                magnitude = 0.0 if values is None else float(values[9])
                for sign, word in ((1, "plus"), (-1, "minus")) if signed else ((1, "plus"),):
                    key = f"{type(transform).__name__}/{name}/{word}/{interpolation}"
                    outputs[key] = transform._apply_image_or_video_transform(
                        image, name, sign * magnitude, transform.interpolation, transform._fill
                    )
    return outputs


class Fixed:
    """A distribution of one value."""

    def __init__(self, value):
        self.value = value

    def sample(self, _):
        return self.value


def batches():
    batch = torch.rand(3, 2, 4, 5)
    labels = torch.tensor([0, 1, 2])
    mixup = v2.MixUp(num_classes=3)
    mixup._dist = Fixed(0.3)
    box = {"box": (2, 1, 4, 3), "lam_adjusted": 1 - 4 / 20, "labels": labels, "batch_size": 3}
    return {
        "batch": batch,
        "mixup": mixup(batch, labels)[0],
        "cutmix": v2.CutMix(num_classes=3).transform(batch, box),
    }


def losses():
    scores = torch.randn(5, 4, dtype=torch.float64)
    own, partner, share = torch.tensor([0, 3, 2, 1, 3]), torch.tensor([3, 0, 3, 2, 1]), 0.3
    mixed = share * one_hot(own, 4).double() + (1 - share) * one_hot(partner, 4).double()
    losses = [cross_entropy(scores, mixed, label_smoothing=smoothing) for smoothing in (0.0, 0.1)]
    return {
        "loss/scores": scores,
        "loss/own": own.double(),
        "loss/partner": partner.double(),
        "loss/losses": torch.stack(losses),
    }


def main():
    torch.set_num_threads(1)
    image = make_input()
    images = {"input": image, "grey": image[:1], **plain(image), **operations(image)}
    images["grey/contrast"] = F.adjust_contrast(image[:1], 1.7)
    images = {name: value.permute(1, 2, 0).contiguous() for name, value in images.items()}
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    CODES[torch.uint8] = ("U8", "B")
    write(FILE, {**images, **batches(), **losses()}, versions)


if __name__ == "__main__":
    main()
