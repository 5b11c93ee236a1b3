"""Fusion: kernels that follow one another made into one, and how long that one takes.

Kernels whose operators have a model and recorded shapes are fused by what they move and compute; of others only
their durations are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device.device_roles import ROLES, classified
from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.concepts.work.work_models.call import parse
from foretrace.hardware import Device
from foretrace.predict.costs import compiled
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Tasks
from foretrace.predict.program import BLOCKING_COPY, SYNC, Program
from foretrace.predict.tasks import device_of, task_table
from foretrace.trace import Trace

FAMILIES = ("elementwise", "copy", "dropout", "reduction", "norm", "softmax")
REDUCING = [ROLES.index(role) for role in ("reduction", "norm", "softmax")]


@dataclass(frozen=True)
class Traffic:
    """What one operator reads and writes; `reads` are its operands of full size."""

    count: int
    reads: tuple[int, ...]
    rest: int
    writes: int
    rearranges: bool  # a copy of the same type is made because its result must lie in memory
    short_rows: bool = False  # a layer norm of rows that one block would take several of


class Link(NamedTuple):
    """One task of a chain."""

    task: int
    span: int
    op_id: int
    op: str
    dur_ns: int
    reduces: bool
    traffic: Traffic
    stores: bool = False  # the program itself copies into a tensor that it keeps


class Fused(NamedTuple):
    """A run of tasks that becomes one kernel."""

    tasks: list[int]
    dur_ns: int
    modelled: bool  # by what its operators move and compute, rather than by its longest kernel


@lru_cache(maxsize=16384)
def traffic(op: str, shapes: str | None, dtypes: str | None, strides: str | None) -> Traffic | None:
    """What an operator moves; None where it has no model or its shapes were not recorded."""
    work = work_models.work(op, shapes, dtypes, strides, None, None)
    if work is None or shapes is None:
        return None
    call = parse(op, shapes, dtypes, strides, None, None)
    operands = call.all_tensors
    count = max((tensor.count for tensor in operands), default=0)
    copies = op == "aten::copy_"
    rearranges = copies and operands[0].dtype == operands[-1].dtype
    operands = operands[1:] if copies else operands
    reads = tuple(tensor.bytes for tensor in operands if tensor.count == count)
    read_bytes = sum(tensor.bytes for tensor in operands)
    writes = max(work.bytes - read_bytes, 0)
    short = op == "aten::native_layer_norm" and call.all_tensors[-1].count <= compiled.SHORT_ROW
    return Traffic(count, reads, read_bytes - sum(reads), writes, rearranges, short) if count else None


def fused_ns(device: Device, links: list[Link]) -> int:
    """How long one kernel in place of the chain takes."""
    # A batch norm reads everything before it writes any: it keeps all its kernels.
    whole = sum(link.dur_ns for link in links if "batch_norm" in link.op)
    slowest = max((link.dur_ns for link in links if link.reduces and not link.traffic.short_rows), default=0)
    # One operator with several kernels counts once.
    operators = [next(kernels) for _, kernels in groupby(links, key=lambda link: link.op_id)]
    return compiled.kernel_ns(
        device,
        moved_bytes=_moved_bytes(operators),
        instruction_count=sum(link.traffic.count * compiled.instructions(link.op) for link in operators),
        at_least_ns=max(whole, slowest),
    )


def _moved_bytes(operators: list[Link]) -> float:
    """What one kernel in their place reads and writes."""
    moved, result = 0.0, 0  # the result is written once, at the end
    fresh = True  # what comes next does not take the result of what came before
    for link in operators:
        moves = link.traffic
        # The first operand comes from the operator before; where the others come from is not known.
        moved += sum(moves.reads) if fresh else compiled.UNKNOWN_OPERAND * sum(moves.reads[1:])
        if not fresh and link.op.endswith("_") and link.op != "aten::copy_":
            # Changed in place: the chain's own tensor, or one that lives on.
            moved += compiled.UNKNOWN_OPERAND * (sum(moves.reads[:1]) + moves.writes)
        written = moves.rearranges or link.stores
        moved += moves.rest + (moves.writes if written else 0)
        result, fresh = 0 if written else moves.writes, link.stores
    return moved + result


def edit(fused: Iterable[Fused]) -> Edit:
    """The last task of each run stands for the fused kernel."""
    runs = list(fused)
    kept = {run.tasks[-1]: run.dur_ns for run in runs}
    replaced = Tasks(np.array([task for run in runs for task in run.tasks[:-1]], np.int64))
    return Edit(
        removed_tasks=replaced,
        durations_ns=kept,
        modelled=frozenset(kept),
        fused={run.tasks[-1]: tuple(run.tasks) for run in runs},
    )


def fused_runs(trace: Trace, program: Program, chosen: NDArray[np.int64]) -> list[Fused]:
    """The chosen tasks that follow one another on a stream, within one step and with no wait between, as one kernel each.

    By the model of `fused_ns` where every operator has one and all work on equally many elements, else as long as
    the longest of the run; never longer than the run itself.
    """
    device = device_of(trace)
    links = {link.task: link for link in _links(trace, program, chosen)} if device else {}
    fused = []
    for run in _runs(program, chosen):
        durations = [int(program.task_dur_ns[task]) for task in run]
        known = [links[task] for task in run if task in links]
        if device and len(known) == len(run) and len({link.traffic.count for link in known}) == 1:
            fused.append(Fused(run, min(fused_ns(device, known), sum(durations)), modelled=True))
        else:
            fused.append(Fused(run, max(durations), modelled=False))
    return fused


def _runs(program: Program, chosen: NDArray[np.int64]) -> Iterator[list[int]]:
    """Runs of at least two chosen tasks with no other task of their stream between them."""
    wanted = np.zeros(len(program.task_span), bool)
    wanted[chosen] = True
    call = program.task_call
    waits = np.cumsum(np.isin(program.kind, (SYNC, BLOCKING_COPY)))
    for stream in np.unique(program.task_stream[chosen]):
        tasks = np.flatnonzero(program.task_stream == stream)
        segment = np.stack((np.cumsum(~wanted[tasks]), program.step[call[tasks]], waits[call[tasks]]))
        here = wanted[tasks]
        tasks, segment = tasks[here], segment[:, here]
        bounds = np.flatnonzero((np.diff(segment, axis=1) != 0).any(axis=0)) + 1
        yield from (run.tolist() for run in np.split(tasks, bounds) if len(run) > 1)


def _links(trace: Trace, program: Program, chosen: NDArray[np.int64]) -> Iterator[Link]:
    """Those of the tasks whose operator can be fused and told what it moves."""
    arguments = trace.ops.select(
        pl.col("span_id").alias("op_id"),
        pl.col("shapes", "dtypes", "strides").cast(pl.String),
    )
    roles = classified(trace).select("id", "role")
    rows = task_table(trace, program)[chosen].drop_nulls("op_id")
    rows = rows.join(roles, on="id", how="left", maintain_order="left")
    rows = rows.join(arguments, on="op_id", how="left", maintain_order="left")
    rows = rows.with_columns(op=trace.spans["name"].gather(rows["op_id"]).cast(pl.String))
    for *call, task, span, op_id, dur, role in rows.select(
        "op", "shapes", "dtypes", "strides", "task", "id", "op_id", "dur_ns", "role"
    ).iter_rows():
        family = (work_models.find(call[0]) or ("",))[0]
        moves = traffic(*call) if family in FAMILIES else None
        if moves:
            yield Link(task, span, op_id, call[0], dur, role in REDUCING, moves)
