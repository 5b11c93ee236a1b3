"""Ten layers that each read a number back from the GPU: `.item()` waits for all work queued so far.

`--fixed` makes the decision on the GPU instead.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn


class SlowModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
            if x.max().item() > 100:
                x = x / 100
        return x


class FixedModel(SlowModel):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
            x = torch.where(x.max() > 100, x / 100, x)
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = (FixedModel if args.fixed else SlowModel)().to(args.device)
    x = torch.randn(args.batch, 256, device=args.device)
    began = time.perf_counter()
    for _ in range(args.steps):
        model.zero_grad()
        loss = model(x).sum()
        loss.backward()
    last = loss.item()  # once, after the loop: it delays no later work
    print(f"{(time.perf_counter() - began) / args.steps * 1e3:.3f} ms per step, loss {last:.4f}")


if __name__ == "__main__":
    main()
