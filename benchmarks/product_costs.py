"""How far the costs of products and convolutions are from what `products.py` measured.

    python benchmarks/product_costs.py [FILE ...]        default: benchmarks/products_h200.json.gz

By kind and type: how many sizes, the model's time over the measured one at the median, and the error at the median and at
nine tenths. Time between kernels is in what was measured: 1.2 µs of each. Short calls that the host did not keep ahead of
are left out, and so is what takes less than 0.3 GFLOP.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from foretrace.hardware import Device, match
from foretrace.predict.costs import convolution, gemm
from foretrace.predict.costs.precision import ITEM_BYTES

MEASURED = Path(__file__).parent / "products_h200.json.gz"
GAP_NS = 1_200
LONG_NS = 50_000
LEAST_FLOPS = 3e8
Case = dict[str, Any]


def read(path: Path) -> tuple[Device, list[Case]]:
    """The device, and the cases whose time can be believed."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    machine, *cases = (json.loads(line) for line in text.splitlines())
    device = match(machine["device"], sm_count=machine.get("sm_count"))
    assert device, machine
    return device, [case for case in cases if "ns" in case and (case["ahead"] or case["ns"] > LONG_NS)]


def modelled_ns(device: Device, case: Case) -> float | None:
    """What the costs say of a case; None where they say nothing."""
    dtype = case["dtype"]
    if dtype not in ("tf32", "bf16"):
        return None
    if case["kind"] in ("gemm", "bmm"):
        size = gemm.Size(case["batch"], case["m"], case["n"], case["k"], case["layout"])
        if size.flops < LEAST_FLOPS:
            return None
        return gemm.time_ns(device, dtype, size, ITEM_BYTES[dtype])
    if case["kind"] == "conv" and case["groups"] == 1 and case["part"] == "forward":
        windows = _convolution(case)
        flops = 2 * windows.positions * windows.made * windows.given * windows.filter
        if flops < LEAST_FLOPS:
            return None
        return convolution.time_ns(device, dtype, replace(windows, backward=False), planar=not case["last"])
    return None


def _convolution(case: Case) -> convolution.Size:
    side, kernel, dims = case["side"], case["kernel"], case["dims"]
    made_side = (side + 2 * (kernel // 2) - kernel) // case["stride"] + 1
    return convolution.Size(
        case["given"],
        case["out"],
        kernel**dims,
        case["batch"] * made_side**dims,
        case["batch"] * side**dims,
        False,
    )


def kind_of(case: Case) -> str:
    """How a case is counted: rows that are no multiple of 16 bytes apart."""
    if case["kind"] == "conv":
        return "convolution"
    size = gemm.Size(case["batch"], case["m"], case["n"], case["k"], case["layout"])
    return "product" if size.aligned * ITEM_BYTES[case["dtype"]] >= 16 else "product in pieces"


def errors(path: Path) -> dict[tuple[str, str], list[float]]:
    """The logarithms of the model's times over the measured ones, by kind and type."""
    device, cases = read(path)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case in cases:
        needed_ns = modelled_ns(device, case)
        if needed_ns is not None:
            found[kind_of(case), case["dtype"]].append(
                float(np.log(needed_ns / max(case["ns"] - GAP_NS, 500)))
            )
    return found


def main() -> None:
    """Prints a line for each kind and type."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, default=[MEASURED])
    for path in parser.parse_args().files:
        print(path.name)
        for (kind, dtype), logs in sorted(errors(path).items()):
            off = np.expm1(np.abs(logs))
            print(
                f"  {kind:<18}{dtype:<6}{len(logs):>4} sizes  model / measured {np.exp(np.median(logs)):.2f}  "
                f"error median {100 * np.median(off):.0f} %, p90 {100 * np.percentile(off, 90):.0f} %"
            )


if __name__ == "__main__":
    main()
