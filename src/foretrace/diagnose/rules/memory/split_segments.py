"""The allocator holds much more than is allocated, on a device that is short of memory."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.analyze.concepts.memory.memory_replay import MemoryChange
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.freed import Freed
from foretrace.diagnose.patterns import freed_memory
from foretrace.diagnose.patterns.freed_memory import BLOCKS, LEAST_FREED
from foretrace.diagnose.rule import headline, needs, rule
from foretrace.sourced import JUDGEMENT, Share
from foretrace.units import format_value

LEAST_HELD = Share(0.5, "the device's memory, that the allocator holds at least", JUDGEMENT)
REUSED = Share(
    0.7, "what the allocator holds beyond the peak, that segments which grow would not need", JUDGEMENT
)
REUSED_LEAST = Share(0.2, "the same, at least", JUDGEMENT)


@needs(BLOCKS)
@headline("The allocator holds {unused_pct:.0f} % more than the peak of what is allocated")
@rule("The allocator holds memory that nothing uses", "Unused segments", see="memory")
def split_segments(case: Case) -> Iterator[Finding]:
    """Memory that the caching allocator holds beyond the peak of what is allocated, where the device is half full or more.

    Compares the most that the allocator held with the peak of what was allocated, where the difference is at least
    {LEAST_FREED} and the allocator holds at least {LEAST_HELD}.

    Slow
        python train.py

    Fast
        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py

    Why
    The allocator takes segments of fixed sizes from the device and splits them. A request that fits into no free piece takes
    another segment, though there is enough free in all. Segments that grow are not split so.

    How the worth is predicted
    Of what is held beyond the peak of allocated memory {REUSED} would not be held, from {REUSED_LEAST} to all of it: a
    recording does not tell which pieces are too small to be used.

    When not
    What is held is cache that the allocator would give back if the device ran full.
    """
    memory = freed_memory.memory_of(case)
    reserved, share = memory.curve.reserved_peak_bytes, freed_memory.held_share(case)
    if reserved is None or share is None:
        return
    unused = max(reserved - memory.peak_bytes, 0)
    if unused < LEAST_FREED * memory.peak_bytes or share < LEAST_HELD:
        return  # there is always some
    says = "segments that grow"
    freed = Freed(
        memory,
        MemoryChange(says, held_bytes=-round(REUSED * unused)),
        tuple(MemoryChange(says, held_bytes=-round(part * unused)) for part in (REUSED_LEAST, 1.0)),
    )
    yield Finding(
        says=f"The allocator holds {format_value('_bytes', reserved)} at most, and no more than "
        f"{format_value('_bytes', memory.peak_bytes)} of it is allocated.",
        why="Segments of fixed sizes are split, and what is left between the pieces is too small for the next request.",
        fix=Fix("Let segments grow.", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py"),
        evidence={
            "reserved_peak_bytes": reserved,
            "peak_bytes": memory.peak_bytes,
            "unused_bytes": unused,
            "unused_pct": 100 * unused / max(memory.peak_bytes, 1),
        },
        unless="it is cache that would be given back.",
        severity=freed_memory.severity(case),
        freed=freed,
    )
