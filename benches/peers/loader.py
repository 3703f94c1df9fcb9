"""Images per second of PyTorch's DataLoader on the files of `benches/src/loader.rs`, beside ours.

Run: OMP_NUM_THREADS=1 python loader.py --folder DIR --workers 2, after `loader --folder DIR` has made the files.
Needs PyTorch, torchvision and Pillow. Prints a line of JSON.
"""
import argparse
import json
import time

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args()
    torch.set_num_threads(1)

    transform = v2.Compose([
        v2.RandomResizedCrop(224),
        v2.RandomHorizontalFlip(),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ])
    images = ImageFolder(f"{args.folder}/train", transform)
    loader = DataLoader(
        images, args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True,
        persistent_workers=args.workers > 0,
    )
    figures = {
        "loader": "torch", "images_per_s": measure(loader, args.seconds), "workers": args.workers,
        "batch_size": args.batch_size, "images": len(images),
    }
    print(json.dumps(figures))


def measure(loader, seconds):
    """Goes through epochs until the time is over; the first batch only starts the clock."""
    count, started = 0, None
    while True:
        for batch, _ in loader:
            if started is None:
                started = time.perf_counter()
            else:
                count += len(batch)
            elapsed = time.perf_counter() - started
            if elapsed >= seconds and count > 0:
                return count / elapsed


if __name__ == "__main__":
    main()
