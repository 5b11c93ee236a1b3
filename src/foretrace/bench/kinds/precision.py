"""Precisions beside each other: how sums lose digits, how far a step is from fp64 and how fast it is, what autocast casts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from foretrace.bench import precisions, training
from foretrace.bench.against import against
from foretrace.bench.benchmark import OK, Benchmark
from foretrace.bench.sweep import Case, Progress, Row, Trial, sweep
from foretrace.bench.timing import Timing
from foretrace.bench.transformer_sizes import size_of
from foretrace.sourced import JUDGEMENT, Factor

ADDEND, TIMES = 0.01, 1000
# The type of the sum, that of what is added, and whether that is cast to fp32 first.
SUMS = {
    "fp32 += fp32": ("float32", "float32", False),
    "fp16 += fp16": ("float16", "float16", False),
    "fp32 += fp16": ("float32", "float16", False),
    "fp32 += fp16 cast to fp32": ("float32", "float16", True),
    "bf16 += bf16": ("bfloat16", "bfloat16", False),
}
_SCALE = Factor(
    1024, "the loss before the backward pass in fp16, so that small gradients are not 0", JUDGEMENT
)
_PARTS = ("accumulation", "autocast", "step")


def precision(
    *,
    precision: Sequence[str] | None = None,
    size: str = "small",
    ctx: int = 256,
    batch: int = 4,
    attention: str = "sdpa",
    timing: Timing | None = None,
    progress: Progress | None = None,
) -> Benchmark:
    """Sums 0.01 a thousand times, says what autocast casts, and times a training step beside its distance from fp64."""
    timing = timing or Timing()
    size_of(size)
    names = precisions.chosen(precision, timing.device)
    sums: list[Case] = [{"part": "accumulation", "sum": how} for how in SUMS]
    casts: list[Case] = [
        {"part": "autocast", "precision": name} for name in names if name in ("bf16", "fp16")
    ]
    shared = {
        "size": size,
        "ctx": ctx,
        "batch": batch,
        "mode": "train",
        "attention": attention,
        "compile": False,
    }
    steps: list[Case] = [{"part": "step", "precision": name, **shared} for name in names]
    return sweep("precision", run_case, [*sums, *casts, *steps], timing, progress=progress, finish=finish)


def run_case(case: Case, trial: Trial) -> None:
    """One sum, one table of casts, or one training step."""
    if case["part"] == "accumulation":
        trial.row |= accumulated(case["sum"], trial.device)
    elif case["part"] == "autocast":
        trial.row |= cast_types(case["precision"], trial.device)
    else:
        _run_step(case, trial)


def accumulated(how: str, device: Any) -> Row:
    """What a thousand additions of 0.01 come to; 10 would be right."""
    import torch

    kept, added, cast = SUMS[how]
    total = torch.tensor(0, dtype=getattr(torch, kept), device=device)
    for _ in range(TIMES):
        addend = torch.tensor(ADDEND, dtype=getattr(torch, added), device=device)
        total += addend.type(torch.float32) if cast else addend
    value = float(total)
    return {"value": value, "error": value - ADDEND * TIMES}


def cast_types(name: str, device: Any) -> Row:
    """The types that tensors of a small model have under autocast."""
    import torch
    from torch import nn

    model = nn.ModuleDict({"fc1": nn.Linear(32, 64), "ln": nn.LayerNorm(64), "fc2": nn.Linear(64, 8)}).to(
        device
    )
    with training.autocast(name, device):
        hidden = model["fc1"](torch.randn(4, 32, device=device))
        normed = model["ln"](torch.relu(hidden))
        logits = model["fc2"](normed)
        loss = nn.functional.cross_entropy(logits, torch.zeros(4, dtype=torch.long, device=device))
    loss.backward()
    weight = model["fc1"].weight
    tensors = {
        "param": weight,
        "fc1": hidden,
        "ln": normed,
        "logits": logits,
        "loss": loss,
        "grad": weight.grad,
    }
    return {key: str(tensor.dtype).removeprefix("torch.") for key, tensor in tensors.items()}


def _run_step(case: Case, trial: Trial) -> None:
    precisions.require(trial.device, case["precision"])
    model, ids = training.build(case, trial.device)
    with precisions.products_in(case["precision"]):
        trial.row |= _distance_from_fp64(case, model, ids, trial.device)
        step = training.step_of(case, model, ids, trial.device)
        measured, peak = trial.time_and_peak(step)
    tokens = case["batch"] * case["ctx"]
    trial.row |= {
        **measured.columns(),
        "tokens_per_s": tokens / (measured.median_ms.point / 1e3),
        **peak,
    }


def _distance_from_fp64(case: Case, model: Any, ids: Any, device: Any) -> Row:
    """Loss and gradients of the same weights and tokens, against those in fp64."""
    import torch

    exact = copy.deepcopy(model).double()
    exact_loss = training.loss_of(exact, ids)
    exact_loss.backward()
    scale = float(_SCALE) if case["precision"] == "fp16" else 1.0
    with training.autocast(case["precision"], device):
        loss = training.loss_of(model, ids)
    (loss * scale).backward()
    off, whole = torch.zeros(2, dtype=torch.float64, device=device)
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        off += (ours.grad.double() / scale - theirs.grad).pow(2).sum()
        whole += theirs.grad.pow(2).sum()
    model.zero_grad(set_to_none=True)
    return {
        "loss": float(loss),
        "loss_error": abs(float(loss) / float(exact_loss) - 1),
        "grad_error": float((off / whole).sqrt()),
    }


def finish(rows: Sequence[Row]) -> list[str]:
    """Compares every step with that in fp32."""
    steps = [row for row in rows if row["part"] == "step" and row["status"] == OK]
    plain = next((row for row in steps if row["precision"] == "fp32"), None)
    if plain is None:
        return []
    for row in steps:
        if row is not plain:
            row |= against(plain, row)
    return [
        "loss_error and grad_error: distance of loss and gradients from those in fp64, as a share; speedup: against fp32."
    ]
