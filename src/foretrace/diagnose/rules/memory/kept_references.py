"""Every step keeps memory that the step before it did not."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.analyze.concepts.memory.memory_replay import Memory, MemoryChange
from foretrace.analyze.snapshots import leaks
from foretrace.analyze.snapshots.steps import LEAST_STEPS
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.freed import Freed
from foretrace.diagnose.patterns import freed_memory
from foretrace.diagnose.patterns.freed_memory import BLOCKS
from foretrace.diagnose.patterns.run_snapshot import SNAPSHOT, place_of, snapshot_of
from foretrace.diagnose.rule import headline, needs, rule
from foretrace.errors import MissingDataError
from foretrace.sourced import JUDGEMENT, Count
from foretrace.units import counted, format_value

MANY = Count(1_000, "steps, after which the growth is told", JUDGEMENT)


@needs(SNAPSHOT, BLOCKS)
@headline("Every step keeps {per_step_bytes} more")
@rule("Every step keeps memory", "Kept references", see="memory")
def kept_references(case: Case) -> Iterator[Finding]:
    """Memory that every step allocates at one line and that stays, as the memory snapshot of the same Run shows it.

    Finds lines whose memory grew in each of the last {LEAST_STEPS} steps or more of the snapshot's history, by at least
    {leaks.LEAST_BYTES} a step, and is still held at its end. What stops growing is none: caches, the optimizer's state, batches
    fetched ahead.

    Slow
        losses.append(loss)

    Fast
        losses.append(loss.detach())  # or loss.item(), every few steps

    Why
    A tensor is freed when nothing refers to it. A list, a cache or a closure that refers to one of every step grows until
    memory runs out; a loss that is kept keeps its whole graph.

    How the worth is predicted
    What the recorded steps up to the peak kept is taken from it. At the upper end of the range it is what all steps since the
    program began have kept.

    When not
    It is a buffer of fixed length that is not full yet.
    """
    found = snapshot_of(case)
    assert found is not None  # needs() has seen to it
    device = found.devices[0]
    if device.steps is None or len(device.steps) < LEAST_STEPS:
        count = counted(len(device.steps) if device.steps else 0, "whole step")
        raise MissingDataError(
            f"{found.snapshot.path.name}: {count} in its history; record at least {LEAST_STEPS}"
        )
    if not device.leaks:
        return
    per_step = sum(leak.bytes_per_step for leak in device.leaks)
    worst = device.leaks[0]
    memory = freed_memory.memory_of(case)
    places = [place for leak in device.leaks[:3] if (place := place_of(leak.where)) is not None]
    lines = f" and {counted(len(device.leaks) - 1, 'other line')}" if len(device.leaks) > 1 else ""
    yield Finding(
        says=f"Every step keeps {format_value('_bytes', per_step)} more, allocated at {worst.where}{lines}: "
        f"{format_value('_bytes', MANY * per_step)} after {MANY:,} steps.",
        why="Something still refers to what each step allocates there: a list, a cache, a closure, or a loss with its graph.",
        fix=_fix(worst),
        evidence={
            "per_step_bytes": per_step,
            "kept_bytes": sum(leak.kept_bytes for leak in device.leaks),
            "steps_count": len(worst.repetitions),
            "category": worst.category,
            "peak_bytes": memory.peak_bytes,
        },
        where=tuple(places) or (Place(None, None, worst.where),),
        unless="it is a buffer of fixed length that is not full yet.",
        severity="medium",
        freed=_freed(case, memory, per_step),
    )


def _fix(worst: leaks.Leak) -> Fix:
    return Fix(
        f"Let go of what {worst.where} allocates: keep numbers or detached copies, or delete the reference.",
        "kept.append(value.detach().cpu())   # not value, which keeps its memory and its graph",
    )


def _freed(case: Case, memory: Memory, per_step: int) -> Freed:
    """What the steps of the recording had kept at its peak; at most, what all steps before had."""
    steps = case.whole.steps
    before = [step for step in steps if step.end_ns <= memory.peak_at_ns]
    number = before[-1].number + 1 if before else 0
    kept = min(max(len(before), 1) * per_step, memory.peak_bytes)
    since = min(max(number, len(before), 1) * per_step, memory.peak_bytes)
    says = "references not kept"
    return Freed(
        memory,
        MemoryChange(says, always_bytes={"kept references": -kept}),
        (MemoryChange(says, always_bytes={"kept references": -since}),),
    )
