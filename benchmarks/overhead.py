"""What recording costs the host, an event: the constants of `predict/calibrate.py`, measured.

    python benchmarks/overhead.py [--rounds 2] [--json FILE]

Loops whose iterations differ by one kind of event are timed in processes of their own: before any profiler exists, then
under a light or a rich one (stacks, modules, memory, FLOPs). The difference an iteration, over the events that
the profiler itself counted, is the cost of an event. Whole models follow: what their host takes beyond the cost of
their events, as a factor, is the `slowdown` of everything else. The last lines are the constants.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

FORMS = ("light", "rich")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _plain(value: int) -> int:
    return value


def loops() -> dict[str, Callable[[], Callable[[], Any]]]:
    """The programs: each gives a step."""

    def operators() -> Callable[[], Any]:
        x = torch.zeros(8, 8, device=DEVICE)
        return lambda: [x.t() for _ in range(500)]

    def launches() -> Callable[[], Any]:
        x = torch.zeros(8, 8, device=DEVICE)
        return lambda: [x.add_(1) for _ in range(500)]

    def calls() -> Callable[[], Any]:
        event = torch.cuda.Event() if DEVICE == "cuda" else None
        return lambda: [event.record() for _ in range(500)] if event else None

    def frames() -> Callable[[], Any]:
        x = torch.zeros(8, 8, device=DEVICE)

        def step() -> None:
            x.add_(1)
            for _ in range(2000):
                _plain(1)

        return step

    def training(width: int, layers: int, optimizer: dict[str, bool]) -> Callable[[], Any]:
        model = nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()))).to(DEVICE)  # fmt: skip
        update = torch.optim.AdamW(model.parameters(), lr=1e-4, **optimizer)
        x = torch.randn(32, width, device=DEVICE)

        def step() -> None:
            update.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            update.step()

        return step

    def inference() -> Callable[[], Any]:
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device=DEVICE)
        model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).train(mode=False)
        x = torch.randn(4, 16, 64, device=DEVICE)
        return lambda: model(x)

    return {
        "operators": operators,
        "launches": launches,
        "calls": calls,
        "frames": frames,
        "training, update by tensor": lambda: training(128, 24, {"foreach": False}),
        "training, update fused": lambda: training(128, 24, {"fused": DEVICE == "cuda"}),
        "inference": inference,
    }


def _synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def _timed(step: Callable[[], Any], seconds: float) -> float:
    """Nanoseconds a step, after half the time for warming up."""
    for share in (0.5, 1.0):
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds * share:
            step()
            count += 1
        _synchronise()
        each = (time.perf_counter() - begin) / count
    return each * 1e9


def _profiled(step: Callable[[], Any], *, rich: bool) -> tuple[float, dict[str, float]]:
    """Nanoseconds a step under the profiler, and how many events of each sort a step has."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    more = (
        {"with_stack": True, "with_modules": True, "profile_memory": True, "with_flops": True} if rich else {}
    )
    path = Path(f"/tmp/overhead-{time.time_ns()}.json")
    steps = 6
    with torch.profiler.profile(activities=activities, record_shapes=True, **more) as profile:
        for _ in range(2):
            step()
        _synchronise()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        _synchronise()
        each = (time.perf_counter() - begin) / steps * 1e9
    profile.export_chrome_trace(str(path))
    found: dict[str, int] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        found[event.get("cat", "")] = found.get(event.get("cat", ""), 0) + 1
    path.unlink()
    count = steps + 2
    return each, {
        "ops": found.get("cpu_op", 0) / count,
        "calls": (found.get("cuda_runtime", 0) + found.get("cuda_driver", 0)) / count,
        "frames": (found.get("python_function", 0) + found.get("cpu_instant_event", 0)) / count,
    }


def work(name: str, form: str) -> dict[str, Any]:
    """What one process does."""
    torch.manual_seed(0)
    step = loops()[name]()
    unprofiled = _timed(step, 0.6)
    each, events = _profiled(step, rich=form == "rich")
    return {"ns": each, "before_ns": unprofiled, **events}


def measure(name: str, form: str, rounds: int) -> dict[str, Any]:
    """`work` in fresh processes: the medians."""
    answers = []
    for _ in range(rounds):
        command = [sys.executable, __file__, "--work", name, form]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise SystemExit(f"{name}, {form}: {done.stderr[-500:]}")
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    return {key: statistics.median(answer[key] for answer in answers) for key in answers[0]}


def constants(results: dict[str, dict[str, Any]], form: str) -> dict[str, float]:
    """The cost of an event of each sort, and the factor that is left for whole programs."""

    def extra(name: str) -> float:
        return results[name][form]["ns"] - results[name][form]["before_ns"]

    def count(name: str, what: str) -> float:
        return max(results[name][form][what], 1)

    frame = max(extra("frames") / count("frames", "frames"), 0.0) if form == "rich" else 0.0
    op = (extra("operators") - frame * results["operators"][form]["frames"]) / count("operators", "ops")
    launched = extra("launches") - op * count("launches", "ops") - frame * results["launches"][form]["frames"]
    call = launched / count("launches", "calls")
    factors = []
    for name in list(loops())[4:]:
        each = results[name][form]
        events = op * each["ops"] + call * each["calls"] + frame * each["frames"]
        factors.append((each["ns"] - events) / each["before_ns"])
    return {"op_ns": op, "call_ns": call, "frame_ns": frame, "slowdown": statistics.median(factors)}


def main() -> int:
    """Prints the table and the constants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(*options.work)))
        return 0
    results = {name: {form: measure(name, form, options.rounds) for form in FORMS} for name in loops()}
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if DEVICE == 'cuda' else 'no GPU'}")
    for name, forms in results.items():
        for form in FORMS:
            each = forms[form]
            print(f"{name:28} {form:6} {each['before_ns'] / 1e3:9.1f} -> {each['ns'] / 1e3:9.1f} µs a step; "
                  f"ops {each['ops']:.0f}, calls {each['calls']:.0f}, frames {each['frames']:.0f}")  # fmt: skip
    fitted = {form: constants(results, form) for form in FORMS}
    for form, values in fitted.items():
        print(f"{form}: " + ", ".join(f"{key} {value:.4g}" for key, value in values.items()))
    if options.json:
        options.json.write_text(json.dumps({"results": results, "constants": fitted}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
