"""How long the device works in a step, from a recording of the device alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}


@dataclass(frozen=True)
class DeviceTime:
    """Of one step: from its first work to that of the next, and how much of it the device works."""

    step_ns: float
    busy_ns: float
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """As rank.json holds it."""
        return asdict(self)


def device_time(recording: Path, steps: int) -> DeviceTime | None:
    """What torch's file says of so many steps that began with an idle device; `None` if nothing ran on one."""
    with recording.open("rb") as file:
        events = json.load(file)["traceEvents"]
    work = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in _WORK and event.get("ph") == "X"
    )
    if not work or steps < 1:
        return None
    busy, end = 0.0, work[0][0]
    for begin, until in work:
        busy += max(0.0, until - max(begin, end))
        end = max(end, until)
    return DeviceTime((end - work[0][0]) * 1e3 / steps, busy * 1e3 / steps, steps)
