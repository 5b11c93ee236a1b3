"""How much of what Nsight Compute profiled is found again in a torch.profiler trace of the same program.

    python benchmarks/ncu_join.py record FOLDER     on a machine with a GPU, ncu and torch (standard library otherwise)
    python benchmarks/ncu_join.py judge FOLDER      anywhere that Foretrace is installed; needs no GPU

`record` starts a small program twice, once under torch.profiler and once under ncu, and prints ncu's report as CSV. It ends
within about a minute: the program stops between two pieces of its step once the time for ncu is over, and the report holds what
was profiled until then. `judge` opens FOLDER as Foretrace does, and prints for each profiled kernel whether name, grid and block
were found in the trace, and the share of the profiled launches' GPU time that was; its exit code is 1 below 95 %.

FOLDER gets trace.json, kernels.ncu-rep, kernels.raw.csv and kernels.details.csv (base units), kernels.scaled.csv (ncu's own
units), live.csv (printed while the program ran, with ncu's ==PROF== lines in it), log.txt and facts.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

NCU_S, NCU_LAUNCHES = 20, 36  # the program stops launching in time; ncu profiles no more launches than this
LIVE_BEFORE_S, LIVE_LAUNCHES = 42, 2  # the short live run begins only where there is time for it
_SECTIONS = (
    "SpeedOfLight", "SpeedOfLight_RooflineChart", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables", "SchedulerStats", "WarpStateStats", "InstructionStats", "LaunchStats", "Occupancy",
)  # fmt: skip

LEAST_MATCHED_PCT = 95


# --- the program ---------------------------------------------------------------------------------------------


def _pieces(torch: Any) -> list[Callable[[], Any]]:
    """The step in pieces, so that it can end early: kernels of torch, cuBLAS, cuDNN and flash attention, in fp32 and bf16."""
    functional, nn = torch.nn.functional, torch.nn
    torch.manual_seed(0)
    half = {"device": "cuda", "dtype": torch.bfloat16}
    tokens = torch.randint(0, 5000, (16, 512), device="cuda")
    embedding = nn.Embedding(5000, 512, device="cuda")
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.1, **half)
    head = nn.Linear(512, 5000, **half)
    optimizer = torch.optim.AdamW([*layer.parameters(), *head.parameters()], lr=1e-3)
    x = torch.randn(16, 512, 512, **half)
    wide = torch.randn(4096, 4096, device="cuda")
    images = torch.randn(16, 64, 56, 56, **half)
    convolution, norm = nn.Conv2d(64, 128, 3, padding=1, **half), nn.BatchNorm2d(128, **half)

    def train() -> None:
        logits = head(layer(x))
        functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()

    return [
        lambda: functional.layer_norm(wide, (4096,)),
        lambda: wide.t().contiguous(),
        lambda: torch.softmax(wide, -1).sum(0),
        lambda: wide @ wide,
        lambda: (wide * 1.5 + 2.0).clamp_(min=0),
        lambda: functional.scaled_dot_product_attention(
            *(x.view(16, 512, 8, 64).transpose(1, 2),) * 3, is_causal=True
        ),
        train,
        optimizer.step,
        lambda: norm(convolution(images)).relu().amax((2, 3)),
        lambda: embedding(tokens).mean(1),
        lambda: torch.topk(wide, 8),
        lambda: torch.sort(wide[:256]),
    ]


def program(folder: Path, mode: str, *, seconds: float) -> None:
    """Warms up, then takes one step: recorded by torch.profiler, or between the marks that ncu waits for."""
    import torch

    from foretrace.capture.external import NvtxRange

    pieces = _pieces(torch)

    def step(until: float | None = None) -> int:
        for done, piece in enumerate(pieces):
            if until is not None and time.monotonic() > until:
                return done
            piece()
        return len(pieces)

    step(), step()
    torch.cuda.synchronize()
    if mode == "trace":
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            for _ in range(3):
                step()
                profiler.step()
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(folder / "trace.json"))
        return
    window = NvtxRange("ncu")
    window.open()
    torch.cuda.profiler.start()
    done = step(time.monotonic() + seconds)
    torch.cuda.profiler.stop()
    window.close()
    (folder / f"{mode}.pieces").write_text(str(done))


# --- recording -----------------------------------------------------------------------------------------------


def record(folder: Path) -> int:
    """Both recordings, and ncu's report as CSV; the exit code is 0 if both are there."""
    from foretrace.capture import external
    from foretrace.capture.external import WINDOW

    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    ncu = external.find("ncu")
    facts: dict[str, Any] = {"ncu": _version(ncu), "seconds": {}}
    log = (folder / "log.txt").open("a")

    def start(name: str, *command: str, stdout: Any = None, limit_s: float = 60) -> int:
        at = time.monotonic()
        print(f"--- {name}: {' '.join(command)}", file=log, flush=True)
        # In a session of its own: what is stopped must not go on behind our back, with the report half written.
        process = subprocess.Popen(command, stdout=stdout or log, stderr=log, start_new_session=True)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = 124
        facts["seconds"][name] = round(time.monotonic() - at, 1)
        print(f"{name}: exit code {code}, {facts['seconds'][name]} s", flush=True)
        return code

    def itself(mode: str) -> tuple[str, ...]:
        return (
            sys.executable,
            str(Path(__file__).resolve()),
            "program",
            str(folder),
            "--mode",
            mode,
            "--seconds",
            str(NCU_S),
        )

    start("trace", *itself("trace"))
    report, raw = folder / "kernels.ncu-rep", folder / "kernels.raw.csv"
    sections = [word for name in _SECTIONS for word in ("--section", name)]
    fixed = (ncu, "--clock-control", "none", *sections)
    windows = {
        "nvtx": ("--nvtx", "--nvtx-include", WINDOW),
        "profiler-start": ("--profile-from-start", "off"),
    }
    for name, window in windows.items():
        limits = ("--launch-count", str(NCU_LAUNCHES), "--force-overwrite", "--export", str(report))
        start(f"ncu {name}", *fixed, *window, *limits, *itself("ncu"), limit_s=50)
        facts["window"] = name
        if report.exists():
            break
    pages = {raw: ("raw", "base"), folder / "kernels.details.csv": ("details", "base")}
    for path, (page, units) in {**pages, folder / "kernels.scaled.csv": ("raw", "auto")}.items():
        with path.open("wb") as out:
            importing = (ncu, "--import", str(report), "--page", page, "--csv", "--print-units", units)
            start(path.name, *importing, stdout=out)
    if time.monotonic() - began < LIVE_BEFORE_S:
        with (folder / "live.csv").open("wb") as out:
            few = ("--launch-count", str(LIVE_LAUNCHES), "--csv", "--page", "raw")
            start("live", *fixed, *windows[facts["window"]], *few, *itself("live"), stdout=out, limit_s=40)
    for path in folder.glob("*.pieces"):
        facts[path.name] = int(path.read_text())
        path.unlink()
    facts["all_seconds"] = round(time.monotonic() - began, 1)
    (folder / "facts.json").write_text(json.dumps(facts, indent=1))
    print(json.dumps(facts))
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>12,} {path.name}")
    return 0 if (folder / "trace.json").exists() and raw.exists() and raw.stat().st_size > 1000 else 1


# --- judging -------------------------------------------------------------------------------------------------


def judge(folder: Path) -> int:
    """Prints what was found again; the exit code is 1 below the share that is asked for."""
    from foretrace.analyze.concepts.device.profiled_kernels import GEOMETRY, joined
    from foretrace.ingest import open_trace
    from foretrace.ingest.companions import counters_among
    from foretrace.ingest.recordings import find_recording
    from foretrace.units import shorten

    recorded = find_recording(folder / "trace.json", counters=[folder / "kernels.raw.csv"])
    trace = recorded.told(open_trace(recorded.path, cache=False))
    join = joined(trace)
    print(f"{'measured':>10}  {'calls':>5}  {'in the trace':>12}  kernel, grid and block")
    for row in join.profiled.sort("dur_ns", descending=True).iter_rows(named=True):
        sizes = (
            "x".join(str(row[name]) for name in GEOMETRY[:3])
            + " "
            + "x".join(str(row[name]) for name in GEOMETRY[3:])
        )
        found = f"{row['calls_count']} kernels" if row["calls_count"] else "NOT FOUND"
        print(
            f"{row['dur_ns'] / 1e3:>7.1f} us  {row['launches_count']:>5}  {found:>12}  {shorten(row['kernel'], 90)} {sizes}"
        )
    lost = join.profiled.filter(join.profiled["calls_count"].is_null())
    for name in lost["kernel"]:
        print(f"not found: {name}")
    matched, covered = join.matched_pct or 0.0, join.covered_pct or 0.0
    launches = trace.profile.height if trace.profile else 0
    print(
        f"{launches} launches of {join.profiled.height} kernels profiled: {matched:.2f} % of their {join.profiled_ns / 1e6:.3f} ms matched"
    )
    print(f"they are {covered:.2f} % of the trace's {join.kernel_ns / 1e6:.3f} ms of kernels")
    whole = find_recording(folder)
    print(
        f"the folder opens as {whole.path.name} with {', '.join(path.name for path in counters_among(whole.beside))}"
    )
    return 0 if matched >= LEAST_MATCHED_PCT else 1


def _version(ncu: str) -> str:
    told = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False).stdout
    return next((line for line in told.splitlines() if line.startswith("Version")), told.strip())


def main() -> int:
    """What is asked for; the exit code is 1 where it did not succeed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "judge", "program"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", choices=("trace", "ncu", "live"), default="trace", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=NCU_S, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.action == "program":
        program(args.folder, args.mode, seconds=args.seconds)
        return 0
    return record(args.folder) if args.action == "record" else judge(args.folder)


if __name__ == "__main__":
    raise SystemExit(main())
