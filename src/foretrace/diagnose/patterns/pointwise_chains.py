"""Pointwise chains: pointwise operators, casts, norms and reductions over the same elements that one kernel could do.

A chain lies between two kernels that cannot be fused (matrix products, attention, indexing), in one phase of the step; it
goes on across a product that makes the other operand of a gate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device.device_roles import ROLES
from foretrace.analyze.concepts.device.phases import OPTIMIZER, PHASES
from foretrace.analyze.concepts.names.per_name import distinct_rows
from foretrace.analyze.concepts.work import work_models
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Place
from foretrace.diagnose.patterns import spelled_out_operators
from foretrace.diagnose.patterns.spelled_out_operators import SpelledOut
from foretrace.diagnose.rule import SHAPES
from foretrace.hardware import Device
from foretrace.predict import fusion
from foretrace.predict.costs import gemm
from foretrace.predict.fusion import Fused, Link
from foretrace.predict.program import BLOCKING_COPY, SYNC
from foretrace.sourced import JUDGEMENT, Share
from foretrace.units import counted

LEAST_SHARE = Share(0.05, "GPU time, taken by what can be fused", JUDGEMENT)
LEAST_SAVED = Share(0.03, "the step, saved by fusing", JUDGEMENT)
_ROLES = ("elementwise", "copy", "reduction", "norm", "softmax")
_REDUCES = r"^aten::(amax|amin|max|min|sum|mean|norm|linalg_vector_norm|std|var|any|all)$"
# A reduction's second argument, the dimensions to reduce, absent or empty: it reduces the whole tensor.
_NO_DIMENSIONS = r'^\["[^"]*"(, "(\[\])?".*)?\]$'
# torch's own losses are often computed outside the compiled model; log_softmax is of one where nll_loss follows.
_LOSS, _LOG_SOFTMAX = r"_loss", r"log_softmax"
# Products that may lie in a chain: the chain neither feeds them nor ends where their result is its second operand.
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")

Segment = tuple[int, int, int, int, int]  # step, stream, phase, number, elements
Unfusable = tuple[int | None, str | None, str | None]  # a kernel's operator, its name and shapes


@dataclass(frozen=True)
class Chain:
    """Kernels that one kernel could replace."""

    links: list[Link]
    recorded_ns: int
    fused_ns: int

    @property
    def saved_ns(self) -> int:
        """What fusing it saves."""
        return self.recorded_ns - self.fused_ns

    @property
    def fused(self) -> Fused:
        """The kernel in its place."""
        return Fused([link.task for link in self.links], self.fused_ns, modelled=True)


@dataclass(frozen=True)
class Chains:
    """The chains of a recording, those that save most first."""

    case: Case
    work: pl.DataFrame  # all device work, with `op`, `phase` and whether it is `fusable`
    listed: list[Chain]

    @cached_property
    def spelled_out(self) -> SpelledOut:
        """Those that spell out an operator of torch."""
        return spelled_out_operators.find(self.case, [chain.links for chain in self.listed])

    @property
    def mostly_spelled_out(self) -> bool:
        """Whether torch has operators for the chains that save most."""
        saved = sum(
            chain.saved_ns for place, chain in enumerate(self.listed) if place in self.spelled_out.chains
        )
        return 2 * saved > sum(chain.saved_ns for chain in self.listed)

    @property
    def saved_share(self) -> float:
        """The part of the step, or of GPU time where that is longer, that fusing them saves."""
        longest_ns = max(self.case.device_ns, self.case.step_ns * self.case.step_count)
        return sum(chain.saved_ns for chain in self.listed) / longest_ns

    @property
    def recorded_ns(self) -> int:
        """How long they take in all recorded steps."""
        return sum(chain.recorded_ns for chain in self.listed)

    def says(self) -> str:
        """How many they are, and what they take."""
        kernels = sum(len(chain.links) for chain in self.listed) / len(self.listed)
        fused_ns = sum(chain.fused_ns for chain in self.listed)
        return (
            f"{counted(round(len(self.listed) / self.case.step_count), 'chain')} of pointwise kernels a step, about "
            f"{kernels:.0f} kernels each: {100 * self.recorded_ns / self.case.device_ns:.0f} % of GPU time, fused "
            f"{100 * fused_ns / self.case.device_ns:.0f} %."
        )

    def evidence(self) -> dict[str, Any]:
        """Their time, number and the most costly one."""
        most_costly = self.listed[0].links
        return {
            "chains_ns": self.recorded_ns // self.case.step_count,
            "chains_pct": 100 * self.recorded_ns / self.case.device_ns,
            "chains_per_step_count": len(self.listed) / self.case.step_count,
            "longest_chain_count": len(most_costly),
            "longest_chain": [link.op for link in most_costly[:20]],
            "spans": [link.span for link in most_costly[:5]],
        }

    def places(self) -> tuple[Place, ...]:
        """The source lines of those that save most."""
        most_ns = self.listed[0].saved_ns
        return self.case.places(
            [link.op_id for chain in self.listed if 2 * chain.saved_ns >= most_ns for link in chain.links]
        )


def fusable(case: Case, *, least_share: float) -> pl.DataFrame | None:
    """The work of `Chains`; None where what can be fused takes less than that share of GPU time.

    Raises MissingDataError if the recording does not tell what it moves.
    """
    work = _candidates(case)
    if work.filter("fusable")["dur_ns"].sum() < least_share * case.device_ns:
        return None
    SHAPES.check(case)
    return work if case.known_device else None


def find(case: Case, work: pl.DataFrame) -> Chains | None:
    """The chains of what can be fused, of `fusable`; None where there is none."""
    chains = sorted(_chains(case, case.known_device, work), key=lambda chain: -chain.saved_ns)
    return Chains(case, work, chains) if chains else None


def launch_ns(case: Case) -> float:
    """What one launch costs the host, with all that leads to it."""
    program = case.program
    launches = max(np.count_nonzero(np.diff(program.task_from)), 1)
    return float((program.gap_ns.sum() + program.base_ns.sum()) / launches)


def _candidates(case: Case) -> pl.DataFrame:
    """All tasks in order, with role, op, `fusable`, and the segment that they lie in: what may be fused together."""
    work = case.with_arguments(case.tasks_with("role", "phase", "moves"))
    work = work.with_columns(op=case.op_names(work["op_id"]))
    distinct = work["op"].drop_nulls().unique()
    fuses = [op for op in distinct if (work_models.find(op) or ("",))[0] in fusion.FAMILIES]
    loss = f"{_LOSS}|{_LOG_SOFTMAX}" if distinct.str.contains(r"nll_loss").any() else _LOSS
    moved = (pl.col("role") != ROLES.index("copy")) | pl.col("moves")
    fusable = (
        pl.col("role").is_in([ROLES.index(role) for role in _ROLES]) & moved & pl.col("op").is_in(fuses)
        & ~pl.col("op").str.contains(loss) & (pl.col("phase") != PHASES.index(OPTIMIZER))
        & ~pl.col("name").cast(pl.String).str.starts_with("triton_")
    ).fill_null(value=False)  # fmt: skip
    reduces_all = pl.col("op").str.contains(_REDUCES) & pl.col("inputs").str.contains(_NO_DIMENSIONS)
    work = work.with_columns(fusable=fusable, reduces_all=reduces_all.fill_null(value=False).cast(pl.Int64))
    work = work.with_columns(neutral=pl.col("fusable") | (pl.col("kind") == "set"))
    waits = np.cumsum(np.isin(case.program.kind, (SYNC, BLOCKING_COPY)))[work["call"].to_numpy()]
    # What follows a reduction over a whole tensor needs its result first: it is in another kernel.
    after = pl.col("reduces_all").cum_sum() - pl.col("reduces_all")
    return work.with_columns(
        passed=(~pl.col("neutral")).cum_sum(),
        segment=after + (work.height + 1) * pl.Series(waits.astype(np.int64)),
    )


def _chains(case: Case, device: Device, work: pl.DataFrame) -> Iterator[Chain]:
    """Chains of at least two operators that would be shorter in one kernel."""
    unfusable: list[Unfusable] = work.filter(~pl.col("neutral")).select("op_id", "op", "shapes").rows()
    for links in _gated(_segments(case, work), unfusable):
        recorded, fused = sum(link.dur_ns for link in links), fusion.fused_ns(device, links)
        computes = any(not link.traffic.rearranges for link in links)
        if computes and len({link.op_id for link in links}) > 1 and fused < recorded:
            yield Chain(links, recorded, fused)


def _segments(case: Case, work: pl.DataFrame) -> dict[Segment, dict[int, list[Link]]]:
    """What may be fused together, by how many kernels that may not had run before."""
    segments: dict[Segment, dict[int, list[Link]]] = {}
    columns = ("task", "id", "op_id", "dur_ns", "role", "step", "stream", "phase", "segment", "passed")
    fusable = work.filter("fusable")
    calls = fusable.select(pl.col("op", "shapes", "dtypes", "strides").cast(pl.Categorical))
    distinct, which = distinct_rows(calls)
    told = [
        (call[0], fusion.traffic(*call))
        for call in distinct.with_columns(pl.all().cast(pl.String)).iter_rows()
    ]
    rows = fusable.select(columns).iter_rows()
    for number, row in zip(which.tolist(), rows, strict=True):
        op, traffic = told[number]
        if traffic:
            task, span, op_id, dur, role, step, stream, phase, segment, passed = row
            stores = op == "aten::copy_" and len(case.callers(op_id)) == 1
            link = Link(task, span, op_id, op, dur, role in fusion.REDUCING, traffic, stores)
            runs = segments.setdefault((step, stream, phase, segment, traffic.count), {})
            runs.setdefault(passed, []).append(link)
    return segments


def _gated(
    segments: dict[Segment, dict[int, list[Link]]], unfusable: list[Unfusable]
) -> Iterator[list[Link]]:
    """The runs, joined where only a product lies between that makes the other operand of what follows: a gate."""
    for (*_, count), runs in segments.items():
        chain: list[Link] = []
        last = 0
        for passed, links in runs.items():
            takes_two = len(links[0].traffic.reads) > 1
            if chain and not (takes_two and _is_product_of(unfusable[last:passed], count)):
                yield chain
                chain = []
            chain = chain + links
            last = passed
        yield chain


def _is_product_of(kernels: list[Unfusable], count: int) -> bool:
    """Whether these are of one product that makes so many elements and takes no operand of that many."""
    op_id, op, shapes = kernels[0]
    if op not in _PRODUCTS or any(kernel[0] != op_id for kernel in kernels):
        return False
    size = gemm.size(op, shapes)
    if size is None or size.batch * size.m * size.n != count:
        return False
    return count not in (size.batch * size.m * size.k, size.batch * size.k * size.n)
