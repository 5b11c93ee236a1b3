"""The step time that `foretrace run` reports, beside the same program timed alone, on a GPU.

    python benchmarks/capture.py --pairs PAIRS --out FOLDER [--budget 400] [NAME ...]

Programs are the slow variants of the pairs of docs/accuracy.md, whose folder is PAIRS, as a user would run them: a script with a loop. Each is timed in
a process that no profiler ever enters, recorded by `foretrace run --stop-after-capture`, and timed alone again: a host
wanders. FOLDER gets the Run's rank.json and the light recording of each, and all of them in capture.tar;
`--judge FOLDER` reads those (it needs polars, not torch) and prints the table: step alone before and after, step
reported and how far it is from the middle and from the nearer of the two; the GPU's step in the device pass, which
records nothing of the host, its share of work, and how far that step is from the reported one; the same of the light pass;
kernels without a launch; cost.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROGRAMS = (
    "adamw_loop", "vit_naive", "encoder_serve", "healthy_decoder", "sgd_loop", "vgg_nchw", "ranker_serve", "long_context",
    "accumulate_item", "checkpointed", "healthy_mlp", "diffusion_fp32",
)  # fmt: skip
# Of these a step is more than one call of a module, and there is no optimizer.
NAMED = {"ranker_serve": "__main__:one_step"}
_LONGEST_S = 120
FOLDER = "FORETRACE_PAIRS"  # the folder of their programs

one_step: Callable[[], None]  # global, where `--step-function` looks for it


def loop(name: str) -> None:
    """The program: its steps for two minutes, or until it is stopped."""
    global one_step
    sys.path.insert(0, os.environ[FOLDER])
    import torch
    from programs import PAIRS

    torch.manual_seed(0)
    step = PAIRS[name].make(False)

    def call() -> None:
        step()

    one_step = call

    end = time.monotonic() + _LONGEST_S
    while time.monotonic() < end:
        one_step()


def alone(name: str) -> dict[str, float] | None:
    """The slow variant in a process of its own that is never profiled."""
    sys.path.insert(0, os.environ[FOLDER])
    import measure
    from programs import PAIRS

    return measure.forked(PAIRS[name], "slow", Path("."))


def recorded(name: str, folder: Path) -> tuple[float, str]:
    """One `foretrace run`; how long it took in all, and what it said where it failed."""
    named = ["--step-function", NAMED[name]] if name in NAMED else []
    command = [sys.executable, "-m", "foretrace", "run", "-o", str(folder), "--stop-after-capture", *named, "--",
               sys.executable, __file__, "--loop", name]  # fmt: skip
    begin = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_LONGEST_S, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    said = (
        "" if done.returncode == 0 and not done.stdout.strip() else f"{done.returncode}: {done.stdout[-300:]}"
    )
    return time.monotonic() - begin, f"{said}\n{done.stderr[-800:]}"


def measure_all(names: tuple[str, ...], out: Path, budget_s: float, *, once: bool) -> None:
    """Every program, as long as time allows; `once`: timed alone before its recording only."""
    begin = time.monotonic()
    for name in names:
        if time.monotonic() - begin > budget_s:
            print(f"no time left for {name}", flush=True)
            continue
        before = alone(name)
        run = Path("/tmp") / f"capture-{name}-{time.time_ns()}"
        took_s, said = recorded(name, run)
        after = before if once else alone(name)
        rank = run / "rank0" / "rank.json"
        if not before or not after or not rank.exists():
            print(f"{name}: failed: {said}", flush=True)
            continue
        facts = json.loads(rank.read_text())
        facts["alone_ms"], facts["took_s"], facts["said"] = [before["ms"], after["ms"]], took_s, said
        (out / f"{name}.json").write_text(json.dumps(facts, indent=1))
        light = run / "rank0" / "light.json"
        if light.exists():
            (out / f"{name}.light.json.gz").write_bytes(gzip.compress(light.read_bytes(), 5))
        unprofiled = facts.get("unprofiled") or {}
        print(f"{time.monotonic() - begin:4.0f} s  {name}: alone {before['ms']:.3f}, {after['ms']:.3f} ms, run "
              f"{unprofiled.get('median_ns', 0) / 1e6:.3f} ms, {facts['status']}, {took_s:.1f} s", flush=True)  # fmt: skip
    with tarfile.open(out / "capture.tar", "w") as archive:
        for path in sorted(out.glob("*.json*")):
            archive.add(path, path.name)


def judge(folder: Path) -> None:
    """The table, from what the other machine left."""
    import foretrace
    from foretrace import analyze

    print("program          alone ms           run ms  middle  nearer   device pass: step busy    diff"
          "   light pass: step    diff  orphans  verdict    light  in all  source")  # fmt: skip
    for path in sorted(folder.glob("*.json")):
        facts: dict[str, Any] = json.loads(path.read_text())
        trace = foretrace.open(folder / f"{path.stem}.light.json.gz")
        overview = analyze.run(trace, "overview").values
        trust = analyze.run(trace, "trust").values["verdict"]
        run = facts["unprofiled"]["median_ns"] / 1e6
        low, high = sorted(facts["alone_ms"])
        nearer = max(low / run - 1, 0.0) * -1 + max(run / high - 1, 0.0)
        gpu = float(overview["step_gpu_ns"] or 0) / 1e6
        device = facts.get("device_time") or {"step_ns": float("nan"), "busy_ns": float("nan")}
        step, busy = device["step_ns"] / 1e6, device["busy_ns"] / device["step_ns"]
        light = next(each for each in facts["passes"] if each["kind"] == "light")
        print(f"{path.stem:16} {low:7.3f}-{high:7.3f} {run:8.3f} {run / ((low + high) / 2) - 1:+7.1%} {nearer:+7.1%} "
              f"{step:19.3f} {busy:5.0%} {step / run - 1:+7.1%} {gpu:18.3f} {gpu / run - 1:+7.1%} "
              f"{overview['orphan_count']:7}  {trust:9} {light['file_bytes'] / 2**20:4.1f} MiB {facts['took_s']:5.1f} s  "
              f"{facts['step_source']}")  # fmt: skip


def main() -> int:
    """Measures on the GPU's machine, judges anywhere."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--pairs", metavar="PAIRS", help="the folder that holds programs.py of the pairs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=400)
    parser.add_argument(
        "--once", action="store_true", help="time each program alone once, before its recording"
    )
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--loop", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pairs:
        os.environ[FOLDER] = options.pairs
    if options.loop:
        loop(options.loop)
    elif options.judge:
        judge(options.judge)
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        measure_all(tuple(options.names) or PROGRAMS, options.out, options.budget, once=options.once)
    return 0


if __name__ == "__main__":
    sys.exit(main())
