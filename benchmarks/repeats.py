"""One program recorded again and again, and every two of its recordings compared: none may be called faster or slower.

    python benchmarks/repeats.py --in DIR --times 10 -- python train.py     # records DIR/1, DIR/2, … and compares
    python benchmarks/repeats.py --in DIR                                   # compares the Runs that are in DIR

The exit code is 1 where a verdict is "faster" or "slower": the program did not change.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path

BRIEF = ("--settle-s", "1", "--time-s", "2", "--passes", "light")


def main() -> int:
    """Records what is asked for, and compares all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--in", type=Path, required=True, dest="folder", metavar="DIR", help="of the Runs")
    parser.add_argument("--times", type=int, default=10, metavar="N", help="recordings (default: 10)")
    parser.add_argument("--only-record", action="store_true", help="compare nothing")
    parser.add_argument("command", nargs="*", metavar="-- COMMAND", help="the program")
    options = parser.parse_args()
    if options.command:
        record(options.folder, options.times, options.command)
    if options.only_record:
        return 0
    verdicts = compare(options.folder)
    print(", ".join(f"{count} × {verdict}" for verdict, count in sorted(verdicts.items())))
    return int(bool(verdicts["faster"] or verdicts["slower"]))


def record(folder: Path, times: int, command: list[str]) -> None:
    """Records the program, one process after the other."""
    for number in range(1, times + 1):
        foretrace = [sys.executable, "-m", "foretrace", "run", "-q", "--stop-after-capture", *BRIEF]
        subprocess.run([*foretrace, "-o", str(folder / str(number)), "--", *command], check=True)
        print(f"recorded {number} of {times}", file=sys.stderr, flush=True)


def compare(folder: Path) -> Counter[str]:
    """How often each verdict was given, over all pairs."""
    from foretrace.compare.traces import compare
    from foretrace.diagnose.opening import open_case

    runs = sorted((path.parent for path in folder.glob("*/run.json")), key=lambda run: (len(run.name), run))
    if len(runs) < 2:
        sys.exit(f"{folder} holds {len(runs)} Runs: two are needed")
    cases = {run.name: open_case(run) for run in runs}
    verdicts: Counter[str] = Counter()
    for before, after in itertools.combinations(cases, 2):
        steps = compare(cases[before], cases[after]).steps
        verdicts[steps.verdict] += 1
        milliseconds = f"{steps.before_ns / 1e6:.3f} to {steps.after_ns / 1e6:.3f} ms"
        print(f"{before} and {after}: {milliseconds}, {steps.verdict}")
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
