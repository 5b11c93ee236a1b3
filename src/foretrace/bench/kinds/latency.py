"""Latency over batch sizes: percentiles of a forward pass, and whether it grows more slowly than the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from foretrace.bench import attention_math, precisions, training
from foretrace.bench.benchmark import OK, Benchmark
from foretrace.bench.sweep import Case, Progress, Row, Trial, sweep
from foretrace.bench.timing import Timing
from foretrace.bench.transformer_sizes import size_of
from foretrace.sourced import JUDGEMENT, Count, Share

LEAST_SAMPLES = Count(100, "calls, at least: of fewer, no 99th percentile can be told", JUDGEMENT)
_FULL = Share(0.9, "the growth of the batch, from which latency grows as fast as it", JUDGEMENT)


def latency(
    *,
    batch: Sequence[int] = (1, 2, 4, 8, 16, 32),
    size: str = "small",
    ctx: int = 128,
    precision: str = "fp32",
    attention: str = "sdpa",
    compile: bool = False,
    timing: Timing | None = None,
    progress: Progress | None = None,
) -> Benchmark:
    """Times a forward pass for inference, one call at a time, over batch sizes: p50, p90, p99, items a second, growth."""
    precisions.check((precision,))
    attention_math.check((attention,))
    size_of(size)
    timing = timing or Timing(how="single")
    timing = replace(timing, least_samples=max(timing.least_samples, int(LEAST_SAMPLES)))
    shared = {"size": size, "ctx": ctx, "precision": precision, "attention": attention, "compile": compile}
    cases = [{"batch": rows, **shared} for rows in sorted(batch)]
    return sweep("latency", run_case, cases, timing, progress=progress, finish=finish)


def run_case(case: Case, trial: Trial) -> None:
    """One batch size."""
    import torch

    precisions.require(trial.device, case["precision"])
    model, ids = training.build(case, trial.device)
    if case["compile"]:
        torch.compiler.reset()
        model.compile(dynamic=False)
    given = ids[:, :-1].contiguous()

    def forward() -> object:
        with torch.inference_mode(), training.autocast(case["precision"], trial.device):
            return model(given)

    with precisions.products_in(case["precision"]):
        measured, peak = trial.time_and_peak(forward)
    trial.row |= {
        **{f"p{percent}_ms": measured.percentile_ms(percent) for percent in (50, 90, 99)},
        **measured.columns(),
        "items_per_s": case["batch"] / (measured.median_ms.point / 1e3),
        "peak_alloc_MiB": peak["peak_alloc_MiB"],
    }


def finish(rows: Sequence[Row]) -> list[str]:
    """Adds how much longer each batch takes than the one before; says up to where a larger one pays."""
    timed = [row for row in rows if row["status"] == OK]
    for before, row in pairwise(timed):
        row["growth"] = row["p50_ms"] / before["p50_ms"]
        row["batch_growth"] = row["batch"] / before["batch"]
        row["sublinear"] = row["growth"] < _FULL * row["batch_growth"]
    grown = [row for row in timed if "sublinear" in row]
    if not grown:
        return []
    full = next((row for row in grown if not row["sublinear"]), None)
    if full is None:
        return [
            f"Latency grows more slowly than the batch up to {timed[-1]['batch']}: the device is not full yet."
        ]
    return [
        f"At batch {full['batch']} latency grows {full['growth']:.2f} times where the batch grows {full['batch_growth']:g} times: "
        "from there a larger batch adds little throughput."
    ]
