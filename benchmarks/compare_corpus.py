"""Every recording of the corpus compared with itself, and every pair of them whose true cause is known.

    python benchmarks/compare_corpus.py [CORPUS]

A recording and itself must be "same" or "inconclusive" with nothing but zeros; the causes of every comparison must sum to its
difference; and the first cause of a pair must be the true one. The exit code is the number of faults.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from foretrace.compare.traces import Comparison, compare
from foretrace.diagnose.case import Case
from foretrace.diagnose.opening import open_case
from foretrace.errors import ForetraceError
from foretrace.ingest.recordings import is_recording

HERE = Path(__file__).resolve().parents[1]
# What was changed between the two (h200/NAME.truth.json), and the parts that tell it. Where a fix gains nothing, the part that
# takes what it saves: item_sync launches 80 kernels more, resnet50 in bf16 is limited by its launches.
CAUSES = {
    "decode_launch_bound": ("launching: operators and calls",),
    "elementwise_chain": ("elementwise",),
    "fp32_gemm": ("matrix products",),
    "gpt_healthy": (
        "copies on the GPU",
        "elementwise",
    ),  # torch.compile: casts and additions become part of other kernels
    "host_stall": ("Python between operators",),
    "item_sync": ("launching: operators and calls",),
    "matmul_add": ("matrix products",),  # a larger product
    "naive_attention": ("attention",),
    "nchw_conv": ("copies on the GPU",),  # layout conversions
    "pageable_h2d": ("copies to and from the host",),
    "resnet50": ("launching: operators and calls",),
    "slow_dataloader": ("waiting for data",),
    "tutorial_layer": ("attention", "elementwise"),  # a larger batch: all of its work grows
}
_ROUNDING = 1e-6  # ns


def recordings(corpus: Path, scratch: Path) -> Iterator[Path]:
    """Every recording, those of packed Runs unpacked."""
    for packed in sorted((corpus / "real").glob("*.tar.xz")):
        with tarfile.open(packed) as tar:
            tar.extractall(scratch, filter="data")
    runs = sorted(path.parent for path in scratch.glob("*/run.json"))
    files = (path for path in sorted(corpus.rglob("*")) if path.is_file() and "real" not in path.parts)
    yield from runs
    yield from (path for path in files if is_recording(path))


def itself(path: Path) -> str:
    """What is wrong with the comparison of a recording with itself; empty where nothing is."""
    case = open_case(path)
    found = compare(case, case)
    if found.steps.verdict not in ("same", "inconclusive"):
        return f"verdict {found.steps.verdict}"
    if any(cause.delta_ns for cause in found.steps.causes):
        return f"causes are not 0: {found.steps.causes[0]}"
    tables = {name: getattr(found, name) for name in ("operators", "kernels", "modules", "nodes")}
    for name, table in tables.items():
        if table["difference_ns"].abs().sum():
            return f"{name} differ"
    if (tables["operators"]["change"] != "kept").any():
        return "operators were added or removed"
    return unsummed(found)


def unsummed(found: Comparison) -> str:
    """Whether the causes fail to sum to the difference, and the parts of each side to its step."""
    steps = found.steps
    for name, parts, whole in (
        ("the causes", [cause.delta_ns for cause in steps.causes], steps.after_ns - steps.before_ns),
        ("the parts before", [cause.before_ns for cause in steps.causes], steps.before_ns),
        ("the parts after", [cause.after_ns for cause in steps.causes], steps.after_ns),
    ):
        if abs(sum(parts) - whole) > _ROUNDING * max(whole, 1.0):
            return f"{name} sum to {sum(parts)}, not {whole}"
    return ""


def pair(before: Path, after: Path, expected: tuple[str, ...]) -> tuple[Comparison, str]:
    """A pair compared, and what is wrong with it."""
    cases: list[Case] = [open_case(path) for path in (before, after)]
    found = compare(cases[0], cases[1])
    first = found.steps.causes[0].what
    fault = unsummed(found)
    return found, fault or ("" if first in expected else f"{first} comes first, not {' or '.join(expected)}")


def pairs(corpus: Path) -> Iterator[tuple[str, Path, Path, tuple[str, ...]]]:
    """The pairs whose change is known."""
    for name, expected in CAUSES.items():
        for kind in ("lite", "rich"):
            before, after = (corpus / "h200" / f"{name}.{side}.{kind}.json.gz" for side in ("slow", "fixed"))
            yield f"{name} {kind}", before, after, expected
    workers = [corpus / "peers" / "kineto" / f"resnet50_workers{count}.pt.trace.json.gz" for count in (0, 4)]
    yield "ResNet50 0 and 4 workers", workers[0], workers[1], ("waiting for data",)


def main(corpus: Path) -> int:
    """Prints a line for every recording and pair."""
    faults = 0
    for name, before, after, expected in pairs(corpus):
        found, fault = pair(before, after, expected)
        steps, top = found.steps, found.steps.causes[0]
        times = f"{steps.before_ns / 1e6:8.3f} -> {steps.after_ns / 1e6:8.3f} ms"
        print(
            f"{name:28} {steps.verdict:12} {times}  {top.delta_ns / 1e6:+9.3f} ms {top.what}{' FAULT: ' * bool(fault)}{fault}"
        )
        faults += bool(fault)
    with tempfile.TemporaryDirectory() as scratch:
        for path in recordings(corpus, Path(scratch)):
            try:
                fault = itself(path)
            except ForetraceError as error:
                print(f"{path.name}: not compared: {error}")
                continue
            print(f"{path.name} and itself: {fault or 'nothing'}")
            faults += bool(fault)
    print(f"{faults} faults")
    return faults


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "shared" / "corpus"))
