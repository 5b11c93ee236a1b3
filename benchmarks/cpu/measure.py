"""What diagnose predicts for three CPU programs, against what its first advice brings when it is followed.

    python benchmarks/cpu/measure.py            # all three, a table for docs/accuracy.md
    python benchmarks/cpu/measure.py encoder_serving

Each program is recorded by `foretrace run` in a process of its own, with one thread for torch and fifteen steps: the median of
so many leaves out what other processes do. Then the change that comes first
is made, and both variants are timed in turns in one process: in processor time where they compute, which other processes on
the machine do not touch, and in time by the clock where they wait for data. Last comes what else was tried, which says
whether the first advice is the best one.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Of each program: what the rule's fix is called in it, and what else is tried.
CHANGES = {
    "nanogpt_loop": {"fp32-on-cpu": "bf16", "eager-operators": "compile", "optimizer-loop": "fused"},
    "starved_cnn": {"input-bound": "workers1"},
    "encoder_serving": {
        "fp32-on-cpu": "bf16", "needless-autograd": "inference", "eager-operators": "compile",
    },
}  # fmt: skip
ARGUMENTS = {"nanogpt_loop": "--steps", "starved_cnn": "--steps", "encoder_serving": "--requests"}
WAITS = ("starved_cnn",)


def recorded(program: str, folder: Path) -> Path:
    """A Run of the program."""
    run = folder / program
    command = [
        sys.executable,
        "-m",
        "foretrace",
        "run",
        "-q",
        "--stop-after-capture",
        "--active",
        "15",
        "-o",
        str(run),
        "--",
    ]
    command += [sys.executable, str(HERE / f"{program}.py"), ARGUMENTS[program], "100000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent.parent / "src")}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return run


def predicted(run: Path) -> list[tuple[str, Any]]:
    """The findings that need no more threads: rule and prediction, in order."""
    from foretrace.diagnose import RULES
    from foretrace.diagnose.diagnosis import diagnose
    from foretrace.diagnose.opening import open_case

    case = open_case(run)
    print(f"{run.name}: {case.step_ns / 1e6:.1f} ms a step; {case.calibration.basis}", flush=True)
    found = diagnose(case, RULES).findings
    return [(finding.rule, finding.predicted) for finding in found if finding.predicted is not None]


def measured(program: str, changes: list[str], *, rounds: int) -> dict[str, float]:
    """The speed-up by each change, from steps timed in turns."""
    import torch
    from turns import CPU_TIME, WALL, in_turns

    torch.set_num_threads(1)
    module = importlib.import_module(program)
    made = getattr(module, "Trainer", None) or module.Server
    steps = {change: made(change).step for change in ("none", *changes)}
    waits = program in WAITS
    times = in_turns(steps, rounds=rounds, each=8, clock=WALL if waits else CPU_TIME, warm=4)
    return {change: times["none"] / times[change] for change in changes}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", default=list(CHANGES), metavar="PROGRAM")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--runs", type=Path, help="a folder with Runs made before, or to keep them in")
    args = parser.parse_args()
    sys.path[:0] = [str(HERE), str(HERE.parent.parent / "src")]
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.runs or Path(scratch)
        for program in args.programs:
            run = folder / program if (folder / program / "run.json").exists() else recorded(program, folder)
            findings = predicted(run)
            known = CHANGES[program]
            times = measured(program, list(known.values()), rounds=args.rounds)
            for place, (rule, prediction) in enumerate(findings, 1):
                change = known.get(rule)
                now = prediction.speedup
                truth = (
                    f"{times[change]:.2f}, off by {100 * abs(now.point / times[change] - 1):.0f} %"
                    if change
                    else "not tried"
                )
                print(
                    f"| {program} | {place} | {rule} | {prediction.verdict} | {now.point:.2f} ({now.low:.2f} to "
                    f"{now.high:.2f}) | {truth} |",
                    flush=True,
                )
            silent = {rule: times[change] for rule, change in known.items() if rule not in dict(findings)}
            print(f"not found, measured: {silent}" if silent else "", flush=True)


if __name__ == "__main__":
    main()
