"""What rules about memory share: the memory of the program's GPU, and from when on a change of it is worth telling."""

from __future__ import annotations

from typing import Any

from foretrace.analyze.concepts.memory import device_memory, memory_replay
from foretrace.analyze.concepts.memory.memory_replay import Memory
from foretrace.analyze.concepts.names.named_spans import any_like
from foretrace.diagnose.case import Case
from foretrace.diagnose.freed import Freed
from foretrace.diagnose.rule import Need
from foretrace.diagnose.seen import seen, too_little
from foretrace.sourced import JUDGEMENT, Share

LEAST_FREED = Share(0.05, "the peak of allocated memory", JUDGEMENT)
LEAST_HELD = Share(0.02, "the device's memory, that the peak takes at least", JUDGEMENT)
SHORT = Share(0.8, "the device's memory, from which on it is short", JUDGEMENT)

BLOCKS = Need(
    lambda case: (
        not case.whole.allocations.is_empty() and case.whole.allocations["address"].null_count() == 0
    ),
    "no memory events recorded; record with profile_memory=True",
)


def memory_of(case: Case) -> Memory:
    """The memory of the device with the largest peak, over the whole recording."""
    return memory_replay.find(case.whole)


def names_there(case: Case, pattern: str) -> bool:
    """Whether a span of the recording has such a name."""
    return any_like(case.whole, pattern)


def held_share(case: Case) -> float | None:
    """What the process holds of the device's memory at most; None where its size is not known."""
    memory = memory_of(case)
    device = device_memory.recorded_bytes(case.whole, memory.curve.device)
    if device is None or not memory.curve.absolute:
        return None
    return max(memory.peak_bytes, memory.curve.reserved_peak_bytes or 0) / device


def not_worth(case: Case, what: str, freed: Freed, *, least: Share, held: Share) -> bool:
    """Whether a change frees too little of the peak, or the device is next to empty; what it frees is kept as seen."""
    if too_little(case, what, freed.share, least):
        return True
    share = held_share(case)
    if share is None or share >= held:
        return False
    what = f"{what}: {100 * freed.share:.0f} % of the peak"
    seen(case, f"{what}, but the program holds no more than {100 * share:.2g} % of the device's memory")
    return True


def severity(case: Case) -> str:
    """How serious a finding about memory is: no more than low where there is room."""
    held = held_share(case)
    return "medium" if held is not None and held >= SHORT else "low"


def evidence(freed: Freed, **more: Any) -> dict[str, Any]:
    """The peak before and after, and what is freed of it, with `more`."""
    return {
        "peak_bytes": freed.memory.peak_bytes,
        "peak_after_bytes": freed.after_bytes,
        "freed_pct": 100 * freed.share,
        **more,
    }
