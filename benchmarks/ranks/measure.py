"""Prints how well `foretrace ranks` sees what was planted in synthetic jobs, and what it costs.

python benchmarks/ranks/measure.py accuracy --ranks 16 64 256
python benchmarks/ranks/measure.py cost --ranks 256 --size-mb 5
python benchmarks/ranks/measure.py worker --size-mb 129
python benchmarks/ranks/measure.py tiled --ranks 10240
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.ranks.layouts import three_d  # noqa: E402
from benchmarks.ranks.recordings import Style, recording, write  # noqa: E402
from benchmarks.ranks.simulate import Fault, Job, simulate  # noqa: E402
from benchmarks.ranks.tiles import tiled  # noqa: E402
from benchmarks.ranks.truth import clock_errors_us, wait_errors  # noqa: E402
from foretrace.ranks.job import read_job  # noqa: E402
from foretrace.ranks.reduce import reduce  # noqa: E402
from foretrace.ranks.summarise import summarise  # noqa: E402
from foretrace.ranks.summary import Summary  # noqa: E402


def job_of(ranks: int, *, faults: bool = True, **options: object) -> Job:
    """Tensor 4, pipeline 4, the rest data parallel; a slow rank, node and stage, and late input."""
    planted: tuple[Fault, ...] = (
        Fault("slow-rank", 5 * ranks // 8 + 1, 1.3),
        Fault("slow-node", 1, 3.0),
        Fault("slow-stage", 3, 1.15),
        Fault("late-input", 2, late_us=40_000, steps=(2, 4)),
    )
    settings = {
        "tensor": 4,
        "pipeline": 4 if ranks > 16 else 2,
        "data": max(ranks // (16 if ranks > 16 else 8), 1),
        **options,
    }
    if ranks <= 16:
        planted = (
            planted[0],
            replace(planted[2], who=1),
            planted[3],
        )  # with two nodes every link touches both
    return three_d(**settings, faults=planted if faults else ())  # type: ignore[arg-type]


def accuracy(sizes: Sequence[int]) -> None:
    """Clocks, waits, last arrivers, findings and worths beside the truth."""
    for ranks in sizes:
        for faults in (True, False):
            job = job_of(ranks, faults=faults, layer_us=3_000.0)
            with tempfile.TemporaryDirectory() as folder:
                simulated = simulate(job)
                write(simulated, Path(folder))
                found = read_job([folder], ranks_per_node=job.per_node)
            clock = float(np.abs(clock_errors_us(simulated, found)).max())
            errors = wait_errors(simulated, found)
            wait = float(np.percentile(np.abs(errors.wait_us), 99))
            print(
                f"{ranks} ranks, {'planted' if faults else 'healthy'}: clock error max {clock:.2f} us, wait error p99 {wait:.2f} us, "
                f"last arriver right {100 * errors.last_right.mean():.3f} % of {len(errors.last_right)}"
            )
            told = {
                (finding.what, finding.who.split()[-1]): finding.worth_ns / 1e3 for finding in found.findings
            }
            for fault in job.faults:
                true_us = simulated.step_us - simulate(job.without(fault)).step_us
                worth = told.pop((fault.what, str(fault.who)), None)
                off = (
                    "not named"
                    if worth is None
                    else f"{100 * abs(worth - true_us) / simulated.step_us:.3f} % of the step off"
                )
                print(f"  {fault.what} {fault.who}: truly {true_us:.1f} us a step, {off}")
            print(f"  others named: {sorted(told) or 'none'}")


def _kernels(ranks: int, size_mb: float) -> int:
    """Kernels of a layer with which a rank's recording is at least this large, within a hundredth."""
    count, size = 4, 0
    while size < size_mb * 1e6:
        simulated = simulate(job_of(ranks, faults=False, kernels=count))
        size = len(recording(simulated, simulated.ranks[0], Style()))
        reached = count
        count = math.ceil(count * max(size_mb * 1e6 / size, 1.005))
    return reached


def cost(ranks: int, size_mb: float, on: str) -> None:
    """Wall and CPU time of all recordings, and of the reduce alone."""
    folder = Path(tempfile.mkdtemp())
    try:
        write(simulate(job_of(ranks, faults=False, kernels=_kernels(ranks, size_mb))), folder)
        sizes = [file.stat().st_size for file in folder.iterdir()]
        before, began = os.times(), time.perf_counter()
        kept = folder / "kept"
        read_job([folder], on=on, ranks_per_node=8, out=kept)
        after, wall = os.times(), time.perf_counter() - began
        cpu = sum(
            getattr(after, name) - getattr(before, name)
            for name in ("user", "system", "children_user", "children_system")
        )
        summaries = [Summary.from_bytes(file.read_bytes()) for file in sorted(kept.iterdir())]
        began_cpu = time.process_time()
        reduce(summaries, ranks_per_node=8)
        print(
            f"{ranks} recordings of {np.mean(sizes) / 1e6:.1f} MB on {on}: {wall:.1f} s wall, {cpu:.1f} s CPU; reduce "
            f"{time.process_time() - began_cpu:.2f} s CPU; summaries {np.mean([f.stat().st_size for f in kept.iterdir()]) / 1e3:.1f} kB; "
            f"load average {os.getloadavg()[0]:.1f}"
        )
    finally:
        shutil.rmtree(folder)


def worker(size_mb: float) -> None:
    """Largest memory of a process that summarises one large recording."""
    with tempfile.TemporaryDirectory() as folder:
        simulated = simulate(job_of(16, faults=False, kernels=_kernels(16, size_mb)))
        path = Path(folder) / "rank0.json"
        path.write_text(recording(simulated, simulated.ranks[0], Style()))
        code = (
            "import sys, time; from foretrace.ranks import summarise; t = time.process_time();"
            "size = len(summarise(sys.argv[1]).to_bytes());"
            "high = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1];"
            "print(size, time.process_time() - t, high)"
        )
        environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        summary, cpu, memory = map(float, done.stdout.split())
        print(
            f"{path.stat().st_size / 1e6:.0f} MB: summary {summary / 1e3:.1f} kB, {cpu:.2f} s CPU, {memory / 1024:.0f} MiB at most"
        )


def many(ranks: int) -> None:
    """The summaries of 256 ranks, again and again with other numbers, reduced."""
    with tempfile.TemporaryDirectory() as folder:
        write(simulate(job_of(256)), Path(folder))
        tile = [summarise(path) for path in sorted(Path(folder).iterdir())]
    summaries = tiled(tile, ranks)
    began, wall = time.process_time(), time.perf_counter()
    found = reduce(summaries, ranks_per_node=8)
    print(
        f"{len(summaries)} ranks, {len(found.job.member)} rows: {time.process_time() - began:.1f} s CPU, "
        f"{time.perf_counter() - wall:.1f} s wall, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most, "
        f"{len(found.findings)} findings; load average {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    """One of the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("accuracy", "cost", "worker", "tiled"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[64])
    parser.add_argument("--size-mb", type=float, default=5.0)
    parser.add_argument("--on", default="local")
    args = parser.parse_args()
    if args.what == "accuracy":
        accuracy(args.ranks)
    elif args.what == "cost":
        cost(args.ranks[0], args.size_mb, args.on)
    elif args.what == "worker":
        worker(args.size_mb)
    else:
        many(args.ranks[0])


if __name__ == "__main__":
    main()
