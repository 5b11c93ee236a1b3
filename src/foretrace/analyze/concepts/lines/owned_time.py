"""Whose time a tick is: that of the thread that takes the steps, or, where it only waits, of those that work meanwhile."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from foretrace.analyze.concepts.lines import phases
from foretrace.line_samples import LineSamples

Processes = Literal["program", "workers"]
PYTHON, OPERATOR, WAIT = "Python", "operator", "wait"
_LEAST_USE = (
    0.1  # of the processor time that all threads used since the tick before: less, and a thread did not work
)
_MOST_NS = 1_000_000_000  # of one tick: a machine that slept was not at work for that long


def owned(lines: LineSamples, processes: Processes) -> pl.DataFrame:
    """Samples with the time that is theirs: `process`, `t_ns`, `stack_id`, `user_id`, `phase`, `kind`, `time_ns`.

    The times of a process sum to what it was sampled for.
    """
    chosen = lines.processes.filter(pl.col("recorded") if processes == "program" else ~pl.col("recorded"))
    tables = [_of_process(lines, row) for row in chosen.iter_rows(named=True)]
    return (
        pl.concat(tables) if tables else _of_process(lines, {"process": -1, "began_ns": 0, "recorded": False})
    )


def _of_process(lines: LineSamples, process: dict[str, int]) -> pl.DataFrame:
    pid = process["process"]
    stepping = lines.thread if process["recorded"] and lines.thread is not None else pid
    samples = lines.samples.filter(pl.col("process") == pid).sort("t_ns", maintain_order=True)
    samples = samples.with_columns(tick=pl.col("t_ns").rle_id(), steps=pl.col("thread") == stepping)
    # A thread that waits for the interpreter's lock is often ready to run on a busy machine, and uses no processor time.
    used_ns = pl.col("cpu_ns").fill_null(0)
    idle = used_ns < _LEAST_USE * used_ns.sum().over("tick")
    samples = samples.with_columns(works=~pl.col("waits") & (pl.col("holds_gil") | ~idle))
    samples = samples.with_columns(helps=~pl.col("steps") & pl.col("works"))
    samples = samples.with_columns(
        helpers=pl.col("helps").sum().over("tick"),
        led=(pl.col("steps") & pl.col("works")).any().over("tick"),
        present=pl.col("steps").any().over("tick"),
        place=pl.int_range(pl.len()).over("tick"),
    )
    others = (pl.col("helpers") > 0) & ~pl.col("led")
    owns = pl.when(others).then("helps").when("present").then("steps").otherwise(pl.col("place") == 0)
    samples = samples.filter(owns).join(
        phases.of_stacks(lines), on="stack_id", how="left", maintain_order="left"
    )
    t_ns = samples["t_ns"].to_numpy()
    weights = _weights(t_ns, process["began_ns"], lines.profiled_ns)
    return samples.select(
        "process",
        "t_ns",
        "stack_id",
        "user_id",
        phase=phases.of_ticks(lines, t_ns, samples["marked"]),
        kind=pl.when("waits")
        .then(pl.lit(WAIT))
        .when("holds_gil")
        .then(pl.lit(PYTHON))
        .otherwise(pl.lit(OPERATOR)),
        time_ns=pl.Series(weights, dtype=pl.Float64) / pl.len().over("tick"),
    )


def _weights(
    t_ns: np.ndarray[tuple[int], np.dtype[np.int64]], began_ns: int, windows: tuple[tuple[int, int], ...]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The time since the tick before, without what lies in a window that the tick itself is not in."""
    ticks, of_row = np.unique(t_ns, return_inverse=True)
    before = np.concatenate(([began_ns], ticks[:-1])) if len(ticks) else ticks
    for begin, end in windows:
        before = np.where((ticks > end) & (before < end), end, before)
        before = np.where((ticks > begin) & (ticks <= end) & (before < begin), begin, before)
    weights: np.ndarray[tuple[int], np.dtype[np.int64]] = np.clip(ticks - before, 0, _MOST_NS)[of_row]
    return weights
