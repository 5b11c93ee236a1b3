"""A training step of ResNet-50: how much of it is convolution, normalisation and the rest.

`--channels-last` avoids the layout conversions around each convolution.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

SIZES = {"cuda": (32, 224), "cpu": (2, 64)}  # (batch, image)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * 4
        self.reduce = convolution(inputs, width, 1)
        self.convolve = convolution(width, width, 3, stride)
        self.expand = convolution(width, outputs, 1)
        changes = stride != 1 or inputs != outputs
        self.shortcut = convolution(inputs, outputs, 1, stride) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.reduce(x))
        y = torch.relu(self.convolve(y))
        return torch.relu(self.expand(y) + self.shortcut(x))


def resnet50(classes: int = 1000) -> nn.Sequential:
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, stride if block == 0 else 1))
            channels = width * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--image", type=int)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()

    batch, image = SIZES[args.device]
    batch, image = args.batch or batch, args.image or image
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = resnet50().to(args.device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(batch, 3, image, image, device=args.device).to(memory_format=layout)
    target = torch.randint(1000, (batch,), device=args.device)
    began = time.perf_counter()
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
    if args.device == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / args.steps
    print(f"{seconds * 1e3:.1f} ms per step, {batch / seconds:.0f} images/s")


if __name__ == "__main__":
    main()
