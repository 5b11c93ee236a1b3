"""The GPU communicates with other ranks and computes nothing meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Alternative, Finding, Fix
from foretrace.diagnose.patterns import collective_arrivals, exposed_work, link_speed
from foretrace.diagnose.patterns.exposed_work import Exposed
from foretrace.diagnose.rule import headline, healthy, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs import links, overlap
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Count, Share

LEAST_SHARE = Share(0.05, "the step", JUDGEMENT)
MANY_SMALL = Count(8, "small messages a step: from here on, fewer and larger ones are worth a try", JUDGEMENT)
_OVERLAP, _BUCKETS, _HALVED, _LINK = "overlap", "buckets", "bf16", "link"
_FP32 = ("Float", "float")
_BOUND = "one rank's recording does not tell transfer from waiting for a slower rank, so this is a bound"


_FIX = Fix(
    "Overlap it with computation, or send less.",
    "model = DDP(model, bucket_cap_mb=50, gradient_as_bucket_view=True)   # if nothing replaces p.grad\n"
    "with model.no_sync(): loss.backward()   # while gradients accumulate: all passes but the last",
)
_FEWER = Fix(
    "Send many small tensors as few large ones.",
    "flat = torch.cat([tensor.flatten() for tensor in tensors]); dist.all_reduce(flat)   # not one call for each\n"
    "# or leave it to DDP: bucket_cap_mb=25 or more, static_graph=True",
)
_NARROWER = Fix(
    "Send gradients in bf16: half the bytes.",
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)\n"
    "# FSDP: MixedPrecision(reduce_dtype=torch.bfloat16)",
)
_FASTER = Fix(
    "Use the device's own links.",
    "NCCL_DEBUG=INFO python train.py   # P2P: NVLink or PCIe; SHM: the host's memory; NET: the network\n"
    "nvidia-smi topo -m   # NV#: NVLink; PIX, PXB, NODE, SYS: PCIe (AMD: rocm-smi --showtopo)",
)


@headline("Communication that nothing hides takes {exposed_pct:.0f} % of a step")
@healthy("communication", collective_arrivals.no_issue)
@rule("Communication is not hidden", "Communication", see="communication")
def exposed_communication(case: Case) -> Iterator[Finding]:
    """Collectives that no computation hides.

    Finds collectives during which nothing is computed for at least {LEAST_SHARE} of the step.

    Slow
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)

    Fast
        model = DDP(model, bucket_cap_mb=50, gradient_as_bucket_view=True)
        loss.backward()  # buckets are sent as soon as they are full

    Why
    What is not hidden adds to the step, on every rank. DDP with larger or smaller buckets, no_sync() while gradients
    accumulate, FSDP with prefetching, and fewer or smaller messages hide or save some of it.

    How the worth is predicted
    Collectives on the GPU are replayed with {overlap.COLLECTIVES_HIDDEN} of the exposed time hidden, or of what the step's
    computation could hide where that is less. The range is from none of it to all that computation could hide. Its upper end
    is a bound, because one recording does not tell how much of a collective is transfer and how much is waiting for a slower
    rank. So a gain is never promised.

    Where {MANY_SMALL} messages a step or more are smaller than {links.LARGE_BYTES}, an alternative sends them in buckets of
    {links.BUCKET_BYTES}: each bucket takes as long as the shortest message, and their bytes move as fast as the fastest.
    Sums of fp32 tensors can be sent in bf16, with {links.BF16_SHARE} of the bytes, and every message whose size is known could move at
    {links.REACHED} of the device's own links. Of both, {overlap.COLLECTIVES_HIDDEN} of the saving is taken, and all of it as
    the bound.

    Where streams wait for each other in ways that the recording does not tell, nothing is replayed; the finding is then ranked by
    half of what could be hidden. A link that is slower than can be is the rule slow-link; collectives on threads of the host
    (gloo) are the rule host-collectives.

    When not
    The time is spent waiting for a slower rank: see the rule straggler, with the recordings of all ranks.
    """
    values = case.result("communication").values
    if not values["collectives_count"]:
        return
    work = exposed_work.collectives(case)
    if not len(work):
        return
    exposed = exposed_work.find(work)
    if too_little(case, "communication that nothing hides", exposed.step_share, LEAST_SHARE):
        return
    yield Finding(
        says=f"For {exposed.exposed_ns / case.step_count / 1e6:.3g} ms a step, {100 * exposed.step_share:.0f} % of it, "
        "the GPU communicates with other ranks and nothing is computed."
        f"{_at_best(exposed)}",
        why="What no computation hides adds to the step, on every rank.",
        fix=_FIX,
        label=_OVERLAP,
        evidence={
            "exposed_ns": exposed.per_step_ns,
            "exposed_pct": 100 * exposed.step_share,
            "could_hide_pct": 100 * exposed.most_hidden * exposed.step_share,
            "communication_ns": int(values["total_ns"] or 0) // case.step_count,
            "spans": work.spans(),
        },
        where=work.places(),
        change=_overlapped(exposed),
        alternatives=(*_in_buckets(case, exposed), *_halved(case, exposed), *_faster(case, exposed)),
        at_best=min(exposed.most_hidden * exposed.step_share, 1.0),
        unless="the time is spent waiting for a slower rank: see the recordings of all ranks.",
    )


def _at_best(exposed: Exposed) -> str:
    """How much of the step computation could hide, as a bound."""
    most = 100 * exposed.most_hidden * exposed.step_share
    return (
        f" There is computation to hide at most {most:.0f} % of the step, an upper bound."
        if most >= 1
        else ""
    )


def _overlapped(exposed: Exposed) -> Change | None:
    """Half of what computation could hide hidden; from none of it to all. None where the replay would not notice."""
    if not exposed.order_is_known:
        return None
    most = exposed.most_hidden
    likely = overlap.COLLECTIVES_HIDDEN * most
    change = exposed.change(
        f"{100 * likely:.0f} % of the exposed communication hidden", likely, least=0.0, most=most
    )
    return Change(change.says, change.edit, others=change.others, doubt=_BOUND)


def _in_buckets(case: Case, exposed: Exposed) -> Iterator[Alternative]:
    """Many small messages as few large ones, where their sizes are known and they run on the GPU."""
    calls = link_speed.find(case).calls.filter(pl.col("on") == "device")
    small = calls.filter(pl.col("size_bytes") < links.LARGE_BYTES)
    if small.height < MANY_SMALL * case.step_count or not exposed.order_is_known:
        return
    fastest = float((calls["bus_bytes"] / calls["dur_ns"]).max() or 0.0)  # type: ignore[arg-type]
    buckets = ceil(int(small["size_bytes"].sum()) / links.BUCKET_BYTES / case.step_count) * case.step_count
    shortest_ns = min(small["dur_ns"].to_list())
    sent_ns = buckets * shortest_ns + float(small["bus_bytes"].sum()) / fastest
    left = min(sent_ns / int(small["dur_ns"].sum()), 1.0)
    tasks = case.tasks.filter(pl.col("id").is_in(small["id"].implode()))["task"]
    gone = exposed.shortened(0.0, only=dict.fromkeys(tasks.to_list(), 1 - left))
    yield Alternative(
        _BUCKETS,
        _FEWER,
        Change(
            f"{small.height / case.step_count:.3g} small messages a step sent as {buckets / case.step_count:.3g}",
            gone,
            others=(exposed.shortened(0.0),),
            doubt=_BOUND,
        ),
        "what follows needs each of the small tensors at once.",
    )


def _halved(case: Case, exposed: Exposed) -> Iterator[Alternative]:
    """Sums of large fp32 tensors in bf16."""
    summed = pl.col("collective").is_in(("all_reduce", "reduce_scatter"))
    calls = link_speed.find(case).calls.filter(
        summed & pl.col("dtype").is_in(_FP32) & (pl.col("size_bytes") >= links.LARGE_BYTES)
    )
    if calls.is_empty() or not exposed.order_is_known:
        return
    yield Alternative(
        _HALVED,
        _NARROWER,
        _shorter(
            exposed,
            "sums of fp32 tensors sent in bf16",
            dict.fromkeys(calls["id"].to_list(), 1 - links.BF16_SHARE),
        ),
        "the sums need more than bf16's 8 bits.",
        may_lead=True,
    )


def _faster(case: Case, exposed: Exposed) -> Iterator[Alternative]:
    """Messages on the device's own links, where these are known to be faster and slow-link says nothing of it."""
    speed = link_speed.find(case)
    link = case.device.nvlink_bytes if case.device else None
    if not link or not speed.best_bytes_per_s or speed.is_implausible or not exposed.order_is_known:
        return
    if speed.best_bytes_per_s > links.REACHED * link:
        return
    gone = {
        span: max(1 - links.transfer_ns(moved, link) / dur, 0.0)
        for span, dur, moved in speed.calls.select("id", "dur_ns", "bus_bytes").iter_rows()
    }
    yield Alternative(
        _LINK,
        _FASTER,
        _shorter(exposed, "messages at the speed of the device's own links", gone),
        "the ranks are on several hosts.",
        may_lead=False,
    )


def _shorter(exposed: Exposed, says: str, gone: dict[int, float]) -> Change:
    """Collectives shorter by some share, by span; half of that is likely, all of it the bound."""
    likely = overlap.COLLECTIVES_HIDDEN

    def edit(part: float) -> Edit:
        rows = exposed.work.rows.filter(pl.col("id").is_in(list(gone))).select("task", "id")
        return exposed.shortened(0.0, only={task: part * gone[span] for task, span in rows.iter_rows()})

    return Change(says, edit(likely), others=(edit(0.0), edit(1.0)), doubt=_BOUND)
