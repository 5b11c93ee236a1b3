"""The GPU communicates with other ranks and computes nothing meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import collective_arrivals, exposed_work
from foretrace.diagnose.rule import healthy, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.costs import overlap
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.05, "the step", JUDGEMENT)


_FIX = Fix(
    "Overlap it with computation, or send less.",
    "model = DDP(model, bucket_cap_mb=50, gradient_as_bucket_view=True)   # if nothing replaces p.grad\n"
    "with model.no_sync(): loss.backward()   # while gradients accumulate: all passes but the last",
)


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
    Collectives on the GPU are replayed with {overlap.COLLECTIVES_HIDDEN} of the exposed time hidden. The range is from none
    of it to all of it, because one recording does not tell how much of a collective is transfer and how much is waiting for
    a slower rank. So a gain is never promised.

    Nothing is replayed for collectives on host threads (gloo), nor where streams wait for each other in ways that the
    recording does not tell.

    When not
    The time is spent waiting for a slower rank: see the rule straggler, with the recordings of all ranks.
    """
    values = case.result("communication").values
    if not values["collectives_count"]:
        return
    work = exposed_work.collectives(case)
    on_device = len(work) > 0
    exposed = exposed_work.find(work)
    if not on_device:
        exposed = exposed_work.Exposed(work, {}, int(values["exposed_ns"] or 0))
    if too_little(case, "communication that nothing hides", exposed.step_share, LEAST_SHARE):
        return
    change = None
    if exposed.hidden and exposed_work.order_is_known(work):
        change = exposed.change(
            "half of the exposed communication hidden", overlap.COLLECTIVES_HIDDEN, least=0.0
        )
    yield Finding(
        says=f"For {exposed.exposed_ns / case.step_count / 1e6:.3g} ms a step, {100 * exposed.step_share:.0f} % of it, "
        f"{'the GPU' if on_device else 'the host'} communicates with other ranks and nothing is computed.",
        why="What no computation hides adds to the step, on every rank.",
        fix=_FIX,
        evidence={
            "exposed_ns": exposed.per_step_ns,
            "exposed_pct": 100 * exposed.step_share,
            "communication_ns": int(values["total_ns"] or 0) // case.step_count,
            "spans": work.spans(),
        },
        where=work.places(),
        change=change,
        unless="the time is spent waiting for a slower rank: see the recordings of all ranks.",
    )
