"""How fast kernels of compiled code are: the shares of bandwidth that predict/costs/compiled.py rests on.

    python benchmarks/compiled_kernels.py RECORDING ...

Each RECORDING is of a compiled program, with shapes. Prints, for Triton's pointwise kernels and those that reduce rows
(persistent) or columns and long rows, how many there are, what a small one takes, and the share of the GPU's bandwidth that
those reach which move at least 20 MB: all their tensors once. A tensor that a kernel reads and writes counts once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from foretrace.analyze.concepts.work.work_models.call import parse
from foretrace.diagnose.case import Case
from foretrace.diagnose.opening import open_case

KINDS = {"poi": "pointwise", "per": "rows", "red": "columns, long rows"}
LARGE, SMALL = 20e6, 1e6  # bytes moved


def main() -> int:
    """Prints a table for each recording."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recordings", nargs="+", type=Path, metavar="RECORDING")
    for path in parser.parse_args().recordings:
        case = open_case(path)
        bandwidth = case.known_device.memory_bandwidth_bytes / 1e9  # bytes a nanosecond
        kernels = list(compiled_kernels(case))
        print(f"{path}: {len(kernels)} different Triton kernels")
        for short, kind in KINDS.items():
            large = [
                moved / dur / bandwidth for what, moved, dur in kernels if what == short and moved >= LARGE
            ]
            small = [dur / 1e3 for what, moved, dur in kernels if what == short and moved < SMALL]
            share = f"{statistics.median(large):.2f} of the bandwidth" if large else "none"
            start = f"{statistics.median(small):.1f} µs" if small else "none"
            print(f"  {kind:<20} {len(large):3d} large: {share:<24} {len(small):3d} small: {start}")
    return 0


def compiled_kernels(case: Case) -> Iterator[tuple[str, int, float]]:
    """Each different kernel: its kind, the bytes of its tensors, and its median duration in nanoseconds."""
    name = pl.col("name").cast(pl.String)
    work = case.tasks.filter(name.str.starts_with("triton_")).with_columns(name=name)
    work = work.join(case.arguments, on="op_id", how="left", maintain_order="left").drop_nulls("shapes")
    alike = work.group_by("name", "shapes", "dtypes", maintain_order=True).agg(pl.col("dur_ns").median())
    for kernel, shapes, dtypes, dur_ns in alike.iter_rows():
        call = parse(kernel, shapes, dtypes, None, None, None)
        yield kernel.removeprefix("triton_")[:3], sum(tensor.bytes for tensor in call.all_tensors), dur_ns


if __name__ == "__main__":
    sys.exit(main())
