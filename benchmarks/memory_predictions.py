"""How far predictions of memory can be believed: four models recorded once, then measured checkpointed and with larger batches.

    python benchmarks/memory_predictions.py --out DIR      # on a GPU: records and measures, about three minutes; no polars needed
    python benchmarks/memory_predictions.py --judge DIR    # anywhere: predicted beside measured; exit code 1 if a bar is missed

DIR gets one Run for each model and measured.json, after every model. What is measured: the peak of allocated memory and the step
with all blocks as they are and checkpointed, the peak under bf16 autocast where the model is in fp32, and the largest batch that
runs when the allocator may hold no more than --cap-gib.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
MODELS = ("encoder", "gpt", "resnet50", "vit")
BATCH = {"encoder": 16, "gpt": 8, "resnet50": 64, "vit": 128}
IN_BF16 = ("gpt", "vit")
SAVING_BAR, BATCH_BAR = 0.15, 0.05
_GIB = 2**30
_STEPS, _TIMED = 3, 5


def run_program(args: argparse.Namespace) -> None:
    """The loop that is recorded."""
    from benchmarks.memory_models import training

    step = training(
        args.program,
        args.batch or BATCH[args.program],
        args.device,
        small=args.small,
        bf16=args.program in IN_BF16,
    )
    for _ in range(args.steps):
        step()


def measured(name: str, batch: int, **options: Any) -> dict[str, float]:
    """Peak of allocated and reserved memory, and the median step."""
    import torch

    from benchmarks.memory_models import training

    step = training(name, batch, "cuda", **{"bf16": name in IN_BF16, **options})
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(_TIMED):
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun))
    found = {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "step_ms": sorted(times)[len(times) // 2],
    }
    del step
    _emptied()
    return found


def _emptied() -> None:
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def fits(name: str, batch: int) -> bool:
    """Whether some steps of this batch run."""
    import torch

    from benchmarks.memory_models import training

    step: Any = None
    try:
        step = training(name, batch, "cuda", bf16=name in IN_BF16)
        for _ in range(_STEPS):
            step()
        torch.cuda.synchronize()
        fitted = True
    except torch.OutOfMemoryError:
        fitted = False
    step = None
    _emptied()
    return fitted


def largest(name: str, cap_bytes: int) -> int:
    """The largest batch that runs, to 1 %, when the allocator may hold this much."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(cap_bytes / total)
    low, high = 0, BATCH[name]
    while fits(name, high):
        low, high = high, 2 * high
    while high - low > max(low // 100, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(name, middle) else (low, middle)
    torch.cuda.set_per_process_memory_fraction(1.0)
    return low


def record(name: str, out: Path, *, device: str, small: bool) -> None:
    """One Run of the model with `foretrace run`."""
    program = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--program",
        name,
        "--device",
        device,
        "--steps",
        "100000",
    ]
    command = [sys.executable, "-m", "foretrace", "run", "-q", "--stop-after-capture", "--settle-s", "0.5", "--time-s", "1",
               "-o", str(out / name), "--", *program, *["--small"] * small]  # fmt: skip
    paths = os.pathsep.join(part for part in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if part)
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths}, timeout=120)


def measure(args: argparse.Namespace) -> None:
    """Records and measures every model; measured.json holds what is done so far."""
    args.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"cap_bytes": round(args.cap_gib * _GIB), "models": {}}
    for name in args.models:
        begun = time.perf_counter()
        record(name, args.out, device="cuda", small=False)
        told: dict[str, Any] = {"batch": BATCH[name], "plain": measured(name, BATCH[name])}
        told["checkpointed"] = measured(name, BATCH[name], checkpointed=True)
        if name not in IN_BF16:
            told["bf16"] = measured(name, BATCH[name], bf16=True)
        told["took_s"] = time.perf_counter() - begun
        found["models"][name] = told
        (args.out / "measured.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(name, json.dumps(told), flush=True)
    for name, batch in largest_of_all(args.models, args.cap_gib).items():
        found["models"][name]["largest_batch"] = batch
    (args.out / "measured.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(json.dumps(found, indent=1), flush=True)


def largest_of_all(models: Sequence[str], cap_gib: float) -> dict[str, int]:
    """The largest batch of each model: processes side by side, since each has a share of the memory for itself."""
    here = [sys.executable, str(Path(__file__).resolve()), "--cap-gib", str(cap_gib)]
    searches = {
        name: subprocess.Popen([*here, "--largest", name], stdout=subprocess.PIPE, text=True)
        for name in models
    }
    answers = {name: search.communicate()[0] for name, search in searches.items()}
    return {name: int(answer) for name, answer in answers.items()}


def predictions(run: Path, cap_bytes: int) -> dict[str, Any]:
    """What is predicted from one Run: peaks, steps and the largest batch."""
    from foretrace import analyze
    from foretrace.analyze.concepts.memory import memory_replay
    from foretrace.analyze.memory_fit import Room, fit_into
    from foretrace.diagnose import RULES
    from foretrace.diagnose.diagnosis import diagnose
    from foretrace.diagnose.opening import open_case
    from foretrace.diagnose.patterns import half_activations

    case = open_case(run)
    rich = case.rich or case
    memory = memory_replay.find(rich.whole)
    told: dict[str, Any] = {"peak_bytes": memory.peak_bytes}
    told["checkpointed"] = analyze.run(rich.whole, "saved-activations").values["freed_bytes"]
    half = half_activations.narrowed(rich.whole)
    told["bf16"] = None if half is None else memory.freed_by([half[0]])
    rules = tuple(rule for rule in RULES if rule.name == "uncheckpointed-blocks")
    told["speedup"] = [
        finding.predicted.speedup for finding in diagnose(case, rules).findings if finding.predicted
    ]
    fit = fit_into(rich.whole, memory, Room(cap_bytes, cap_bytes, cap_bytes))
    told["times"] = [fit.times, fit.low, fit.high]
    return told


def _line(what: str, predicted: float, real: float, bar: float | None, unit: str = "") -> bool:
    off = predicted / real - 1 if real else 0.0
    missed = bar is not None and abs(off) > bar
    print(
        f"  {what:<34} predicted {predicted:10.4g} measured {real:10.4g} {unit:<4} {100 * off:+6.1f} %{'  MISSED' * missed}"
    )
    return missed


def judge(folder: Path) -> int:
    """Predicted beside measured; 1 where a saving is off by more than 15 %, or a batch by more than 5 %."""
    found = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    missed = 0
    for name, real in found["models"].items():
        told = predictions(folder / name, found["cap_bytes"])
        plain, kept = real["plain"], real["checkpointed"]
        print(name)
        _line("peak, as recorded", told["peak_bytes"] / _GIB, plain["peak_bytes"] / _GIB, None, "GiB")
        saving = (plain["peak_bytes"] - kept["peak_bytes"]) / _GIB
        missed += _line("freed by checkpointing", told["checkpointed"] / _GIB, saving, SAVING_BAR, "GiB")
        for speedup in told["speedup"]:
            _line(
                f"speed-up ({speedup.low:.2f} to {speedup.high:.2f})",
                speedup.point,
                plain["step_ms"] / kept["step_ms"],
                None,
            )
        if "bf16" in real:
            saving = (plain["peak_bytes"] - real["bf16"]["peak_bytes"]) / _GIB
            _line("freed by bf16 autocast", (told["bf16"] or 0) / _GIB, saving, None, "GiB")
        point, low, high = (int(times * real["batch"]) for times in told["times"])
        missed += _line(f"largest batch ({low} to {high})", point, real["largest_batch"], BATCH_BAR)
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="record and measure; where to write")
    parser.add_argument("--judge", type=Path, metavar="DIR", help="predicted beside what was measured there")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument(
        "--cap-gib", type=float, default=16.0, help="what the allocator may hold (default: 16)"
    )
    parser.add_argument("--program", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--largest", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=20, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.program:
        run_program(args)
        return 0
    if args.largest:
        print(largest(args.largest, round(args.cap_gib * _GIB)))
        return 0
    if args.judge:
        return judge(args.judge)
    if not args.out:
        parser.error("give --out DIR or --judge DIR")
    measure(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
