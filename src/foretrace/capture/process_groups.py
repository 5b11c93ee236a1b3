"""The process groups of this process, in full, and its clock: what recordings of many ranks are put together by.

torch writes the first 30 members of a group into a recording. torch.distributed knows all of them, and how many collectives
each group has had. Hosts need not agree on the time: the clock here counts since the host started, whatever sets its date, and
collectives, which all members leave together, tell how the clocks of several hosts lie.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MOST_MEMBERS = 1 << 16  # of a group that is written in full


def describe() -> list[dict[str, Any]] | None:
    """Each group that this process is in: name, description, members and how many collectives it has had.

    None where torch.distributed is not in use.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        world: Any = sys.modules["torch.distributed.distributed_c10d"]._world
        return [_described(group, world) for group in list(world.pg_map)]
    except (AttributeError, KeyError, TypeError, ValueError):  # torch's own tables are not promised to stay
        return None


def _described(group: Any, world: Any) -> dict[str, Any]:
    members = sorted(int(rank) for rank in world.pg_group_ranks.get(group, {}))
    return {
        "pg_name": str(world.pg_names.get(group, "")),
        "pg_desc": str(getattr(group, "group_desc", "") or ""),
        "pg_size": len(members),
        "ranks": members[:_MOST_MEMBERS],
        "seq": _sequence(group),
    }


def _sequence(group: Any) -> int | None:
    """How many collectives the group has had; not every backend counts."""
    try:
        return int(group._get_sequence_number_for_group())
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return None


def clock() -> dict[str, Any]:
    """A moment on the host's own clock and what its date was then, and which start of the host that clock counts from."""
    try:
        boot = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        boot = None
    before = time.monotonic_ns()
    date = time.time_ns()
    return {"boot": boot, "monotonic_ns": (before + time.monotonic_ns()) // 2, "epoch_ns": date}
