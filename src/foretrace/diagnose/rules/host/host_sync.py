"""The host waits for the device in the middle of its work."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import host_waits, launches_for_waits
from foretrace.diagnose.patterns.host_waits import LEAST_SHARE, LONG_OP_NS  # noqa: F401  # named on the page
from foretrace.diagnose.patterns.launches_for_waits import MOST_LAUNCHES
from foretrace.diagnose.rule import RUNTIME_CALLS, healthy, needs, rule
from foretrace.predict.changes import Change


@needs(RUNTIME_CALLS)
@healthy("syncs", "{per_step_count:,.3g} a step", none="none inside a step")
@rule("The host waits for the GPU within a step", "Host syncs", see="syncs")
def host_sync(case: Case) -> Iterator[Finding]:
    """Calls such as .item(), .cpu(), nonzero and synchronize, in which the host waits for the GPU.

    Finds calls within steps that wait for the device, other than copies to it and calls that free memory, where they and
    the operators around them take at least {LEAST_SHARE} of the host's time. Waits in the passes of a loop are reported
    by waiting-loop, and those of autograd's anomaly detection by anomaly-mode.

    Slow
        if x.max().item() > limit:
            x = x / limit
        print(loss.item())

    Fast
        x = torch.where(x.max() > limit, x / limit, x)
        if step % 100 == 0:
            print(loss.item())

    Why
    While the host waits it launches nothing. When the GPU has finished, it waits in turn until the host has launched
    again. Where the host is slower than the GPU anyway, removing the wait gains nothing.

    How the worth is predicted
    The replay takes out each operator that waited and puts one launch in its place: what depended on the value must now
    be computed on the device. A bare torch.cuda.synchronize() needs nothing in its place. At best not even that launch is
    needed; at worst the operator stays, without its wait, and {MOST_LAUNCHES} launches follow. The range covers both.

    Where torch.isnan, isinf or isfinite makes what is read, these operators go as well: nothing else needs them. Where a
    tensor is brought to the host and operators of at least {LONG_OP_NS} compute on it there, these go too, each for one
    launch, and so does the copy back.

    Where most of the waiting is for the size of a result (nonzero, a mask as index), nothing is promised: without the
    wait, what follows may have more rows to work on.

    When not
    The program needs the value to decide what to do next.
    """
    waits = host_waits.host_waits(case)
    if waits is None or waits.host_share < LEAST_SHARE:
        return
    yield host_waits.finding(
        case,
        waits,
        why="While it waits it launches nothing, and afterwards the GPU waits for the next launch.",
        fix=Fix(
            "Keep the value on the device, or read it rarely.",
            "x = torch.where(x.max() > limit, x / limit, x)   # not: if x.max().item() > limit\n"
            "if step % 100 == 0: print(loss.item())",
        ),
        change=Change(
            "waits replaced by one launch each",
            launches_for_waits.one_launch_each(case, waits),
            others=(
                launches_for_waits.without_waits(case, waits),
                launches_for_waits.without_waiting(case, waits, MOST_LAUNCHES),
            ),
            doubt=launches_for_waits.doubt(case, waits),
        ),
        unless="the program needs the value to decide what to do next.",
    )
