"""Collectives over sizes and ranks: how long each takes, and the bandwidth that this makes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from foretrace.bench.benchmark import ERROR, OK, TIMEOUT, Benchmark
from foretrace.bench.sweep import Case, Progress, Row, child_environment, collect, death, import_torch
from foretrace.bench.timing import Timing
from foretrace.errors import UsageError, unknown

# What every link must carry, as a share of the data, for n ranks; after nccl-tests, doc/PERFORMANCE.md
BUS_SHARES: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}
BACKENDS = ("gloo", "nccl")
_POLL_S = 0.05
_WORLD_S = 600.0  # for one number of ranks, unless each case has a limit of its own


def collectives(
    *,
    op: Sequence[str] = ("all_reduce",),
    mib: Sequence[float] = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0),
    ranks: Sequence[int] = (2,),
    backend: str = "auto",
    timing: Timing | None = None,
    progress: Progress | None = None,
) -> Benchmark:
    """Times collectives of fp32 tensors between processes of this machine: ms, algorithm and bus bandwidth."""
    torch = import_torch()
    timing = timing or Timing()
    for name in op:
        if name not in BUS_SHARES:
            raise unknown(f"no collective {name!r}", name, BUS_SHARES)
    if backend == "auto":
        backend = "nccl" if timing.device != "cpu" and torch.cuda.device_count() >= max(ranks) else "gloo"
    if backend not in BACKENDS:
        raise unknown(f"no backend {backend!r}", backend, (*BACKENDS, "auto"))
    if min(ranks) < 1 or min(mib) <= 0:
        raise UsageError("ranks and sizes are above 0")
    if backend == "gloo":
        timing = replace(timing, device="cpu")  # that is where its tensors are
    cases = [
        {"backend": backend, "ranks": count, "op": name, "MiB": float(size)}
        for count in ranks
        for name in op
        for size in mib
    ]
    return collect("collectives", lambda asked: _worlds(asked, timing), cases, timing, progress=progress)


def _worlds(cases: Sequence[Case], timing: Timing) -> Iterator[Row]:
    """The rows; processes are started once for each number of ranks."""
    for _, alike in groupby(cases, key=lambda case: case["ranks"]):
        yield from _world(list(alike), timing)


def _world(cases: list[Case], timing: Timing) -> Iterator[Row]:
    import torch

    ranks, backend = cases[0]["ranks"], cases[0]["backend"]
    if backend == "nccl" and torch.cuda.device_count() < ranks:
        reason = f"nccl needs a GPU for each of {ranks} ranks; there are {torch.cuda.device_count()}"
        yield from ({**case, "status": ERROR, "reason": reason} for case in cases)
        return
    with tempfile.TemporaryDirectory(prefix="foretrace-ranks-") as folder:
        asked, answers = Path(folder, "cases.json"), Path(folder, "rows.jsonl")
        asked.write_text(json.dumps({"cases": cases, "timing": timing.to_dict()}), encoding="utf-8")
        processes = [_start(rank, folder) for rank in range(ranks)]
        given = 0
        try:
            for row in _answers(answers, processes, timing, len(cases)):
                given += 1
                yield row
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for case in cases[given:]:
            yield {**case, **_failure(processes, Path(folder))}


def _start(rank: int, folder: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "foretrace.bench.rank", folder, str(rank)]
    with open(Path(folder, f"stderr-{rank}"), "wb") as errors:
        return subprocess.Popen(command, env=child_environment(), stdout=subprocess.DEVNULL, stderr=errors)


def _answers(
    answers: Path, processes: Sequence[subprocess.Popen[bytes]], timing: Timing, count: int
) -> Iterator[Row]:
    """Rows as rank 0 writes them, until all are there, a rank fails, or time is up."""
    given, began_s = 0, time.monotonic()
    limit_s = _WORLD_S if timing.timeout_s is None else timing.timeout_s
    while given < count and time.monotonic() - began_s < limit_s:
        failed = any(process.poll() for process in processes)
        text = answers.read_text(encoding="utf-8") if answers.exists() else ""
        lines = text.split("\n")[:-1]  # the last one is not whole yet
        for line in lines[given:]:
            yield json.loads(line)
            if timing.timeout_s is not None:
                began_s = time.monotonic()
        given = len(lines)
        if failed:
            return
        time.sleep(_POLL_S)


def _failure(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> Row:
    for rank, process in enumerate(processes):
        if process.returncode not in (0, -signal.SIGKILL):
            said = Path(folder, f"stderr-{rank}").read_bytes()
            return {"status": ERROR, "reason": f"rank {rank}: {death(process.returncode, said)}"}
    return {"status": TIMEOUT, "reason": "no answer from the ranks in time"}


def with_bandwidth(row: Row) -> Row:
    """The row with its bandwidths: bytes a second of the tensor, and what a link carries for that."""
    if row["status"] != OK:
        return row
    rate = row["MiB"] * 2**20 / (row["median_ms"] / 1e3)
    return {**row, "algbw_GBps": rate / 1e9, "busbw_GBps": rate / 1e9 * BUS_SHARES[row["op"]](row["ranks"])}
