"""Measures the programs beside this file, and records the slow ones.

    python benchmarks/pairs/measure.py --half a --out FOLDER [--budget 500] [NAME ...]

Each variant is timed in a process of its own that never sees a profiler, slow and fixed in turn, `--rounds` times; then the
slow one is recorded in a further process, light and rich. Nothing runs beside anything else. Processes are forked
from one that has imported torch and has not touched CUDA. The folder gets NAME.slow.{lite,rich}.json.gz and
NAME.truth.json, packed into pairs-HALF.tar.gz. A set is a file here: set_c.py has half c, and so on; programs.py has
a and b, promises.py most of p, and t. Large recordings are kept here as .zst (zstd -19).
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault(
    "PYTORCH_NVML_BASED_CUDA_CHECK", "1"
)  # a fork can use CUDA only if its parent never asked

import torch
from programs import PAIRS, TINY, Pair, Step, device

for _each in (*sorted(Path(__file__).parent.glob("set_*.py")), Path("promises.py")):
    importlib.import_module(_each.stem)  # registers its programs

WARM_S, BATCHES = (0.05, 2) if TINY else (float(os.environ.get("PAIRS_WARM_S", "1")), 5)
BATCH_S, MOST_S = (0.02, 0.5) if TINY else (0.15, 2.0)
WARM_STEPS, ACTIVE_STEPS = 8, 3
LIMIT_S = 60
LARGEST_BYTES = 15_500_000
LITE_ONLY = bool(os.environ.get("PAIRS_LITE_ONLY"))  # where device time is short
BEGIN = time.monotonic()


def synchronise() -> None:
    if device() == "cuda":
        torch.cuda.synchronize()


def warm(step: Step) -> float:
    """Runs steps for a second; returns the seconds one takes."""
    for _ in range(3):
        step()
    synchronise()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < WARM_S:
        start = time.perf_counter()
        for _ in range(5):
            step()
        synchronise()
        count += 1
        last = (time.perf_counter() - start) / 5
    return last


def timed(step: Step) -> dict[str, float]:
    """The step's time: the median of batches of steps, with one wait at the end of each."""
    guess = warm(step)
    steps = max(10, min(400, round(BATCH_S / guess)))
    batches = max(2, min(BATCHES, int(MOST_S / (steps * guess))))
    each = []
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        synchronise()
        each.append((time.perf_counter() - start) / steps * 1e3)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device() == "cuda" else 0.0
    return {
        "ms": statistics.median(each),
        "low": min(each),
        "high": max(each),
        "steps": steps * batches,
        "peak": peak,
    }


def record(step: Step, path: Path, *, rich: bool) -> None:
    """Records three steps after eight under the profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device() == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    more = (
        {"with_stack": True, "with_modules": True, "profile_memory": True, "with_flops": True} if rich else {}
    )
    schedule = torch.profiler.schedule(wait=0, warmup=WARM_STEPS, active=ACTIVE_STEPS, repeat=1)
    with torch.profiler.profile(
        activities=activities, record_shapes=True, schedule=schedule,
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(path)), **more
    ) as profile:  # fmt: skip
        for _ in range(WARM_STEPS + ACTIVE_STEPS):
            step()
            profile.step()


def work(pair: Pair, what: str, folder: Path) -> dict[str, float]:
    """What one process does: times a variant, or times and then records the slow one."""
    torch.manual_seed(0)
    step = pair.make(what == "fixed")
    if what != "record":
        return timed(step)
    result = timed(step)
    for form in ("lite",) if LITE_ONLY else ("lite", "rich"):
        record(step, folder / f"{pair.name}.slow.{form}.json.gz", rich=form == "rich")
    return result


def forked(pair: Pair, what: str, folder: Path) -> dict[str, float] | None:
    """`work` in a process of its own; None where it failed or outran its limit."""
    answer = Path(tempfile.gettempdir()) / f"pairs-{os.getpid()}.json"
    answer.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            answer.write_text(json.dumps(work(pair, what, folder)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + LIMIT_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            print(f"{pair.name} {what}: over {LIMIT_S} s", flush=True)
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):  # the loader's workers and the compiler's
        os.killpg(child, signal.SIGKILL)
    return json.loads(answer.read_text()) if answer.exists() else None


def spawned(pair: Pair, what: str, folder: Path) -> dict[str, float] | None:
    """`work` in a fresh interpreter: slower to start, for what does not survive a fork."""
    command = [sys.executable, __file__, "--work", what, "--out", str(folder), pair.name]
    try:
        done = subprocess.run(command, timeout=LIMIT_S, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(done.stderr[-1500:], flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def forks_reach_device() -> bool:
    """Whether a forked process can use the GPU, if there is one."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.zeros(1, device=device()).sum().item()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def has_kernels(path: Path) -> bool:
    """Whether the recording saw the GPU (on a machine without one: whether it is there)."""
    if not path.exists():
        return False
    with gzip.open(path, "rt") as file:
        return TINY or '"cat": "kernel"' in file.read()


def measure(pair: Pair, folder: Path, allowed_s: float, wanted: int) -> None:
    """All processes of one program; rounds after the first only where time allows."""
    begin = time.monotonic()
    rounds: dict[str, list[dict[str, float]]] = {"slow": [], "fixed": []}
    for number in range(wanted):
        if number and time.monotonic() - begin > 0.55 * allowed_s:
            break
        for what in ("slow", "fixed"):
            done = forked(pair, what, folder) or (spawned(pair, what, folder) if not number else None)
            if done:
                rounds[what].append(done)
    if not all(rounds.values()):
        print(f"{pair.name}: not measured", flush=True)
        return
    lite = folder / f"{pair.name}.slow.lite.json.gz"
    traced = forked(pair, "record", folder)
    if not traced or not has_kernels(lite):
        print(f"{pair.name}: recording again in a fresh interpreter", flush=True)
        traced = spawned(pair, "record", folder)
    write_truth(pair, folder, rounds, traced)
    slow, fixed = ("/".join(f"{each['ms']:.3f}" for each in rounds[what]) for what in ("slow", "fixed"))
    print(f"{time.monotonic() - BEGIN:5.0f} s  {pair.name}: slow {slow} fixed {fixed} traced "
          f"{traced['ms'] if traced else 0:.3f} ms, {lite.stat().st_size if lite.exists() else 0} bytes, "
          f"{time.monotonic() - begin:.0f} s", flush=True)  # fmt: skip


def write_truth(
    pair: Pair, folder: Path, rounds: dict[str, list[dict[str, float]]], traced: dict[str, float] | None
) -> None:
    """NAME.truth.json, in the corpus's layout."""
    truth: dict[str, Any] = {}
    for what, each in rounds.items():
        truth[what] = {
            "step_ms": round(statistics.median(r["ms"] for r in each), 4),
            "step_ms_min": round(min(r["low"] for r in each), 4),
            "step_ms_max": round(max(r["high"] for r in each), 4),
            "rounds_ms": [round(r["ms"], 4) for r in each],
            "peak_mib": round(max(r["peak"] for r in each), 1),
            "steps_timed": sum(int(r["steps"]) for r in each),
        }
    if traced:  # timed in the process that was recorded afterwards
        truth["slow"]["traced_step_ms"] = round(traced["ms"], 4)
    slow, fixed = truth["slow"]["rounds_ms"], truth["fixed"]["rounds_ms"]
    truth["truth"] = {"label": pair.label, "rule": pair.rule, "note": pair.note, "same_work": pair.same_work}
    truth["speedup"] = round(truth["slow"]["step_ms"] / truth["fixed"]["step_ms"], 3)
    truth["speedup_range"] = [round(min(slow) / max(fixed), 3), round(max(slow) / min(fixed), 3)]
    (folder / f"{pair.name}.truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def pack(folder: Path, archive: Path) -> None:
    """One archive; the largest rich recordings stay out where it would be too large."""
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_size)
    rich = [path for path in files if ".rich." in path.name]
    while sum(path.stat().st_size for path in files) > LARGEST_BYTES and rich:
        left_out = rich.pop()
        files.remove(left_out)
        print(f"left out: {left_out.name}", flush=True)
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for path in sorted(files):
            tar.add(path, path.name)


def main() -> int:
    """Measures what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--half", default="a")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=500.0, help="seconds")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work", choices=("slow", "fixed", "record"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(PAIRS[options.names[0]], options.work, options.out)))
        return 0
    if not os.environ.get("PAIRS_BARE"):
        import torch._dynamo  # every optimizer imports it: once here instead of once in each process

        if not forks_reach_device():
            os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PAIRS_BARE": "1"})
    pairs = [PAIRS[name] for name in options.names] or [p for p in PAIRS.values() if p.half == options.half]
    pairs.sort(key=lambda pair: pair.label == "unfused elementwise")  # compiling is slow: last
    folder = Path(tempfile.mkdtemp())
    print(torch.__version__, [pair.name for pair in pairs], f"{time.monotonic() - BEGIN:.0f} s", flush=True)
    for place, pair in enumerate(pairs):
        left_s = options.budget - (time.monotonic() - BEGIN)
        if left_s < 15:
            print(f"no time left for {[each.name for each in pairs[place:]]}", flush=True)
            break
        measure(pair, folder, left_s / (len(pairs) - place), options.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    pack(folder, options.out / f"pairs-{options.half}.tar.gz")
    print(f"done in {time.monotonic() - BEGIN:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
