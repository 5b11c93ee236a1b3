"""The GPU communicates with other ranks and computes nothing meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import collective_arrivals
from foretrace.diagnose.patterns.host_copies import waited
from foretrace.diagnose.rule import Healthy, rule
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Calls
from foretrace.predict.program import WAIT

# Of copies beside kernels, what these hide on an H200, apart from the lower clock (see heat): gradients sent as they come
# 0.65 to 0.7, weights that are fetched one layer ahead 0.85.
_COPIES_HIDDEN, _FETCHES_HIDDEN, _COPIES_HIDDEN_LEAST = 0.67, 0.85, 0.25
# Of so many copies a step, the last alone must wait, if computation takes as long as they do: at least this much is hidden.
_MANY_COPIES, _MANY_HIDDEN_LEAST, _MANY_FETCHES_HIDDEN_LEAST = 4, 0.4, 0.55
_LEAST_SHARE = 0.05  # of the steps' time


@rule(
    title="Communication is not hidden",
    topic="Communication",
    see="communication",
    healthy=Healthy("communication", collective_arrivals.no_issue),
)
def exposed_communication(case: Case) -> Iterator[Finding]:
    """Collectives, and large copies between host and device, that no computation hides.

    What it does
    Looks for collectives whose time without any computation is at least 5 % of the steps. Those on the device are
    replayed with half of that time hidden; the range is from none of it to all of it, for one recording does not
    tell how much of a collective is transfer and how much is waiting for a slower rank. So it never promises a
    gain. Nothing is replayed for collectives on host threads (gloo), nor where streams wait for each other in
    ways that the recording does not tell.
    Copies from or to the host that the program does not wait for, in the stream that computes, are replayed with
    0.67 of their time hidden, from a quarter to all of it: a gradient can leave once it is there, not before. Of four
    copies a step or more that computation outlasts, at least 0.4 is taken to be hidden. Where all come from the host
    0.85 are, and of many at least 0.55, for they can be fetched ahead. Never more is hidden than there is computation to
    hide it, though copies in opposite directions hide each other.

    Why it matters
    What is not hidden adds to the step, on every rank.

    Use instead
    DDP with larger or smaller buckets (bucket_cap_mb), gradient_as_bucket_view=True, no_sync() while gradients
    accumulate, FSDP with prefetching, fewer or smaller messages. Copies on a stream of their own, as soon as their
    source is ready.
    """
    yield from _copies(case)
    values = case.result("communication").values
    if not values["collectives_count"]:
        return
    mine = _on_device(case)
    hidden, exposed_ns = _hidden(case, mine)
    if mine.is_empty():
        exposed_ns = int(values["exposed_ns"] or 0)
    share = exposed_ns / case.step_count / case.step_ns
    if share < _LEAST_SHARE:
        return
    total = int(values["total_ns"] or 0)
    who = "the host" if mine.is_empty() else "the GPU"
    yield Finding(
        says=f"For {exposed_ns / case.step_count / 1e6:.3g} ms a step, {100 * share:.0f} % of it, {who} communicates with "
        "other ranks and nothing is computed.",
        why="What no computation hides adds to the step, on every rank.",
        fix=Fix(
            "Overlap it with computation, or send less.",
            "model = DDP(model, bucket_cap_mb=50, gradient_as_bucket_view=True)\n"
            "with model.no_sync(): loss.backward()   # while gradients accumulate",
        ),
        evidence={
            "exposed_ns": exposed_ns // case.step_count,
            "exposed_pct": 100 * share,
            "communication_ns": total // case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().to_list()),
        change=_change(case, hidden, 0.5, "half of the exposed communication hidden", least=0.0)
        if hidden and ordered(case, mine)
        else None,
        unless="the time is spent waiting for a slower rank: see the recordings of all ranks.",
    )


def _on_device(case: Case) -> pl.DataFrame:
    """The program's tasks that are collectives, with their recorded times."""
    work = device_time.device_work(case.trace).filter(pl.col("communication"))
    return case.tasks.join(work.select("id", "start_ns", "end_ns", "device"), on="id", maintain_order="left")


def _hidden(case: Case, mine: pl.DataFrame) -> tuple[dict[int, float], int]:
    """Of each collective the share that computation on its device hides, and the time that is not hidden."""
    work = device_time.device_work(case.trace)
    computing = work.filter((pl.col("kind") != "copy") & ~pl.col("communication"))
    hidden: dict[int, float] = {}
    exposed_ns = 0
    for device, rows in device_time.by_device(mine):
        busy = device_time.covered(computing.filter(pl.col("device").eq_missing(device)))
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        shares = intervals.covered_ns(busy, start, end) / (end - start).clip(1)
        exposed_ns += intervals.subtract(intervals.union(start, end), busy).total_ns
        hidden.update(zip(rows["task"].to_list(), shares.tolist(), strict=True))
    return hidden, exposed_ns


def ordered(case: Case, mine: pl.DataFrame) -> bool:
    """Whether the replay knows what waits for the collectives: they share a stream with other work, or waits are known."""
    others = case.tasks.filter(~pl.col("task").is_in(mine["task"].implode()))["stream"]
    return bool((case.program.kind == WAIT).any() or mine["stream"].is_in(others.implode()).all())


def _beside(case: Case, mine: pl.DataFrame, hidden: dict[int, float], exposed_ns: int) -> Change:
    """Copies on a stream of their own: as much of them hidden as is likely, and no more than computation can hide."""
    by_direction = dict(mine.group_by("direction").agg(pl.col("dur_ns").sum()).iter_rows())
    both_ways = min(by_direction.values()) if len(by_direction) > 1 else 0
    computing_ns = int(case.tasks.filter(pl.col("kind") == "kernel")["dur_ns"].sum())
    most = min((computing_ns + both_ways) / max(exposed_ns, 1), 1.0)
    fetched = set(by_direction) == {"HtoD"}
    usual, least = (_FETCHES_HIDDEN if fetched else _COPIES_HIDDEN), _COPIES_HIDDEN_LEAST
    if mine.height >= _MANY_COPIES * case.step_count and computing_ns >= exposed_ns:
        least = _MANY_FETCHES_HIDDEN_LEAST if fetched else _MANY_HIDDEN_LEAST
    least = min(least, most)
    return _change(case, hidden, min(usual, most), "copies beside the kernels", least=least, most=most)


def _change(
    case: Case, hidden: dict[int, float], part: float, says: str, *, least: float, most: float = 1.0
) -> Change:
    """That part of what is exposed no longer is; from the least part to the most."""
    dur = case.program.task_dur_ns

    def edit(share: float) -> Edit:
        return Edit(
            durations_ns={task: round(int(dur[task]) * (1 - share * (1 - h))) for task, h in hidden.items()}
        )

    return Change(says, edit(part), others=(edit(least), edit(most)))


def _copies(case: Case) -> Iterator[Finding]:
    """Copies from or to the host that wait their turn between kernels, although the host does not wait for them."""
    copies = case.trace.copies.filter(
        pl.col("direction").is_in(("HtoD", "DtoH", "PtoP")) & ~pl.col("pageable").fill_null(value=False)
    )
    work = device_time.device_work(case.trace).select("id", "start_ns", "end_ns", "device")
    mine = case.tasks.join(
        copies.select(pl.col("span_id").alias("id"), pl.col("direction").cast(pl.String)),
        on="id",
        maintain_order="left",
    ).join(work, on="id", maintain_order="left")
    mine = mine.filter(pl.Series(~waited(case, Calls(mine["call"].to_numpy())), dtype=pl.Boolean))
    computing = case.tasks.filter(pl.col("kind") == "kernel")["stream"].unique()
    mine = mine.filter(pl.col("stream").is_in(computing.implode()))
    hidden, exposed_ns = _hidden(case, mine)
    share = exposed_ns / case.step_count / case.step_ns
    if share < _LEAST_SHARE:
        return
    yield Finding(
        says=f"For {exposed_ns / case.step_count / 1e6:.3g} ms a step, {100 * share:.0f} % of it, the GPU only copies from or "
        "to the host, between kernels of the same stream.",
        why="Copies and kernels of one stream take turns; in two streams they run at the same time.",
        fix=Fix(
            "Copy on a stream of its own, as soon as the source is ready or before it is needed.",
            "side.wait_stream(torch.cuda.current_stream())\n"
            "with torch.cuda.stream(side):\n    buffer.copy_(p.grad, non_blocking=True)   # pinned",
        ),
        evidence={
            "exposed_ns": exposed_ns // case.step_count,
            "exposed_pct": 100 * share,
            "copies_per_step_count": mine.height / case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().to_list()),
        change=_beside(case, mine, hidden, exposed_ns),
        unless="what follows needs each copy at once, or the source is ready only at the end.",
    )
