"""A matrix product and an addition: what a recording shows cold or warm, small or large, eager or compiled.

`--record FOLDER` writes a recording named `{size}_{dtype}_{cold|warm}_{eager|compile}.json`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def matmul_add(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.add(torch.matmul(x, w), b)


class Step(torch.nn.Module):
    """A module, so that `foretrace run` detects the steps."""

    def __init__(self, size: int, dtype: torch.dtype, device: str, *, compile: bool) -> None:
        super().__init__()
        self.inputs = [torch.randn(size, size, device=device, dtype=dtype) for _ in range(3)]
        self.function = torch.compile(matmul_add) if compile else matmul_add

    def forward(self) -> torch.Tensor:
        with record_function("matmul_add"):
            return self.function(*self.inputs)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def record(step: Step, device: str, path: Path) -> None:
    gpu = [ProfilerActivity.CUDA] if device == "cuda" else []
    plan = schedule(wait=1, warmup=1, active=3, repeat=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with profile(activities=[ProfilerActivity.CPU, *gpu], schedule=plan) as recording:
        for _ in range(5):
            step()
            recording.step()
    recording.export_chrome_trace(str(path))
    print(f"recorded {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, default=64, help="of the square matrices; 4096 keeps a GPU busy")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--warmup", action="store_true", help="run three steps before recording")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    args = parser.parse_args()

    step = Step(args.size, DTYPES[args.dtype], args.device, compile=args.compile)
    if args.warmup:
        for _ in range(3):
            step()
        synchronize(args.device)
    if args.record:
        state = "warm" if args.warmup else "cold"
        name = f"{args.size}_{args.dtype}_{state}_{'compile' if args.compile else 'eager'}.json"
        record(step, args.device, args.record / name)
    began = time.perf_counter()
    for _ in range(args.steps):
        step()
    synchronize(args.device)
    print(f"{(time.perf_counter() - began) / args.steps * 1e6:.1f} us per step")


if __name__ == "__main__":
    main()
