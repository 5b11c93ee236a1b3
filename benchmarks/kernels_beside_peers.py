"""Ten kernels timed by Foretrace, by torch.utils.benchmark and by triton.testing.do_bench, like with like.

torch's Timer reads the host's clock around many calls in a row, and waits for the device once at the end: beside it stands
`how="back-to-back"`. do_bench puts two events around one call after writing 256 MB to empty L2: beside it stands `how="flush"`.
All four take turns in an order that turns round, so that a GPU that grows hot does so for all; a figure is the median over the turns
of the medians, a ratio the median of the ratios within a turn. Beside Timer stands the mean: its blocks are so long that there are
one or two in a turn, and the host is now faster, now slower. A kernel of a few microseconds takes shorter turns, and
more of them: events tick every half microsecond, which is a tenth of it, and the host's speed changes from one second to the next.

    python benchmarks/kernels_beside_peers.py                  # on a GPU; exit code 1 with --gate where one is off by over 2 %
    python benchmarks/kernels_beside_peers.py --device cpu     # beside torch's Timer alone, with small tensors
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.benchmark import Timer

from foretrace import bench

BAR = 0.02
SHORT = ("tiny add",)  # a few microseconds
SHORT_TURNS = 15  # times as many, of a fifth of the time
SHORT_SHARE = 0.2
_MS = 1e3
Function = Callable[[], object]


def kernels(device: str) -> dict[str, Function]:
    """Name and call of each; tensors are made once."""
    small = device == "cpu"
    half = torch.float32 if small else torch.bfloat16
    wide = 1 << (18 if small else 26)
    rows, columns = (256, 256) if small else (8192, 4096)
    edge = 256 if small else 4096
    tiny = torch.randn(1024, device=device)
    long, other = (torch.randn(wide, device=device) for _ in range(2))
    left, right = (torch.randn(edge, edge, device=device, dtype=half) for _ in range(2))
    table = torch.randn(rows, columns, device=device)
    weight, bias = (torch.randn(columns, device=device) for _ in range(2))
    heads = (1, 2, 128, 32) if small else (4, 16, 2048, 64)
    q, k, v = (torch.randn(heads, device=device, dtype=half) for _ in range(3))
    image = torch.randn((2, 16, 28, 28) if small else (64, 128, 56, 56), device=device, dtype=half)
    channels = image.shape[1]
    filters = torch.randn(channels, channels, 3, 3, device=device, dtype=half)
    return {
        "tiny add": lambda: tiny + tiny,
        "add": lambda: long + other,
        "copy": lambda: long.clone(),
        "sum": lambda: long.sum(),
        "cumsum": lambda: table.cumsum(1),
        "softmax": lambda: table.softmax(1),
        "layer norm": lambda: functional.layer_norm(table, (columns,), weight, bias),
        "matmul": lambda: left @ right,
        "attention": lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        "convolution": lambda: functional.conv2d(image, filters, padding=1),
    }


def ours(function: Function, device: str, how: str, seconds: float) -> float:
    """Milliseconds of a call."""
    timing = bench.Timing(device=device, how=how, warmup_s=0.025, least_s=seconds, most_s=4 * seconds)  # type: ignore[arg-type]
    measured = bench.time(function, timing)
    return measured.mean_ms if how == "back-to-back" else measured.median_ms.point


def timer(function: Function, seconds: float) -> float:
    """torch.utils.benchmark's, in milliseconds."""
    measured = Timer("function()", globals={"function": function}).blocked_autorange(min_run_time=seconds)
    return float(measured.mean) * _MS


def do_bench(function: Function, seconds: float) -> float:
    """triton's, in milliseconds."""
    from triton.testing import do_bench as timed

    return float(timed(function, warmup=25, rep=int(seconds * _MS), return_mode="median"))


def why_no_triton(device: str) -> str | None:
    """Why do_bench cannot be asked; None where it can."""
    if device == "cpu":
        return "do_bench times GPUs only"
    try:
        import triton.testing  # noqa: F401
    except ImportError as error:
        return f"no triton here ({error})"
    return None


def beside(function: Function, device: str, *, turns: int, seconds: float, triton: bool) -> dict[str, float]:
    """The median over the turns, by each way of timing."""
    ways: dict[str, Callable[[], float]] = {
        "back_to_back_ms": lambda: ours(function, device, "back-to-back", seconds),
        "timer_ms": lambda: timer(function, seconds),
    }
    if triton:
        ways["flush_ms"] = lambda: ours(function, device, "flush", seconds)
        ways["do_bench_ms"] = lambda: do_bench(function, seconds)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            taken[name].append(ways[name]())
    row = {name: statistics.median(values) for name, values in taken.items()}
    pairs = {"timer_ratio": ("back_to_back_ms", "timer_ms"), "do_bench_ratio": ("flush_ms", "do_bench_ms")}
    for name, (mine, theirs) in pairs.items():
        if theirs in taken:
            row[name] = statistics.median(a / b for a, b in zip(taken[mine], taken[theirs], strict=True))
    return row


def main() -> int:
    """Prints the table; with --out, writes it as JSON too."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each way of timing, in each turn")
    parser.add_argument("--only", nargs="+", metavar="KERNEL", help="these alone")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    parser.add_argument(
        "--gate", action="store_true", help="exit code 1 where a ratio is off by more than 2 %%"
    )
    args = parser.parse_args()
    reason = why_no_triton(args.device)
    print(f"torch {torch.__version__}, {args.device}; {args.turns} turns of {args.seconds} s")
    if reason:
        print(f"without do_bench: {reason}")
    print("| kernel | back-to-back | Timer | ratio | flush | do_bench | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    rows = {}
    for name, function in kernels(args.device).items():
        if args.only and name not in args.only:
            continue
        more, share = (SHORT_TURNS, SHORT_SHARE) if name in SHORT else (1, 1.0)
        row = rows[name] = beside(
            function,
            args.device,
            turns=args.turns * more,
            seconds=args.seconds * share,
            triton=reason is None,
        )
        columns = ("back_to_back_ms", "timer_ms", "timer_ratio", "flush_ms", "do_bench_ms", "do_bench_ratio")
        shown = [f"{row[key]:.{3 if 'ratio' in key else 5}f}" if key in row else "–" for key in columns]
        print(f"| {name} | {' | '.join(shown)} |", flush=True)
    ratios = [value for row in rows.values() for key, value in row.items() if key.endswith("ratio")]
    inside = sum(abs(ratio - 1) <= BAR for ratio in ratios)
    print(f"within {100 * BAR:.0f} %: {inside} of {len(ratios)}")
    if args.out:
        args.out.write_text(
            json.dumps({"torch": torch.__version__, "without": reason, "rows": rows}, indent=1)
        )
    return 1 if args.gate and inside < len(ratios) else 0


if __name__ == "__main__":
    sys.exit(main())
