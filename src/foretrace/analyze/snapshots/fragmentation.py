"""Fragmentation: what torch holds from the device beyond what the program needs, and the allocator's settings that would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.snapshots.block_sizes import SMALL
from foretrace.analyze.snapshots.holes import Holes, holes, unused_beside
from foretrace.analyze.snapshots.origins import Origins
from foretrace.analyze.snapshots.shortage import Flush
from foretrace.analyze.snapshots.steps import LEAST_STEPS, Steps
from foretrace.sourced import JUDGEMENT, Bytes, Count, Share
from foretrace.units import format_value

LEAST_SHARE = Share(0.1, "the most that torch held from the device", JUDGEMENT)
LEAST_BYTES = Bytes(64 << 20, "held beyond the program's own peak: less is no matter", JUDGEMENT)
MANY_SIZES = Count(
    32, "different sizes of large requests: no program has so many layers of its own", JUDGEMENT
)
LEAST_SPLIT_LIMIT = Bytes(
    21 << 20, "max_split_size_mb, which torch wants above 20", "c10/cuda/CUDAAllocatorConfig.cpp"
)


@dataclass(frozen=True)
class Advice:
    """A setting of the allocator, and the figures that speak for it."""

    setting: str
    reason: str


@dataclass(frozen=True)
class Fragmentation:
    """What was unused at the peak and at the end, and why."""

    at_peak: Holes
    at_end: Holes
    unused_bytes: int  # of what torch held at the program's peak, what no block used
    unused_pct: float
    excess_bytes: int  # the most that torch held, beyond the most that blocks took
    rounding_bytes: int  # in the blocks of the peak, beyond what was asked for
    beside: tuple[
        tuple[str, int], ...
    ]  # lines whose blocks kept most of a segment from use when torch held most, and how much
    advice: tuple[Advice, ...]


def least_excess(most_reserved: int) -> float:
    """From how many bytes on, held beyond what blocks took, it matters."""
    return max(LEAST_SHARE * most_reserved, LEAST_BYTES)


def fragmentation(
    origins: Origins, settings: Mapping[str, Any], flushed: list[Flush], *, steps: Steps | None, failed: bool
) -> Fragmentation:
    """The fragmentation of one device; `failed` says whether a request did not fit."""
    memory = origins.memory
    lives = memory.lives
    at_peak, last = holes(memory, memory.peak), memory.events.height - 1
    reserved = memory.reserved_after(memory.peak)
    active = int(lives.size[lives.active_after(memory.peak)].sum())
    unused = max(reserved - active, 0)
    held = lives.allocated_after(memory.peak)
    most_active = max(int(memory.active.max(initial=0)), active)
    excess = max(memory.peak_reserved_bytes - most_active, 0)
    return Fragmentation(
        at_peak=at_peak,
        at_end=holes(memory, last),
        unused_bytes=unused,
        unused_pct=100 * unused / reserved if reserved else 0.0,
        excess_bytes=excess,
        rounding_bytes=int(np.maximum(lives.size[held] - lives.requested[held], 0).sum()),
        beside=_beside(origins),
        advice=tuple(_advice(origins, settings, excess, flushed, matters=failed or _grows(origins, steps))),
    )


def times(count: int) -> str:
    """How often, to begin a sentence with."""
    return "once" if count == 1 else f"{count:,} times"


def _grows(origins: Origins, steps: Steps | None) -> bool:
    """Whether torch took still more from the device at the end: in the last steps, or in the second half of the history.

    What was taken once and is used in every step since is what a cache is for, even where it is more than the blocks need.
    """
    reserved = origins.memory.reserved
    if steps is not None and len(steps) >= LEAST_STEPS:
        since = int(steps.first[-LEAST_STEPS + 1])
    else:
        since = len(reserved) // 2
    if not 0 < since < len(reserved):
        return False
    return int(reserved[since:].max()) > int(reserved[:since].max())


def _advice(
    origins: Origins, settings: Mapping[str, Any], excess: int, flushed: list[Flush], *, matters: bool
) -> Iterator[Advice]:
    memory = origins.memory
    if settings.get("expandable_segments") or bool(memory.segments["expandable"].any()):
        return
    most = memory.peak_reserved_bytes
    if excess >= least_excess(most) and (matters or flushed):
        beyond, whole = format_value("_bytes", excess), format_value("_bytes", most)
        yield Advice(
            "expandable_segments:True",
            f"torch held {whole} from the device, {beyond} more than all blocks ever took at once: "
            "segments that grow in place leave fewer holes",
        )
        yield from _whole_segments(origins, settings)
        yield from _equal_sizes(origins, settings)
    if flushed and not settings.get("garbage_collection_threshold"):
        returned = format_value("_bytes", sum(flush.returned_bytes for flush in flushed))
        yield Advice(
            "garbage_collection_threshold:0.8",
            f"{times(len(flushed))} torch gave memory back ({returned}) to make a request fit, "
            "which waits for the device: with a threshold it gives back what was not used for long, before",
        )


def _beside(origins: Origins, top: int = 3) -> tuple[tuple[str, int], ...]:
    """The lines whose blocks lie in segments that are not full, when torch held most: with what is unused there."""
    memory = origins.memory
    if not len(memory.reserved):
        return ()
    unused = unused_beside(memory, int(np.argmax(memory.reserved)))
    rows = pl.DataFrame({"line": origins.lines.gather(unused.largest), "unused": unused.unused})
    most = rows.group_by("line").agg(pl.col("unused").sum()).sort("unused", "line", descending=(True, False))
    return tuple((str(line), int(size)) for line, size in most.head(top).iter_rows() if size > 0)


def _whole_segments(origins: Origins, settings: Mapping[str, Any]) -> Iterator[Advice]:
    """Large segments that small parts keep from being used whole."""
    memory = origins.memory
    if int(settings.get("max_split_size", -1) or -1) > 0 or not len(memory.reserved):
        return
    event = int(np.argmax(memory.reserved))
    found = holes(memory, event)
    if found.split_bytes < least_excess(memory.peak_reserved_bytes):
        return
    lives = memory.lives
    sizes = lives.size[lives.active_after(event)]
    large = sizes[sizes > SMALL]
    limit = max(int(np.median(large)) if len(large) else 0, LEAST_SPLIT_LIMIT)
    split = format_value("_bytes", found.split_bytes)
    yield Advice(
        f"max_split_size_mb:{-(-limit // (1 << 20))}",
        f"{split} lay beside blocks in segments that could not be given back when torch held most; "
        "only where expandable segments are not to be had",
    )


def _equal_sizes(origins: Origins, settings: Mapping[str, Any]) -> Iterator[Advice]:
    """Requests of so many sizes that a freed block seldom fits the next."""
    divisions = settings.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping) and any(divisions.values()):
        return
    lives = origins.memory.lives
    large = lives.requested[(lives.requested > SMALL) & (lives.start >= 0)]
    sizes = len(np.unique(large))
    if sizes >= MANY_SIZES and 2 * sizes >= len(large):
        yield Advice(
            "roundup_power2_divisions:8",
            f"{len(large):,} large requests have {sizes:,} different sizes, so that a freed block seldom fits the next: "
            "rounded up to eighths of a power of two, they have fewer",
        )
