"""Copies between host and GPU take turns with kernels, although the program does not wait for them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import exposed_work
from foretrace.diagnose.patterns.exposed_work import Exposed
from foretrace.diagnose.patterns.host_copies import waited
from foretrace.diagnose.rule import rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs import overlap
from foretrace.predict.numbers import Calls
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.05, "the step", JUDGEMENT)


@rule("Copies take turns with kernels", "Exposed copies", see="timeline")
def exposed_copies(case: Case) -> Iterator[Finding]:
    """Copies between host and GPU, in the stream that computes, that no computation hides.

    Finds copies from and to pinned memory that the program does not wait for, in a stream that runs kernels too, where the
    GPU only copies for at least {LEAST_SHARE} of the step.

    Slow
        for p in model.parameters():
            buffers[p].copy_(p.grad, non_blocking=True)

    Fast
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for p in model.parameters():
                buffers[p].copy_(p.grad, non_blocking=True)

    Why
    Copies and kernels of one stream take turns. In two streams they run at the same time.

    How the worth is predicted
    Copies are replayed with {overlap.COPIES_HIDDEN} of their time hidden, from {overlap.COPIES_HIDDEN_LEAST} to all of it: a
    gradient can leave once it is there, not before. Of {overlap.MANY_COPIES} copies a step or more that computation
    outlasts, at least {overlap.MANY_COPIES_HIDDEN_LEAST} is taken to be hidden.

    Where all come from the host, {overlap.FETCHES_HIDDEN} is hidden, and of many at least
    {overlap.MANY_FETCHES_HIDDEN_LEAST}, because they can be fetched ahead. Never more is hidden than there is computation to
    hide it, though copies in opposite directions hide each other.

    When not
    What follows needs each copy at once, or the source is ready only at the end.
    """
    exposed = exposed_work.find(_in_computing_streams(case))
    if too_little(case, "copies take turns with kernels", exposed.step_share, LEAST_SHARE):
        return
    yield Finding(
        says=f"For {exposed.exposed_ns / case.step_count / 1e6:.3g} ms a step, {100 * exposed.step_share:.0f} % of it, the "
        "GPU only copies from or to the host, between kernels of the same stream.",
        why="Copies and kernels of one stream take turns; in two streams they run at the same time.",
        fix=Fix(
            "Copy on a stream of its own, as soon as the source is ready or before it is needed.",
            "side.wait_stream(torch.cuda.current_stream())\n"
            "with torch.cuda.stream(side):\n    buffer.copy_(p.grad, non_blocking=True)   # pinned\n"
            "p.grad.record_stream(side)   # its memory is in use until the copy is done\n"
            "side.synchronize()           # before the host reads buffer, as late as can be",
        ),
        evidence={
            "exposed_ns": exposed.per_step_ns,
            "exposed_pct": 100 * exposed.step_share,
            "copies_per_step_count": exposed.work.per_step_count,
            "spans": exposed.work.spans(),
        },
        where=exposed.work.places(),
        change=_beside_kernels(exposed),
        unless="what follows needs each copy at once, or the source is ready only at the end.",
    )


def _in_computing_streams(case: Case) -> DeviceWork:
    """Copies from or to pinned memory that the host does not wait for, in streams with kernels, with their `direction`."""
    copies = case.copies.filter(
        pl.col("direction").is_in(("HtoD", "DtoH", "PtoP")) & ~pl.col("pageable").fill_null(value=False)
    ).select(pl.col("span_id").alias("id"), pl.col("direction").cast(pl.String))
    rows = case.tasks.join(copies, on="id", maintain_order="left")
    rows = rows.filter(pl.Series(~waited(case, Calls(rows["call"].to_numpy())), dtype=pl.Boolean))
    computing = case.device_work(pl.col("kind") == "kernel").rows["stream"].unique()
    return DeviceWork(case, rows.filter(pl.col("stream").is_in(computing.implode())))


def _beside_kernels(exposed: Exposed) -> Change:
    """Copies on a stream of their own: as much of them hidden as is likely, and no more than computation can hide."""
    case = exposed.work.case
    by_direction = dict(exposed.work.rows.group_by("direction").agg(pl.col("dur_ns").sum()).iter_rows())
    both_ways = min(by_direction.values()) if len(by_direction) > 1 else 0
    computing_ns = case.device_work(pl.col("kind") == "kernel").dur_ns
    most = min((computing_ns + both_ways) / max(exposed.exposed_ns, 1), 1.0)
    fetched = set(by_direction) == {"HtoD"}
    usual, least = overlap.COPIES_HIDDEN, overlap.COPIES_HIDDEN_LEAST
    if fetched:
        usual = overlap.FETCHES_HIDDEN
    if exposed.work.per_step_count >= overlap.MANY_COPIES and computing_ns >= exposed.exposed_ns:
        least = overlap.MANY_FETCHES_HIDDEN_LEAST if fetched else overlap.MANY_COPIES_HIDDEN_LEAST
    return exposed.change("copies beside the kernels", min(usual, most), least=min(least, most), most=most)
