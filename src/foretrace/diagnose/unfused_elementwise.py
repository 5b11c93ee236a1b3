"""Chains of pointwise kernels each read and write whole tensors that one fused kernel would keep in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze import work_models
from foretrace.analyze.device_roles import ROLES
from foretrace.analyze.phases import OPTIMIZER, PHASES
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.errors import MissingDataError
from foretrace.predict import fusion
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.fusion import Fused, Link
from foretrace.predict.program import BLOCKING_COPY, SYNC
from foretrace.units import counted

_LEAST_SHARE, _LEAST_SAVED = 0.05, 0.03  # of the GPU's time, and of the step: what fusing them saves
_ROLES = ("elementwise", "copy", "reduction", "norm", "softmax")
_REDUCES = r"^aten::(amax|amin|max|min|sum|mean|norm|linalg_vector_norm|std|var|any|all)$"
_LOSS = r"_loss|log_softmax"


@dataclass(frozen=True)
class _Chain:
    links: list[Link]
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
    roles = case.roles.select("id", "role", "phase", "moves")
    work = case.tasks.join(roles, on="id", how="left", maintain_order="left")
    op = case.trace.spans["name"].gather(work["op_id"]).cast(pl.String)
    name = pl.col("name").cast(pl.String)
    distinct = op.drop_nulls().unique()
    fuses = [each for each in distinct if (work_models.find(each) or ("",))[0] in fusion.FAMILIES]
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
    assert case.device is not None
    arguments = case.trace.ops.select(
        pl.col("span_id").alias("op_id"),
        *(pl.col(each).cast(pl.String) for each in ("shapes", "dtypes", "strides")),
    )
    rows = work.filter("fusable").join(arguments, on="op_id", how="left", maintain_order="left")
    groups: dict[tuple[int, ...], list[Link]] = {}
    columns = ("op", "shapes", "dtypes", "strides", "task", "id", "op_id", "dur_ns", "role")
    for *call, task, span, op_id, dur, role, step, stream, phase, segment in rows.select(
        *columns, "step", "stream", "phase", "segment"
    ).iter_rows():
        if traffic := fusion.traffic(*call):
            link = Link(task, span, op_id, call[0], dur, role in fusion.REDUCING, traffic)
            groups.setdefault((step, stream, phase, segment, traffic.count), []).append(link)
    for links in groups.values():
        recorded, fused = sum(link.dur_ns for link in links), fusion.fused_ns(case.device, links)
        if len({link.op_id for link in links}) > 1 and fused < recorded:
            yield _Chain(links, recorded, fused)


def _edit(chains: list[_Chain]) -> Edit:
    return fusion.edit(Fused([link.task for link in chain.links], chain.fused_ns, True) for chain in chains)
