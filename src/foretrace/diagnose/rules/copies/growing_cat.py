"""A tensor is copied whole to append a little to it."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import growing_cats
from foretrace.diagnose.rule import KERNELS, SHAPES, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs.operator_calls import VIEW_NS
from foretrace.predict.costs.streaming import START_NS
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Count, Share

LEAST_SHARE = Share(0.02, "GPU time", JUDGEMENT)
ALREADY_THERE = Share(0.9, "the elements of the result, at least", JUDGEMENT)
ADDED_VIEWS = Count(3, "slices: one to write to, and one of each side to read", "the fix, spelled out")


@needs(KERNELS, SHAPES)
@rule("A tensor is copied whole to append to it", "Growing tensors", see="roles")
def growing_cat(case: Case) -> Iterator[Finding]:
    """torch.cat that copies a whole tensor to append a little to it.

    Finds torch.cat whose result another torch.cat copies again, where at least {ALREADY_THERE} of the elements were there
    before: caches of keys and values, lists that are joined anew for every part, and windows that move along by a few
    rows. All of them together must take at least {LEAST_SHARE} of GPU time.

    Slow
        cache = torch.cat([cache, new], dim=2)  # for every token

    Fast
        cache = torch.empty(batch, heads, longest, width, device="cuda")  # once
        cache[:, :, at : at + 1] = new
        keys = cache[:, :, : at + 1]

    Why
    torch.cat makes a new tensor, and reads and writes every element of it. A cache that grows by torch.cat is copied as a
    whole for every token, so that the cost of a text grows with the square of its length.

    How the worth is predicted
    Each copy is replayed with its time in proportion to what is new, and takes at least {START_NS}. The host calls
    {ADDED_VIEWS} views more, of {VIEW_NS} each.

    When not
    Autograd keeps the parts for a backward pass, or what reads the result would bring a part of a longer buffer into
    order first, as norms, softmax and convolutions do: such calls are left out. The final length may be unknown and
    memory for the longest short.
    """
    cats = growing_cats.growing(case, already_there=ALREADY_THERE)
    if too_little(case, "torch.cat copies whole tensors to append to them", cats.gpu_share, LEAST_SHARE):
        return
    new_pct = 100 * float(cats.rows["new_share"].sum()) / len(cats)
    yield cats.finding(
        "copies",
        says=f"torch.cat copies a whole tensor to make it {new_pct:.2g} % longer, {cats.per_step_count:.0f} times a step: "
        f"{cats.gpu_pct:.0f} % of GPU time.",
        why="All that was there before is read and written again each time.",
        fix=Fix(
            "Write what is new into a buffer of the final length.",
            "cache[:, :, at : at + 1] = new   # not: cache = torch.cat([cache, new], 2)\n"
            "keys = cache[:, :, : at + 1]",
        ),
        change=Change("only what is new copied", _only_new(cats)),
        unless="the final length is not known and memory for the longest is short, or what reads the buffer is slower on "
        "a part of it.",
    )


def _only_new(cats: DeviceWork) -> Edit:
    """Only what is new is copied, into a buffer that is there already."""
    durations = {
        task: min(dur, max(round(dur * new_share), START_NS))
        for task, dur, new_share in cats.rows.select("task", "dur_ns", "new_share").iter_rows()
    }
    views = dict.fromkeys(cats.rows["call"].unique().to_list(), ADDED_VIEWS * VIEW_NS)
    return Edit(durations_ns=durations, modelled=frozenset(durations), added_host_ns=views)
