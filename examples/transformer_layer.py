"""One transformer layer, as first written and after a first optimisation (`--optimised`).

At first: a small batch, attention weights returned, fp32. Optimised: a batch that fills the GPU, fused attention,
autocast. The optimised step does more work, so compare the time per token, not per step.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.profiler import record_function

EMBED, HEADS, HIDDEN = 512, 8, 2048
SIZES = {  # (batch, sequence): as in the tutorial on a GPU, less on a CPU
    ("cuda", False): (16, 128),
    ("cuda", True): (32, 2048),
    ("cpu", False): (4, 64),
    ("cpu", True): (8, 128),
}


class TransformerLayer(nn.Module):
    def __init__(self, *, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(EMBED, HEADS, batch_first=True)
        self.need_weights = need_weights
        self.norm_1, self.norm_2 = nn.LayerNorm(EMBED), nn.LayerNorm(EMBED)
        self.mlp = nn.Sequential(nn.Linear(EMBED, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, EMBED))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with record_function("Self-Attention"):
            attended, _ = self.attention(x, x, x, need_weights=self.need_weights)
        with record_function("Add & Norm 1"):
            x = self.norm_1(x + attended)
        with record_function("MLP"):
            widened = self.mlp(x)
        with record_function("Add & Norm 2"):
            return self.norm_2(x + widened)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--optimised", action="store_true")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--sequence", type=int)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    batch, sequence = SIZES[args.device, args.optimised]
    batch, sequence = args.batch or batch, args.sequence or sequence
    layer = TransformerLayer(need_weights=not args.optimised).to(args.device).eval()
    x = torch.randn(batch, sequence, EMBED, device=args.device)
    half = torch.float16 if args.device == "cuda" else torch.bfloat16
    precision = torch.autocast(args.device, dtype=half) if args.optimised else nullcontext()

    began = time.perf_counter()
    with torch.no_grad(), precision:
        for _ in range(args.steps):
            layer(x)
    if args.device == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / args.steps
    tokens = batch * sequence
    print(f"{seconds * 1e3:.2f} ms per step, {tokens / seconds:,.0f} tokens/s ({batch} x {sequence})")


if __name__ == "__main__":
    main()
