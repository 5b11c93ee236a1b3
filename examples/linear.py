"""One linear layer: a product and its bias in one call, and what compiling a single layer is worth.

`--record FOLDER` writes a recording named `linear_{batch}x{in_dim}x{out_dim}_{eager|compile}.json`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Step(torch.nn.Module):
    """The layer with its input, so that `foretrace run` detects the steps."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        dtype = DTYPES[args.dtype]
        layer = torch.nn.Linear(args.in_dim, args.out_dim, device=args.device, dtype=dtype)
        self.layer = torch.compile(layer) if args.compile else layer
        self.x = torch.randn(args.batch, args.in_dim, device=args.device, dtype=dtype)

    def forward(self) -> torch.Tensor:
        with torch.no_grad(), record_function("linear"):
            return self.layer(self.x)


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
    parser.add_argument("--batch", type=int, default=4096 if on_gpu else 64)
    parser.add_argument("--in_dim", type=int, default=4096 if on_gpu else 256)
    parser.add_argument("--out_dim", type=int, default=4096 if on_gpu else 256)
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
        sizes = f"{args.batch}x{args.in_dim}x{args.out_dim}"
        record(
            step, args.device, args.record / f"linear_{sizes}_{'compile' if args.compile else 'eager'}.json"
        )
    began = time.perf_counter()
    for _ in range(args.steps):
        step()
    synchronize(args.device)
    taken = (time.perf_counter() - began) / args.steps
    flops = 2 * args.batch * args.in_dim * args.out_dim
    print(f"{taken * 1e6:.1f} us per step, {flops / taken / 1e12:.3g} TFLOP/s")


if __name__ == "__main__":
    main()
