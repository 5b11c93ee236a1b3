"""Honest timings of functions, and of the usual suspects: matrix products, attention, a transformer, collectives.

    from foretrace import bench

    bench.time(lambda: a @ b)                        # a Measurement: its median, the interval of that, all samples
    bench.matmul(shape=["4096x4096x4096"])           # a Benchmark: one row per case

Nothing here imports torch before something is timed.
"""

from __future__ import annotations

from collections.abc import Callable

from foretrace.bench.benchmark import Benchmark
from foretrace.bench.kinds.attention import attention
from foretrace.bench.kinds.collectives import collectives
from foretrace.bench.kinds.functions import functions
from foretrace.bench.kinds.latency import latency
from foretrace.bench.kinds.matmul import matmul
from foretrace.bench.kinds.precision import precision
from foretrace.bench.kinds.transformer import transformer
from foretrace.bench.measurement import Measurement
from foretrace.bench.timing import Timing

__all__ = [
    "Benchmark", "Measurement", "Timing", "attention", "collectives", "functions", "latency", "matmul", "precision", "time",
    "transformer",
]  # fmt: skip


def time(function: Callable[[], object], timing: Timing | None = None) -> Measurement:
    """Samples of one function, after a warm-up, until its median is known; what it raises comes through."""
    from foretrace.bench.sweep import Trial

    return Trial(timing or Timing()).time(function)
