"""A transformer: the time, memory and model FLOPs utilisation of a forward pass or a step of training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from foretrace.bench import attention_math, precisions, training
from foretrace.bench.benchmark import Benchmark
from foretrace.bench.sweep import Case, Progress, Trial, sweep
from foretrace.bench.timing import Timing
from foretrace.bench.transformer_sizes import size_of


def transformer(
    *,
    size: Sequence[str] = ("small",),
    ctx: Sequence[int] = (256,),
    batch: Sequence[int] = (4,),
    mode: Sequence[str] = ("fwd", "fwd_bwd", "train"),
    precision: Sequence[str] = ("fp32",),
    attention: Sequence[str] = ("sdpa",),
    compile: bool = False,
    timing: Timing | None = None,
    progress: Progress | None = None,
) -> Benchmark:
    """Times a decoder-only transformer with 10,000 tokens: mean and deviation, tokens a second, peak memory, MFU."""
    precisions.check(tuple(precision))
    attention_math.check(tuple(attention))
    training.check_modes(tuple(mode))
    for text in size:
        size_of(text)
    names = ("size", "ctx", "batch", "mode", "precision", "attention")
    cases = [
        {**dict(zip(names, values, strict=True)), "compile": compile}
        for values in product(size, ctx, batch, mode, precision, attention)
    ]
    return sweep("transformer", run_case, cases, timing or Timing(), progress=progress)


def run_case(case: Case, trial: Trial) -> None:
    """One size and mode."""
    precisions.require(trial.device, case["precision"])
    model, ids = training.build(case, trial.device)
    step = training.step_of(case, model, ids, trial.device)
    with precisions.products_in(case["precision"]):
        measured, peak = trial.time_and_peak(step)
    seconds = measured.median_ms.point / 1e3
    roof = precisions.peak_flops(trial.device, case["precision"])
    trial.row |= {
        **measured.columns(),
        "tokens_per_s": case["batch"] * case["ctx"] / seconds,
        **peak,
        "mfu_pct": 100 * training.flops(case) / seconds / roof if roof else None,
    }
