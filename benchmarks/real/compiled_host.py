"""What an operator of compiled code costs the host, beside one that runs eagerly: OPERATOR_COST of costs/compiled.py.

    python benchmarks/real/compiled_host.py FOLDER [FOLDER ...]

FOLDERs are those of judge.py. For every program that was timed as it is and with torch.compile, follows the host, and has
nothing in the compiler's way: its operators a step before and after, what one costs the host now, and the factor with
which the replay meets the measured speed-up. A program that the host no longer limits once it is compiled says little.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from judge import unpack

from foretrace.diagnose.case import Case
from foretrace.diagnose.opening import open_case
from foretrace.diagnose.patterns import compiling
from foretrace.diagnose.patterns.compiling import Compiling
from foretrace.predict.changes import Change, apply
from foretrace.predict.steady import step_ns

LEAST, MOST = 0.05, 4.0  # factors that are tried
TELLS = 0.02  # of the step: what a factor of 0.4 or 1.2 must change at least


def main() -> int:
    """Prints a line for each program, and the middle of all."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    print(f"{'program':<26}{'operators':>10}{'compiled':>10}{'µs each':>9}{'factor':>8}")
    factors = [factor for folder in sys.argv[1:] for factor in of_folder(Path(folder))]
    if factors:
        print(
            f"{len(factors)} programs: {min(factors):.2f} to {max(factors):.2f}, median {statistics.median(factors):.2f}"
        )
    return 0


def of_folder(folder: Path) -> Iterator[float]:
    """The factors of the programs in a folder."""
    truths: Mapping[str, Any] = json.loads((folder / "truth.json").read_text())
    with tempfile.TemporaryDirectory(prefix="compiled-host-") as scratch:
        runs = unpack(folder, Path(scratch))
        for name, truth in truths.items():
            if "compile" not in truth["changes"] or name not in runs:
                continue
            case = open_case(runs[name])
            found = compiling.find(case)
            if found is None or not case.calibration.host_bound or found.doubt:
                continue
            low, high = truth["changes"]["compile"]["speedup_range"]
            factor = meeting(case, found, (low * high) ** 0.5)
            if factor is not None:
                before, after = found.likely.operators
                each = found.likely._operator_ns / 1e3
                print(f"{name:<26}{before:>10.0f}{after:>10.0f}{each:>9.1f}{factor:>8.2f}", flush=True)
                yield factor


def meeting(case: Case, found: Compiling, measured: float) -> float | None:
    """The factor with which the predicted speed-up is the measured one; None where it hardly changes the step."""
    program = case.program
    before = step_ns(program)

    def speedup(factor: float) -> float:
        return before / step_ns(apply(program, (Change("compiled", found.likely.default(factor)),)))

    if abs(speedup(0.4) / speedup(1.2) - 1) < TELLS:
        return None
    return _where(speedup, measured)


def _where(falling: Callable[[float], float], wanted: float) -> float:
    low, high = LEAST, MOST
    for _ in range(20):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if falling(middle) > wanted else (low, middle)
    return high


if __name__ == "__main__":
    sys.exit(main())
