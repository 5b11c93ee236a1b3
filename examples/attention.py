"""Attention by each of torch's backends: the same result from twenty kernels or from one.

`--record FOLDER` writes a recording named `attention_{backend}.json`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile, record_function, schedule

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


class Step(torch.nn.Module):
    """Causal attention over one input, so that `foretrace run` detects the steps."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        shape = (args.batch, args.heads, args.seq, args.dim)
        self.inputs = [torch.randn(shape, device=args.device, dtype=DTYPES[args.dtype]) for _ in range(3)]
        self.backend = args.backend

    def forward(self) -> torch.Tensor:
        with (
            torch.no_grad(),
            record_function(f"attention {self.backend}"),
            sdpa_kernel(BACKENDS[self.backend]),
        ):
            return scaled_dot_product_attention(*self.inputs, is_causal=True)


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
    parser.add_argument("--backend", choices=BACKENDS, default="math", help="efficient and cudnn need a GPU")
    parser.add_argument("--batch", type=int, default=8 if on_gpu else 1)
    parser.add_argument("--heads", type=int, default=16 if on_gpu else 4)
    parser.add_argument("--seq", type=int, default=2048 if on_gpu else 128)
    parser.add_argument("--dim", type=int, default=64, help="of one head")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16" if on_gpu else "fp32")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    args = parser.parse_args()

    step = Step(args)
    try:
        for _ in range(3):
            step()
    except RuntimeError as error:
        raise SystemExit(f"the backend {args.backend} does not run here: {error}") from error
    synchronize(args.device)
    if args.record:
        record(step, args.device, args.record / f"attention_{args.backend}.json")
    began = time.perf_counter()
    for _ in range(args.steps):
        step()
    synchronize(args.device)
    print(f"{(time.perf_counter() - began) / args.steps * 1e6:.1f} us per step")


if __name__ == "__main__":
    main()
