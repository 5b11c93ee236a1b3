"""A gated MLP: three products with a GELU and a multiplication between them, which a compiler fuses.

`--record FOLDER` writes a recording named `mlp_{batch}x{seq}x{dim}x{hidden}_{eager|compile}.json`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function, schedule

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class GatedMLP(torch.nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(dim, hidden, bias=False)
        self.up = torch.nn.Linear(dim, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.gate(x), approximate="tanh") * self.up(x))


class Step(torch.nn.Module):
    """The model with its input, so that `foretrace run` detects the steps."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        model = GatedMLP(args.dim, args.hidden).to(args.device, DTYPES[args.dtype])
        self.model = torch.compile(model) if args.compile else model
        self.x = torch.randn(args.batch, args.seq, args.dim, device=args.device, dtype=DTYPES[args.dtype])

    def forward(self) -> torch.Tensor:
        with torch.no_grad(), record_function("mlp"):
            return self.model(self.x)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def record(step: Step, device: str, path: Path) -> None:
    gpu = [ProfilerActivity.CUDA] if device == "cuda" else []
    plan = schedule(wait=1, warmup=1, active=3, repeat=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with profile(activities=[ProfilerActivity.CPU, *gpu], schedule=plan, record_shapes=True) as recording:
        for _ in range(5):
            step()
            recording.step()
    recording.export_chrome_trace(str(path))
    print(f"recorded {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--batch", type=int, default=8 if on_gpu else 2)
    parser.add_argument("--seq", type=int, default=1024 if on_gpu else 64)
    parser.add_argument("--dim", type=int, default=768 if on_gpu else 128)
    parser.add_argument("--hidden", type=int, default=3072 if on_gpu else 512)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16" if on_gpu else "fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    args = parser.parse_args()

    step = Step(args)
    for _ in range(3):
        step()
    synchronize(args.device)
    if args.record:
        sizes = f"{args.batch}x{args.seq}x{args.dim}x{args.hidden}"
        record(step, args.device, args.record / f"mlp_{sizes}_{'compile' if args.compile else 'eager'}.json")
    began = time.perf_counter()
    for _ in range(args.steps):
        step()
    synchronize(args.device)
    taken = (time.perf_counter() - began) / args.steps
    flops = 3 * 2 * args.batch * args.seq * args.dim * args.hidden
    print(f"{taken * 1e6:.1f} us per step, {flops / taken / 1e12:.3g} TFLOP/s")


if __name__ == "__main__":
    main()
