"""Attention over widths and lengths: forward, backward, and the memory that is held between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretrace.bench import attention_math, precisions
from foretrace.bench.attention_math import Attention
from foretrace.bench.benchmark import Benchmark
from foretrace.bench.memory import MIB, allocated_bytes
from foretrace.bench.sweep import Case, Progress, Row, Trial, sweep
from foretrace.bench.timing import Timing

_TINY = 8


def attention(
    *,
    d_model: Sequence[int] = (16, 32, 64, 128),
    seq_len: Sequence[int] = (256, 1024, 4096, 8192, 16384),
    batch: Sequence[int] = (8,),
    impl: Sequence[str] = ("naive",),
    precision: Sequence[str] = ("fp32",),
    causal: bool = False,
    compile: bool = False,
    timing: Timing | None = None,
    progress: Progress | None = None,
) -> Benchmark:
    """Times attention with one head: the forward pass, the backward pass alone, and the memory held before it."""
    precisions.check(tuple(precision))
    attention_math.check(tuple(impl))
    cases = [
        {"impl": name, "precision": kind, "batch": rows, "d_model": width, "seq_len": length, "causal": causal, "compile": compile}
        for name in impl
        for kind in precision
        for rows in batch
        for width in d_model
        for length in seq_len
    ]  # fmt: skip
    return sweep("attention", run_case, cases, timing or Timing(), progress=progress, finish=finish)


def finish(rows: Sequence[Row]) -> list[str]:
    """Adds how much longer a pass takes than in the first precision, where there are several."""
    first = rows[0]["precision"]
    others = [row for row in rows if row["precision"] != first]
    known = {_place(row): row for row in rows if row["precision"] == first}
    for row in others:
        for way in ("fwd", "bwd"):
            before, after = known[_place(row)].get(f"{way}_ms"), row.get(f"{way}_ms")
            row[f"{way}_delta_pct"] = 100 * (after / before - 1) if before and after else None
    return [f"fwd_delta_pct, bwd_delta_pct: against {first}, of the same shape."] if others else []


def _place(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("impl", "batch", "d_model", "seq_len"))


def run_case(case: Case, trial: Trial) -> None:
    """One implementation, width and length. What is known before memory runs out stays in the row."""
    import torch

    precision, device = case["precision"], trial.device
    precisions.require(device, precision)
    trial.row |= dict.fromkeys(("fwd_ms", "bwd_ms", "mem_before_bwd_MiB"))
    _expect_memory(case, trial, fixed_bytes(device))
    head = () if case["impl"] == "naive" else (1,)  # fused kernels want one
    shape = (case["batch"], *head, case["seq_len"], case["d_model"])
    dtype = precisions.dtype_of(precision)
    q, k, v = (torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(3))
    for tensor in (q, k, v):
        tensor.grad = torch.zeros_like(tensor)
    upstream = torch.randn(shape, dtype=dtype, device=device)
    attend = attention_math.attention_by(
        case["impl"], causal=case["causal"], length=case["seq_len"], device=device
    )
    if case["compile"]:
        attend = compiled(attend)
    with precisions.products_in(precision):
        forward = trial.time(lambda: attend(q, k, v))
        trial.row |= {**forward.columns(), "fwd_ms": forward.median_ms.point}
        out = attend(q, k, v)
        held = allocated_bytes(device)
        trial.row["mem_before_bwd_MiB"] = None if held is None else held / MIB
        backward = trial.time(
            lambda: torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True),
        )
    trial.row |= backward.columns("bwd_")


def compiled(function: Attention) -> Attention:
    """Under torch.compile, in a way that the graph can be kept for many backward passes."""
    import torch
    import torch._functorch.config as functorch

    torch.compiler.reset()
    if hasattr(functorch, "donated_buffer"):  # older ones keep their buffers anyway
        functorch.donated_buffer = False
    made: Attention = torch.compile(function, dynamic=False)
    return made


def fixed_bytes(device: Any) -> int | None:
    """What is held before any tensor of the case: the workspaces that cuBLAS keeps, one for each thread that multiplies.

    The forward pass runs in one thread and the backward pass in another: a small one of each makes sure that both are there.
    """
    if device.type != "cuda":
        return None
    import torch

    tiny = [torch.randn(1, _TINY, _TINY, device=device, requires_grad=True) for _ in range(3)]
    attend = attention_math.attention_by("naive", causal=False, length=_TINY, device=device)
    attend(*tiny).sum().backward()
    del tiny
    torch.cuda.synchronize(device)
    return allocated_bytes(device)


def _expect_memory(case: Case, trial: Trial, fixed: int | None) -> None:
    """Where attention is written out, what is held can be told beforehand."""
    if case["impl"] != "naive" or case["compile"]:
        return
    expected = attention_math.naive_bytes(
        batch=case["batch"],
        length=case["seq_len"],
        width=case["d_model"],
        element_bytes=precisions.ELEMENT_BYTES[case["precision"]],
        causal=case["causal"],
    )
    trial.row["formula_MiB"] = (expected + (fixed or 0)) / MIB
    trial.row["fixed_MiB"] = None if fixed is None else fixed / MIB
