"""Ten kernels timed by Foretrace, by torch.utils.benchmark and by triton.testing.do_bench, like with like.

torch's Timer reads the host's clock around many calls in a row, and waits for the device once at the end: beside it stands
`how="back-to-back"`. do_bench puts two events around one call after writing 256 MB to empty L2: beside it stands `how="flush"`.
Each two take turns in an order that turns round and nothing runs between, so that both find the GPU in the state in which the other left
it: a product of matrices brings it to its power limit. A figure is the median over the turns, a ratio the median of the ratios within a
turn, with the interval that holds it in 99 of 100 cases. There are at least --turns, and more until the ratio is known to half a
percent or --most seconds have passed. Beside Timer stands the mean: its blocks are so long that there are one or two in a turn, and the
host is now faster, now slower.

    python benchmarks/kernels_beside_peers.py                  # on a GPU; exit code 1 with --gate where one is off by over 2 %
    python benchmarks/kernels_beside_peers.py --device cpu     # beside torch's Timer alone, with small tensors
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.benchmark import Timer

from foretrace import bench
from foretrace.bench.stopping import half_width

BAR = 0.02
KNOWN = 0.005  # half of the interval of a ratio, at which no more turns are taken
SHORT = ("tiny add",)  # a few microseconds: more turns, of a fifth of the time
SHORT_SHARE = 0.2
_MS = 1e3
Function = Callable[[], object]
Way = Callable[[], float]  # of timing one call, in milliseconds


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
    timing = bench.Timing(device=device, how=how, warmup_s=seconds, least_s=seconds, most_s=4 * seconds)  # type: ignore[arg-type]
    measured = bench.time(function, timing)
    return measured.mean_ms if how == "back-to-back" else measured.median_ms.point


def timer(function: Function, seconds: float) -> float:
    """torch.utils.benchmark's, in milliseconds; with as many threads as there are, where it takes one by default."""
    timed = Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())
    return float(timed.blocked_autorange(min_run_time=seconds).mean) * _MS


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


def beside(mine: Way, theirs: Way, *, turns: int, most_s: float) -> dict[str, float]:
    """Milliseconds by both, their ratio, and by how much it may be off."""
    taken: list[tuple[float, float]] = []
    began = time.monotonic()
    while True:
        if len(taken) % 2:
            other = theirs()
            taken.append((mine(), other))
        else:
            taken.append((mine(), theirs()))
        ratios = [one / other for one, other in taken]
        if len(taken) >= turns and (half_width(ratios) <= KNOWN or time.monotonic() - began > most_s):
            break
    ours_ms, theirs_ms = (statistics.median(each) for each in zip(*taken, strict=True))
    return {
        "ours_ms": ours_ms,
        "theirs_ms": theirs_ms,
        "ratio": statistics.median(ratios),
        "off": half_width(ratios),
        "turns": len(taken),
    }


def compared(
    function: Function, device: str, *, seconds: float, turns: int, most_s: float, triton: bool
) -> dict[str, dict[str, float]]:
    """The call by us and by each peer that there is."""
    pairs: dict[str, tuple[Way, Way]] = {
        "timer": (
            lambda: ours(function, device, "back-to-back", seconds),
            lambda: timer(function, seconds),
        )
    }
    if triton:
        pairs["do_bench"] = (
            lambda: ours(function, device, "flush", seconds),
            lambda: do_bench(function, seconds),
        )
    return {peer: beside(*ways, turns=turns, most_s=most_s) for peer, ways in pairs.items()}


def line(name: str, row: dict[str, dict[str, float]]) -> str:
    """A row of the table."""
    cells = []
    for peer in ("timer", "do_bench"):
        found = row.get(peer)
        cells += (
            [
                f"{found['ours_ms']:.5f}",
                f"{found['theirs_ms']:.5f}",
                f"{found['ratio']:.3f} ± {found['off']:.3f}",
            ]
            if found
            else ["–"] * 3
        )
    return f"| {name} | {' | '.join(cells)} |"


def main() -> int:
    """Prints the table; with --out, writes it as JSON too."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--turns", type=int, default=7, help="at least (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.1, help="of each way of timing, in each turn")
    parser.add_argument(
        "--most", type=float, default=10, metavar="S", help="for the turns of a pair, at most (%(default)s)"
    )
    parser.add_argument("--only", nargs="+", metavar="KERNEL", help="these alone")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    parser.add_argument(
        "--gate", action="store_true", help="exit code 1 where a ratio is off by more than 2 %%"
    )
    args = parser.parse_args()
    reason = why_no_triton(args.device)
    print(f"torch {torch.__version__}, {args.device}; turns of {args.seconds} s, at least {args.turns}")
    if reason:
        print(f"without do_bench: {reason}")
    print("| kernel | back-to-back | Timer | ratio | flush | do_bench | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    rows = {}
    for name, function in kernels(args.device).items():
        if args.only and name not in args.only:
            continue
        short = name in SHORT
        rows[name] = compared(
            function,
            args.device,
            seconds=args.seconds * (SHORT_SHARE if short else 1),
            turns=args.turns,
            most_s=args.most / (SHORT_SHARE if short else 1),
            triton=reason is None,
        )
        print(line(name, rows[name]), flush=True)
    ratios = [found["ratio"] for row in rows.values() for found in row.values()]
    inside = sum(abs(ratio - 1) <= BAR for ratio in ratios)
    print(f"within {100 * BAR:.0f} %: {inside} of {len(ratios)}")
    if args.out:
        args.out.write_text(
            json.dumps({"torch": torch.__version__, "without": reason, "rows": rows}, indent=1)
        )
    return 1 if args.gate and inside < len(ratios) else 0


if __name__ == "__main__":
    sys.exit(main())
