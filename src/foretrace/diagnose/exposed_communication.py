"""The GPU communicates with other ranks and computes nothing meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace import intervals
from foretrace.analyze import device_time
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.program import WAIT

_LEAST_SHARE = 0.05  # of the steps' time


@rule
def exposed_communication(case: Case) -> Iterator[Finding]:
    """Collectives that no computation hides.

    What it does
    Looks for collectives whose time without any computation is at least 5 % of the steps. Those on the device are
    replayed with half of that time hidden; the range is from none of it to all of it, for one recording does not
    tell how much of a collective is transfer and how much is waiting for a slower rank. So it never promises a
    gain. Nothing is replayed for collectives on host threads (gloo), nor where streams wait for each other in
    ways that the recording does not tell.

    Why it matters
    What is not hidden adds to the step, on every rank.

    Use instead
    DDP with larger or smaller buckets (bucket_cap_mb), gradient_as_bucket_view=True, no_sync() while gradients
    accumulate, FSDP with prefetching, fewer or smaller messages.
    """
    values = case.result("communication").values
    if not values["collectives_count"]:
        return
    mine = _on_device(case)
    hidden, exposed_ns = _hidden(case, mine)
    if mine.is_empty():
        exposed_ns = int(values["exposed_ns"] or 0)
    share = exposed_ns / max(case.program.measured_ns, 1)
    if share < _LEAST_SHARE:
        return
    total = int(values["total_ns"] or 0)
    who = "the host" if mine.is_empty() else "the GPU"
    yield Finding(
        rule="exposed-communication",
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
        change=_change(case, hidden) if hidden and _ordered(case, mine) else None,
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


def _ordered(case: Case, mine: pl.DataFrame) -> bool:
    """Whether the replay knows what waits for the collectives: they share a stream with other work, or waits are known."""
    others = case.tasks.filter(~pl.col("task").is_in(mine["task"].implode()))["stream"]
    return bool((case.program.kind == WAIT).any() or mine["stream"].is_in(others.implode()).all())


def _change(case: Case, hidden: dict[int, float]) -> Change:
    dur = case.program.task_dur_ns

    def edit(part: float) -> Edit:
        return Edit(
            durations_ns={task: round(int(dur[task]) * (1 - part * (1 - h))) for task, h in hidden.items()}
        )

    return Change("half of the exposed communication hidden", edit(0.5), others=(Edit(), edit(1.0)))
