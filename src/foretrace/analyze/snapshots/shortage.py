"""When memory ran short: requests that did not fit, why, what would have made them fit; and caches that were flushed for one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.snapshots import composition
from foretrace.analyze.snapshots.holes import holes
from foretrace.analyze.snapshots.origins import Origins
from foretrace.units import format_value

_RETURNS = ("segment_free", "segment_unmap")
_TAKES = ("alloc", "segment_alloc", "segment_map")


@dataclass(frozen=True)
class OutOfMemory:
    """A request that did not fit."""

    event: int
    at_ns: int | None
    asked_bytes: int
    device_free_bytes: int | None  # that the device had left; null where it was not recorded
    allocated_bytes: int
    reserved_bytes: int
    unused_bytes: int  # reserved by torch, and in no block
    largest_hole_bytes: int
    missing_bytes: int  # that neither the device nor torch had, in however many pieces
    where: str  # the line that asked
    why: str
    would_fit: str
    holders: tuple[tuple[str, int], ...]  # the lines that held most then


@dataclass(frozen=True)
class Flush:
    """Memory given back to the driver to make one request fit: slow, and a sign that memory is short."""

    at_ns: int | None
    returned_bytes: int
    where: str


@dataclass(frozen=True)
class Failed:
    """What the program's Run knows of a request that did not fit."""

    asked_bytes: int
    device_free_bytes: int | None
    limit_bytes: int | None  # what the process may have of the device
    at_ns: int | None
    where: str


def out_of_memory(
    origins: Origins, *, expandable: bool, failed: Failed | None = None, holders: int = 5
) -> list[OutOfMemory]:
    """The requests that did not fit, in order; where the history has none, the one that is known otherwise."""
    memory, places = origins.memory, origins.places
    limit = failed.limit_bytes if failed else None
    rows = np.flatnonzero((memory.events["action"] == "oom").to_numpy())
    requests = []
    for row in rows:
        event = memory.events.row(int(row), named=True)
        stack = int(event["stack"])
        where = places.lines[stack if stack >= 0 else places.count]
        left = None if event["address"] is None else int(event["address"])
        known = Failed(int(event["size_bytes"]), left, limit, memory.at_ns(int(row)), where)
        requests.append(_request(origins, int(row), known, expandable, holders))
    if not requests and failed is not None:
        requests.append(_request(origins, memory.events.height - 1, failed, expandable, holders))
    return requests


def _request(origins: Origins, row: int, known: Failed, expandable: bool, holders: int) -> OutOfMemory:
    """The request after an event; `row` -1 is the moment of a snapshot without history."""
    memory, asked = origins.memory, known.asked_bytes
    reserved = memory.reserved_after(row)
    lives = memory.lives
    active, allocated = (
        int(lives.size[held(row)].sum()) for held in (lives.active_after, lives.allocated_after)
    )
    unused = max(reserved - active, 0)
    left, limited = known.device_free_bytes, False
    if known.limit_bytes is not None and max(known.limit_bytes - reserved, 0) < (left or 0):
        left, limited = max(known.limit_bytes - reserved, 0), True
    elif left is not None and left >= asked:
        left, limited = 0, True  # it would have fitted: the process may not take it
    hole = holes(memory, row).largest_bytes
    missing = max(asked - (left or 0) - unused, 0)
    table = composition.composition(origins, row, "line").head(holders)
    by_line = tuple((str(line), int(size)) for line, size in table.select("line", "held_bytes").iter_rows())
    return OutOfMemory(
        event=row,
        at_ns=known.at_ns,
        asked_bytes=asked,
        device_free_bytes=known.device_free_bytes,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        unused_bytes=unused,
        largest_hole_bytes=hole,
        missing_bytes=missing,
        where=known.where,
        why=_why(known, limited, unused, hole),
        would_fit=_would_fit(missing, unused, by_line, expandable=expandable),
        holders=by_line,
    )


def _why(known: Failed, limited: bool, unused: int, hole: int) -> str:
    wanted, largest = (format_value("_bytes", size) for size in (known.asked_bytes, hole))
    left = known.device_free_bytes
    device = "how much the device had left was not recorded"
    if left is not None:
        device = f"the device had {format_value('_bytes', left)} left"
    if limited and known.limit_bytes is not None:
        device += f", of which this process may have {format_value('_bytes', known.limit_bytes)} in all"
    elif limited:
        device += ", which this process may not take (as set_per_process_memory_fraction says)"
    inside = (
        f"of {format_value('_bytes', unused)} that torch held and did not use, the largest hole was {largest}"
    )
    return f"{wanted} in one piece were asked for: {device}, and {inside}"


def _would_fit(missing: int, unused: int, holders: tuple[tuple[str, int], ...], *, expandable: bool) -> str:
    if missing:
        most = f"; {holders[0][0]} held most, {format_value('_bytes', holders[0][1])}" if holders else ""
        return f"{format_value('_bytes', missing)} fewer in use{most}"
    if unused and not expandable:
        return (
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: together the unused pieces are enough, "
            "and segments that grow can put them together"
        )
    return "the same memory in fewer pieces: free what holds small parts of large segments, or take blocks of equal sizes"


def flushes(origins: Origins) -> list[Flush]:
    """Runs of memory given back directly before something is taken; not those that the program asked for
    (empty_cache), nor those that did not help.
    """
    memory, places = origins.memory, origins.places
    action = memory.events["action"].cast(pl.String)
    stack = memory.events["stack"].to_numpy()
    returns = action.is_in(list(_RETURNS)).to_numpy() & ~places.flushes[stack]
    takes = np.append(action.is_in(list(_TAKES)).to_numpy(), False)
    begins = np.flatnonzero(returns & ~np.append(False, returns[:-1])) if len(returns) else np.zeros(0, int)
    size = memory.events["size_bytes"].to_numpy()
    found = []
    for begin in begins:
        stop = int(begin)
        while stop < len(returns) and returns[stop]:
            stop += 1
        if not takes[stop]:
            continue
        asking = int(stack[stop])
        line = places.lines[asking if asking >= 0 else places.count]
        found.append(Flush(memory.at_ns(int(begin)), int(size[begin:stop].sum()), line))
    return found
