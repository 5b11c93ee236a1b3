"""Matrix products: how fast each shape and precision runs, against the device's peak, and what a size off the grid costs."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.bench import precisions
from foretrace.bench.benchmark import OK, Benchmark
from foretrace.bench.sweep import Case, Progress, Row, Trial, sweep
from foretrace.bench.timing import Timing
from foretrace.errors import UsageError
from foretrace.sourced import JUDGEMENT, Factor, Share

# Products of an odd size beside those of a power of two: their rows do not begin at multiples of 16 bytes.
SHAPES = (
    "512",
    "1024",
    "2048",
    "4096",
    "4096x4096x4097",
    "4096x4097x4096",
    "4097x4096x4096",
    "8192",
)
_NEAR = Share(0.05, "the work, within which two shapes are compared for their alignment", JUDGEMENT)
_CLIFF = Factor(1.1, "the time for the same work, from which an unaligned shape is said to cost", JUDGEMENT)


def matmul(
    *,
    shape: Sequence[str] = SHAPES,
    precision: Sequence[str] | None = None,
    timing: Timing | None = None,
    progress: Progress | None = None,
) -> Benchmark:
    """Times `a @ b` for shapes MxNxK (an M by K and a K by N matrix): ms, TFLOP/s, share of the device's peak, alignment."""
    timing = timing or Timing()
    sizes = [parsed(text) for text in shape]
    names = precisions.chosen(precision, timing.device)
    cases = [{**size, "precision": name} for name in names for size in sizes]
    return sweep("matmul", run_case, cases, timing, progress=progress, finish=finish)


def parsed(text: str) -> Case:
    """The sizes in "4096", or "4096" for a square."""
    parts = text.lower().split("x")
    parts = parts * 3 if len(parts) == 1 else parts
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"{text!r}: a shape is MxNxK, such as 4096x4096x4096")
    return {name: int(part) for name, part in zip("mnk", parts, strict=True)}


def run_case(case: Case, trial: Trial) -> None:
    """One shape in one precision."""
    import torch

    m, n, k, precision = case["m"], case["n"], case["k"], case["precision"]
    precisions.require(trial.device, precision)
    trial.row["align_bytes"] = alignment(n, k, precision)
    dtype = precisions.dtype_of(precision)
    a = torch.randn(m, k, dtype=dtype, device=trial.device)
    b = torch.randn(k, n, dtype=dtype, device=trial.device)
    out = torch.empty(m, n, dtype=dtype, device=trial.device)
    with precisions.products_in(precision):
        measured = trial.time(lambda: torch.mm(a, b, out=out))
    flops_per_s = 2 * m * n * k / (measured.median_ms.point / 1e3)
    peak = precisions.peak_flops(trial.device, precision)
    trial.row |= {
        **measured.columns(),
        "tflops": flops_per_s / 1e12,
        "roof_pct": 100 * flops_per_s / peak if peak else None,
    }


def alignment(n: int, k: int, precision: str) -> int:
    """The largest power of two, up to 128, at multiples of which every row of both matrices begins, in bytes."""
    size = precisions.ELEMENT_BYTES[precision]
    aligned = 128
    while (n * size) % aligned or (k * size) % aligned:
        aligned //= 2
    return aligned


def finish(rows: Sequence[Row]) -> list[str]:
    """What an unaligned shape costs, against the best aligned one of nearly the same work."""
    told = []
    timed = [row for row in rows if row["status"] == OK]
    for row in timed:
        work = row["m"] * row["n"] * row["k"]
        near = [
            other
            for other in timed
            if other["precision"] == row["precision"]
            and other["align_bytes"] > row["align_bytes"]
            and abs(other["m"] * other["n"] * other["k"] / work - 1) <= _NEAR
        ]
        best = max(near, key=lambda other: other["tflops"], default=None)
        if best is not None and best["tflops"] / row["tflops"] >= _CLIFF:
            told.append(
                f"{row['precision']}: {_named(row)} (rows at multiples of {row['align_bytes']} bytes) takes "
                f"{best['tflops'] / row['tflops']:.2f} times as long for its work as {_named(best)} ({best['align_bytes']})."
            )
    return told


def _named(row: Row) -> str:
    return f"{row['m']}x{row['n']}x{row['k']}"
