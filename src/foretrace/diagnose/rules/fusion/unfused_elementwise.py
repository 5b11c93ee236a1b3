"""Chains of pointwise kernels each read and write whole tensors that one fused kernel would keep in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device.device_roles import ROLES
from foretrace.analyze.concepts.device.phases import OPTIMIZER, PHASES
from foretrace.analyze.concepts.work import work_models
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.spelled_out_operators import WrittenOut, written_out
from foretrace.diagnose.removal import host_time
from foretrace.diagnose.rule import Healthy, rule
from foretrace.errors import MissingDataError
from foretrace.predict import fusion
from foretrace.predict.changes import Change
from foretrace.predict.costs import gemm
from foretrace.predict.edits import Edit
from foretrace.predict.fusion import Fused, Link
from foretrace.predict.program import BLOCKING_COPY, SYNC
from foretrace.units import counted

_LEAST_SHARE, _LEAST_SAVED = 0.05, 0.03  # of the GPU's time, and of the step: what fusing them saves
_ROLES = ("elementwise", "copy", "reduction", "norm", "softmax")
_REDUCES = r"^aten::(amax|amin|max|min|sum|mean|norm|linalg_vector_norm|std|var|any|all)$"
_LOSS, _LIBRARY_LOSS = (
    r"_loss",
    r"log_softmax",
)  # the second where torch's own loss follows: cross_entropy has both
# Products that may lie in a chain: the chain neither feeds them nor ends where their result is its second operand.
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
# What one launch costs the host from compiled code, as a multiple of an operator's: 26 against 14.5 µs on an H200's.
_COMPILED_COST = 1.8


@dataclass(frozen=True)
class _Chain:
    links: list[Link]
    recorded_ns: int
    fused_ns: int

    @property
    def saved_ns(self) -> int:
        return self.recorded_ns - self.fused_ns


def _no_issue(values: Mapping[str, Any]) -> str | None:
    count = values.get("candidate_count")
    return None if count is None else f"{counted(count, 'chain')} of small kernels, little to save"


@rule(
    title="Pointwise operators run one kernel each",
    topic="Pointwise chains",
    see="sequences",
    headline=lambda e: f"{e['chains_pct']:.0f} % of GPU time goes to chains of pointwise kernels",
    healthy=Healthy("sequences", _no_issue),
)
def unfused_elementwise(case: Case) -> Iterator[Finding]:
    """Runs of pointwise operators, casts, norms and reductions on the same elements, one kernel each.

    What it does
    Between two kernels that cannot be fused (matrix products, attention, indexing), takes together all pointwise
    work, norms and reductions of one phase over equally many elements; also across a product that makes the other
    operand of a gate. One kernel in their place takes the longest of: its outside operands, what lives on and its
    result at 80 % of the bandwidth; its instructions (a tanh has 22) at the peak rate; the slowest reduction in it as
    it was, but for a layer norm of rows of at most 256 values, and all of a batch norm. Where the step follows the host,
    compiled code launches less, but each launch costs 1.8 times as much; elsewhere the host's time stays. There, if most
    of the gain is of chains that write out what torch has as one operator (GELU, layer norm, RMS norm) and of their
    gradients, each is replaced by that operator, which costs one launch, and nothing else changes. Left out: torch's own
    losses, which are often computed outside the compiled model, the optimizer, and attention's pieces, which have a rule
    of their own.

    Why it matters
    A pointwise kernel does next to nothing with each element but move it. Ten in a row move it twenty times.

    Use instead
    model = torch.compile(model); F.gelu, F.layer_norm or F.rms_norm for what is written out of them.
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
    yield _finding(case, work, chains, device_ns)


def _finding(case: Case, work: pl.DataFrame, chains: list[_Chain], device_ns: int) -> Finding:
    spent, fused = (
        sum(each) for each in zip(*((chain.recorded_ns, chain.fused_ns) for chain in chains), strict=True)
    )
    worst = chains[0].links
    top = [link.op_id for chain in chains if 2 * chain.saved_ns >= chains[0].saved_ns for link in chain.links]
    length = sum(len(chain.links) for chain in chains) / len(chains)
    written = written_out(case, [chain.links for chain in chains])
    return Finding(
        says=f"{counted(round(len(chains) / case.step_count), 'chain')} of {length:.3g} pointwise kernels a step: "
        f"{100 * spent / device_ns:.0f} % of the GPU's time, fused {100 * fused / device_ns:.0f} %.",
        why="Each kernel of a chain reads and writes whole tensors that a fused one keeps in registers.",
        fix=Fix(
            "Compile the model, or the function that holds the chain"
            + ("; or call what torch has as one operator." if written.calls else "."),
            "\n".join(["model = torch.compile(model)", *(f"y = {call}   # or" for call in written.calls)]),
        ),
        evidence={
            "chains_ns": spent // case.step_count,
            "chains_pct": 100 * spent / device_ns,
            "chains_per_step_count": len(chains) / case.step_count,
            "longest_chain_count": len(worst),
            "longest_chain": [link.op for link in worst[:20]],
            "spans": [link.span for link in worst[:5]],
        },
        where=case.places(top),
        change=_change(case, work, chains, written),
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
    loss = f"{_LOSS}|{_LIBRARY_LOSS}" if distinct.str.contains(r"nll_loss").any() else _LOSS
    moved = (pl.col("role") != ROLES.index("copy")) | pl.col("moves")
    fusable = (
        pl.col("role").is_in([ROLES.index(role) for role in _ROLES]) & moved & pl.col("op").is_in(fuses)
        & ~pl.col("op").str.contains(loss) & (pl.col("phase") != PHASES.index(OPTIMIZER))
        & ~name.str.starts_with("triton_")
    ).fill_null(value=False)  # fmt: skip
    arguments = case.trace.ops.select(
        pl.col("span_id").alias("op_id"),
        *(pl.col(each).cast(pl.String) for each in ("shapes", "dtypes", "strides")),
    )
    work = work.with_columns(op=op).with_columns(fusable=fusable)
    work = work.join(arguments, on="op_id", how="left", maintain_order="left")
    neutral = work["kind"].is_in(("set",)).to_numpy() | work["fusable"].to_numpy()
    waits = np.cumsum(np.isin(case.program.kind, (SYNC, BLOCKING_COPY)))
    whole = _reduces_all(case, work)
    # What follows a reduction over a whole tensor needs its result first: it is in another kernel.
    place = np.cumsum(whole) - whole + (1 << 32) * waits[work["call"].to_numpy()].astype(np.int64)
    return work.with_columns(
        neutral=pl.Series(neutral),
        passed=pl.Series(np.cumsum(~neutral)),
        segment=pl.Series(place),
        step=pl.Series(case.program.step[work["call"].to_numpy()]),
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
    for links in _gated(_groups(case, work), _between(work)):
        recorded, fused = sum(link.dur_ns for link in links), fusion.fused_ns(case.device, links)
        computes = any(not link.traffic.rearranges for link in links)
        if computes and len({link.op_id for link in links}) > 1 and fused < recorded:
            yield _Chain(links, recorded, fused)


_Place = tuple[int, int, int, int, int]  # step, stream, phase, segment, elements


def _groups(case: Case, work: pl.DataFrame) -> dict[_Place, dict[int, list[Link]]]:
    """What may be fused together, by how many kernels that may not had run before."""
    groups: dict[_Place, dict[int, list[Link]]] = {}
    columns = ("op", "shapes", "dtypes", "strides", "task", "id", "op_id", "dur_ns", "role")
    for *call, task, span, op_id, dur, role, step, stream, phase, segment, passed in (
        work.filter("fusable").select(*columns, "step", "stream", "phase", "segment", "passed").iter_rows()
    ):
        if traffic := fusion.traffic(*call):
            stores = call[0] == "aten::copy_" and len(case.callers(op_id)) == 1
            link = Link(task, span, op_id, call[0], dur, role in fusion.REDUCING, traffic, stores)
            place = groups.setdefault((step, stream, phase, segment, traffic.count), {})
            place.setdefault(passed, []).append(link)
    return groups


def _between(work: pl.DataFrame) -> list[tuple[int | None, str | None, str | None]]:
    """The kernels that may not be fused, in order: their operator with its name and shapes."""
    return work.filter(~pl.col("neutral")).select("op_id", "op", "shapes").rows()


def _gated(
    groups: dict[_Place, dict[int, list[Link]]], between: list[tuple[int | None, str | None, str | None]]
) -> Iterator[list[Link]]:
    """The groups, joined where only a product lies between that makes the other operand of what follows: a gate."""
    for (*_, count), places in groups.items():
        chain: list[Link] = []
        last = 0
        for passed, links in places.items():
            if chain and not (len(links[0].traffic.reads) > 1 and _makes(between[last:passed], count)):
                yield chain
                chain = []
            chain = chain + links
            last = passed
        yield chain


def _makes(kernels: list[tuple[int | None, str | None, str | None]], count: int) -> bool:
    """Whether these are of one product that makes so many elements and takes no operand of that many."""
    op_id, op, shapes = kernels[0]
    if op not in _PRODUCTS or any(each[0] != op_id for each in kernels):
        return False
    size = gemm.size(op, shapes)
    return (
        size is not None
        and size.batch * size.m * size.n == count
        and count
        not in (
            size.batch * size.m * size.k,
            size.batch * size.k * size.n,
        )
    )


def _change(case: Case, work: pl.DataFrame, chains: list[_Chain], written: WrittenOut) -> Change:
    """One kernel for each chain. Where the step follows the host: fewer launches, each of which costs more."""
    edit = fusion.edit(Fused([link.task for link in chain.links], chain.fused_ns, True) for chain in chains)
    if not case.calibration.host_bound:
        return Change("pointwise chains fused", edit)
    compiled = _compiled(case, work, chains, edit)
    if not _mostly(chains, written):
        return Change("pointwise chains fused", compiled or edit, others=() if compiled is None else (edit,))
    return Change(
        "what torch has as one operator called as one", _by_operators(case, work, chains, written),
        others=(compiled or edit,),
    )  # fmt: skip


def _mostly(chains: list[_Chain], written: WrittenOut) -> bool:
    """Whether torch has operators for the chains that bring most."""
    mine = sum(chain.saved_ns for place, chain in enumerate(chains) if place in written.chains)
    return 2 * mine > sum(chain.saved_ns for chain in chains)


def _launch_ns(case: Case) -> float:
    """What one launch costs the host, with all that leads to it."""
    program = case.program
    launches = max(np.count_nonzero(np.diff(program.task_from)), 1)
    return float((program.gap_ns.sum() + program.base_ns.sum()) / launches)


def _compiled(case: Case, work: pl.DataFrame, chains: list[_Chain], edit: Edit) -> Edit | None:
    """The host of compiled code; None where its launches cost more than the fewer ones save."""
    fused = sum(len(chain.links) for chain in chains)
    others = (
        work.filter((pl.col("phase") != PHASES.index(OPTIMIZER)) & (pl.col("kind") == "kernel")).height
        - fused
    )
    dearer = _COMPILED_COST * len(chains) + (_COMPILED_COST - 1) * others  # in launches of operators
    if dearer >= fused:
        return None
    calls = case.tasks["call"].gather([chain.links[-1].task for chain in chains]).to_list()
    added = dict.fromkeys(calls, round(_launch_ns(case) * dearer / len(chains)))
    host = host_time(case, {link.op_id for chain in chains for link in chain.links})
    return replace(edit, removed_host=host, added_host_ns=added)


def _by_operators(case: Case, work: pl.DataFrame, chains: list[_Chain], written: WrittenOut) -> Edit:
    """One operator of torch in the place of each chain that writes one out, with what works on its rows."""
    mine = [chain for place, chain in enumerate(chains) if place in written.chains]
    edit = fusion.edit(Fused([link.task for link in chain.links], chain.fused_ns, True) for chain in mine)
    ops = {link.op_id for chain in mine for link in chain.links}
    links = {link.task for chain in mine for link in chain.links}
    within = np.zeros(len(case.program.task_span), bool)
    for chain in mine:
        within[chain.links[0].task : chain.links[-1].task] = True
    within[list(links)] = False
    rows = work.filter(pl.Series(within) & pl.col("fusable"))
    calls = case.tasks["call"].gather([chain.links[-1].task for chain in mine]).to_list()
    host = host_time(case, ops | set(rows["op_id"]))
    # One operator costs what those of the chains do on average, on the unprofiled host.
    unprofiled = _launch_ns(case) * case.tasks["call"].n_unique() / max(case.program.measured_host_ns, 1)
    each_ns = round(host.total_ns * unprofiled / (len(links) + rows.height))
    return replace(
        edit,
        removed_tasks=np.concatenate((edit.removed_tasks, rows["task"].to_numpy())),
        removed_host=host,
        added_host_ns=dict.fromkeys(calls, each_ns),
    )
