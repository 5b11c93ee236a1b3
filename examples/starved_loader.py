"""A model that waits for its data: each image takes a while to fetch, and nothing is fetched in advance.

`--workers 4` lets worker processes fetch while the model computes.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FETCH_S = 0.002  # what a read from a network file system takes


class SlowImages(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(FETCH_S)
        image = torch.full((3, 32, 32), index % 255 / 255)
        return image + 0.1 * torch.randn_like(image), index % 10


def model(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=32, help="of the convolutions")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()

    on_gpu = args.device == "cuda"
    loader = DataLoader(
        SlowImages(args.batch * args.steps), args.batch, num_workers=args.workers, pin_memory=on_gpu
    )
    net = model(args.width).to(args.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    began = time.perf_counter()
    for images, targets in loader:
        images = images.to(args.device, non_blocking=True)
        targets = targets.to(args.device, non_blocking=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), targets).backward()
        optimizer.step()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / args.steps
    print(f"{seconds * 1e3:.1f} ms per step, {args.batch / seconds:.0f} images/s")


if __name__ == "__main__":
    main()
