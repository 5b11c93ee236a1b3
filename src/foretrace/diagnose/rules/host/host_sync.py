"""The host waits for the device in the middle of its work."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import host_waits, launches_for_waits, needed_waits
from foretrace.diagnose.patterns.host_waits import (  # noqa: F401  # named on the page
    LEAST_SHARE,
    LONG_OP_NS,
    HostWaits,
)
from foretrace.diagnose.patterns.launches_for_waits import MOST_LAUNCHES
from foretrace.diagnose.patterns.needed_waits import Needed
from foretrace.diagnose.rule import RUNTIME_CALLS, healthy, needs, rule
from foretrace.predict.changes import Change
from foretrace.predict.graph_capture import NEAR_END  # noqa: F401  # named on the page
from foretrace.predict.numbers import Calls
from foretrace.runtime_names import Effect, does
from foretrace.sourced import JUDGEMENT, Count

LOGGED = Count(2, "values read a step: a loss or a norm that is logged, rather than a condition", JUDGEMENT)
_COPIES = ("aten::to", "aten::_to_copy", "aten::copy_")


@needs(RUNTIME_CALLS)
@healthy("syncs", "{per_step_count:,.3g} a step", none="none inside a step")
@rule("The host waits for the GPU within a step", "Host syncs", see="syncs")
def host_sync(case: Case) -> Iterator[Finding]:
    """Calls such as .item(), .cpu(), nonzero and synchronize, in which the host waits for the GPU.

    Finds calls within steps that wait for the device, other than copies to it and calls that free memory, where they and
    the operators around them take at least {LEAST_SHARE} of the host's time, in the recording or in the replayed step without a
    profiler: a host that is not slowed by recording is further ahead of the GPU, and waits longer. Waits in the passes of a loop are reported
    by waiting-loop, and those of autograd's anomaly detection by anomaly-mode.

    Slow
        if x.max().item() > limit:
            x = x / limit
        total += loss.item()

    Fast
        x = torch.where(x.max() > limit, x / limit, x)
        total += loss.detach()
        if step % 100 == 0:
            print(total.item())

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

    Some waits are needed, and stay in the replay; where all are, nothing is promised: those that read how a collective splits
    its tensor (all_to_all between experts); in a recording without a backward pass those that bring the result, a tensor or a
    whole number behind which at most {NEAR_END} of a step's launches come; and there those that read whole numbers which
    argmax, multinomial or topk has just chosen, such as tokens.

    When not
    The program needs the value to decide what to do next.
    """
    waits = host_waits.host_waits(case)
    if waits is None or not waits.count:
        return
    needed = needed_waits.needed(case, waits)
    free = Calls(waits.calls[~needed.flags])
    removable = host_waits.of_calls(case, free) if needed.flags.any() and len(free) else waits
    if not removable.count:
        removable = waits
    yield host_waits.finding(
        case,
        waits,
        why=_why(case, needed),
        fix=_fix(case, removable),
        change=_change(case, removable, needed.reasons() if removable is waits else ""),
        unless="the program needs the value to decide what to do next.",
    )


def _why(case: Case, needed: Needed) -> str:
    why = "While it waits it launches nothing, and afterwards the GPU waits for the next launch."
    if not needed.flags.any():
        return why
    return f"{why} {needed.flags.sum() / case.step_count:.3g} of the waits a step are needed: {needed.reasons()}."


def _change(case: Case, waits: HostWaits, needed: str) -> Change:
    """Waits gone for one launch each; nothing is promised where all of them are needed."""
    return Change(
        "waits replaced by one launch each",
        launches_for_waits.one_launch_each(case, waits),
        others=(
            launches_for_waits.without_waits(case, waits),
            launches_for_waits.without_waiting(case, waits, MOST_LAUNCHES),
        ),
        doubt=needed or launches_for_waits.doubt(case, waits),
    )


def _fix(case: Case, waits: HostWaits) -> Fix:
    """What to write instead, by what waits most often."""
    first = str(host_waits.reader_names(case, waits)[0])
    if does(first, Effect.SYNC):
        return Fix(
            "Leave the synchronize out: torch waits by itself where the host needs a value.",
            "# torch.cuda.synchronize() belongs around what is timed, not into every step",
        )
    if host_waits.for_sizes_mostly(case, waits):
        return Fix(
            "Compute on all rows and leave those out that do not count, so that no size has to be known.",
            "loss = (loss_of_rows * mask).sum() / mask.sum()   # not: loss_of_rows[mask].mean()",
        )
    if first in _COPIES:
        return Fix(
            "Compute on the device, and copy only what the program prints or saves.",
            "score = metric(y)   # on the device, not: metric(y.cpu())\n"
            "if step % 100 == 0: print(score.item())",
        )
    if len(waits.calls) <= LOGGED * case.step_count:
        return Fix(
            "Keep the value on the device, and read it where it is printed.",
            "total += loss.detach()   # a tensor, not: total += loss.item()\n"
            "if step % 100 == 0: print(total.item())",
        )
    return Fix(
        "Keep the values on the device, or read them rarely.",
        "x = torch.where(x.max() > limit, x / limit, x)   # not: if x.max().item() > limit\n"
        "if step % 100 == 0: print(loss.item())",
    )
