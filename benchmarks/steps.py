"""The step time without a profiler, estimated from a recording alone, against what was measured.

    python benchmarks/steps.py FOLDER ...

A folder holds pairs, as for accuracy.py. For every `slow` recording, light or rich, it prints how far the estimate is
from `slow.step_ms`, apart for programs that the host or the device holds back; and where both recordings exist, what the
two say together.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import foretrace
from foretrace.predict.builder import build
from foretrace.predict.calibrate import Calibration, calibrate, calibrate_pair
from foretrace.predict.program import Program
from foretrace.trace import Trace


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    truths = [path for folder in parser.parse_args().folders for path in sorted(folder.glob("*.truth.json"))]
    if not truths:
        print("no NAME.truth.json in any of the folders", file=sys.stderr)
        return 3
    ratios: dict[tuple[str, str], list[float]] = {}
    for path in truths:
        measured = json.loads(path.read_text())["slow"]["step_ms"] * 1e6
        made = estimates(path)
        if not made:
            continue
        bound = "host" if next(iter(made.values())).host_bound else "device"
        both = " (both)" if "pair" in made else ""
        for name, each in made.items():
            ratios.setdefault((bound, name), []).append(each.step_ns / measured)
            if both and name == "lite":
                ratios.setdefault((bound, name + both), []).append(each.step_ns / measured)
    print(f"{'held back by':<14}{'recording':<14}{'count':>6}{'median':>9}{'p90':>9}{'worst':>9}{'bias':>7}")
    for (bound, name), found in sorted(ratios.items()):
        print(f"{bound:<14}{name:<14}{len(found):>6}{summary(found)}")
    return 0


def estimates(truth: Path) -> dict[str, Calibration]:
    """What the recordings of one program suggest, each by itself and both together."""
    name = truth.name.removesuffix(".truth.json")
    files = {form: list(truth.parent.glob(f"{name}.slow.{form}.json.*")) for form in ("lite", "rich")}
    opened = {form: replayable(foretrace.open(paths[0])) for form, paths in files.items() if paths}
    usable = {form: each for form, each in opened.items() if each is not None}
    made = {form: calibrate(*each) for form, each in usable.items()}
    if len(usable) == 2:
        made["pair"] = calibrate_pair(usable["lite"], usable["rich"])
    return made


def replayable(trace: Trace) -> tuple[Trace, Program] | None:
    """The trace with its program; None where no device work was launched in it."""
    program = build(trace)
    return (trace, program) if len(program.task_span) else None


def summary(ratios: Iterable[float]) -> str:
    """Columns: how far off, as a factor in either direction, and the middle of estimate over measured."""
    found = np.array(list(ratios))
    off = np.maximum(found, 1 / found) - 1
    figures = (np.median(off), np.percentile(off, 90), off.max())
    return "".join(f"{100 * each:>7.1f} %" for each in figures) + f"{np.median(found):>7.2f}"


if __name__ == "__main__":
    sys.exit(main())
