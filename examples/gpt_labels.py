"""A GPT training step with every part labelled: what each part of attention costs, and what the rest costs.

The labels appear in torch.profiler, and as NVTX ranges in nsys.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.profiler import record_function

# width, hidden, layers, heads; vocabulary of 10,000
SIZES = {
    "tiny": (64, 256, 2, 4),
    "small": (768, 3072, 12, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
}
VOCABULARY = 10_000
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def label(name: str) -> Iterator[None]:
    with record_function(name), torch.cuda.nvtx.range(name) if torch.cuda.is_available() else nullcontext():
        yield


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding over [batch, heads, sequence, width]."""
    half = x.shape[-1] // 2
    frequencies = 10_000 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    left, right = x[..., :half], x[..., half:]
    sine, cosine = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    return torch.cat((left * cosine - right * sine, left * sine + right * cosine), dim=-1)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, width = x.shape
        with label("MHA(total)"):
            with label("QKV projections"):
                q, k, v = (
                    each(x).view(batch, sequence, self.heads, -1).transpose(1, 2)
                    for each in (self.query, self.key, self.value)
                )
            with label("RoPE(Q)"):
                q = rotate(q)
            with label("RoPE(K)"):
                k = rotate(k)
            with label("attn_logits (QK^T) + mask"):
                logits = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
                future = torch.ones(sequence, sequence, dtype=torch.bool, device=x.device).triu(1)
                logits = logits.masked_fill(future, float("-inf"))
            with label("softmax"):
                weights = logits.softmax(dim=-1)
            with label("attn*V (context)"):
                context = weights @ v
            with label("output proj"):
                return self.output(context.transpose(1, 2).reshape(batch, sequence, width))


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, size: str) -> None:
        super().__init__()
        width, hidden, layers, heads = SIZES[size]
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(*(Block(width, hidden, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.model = GPT(args.size).to(args.device)
        self.run_model = torch.compile(self.model) if args.compile else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.scaler = torch.amp.GradScaler(args.device, enabled=args.precision == "fp16")
        self.train = args.mode == "fwd_bwd"
        dtype = PRECISIONS[args.precision]
        self.precision = torch.autocast(args.device, dtype=dtype) if dtype else nullcontext()
        self.tokens = torch.randint(VOCABULARY, (args.batch, args.ctx + 1), device=args.device)

    def step(self) -> None:
        with torch.set_grad_enabled(self.train), self.precision:
            with label("FORWARD"):
                logits = self.run_model(self.tokens[:, :-1])
            with label("LOSS"):
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
        if not self.train:
            return
        with label("BACKWARD"):
            self.scaler.scale(loss).backward()
        with label("OPTIMIZER"):
            with label("OPTIMIZER.step"):
                self.scaler.step(self.optimizer)
                self.scaler.update()
            with label("OPTIMIZER.zero_grad"):
                self.optimizer.zero_grad(set_to_none=True)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--size", choices=SIZES, default="small" if on_gpu else "tiny")
    parser.add_argument("--ctx", type=int, default=512 if on_gpu else 64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument(
        "--mode", choices=("fwd", "fwd_bwd"), default="fwd_bwd", help="fwd_bwd includes the optimizer"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    trainer = Trainer(args)
    with label("warmup"):
        for _ in range(args.warmup):
            trainer.step()
        synchronize(args.device)
    began = time.perf_counter()
    with label("measure_loop"):
        for _ in range(args.steps):
            trainer.step()
        synchronize(args.device)
    seconds = (time.perf_counter() - began) / args.steps
    print(f"{seconds * 1e3:.2f} ms per step, {args.batch * args.ctx / seconds:,.0f} tokens/s")


if __name__ == "__main__":
    main()
