"""Chains of pointwise kernels each read and write whole tensors that one fused kernel would keep in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze import work_models
from foretrace.analyze.device_roles import ROLES, classified
from foretrace.analyze.phases import OPTIMIZER, PHASES
from foretrace.analyze.work_models.call import parse
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.errors import MissingDataError
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.program import BLOCKING_COPY, SYNC
from foretrace.units import counted

_LEAST_SHARE, _LEAST_SAVED = 0.05, 0.03  # of the GPU's time, and of the step: what fusing them saves
_BANDWIDTH_SHARE = 0.80
_LAUNCH_NS = 1_000
_ROLES = ("elementwise", "copy", "reduction", "norm", "softmax")
_FAMILIES = ("elementwise", "copy", "dropout", "reduction", "norm", "softmax")
_REDUCES = r"^aten::(amax|amin|max|min|sum|mean|norm|linalg_vector_norm|std|var|any|all)$"
_REDUCING = [ROLES.index(role) for role in ("reduction", "norm", "softmax")]
_LOSS = r"_loss|log_softmax"
# Instructions an element in fp32, as CUDA's mathematical functions compile; all else is a load's share and an
# arithmetic instruction or two.
_INSTRUCTIONS = {
    "tanh": 22, "sigmoid": 20, "silu": 21, "sin": 30, "cos": 30, "gelu": 30, "gelu_backward": 45, "erf": 25,
    "silu_backward": 25, "exp": 10, "log": 12, "log1p": 26, "softplus": 36, "pow": 10, "div": 10, "sqrt": 9,
    "rsqrt": 9, "native_dropout": 20,
}  # fmt: skip
_OTHER_INSTRUCTIONS = 3
_MAYBE = 0.5  # an operand that no shape tells to be from outside the chain or from within


@dataclass(frozen=True)
class _Traffic:
    """What one operator reads and writes; `reads` are its operands of full size."""

    count: int
    reads: tuple[int, ...]
    rest: int
    writes: int
    rearranges: bool  # a copy of the same type is made because its result must lie in memory


class _Link(NamedTuple):
    """One task of a chain."""

    task: int
    span: int
    op_id: int
    op: str
    dur_ns: int
    reduces: bool
    traffic: _Traffic


@dataclass(frozen=True)
class _Chain:
    links: list[_Link]
    recorded_ns: int
    fused_ns: int

    @property
    def saved_ns(self) -> int:
        return self.recorded_ns - self.fused_ns


@rule
def unfused_elementwise(case: Case) -> Iterator[Finding]:
    """Runs of pointwise operators, casts, norms and reductions on the same elements, one kernel each.

    What it does
    Between two kernels that cannot be fused (matrix products, attention, indexing), takes together all pointwise
    work, norms and reductions of one phase over equally many elements. One kernel in their place takes the
    longest of: its outside operands and its result at 80 % of the bandwidth; its instructions (a tanh has 22)
    at the peak rate; the slowest reduction in it as it was, and all of a batch norm. The host's time stays:
    compiled code launches less, but each launch costs it more. Left out: the loss, which is often computed
    outside the compiled model, the optimizer, and attention's pieces, which have a rule of their own.

    Why it matters
    A pointwise kernel does next to nothing with each element but move it. Ten in a row move it twenty times.

    Use instead
    model = torch.compile(model)
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    device_ns = max(int(case.program.task_dur_ns.sum()), 1)
    work = _candidates(case)
    if work.filter("fusable")["dur_ns"].sum() < _LEAST_SHARE * device_ns:
        return
    if case.trace.ops["shapes"].null_count() == case.trace.ops.height:
        raise MissingDataError(f"{case.trace.path.name}: no shapes recorded; record with record_shapes=True")
    if case.device is None:
        raise MissingDataError(f"{case.trace.path.name}: the peaks of this device are not known")
    chains = sorted(_chains(case, work), key=lambda chain: -chain.saved_ns)
    if sum(chain.saved_ns for chain in chains) < _LEAST_SAVED * max(
        device_ns, case.step_ns * case.step_count
    ):
        return
    yield _finding(case, chains, device_ns)


def _finding(case: Case, chains: list[_Chain], device_ns: int) -> Finding:
    spent, fused = (
        sum(each) for each in zip(*((chain.recorded_ns, chain.fused_ns) for chain in chains), strict=True)
    )
    worst = chains[0].links
    top = [link.op_id for chain in chains if 2 * chain.saved_ns >= chains[0].saved_ns for link in chain.links]
    length = sum(len(chain.links) for chain in chains) / len(chains)
    return Finding(
        rule="unfused-elementwise",
        says=f"{counted(round(len(chains) / case.step_count), 'chain')} of {length:.3g} pointwise kernels a step: "
        f"{100 * spent / device_ns:.0f} % of the GPU's time, fused {100 * fused / device_ns:.0f} %.",
        why="Each kernel of a chain reads and writes whole tensors that a fused one keeps in registers.",
        fix=Fix("Compile the model, or the function that holds the chain.", "model = torch.compile(model)"),
        evidence={
            "chains_ns": spent // case.step_count,
            "chains_pct": 100 * spent / device_ns,
            "chains_per_step_count": len(chains) / case.step_count,
            "longest_chain_count": len(worst),
            "longest_chain": [link.op for link in worst[:20]],
            "spans": [link.span for link in worst[:5]],
        },
        where=case.places(top),
        change=Change("pointwise chains fused", _edit(chains)),
        unless="shapes change from step to step, so that it is compiled over and over, or operators between hinder "
        "the compiler.",
    )


def _candidates(case: Case) -> pl.DataFrame:
    """All tasks in order, with role, op, `fusable`, and the segment that they lie in: what may be fused together."""
    roles = classified(case.trace).select("id", "role", "phase", "moves")
    work = case.tasks.join(roles, on="id", how="left", maintain_order="left")
    op = case.trace.spans["name"].gather(work["op_id"]).cast(pl.String)
    name = pl.col("name").cast(pl.String)
    distinct = op.drop_nulls().unique()
    fuses = [each for each in distinct if (work_models.find(each) or ("",))[0] in _FAMILIES]
    moved = (pl.col("role") != ROLES.index("copy")) | pl.col("moves")
    fusable = (
        pl.col("role").is_in([ROLES.index(role) for role in _ROLES]) & moved & pl.col("op").is_in(fuses)
        & ~pl.col("op").str.contains(_LOSS) & (pl.col("phase") != PHASES.index(OPTIMIZER))
        & ~name.str.starts_with("triton_")
    ).fill_null(value=False)  # fmt: skip
    work = work.with_columns(op=op).with_columns(fusable=fusable)
    neutral = work["kind"].is_in(("set",)).to_numpy() | work["fusable"].to_numpy()
    waits = np.cumsum(np.isin(case.program.kind, (SYNC, BLOCKING_COPY)))
    whole = _reduces_all(case, work)
    # What follows a reduction over a whole tensor needs its result first: it is in another kernel.
    place = np.cumsum(~neutral) + np.cumsum(whole) - whole
    place = place + (1 << 32) * waits[work["call"].to_numpy()].astype(np.int64)
    return work.with_columns(
        segment=pl.Series(place), step=pl.Series(case.program.step[work["call"].to_numpy()])
    )


def _reduces_all(case: Case, work: pl.DataFrame) -> NDArray[np.int64]:
    """1 for tasks of an operator that reduces its whole operand to one number."""
    inputs = case.trace.ops.select(pl.col("span_id").alias("op_id"), pl.col("inputs").cast(pl.String))
    rows = work.select("op", "op_id").join(inputs, on="op_id", how="left", maintain_order="left")
    # Its second argument, the dimensions to reduce, is absent or empty.
    no_dimensions = pl.col("inputs").str.contains(r'^\["[^"]*"(, "(\[\])?".*)?\]$')
    chosen = pl.col("op").str.contains(_REDUCES) & no_dimensions
    return rows.select(chosen.fill_null(value=False)).to_series().to_numpy().astype(np.int64)


def _chains(case: Case, work: pl.DataFrame) -> Iterator[_Chain]:
    """Chains of at least two operators that would be shorter in one kernel."""
    arguments = case.trace.ops.select(
        pl.col("span_id").alias("op_id"),
        *(pl.col(each).cast(pl.String) for each in ("shapes", "dtypes", "strides")),
    )
    rows = work.filter("fusable").join(arguments, on="op_id", how="left", maintain_order="left")
    groups: dict[tuple[int, ...], list[_Link]] = {}
    columns = ("op", "shapes", "dtypes", "strides", "task", "id", "op_id", "dur_ns", "role")
    for *call, task, span, op_id, dur, role, step, stream, phase, segment in rows.select(
        *columns, "step", "stream", "phase", "segment"
    ).iter_rows():
        if traffic := _traffic(*call):
            link = _Link(task, span, op_id, call[0], dur, role in _REDUCING, traffic)
            groups.setdefault((step, stream, phase, segment, traffic.count), []).append(link)
    for links in groups.values():
        recorded, fused = sum(link.dur_ns for link in links), _fused_ns(case, links)
        if len({link.op_id for link in links}) > 1 and fused < recorded:
            yield _Chain(links, recorded, fused)


@lru_cache(maxsize=16384)
def _traffic(op: str, shapes: str | None, dtypes: str | None, strides: str | None) -> _Traffic | None:
    """What an operator moves; None where it has no model or its shapes were not recorded."""
    work = work_models.work(op, shapes, dtypes, strides, None, None)
    if work is None or shapes is None:
        return None
    call = parse(op, shapes, dtypes, strides, None, None)
    operands = call.all_tensors
    count = max((each.count for each in operands), default=0)
    copies = op == "aten::copy_"
    same = copies and operands[0].dtype == operands[-1].dtype
    operands = operands[1:] if copies else operands
    reads = tuple(each.bytes for each in operands if each.count == count)
    every = sum(each.bytes for each in operands)
    return _Traffic(count, reads, every - sum(reads), max(work.bytes - every, 0), same) if count else None


def _fused_ns(case: Case, links: list[_Link]) -> int:
    """How long one kernel in place of the chain takes."""
    assert case.device is not None
    moved, instructions, last, seen = 0.0, 0, 0, -1
    for link in links:
        if link.op_id == seen:  # one operator with several kernels counts once
            continue
        each = link.traffic
        # The first operand comes from the operator before; the others, nobody knows.
        moved += sum(each.reads) if seen == -1 else _MAYBE * sum(each.reads[1:])
        moved += each.rest + (each.writes if each.rearranges else 0)
        name = link.op.removeprefix("aten::").removesuffix("_")
        instructions += each.count * _INSTRUCTIONS.get(name, _OTHER_INSTRUCTIONS)
        seen, last = link.op_id, 0 if each.rearranges else each.writes
    moving = (moved + last) / (case.device.memory_bandwidth_bytes * _BANDWIDTH_SHARE) * 1e9
    computing = instructions / (case.device.fp32_flops / 2) * 1e9  # a peak counts a multiply-add as two
    # A batch norm reads everything before it writes any: it keeps all its kernels.
    whole = sum(link.dur_ns for link in links if "batch_norm" in link.op)
    slowest = max((link.dur_ns for link in links if link.reduces), default=0)
    return round(max(moving, computing, whole, slowest)) + _LAUNCH_NS


def _edit(chains: list[_Chain]) -> Edit:
    """The last task of each chain stands for the fused kernel."""
    kept = {chain.links[-1].task: chain.fused_ns for chain in chains}
    gone = np.array([link.task for chain in chains for link in chain.links[:-1]], np.int64)
    return Edit(removed_tasks=gone, durations_ns=kept, modelled=frozenset(kept))
