"""A loop over pieces of the data waits for the device in each pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import expert_loops, host_waits, launches_for_waits, repeated_passes
from foretrace.diagnose.patterns.expert_loops import Experts
from foretrace.diagnose.patterns.host_waits import LEAST_SHARE, HostWaits
from foretrace.diagnose.patterns.independent_passes import takes_pieces
from foretrace.diagnose.patterns.launches_for_waits import MOST_LAUNCHES
from foretrace.diagnose.patterns.needed_waits import SPLITS
from foretrace.diagnose.patterns.repeated_passes import UPSIDE, Repeat
from foretrace.diagnose.rule import RUNTIME_CALLS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit, merge
from foretrace.predict.numbers import NO_CALLS, Calls
from foretrace.predict.waits import for_splits
from foretrace.sourced import JUDGEMENT, Count, Share

LEAST_PASSES = Count(
    8, "passes of a loop: fewer may be layers, levels or parts that are each their own", JUDGEMENT
)
LEAST_EXPERTS = Count(4, "passes of a loop over experts", JUDGEMENT)
WAITING_PASSES = Share(0.8, "the passes: in so many the host waits", JUDGEMENT)


@needs(RUNTIME_CALLS)
@rule("A loop waits for the GPU in each pass", "Waiting loops", see="syncs")
def waiting_loop(case: Case) -> Iterator[Finding]:
    """Loops over pieces of the data or over experts in which the host waits for the GPU in nearly every pass.

    Finds loops within a step of at least {LEAST_PASSES} passes of which {WAITING_PASSES} wait for the device, where each
    pass takes a piece of its own and multiplies no matrices; and loops of at least {LEAST_EXPERTS} passes over experts
    whose weights are slices of one tensor. It speaks where all waits of the program, with the operators around them, take
    at least {LEAST_SHARE} of the host's time, and it reports the program's other waits with them: host-sync then does not.

    Slow
        for segment in range(segments):
            rows = (index == segment).nonzero()  # waits for the number of rows
            sums[segment] = values[rows].sum()

    Fast
        sums = torch.zeros(segments, device="cuda").index_add_(0, index, values)

    Why
    Each pass launches a few small kernels and then waits for them, so neither the host nor the GPU ever works ahead. All
    pieces together are one operation for the device.

    How the worth is predicted
    Of a loop over pieces, one pass stays, on all pieces, forward and backward; other waits are replaced by one launch
    each. At worst the loop stays and one launch takes the place of each wait, or the operators stay without their waits and
    {MOST_LAUNCHES} launches follow those outside of loops. One pass may be quicker than the one that was recorded: the
    range reaches {UPSIDE} times further up.

    A loop over experts is replayed as one batched product where all experts have the same number of rows. Where they do not, the
    waits are replaced by one launch each, and the range reaches to the batched product.

    Where most of the waiting is for the size of a result (nonzero, a mask as index), nothing is promised: without the
    wait, what follows may have more rows to work on. Nor is it where the host reads how a collective splits its tensor.

    When not
    A pass needs what the one before it has read, or the program needs the values to decide what to do next.
    """
    waits = host_waits.host_waits(case)
    if waits is None:
        return
    loops, experts = _loops(case, waits.calls), _experts(case, waits.calls)
    if not loops and not experts.loops:
        return
    if too_little(case, "a loop waits for the device in each pass", waits.host_share, LEAST_SHARE):
        return
    yield host_waits.finding(
        case,
        waits,
        why="In each pass of a loop the host waits and launches nothing; afterwards the GPU waits for the next launch.",
        fix=Fix(
            "Do all passes of the loop as one operation on the device.",
            'sums = torch.zeros(segments, device="cuda").index_add_(0, index, values)   # not: for segment in ...\n'
            "y = torch.bmm(rows_of_experts, weights)   # not: for expert in ...",
        ),
        change=_change(case, waits, loops, experts),
        unless="a pass needs what the one before it read, or the program needs the values to decide what to do next.",
    )


def _waits_in_passes(loop: Repeat, waiting: Calls) -> bool:
    return bool(loop.passes_with(waiting).mean() >= WAITING_PASSES)


def _loops(case: Case, waiting: Calls) -> list[Repeat]:
    """Loops over pieces that wait in nearly every pass and only move, compare and reduce: for all pieces that is one operation.

    A loop with products is one over layers or experts, each with weights of its own, or over tokens that follow each other.
    """
    return repeated_passes.apart(
        tuple(
            loop
            for loop in repeated_passes.find(case, least=LEAST_PASSES, shapes=False)
            if _waits_in_passes(loop, waiting)
            and not repeated_passes.of_backward(case, loop)
            and not repeated_passes.products(case, loop)
            and takes_pieces(case, loop)
        )
    )


def _experts(case: Case, waiting: Calls) -> Experts:
    """Loops over experts that wait in nearly every pass."""
    return expert_loops.find(case, least=LEAST_EXPERTS, chosen=lambda loop: _waits_in_passes(loop, waiting))


def _change(case: Case, waits: HostWaits, loops: list[Repeat], experts: Experts) -> Change:
    """Loops done at once and other waits replaced by one launch each, with what else may come of it."""
    looped = Calls(np.concatenate([loop.calls() for loop in loops])) if loops else NO_CALLS
    one_each = launches_for_waits.one_launch_each(case, waits, looped=looped)
    waiting_less = launches_for_waits.without_waiting(case, waits, MOST_LAUNCHES, looped=looped)
    without = launches_for_waits.without_waits(case, waits)
    splits = for_splits(case.trace, case.host, case.program, waits.calls)
    doubt = SPLITS if splits.any() else launches_for_waits.doubt(case, waits)

    def at_once(edit: Edit) -> Edit:
        added = launches_for_waits.launches(case, waits, 1, looped=looped, but=edit.removed_calls)
        return replace(merge((without, edit)), added_host_ns=added)

    if not experts.loops:
        pieces = repeated_passes.at_once(case, loops)
        return Change(
            "loops that wait in each pass done for all at once, other waits replaced by one launch each",
            at_once(pieces.edit),
            others=(merge((without, pieces.edit)), one_each, waiting_less),
            upside=UPSIDE,
            doubt=doubt,
        )
    batched = repeated_passes.at_once(case, list(experts.loops), own_weights=True)
    if not experts.alike:
        return Change(
            "waits replaced by one launch each, at best loops over experts done as batched products",
            one_each,
            others=(at_once(batched.edit), without, waiting_less),
            doubt=doubt,
        )
    return Change(
        "loops over experts done as batched products, at worst waits replaced by one launch each",
        at_once(batched.edit),
        others=(*(at_once(edit) for edit in batched.others), one_each, waiting_less),
        upside=UPSIDE,
        doubt=doubt,
    )
