"""Where the memory of a transformer's training step goes, and what checkpointing saves (`--checkpoint`).

`--snapshot FILE` also writes the CUDA allocator's history.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

SIZES = {  # width, heads, hidden, layers, batch, sequence
    "cuda": (1024, 16, 4096, 12, 16, 256),
    "cpu": (128, 4, 512, 4, 4, 64),
}


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, layers: int, *, recompute: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, hidden, batch_first=True) for _ in range(layers)
        )
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x


def kept_for_backward(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes that the forward pass keeps for the backward pass, without parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = model(x)
    total = sum(kept.values())
    del result  # kept alive until here, so that no address is reused
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--snapshot", metavar="FILE", help="needs a GPU")
    args = parser.parse_args()
    if args.snapshot and args.device != "cuda":
        parser.error("--snapshot needs a GPU: only CUDA's allocator keeps a history")

    width, heads, hidden, layers, batch, sequence = SIZES[args.device]
    batch, layers = args.batch or batch, args.layers or layers
    if args.snapshot:
        torch.cuda.memory._record_memory_history(max_entries=100_000)
    model = Encoder(width, heads, hidden, layers, recompute=args.checkpoint).to(args.device)
    x = torch.randn(batch, sequence, width, device=args.device)
    began = time.perf_counter()
    for _ in range(args.steps):
        model.zero_grad()
        model(x).sum().backward()
    if args.device == "cuda":
        torch.cuda.synchronize()
    print(f"{(time.perf_counter() - began) / args.steps * 1e3:.2f} ms per step")
    if args.device == "cuda":
        print(f"{torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB allocated at peak")
    if args.snapshot:
        torch.cuda.memory._dump_snapshot(args.snapshot)
        torch.cuda.memory._record_memory_history(enabled=None)
    print(f"{kept_for_backward(model, x) / 2**20:,.1f} MiB kept for the backward pass")


if __name__ == "__main__":
    main()
