"""What was recorded, in a few words: the same in the terminal and on the page."""

from __future__ import annotations

from collections import Counter

from foretrace.analyze.concepts.device.device_time import device_names
from foretrace.analyze.concepts.device.profiled_kernels import joined
from foretrace.ingest import totals
from foretrace.trace import Trace
from foretrace.units import counted


def facts(trace: Trace) -> list[str]:
    """The devices that worked, CUDA's version, the rank, steps and events."""
    if trace.profile is not None and trace.spans.is_empty():
        names = trace.profile.launches["device_name"].drop_nulls().unique(maintain_order=True)
        kernels = joined(trace).profiled.height
        return [
            *names,
            f"{trace.profile.height:,} launches of {counted(kernels, 'kernel')} profiled by Nsight Compute",
        ]
    if listed := totals.stats(trace):
        rows = sum(len(table) for table in listed.values())
        return [f"{counted(rows, 'sum')} by name, of nsys stats"]
    shown = [_devices(trace)]
    version = _cuda((trace.meta.get("header") or {}).get("cuda_runtime_version"))
    if version:
        shown.append(version)
    if trace.meta.get("rank") is not None:
        size = trace.meta.get("world_size")
        shown.append(f"rank {trace.meta['rank']}" + (f" of {size}" if size else ""))
    shown.append(counted(len(trace.steps), "step"))
    if trace.meta.get("events"):
        shown.append(f"{trace.meta['events']:,} events")
    return shown


def recordings(trace: Trace) -> list[str]:
    """Which file gave what, where several recordings of a program are read as one; nothing where there is one."""
    parts = [
        f"{each['file']} ({each['format']}): {each['gives']}" for each in trace.meta.get("recordings", ())
    ]
    if trace.profile is not None and trace.has_device:
        join = joined(trace)
        if join.matched_pct is not None:
            parts.append(
                f"{join.matched_pct:.1f} % of the profiled launches' time is of kernels in this recording, by name, grid and block; "
                f"they take {join.covered_pct:.1f} % of its kernel time"
            )
    return [*parts, *(f"not read: {why}" for why in trace.meta.get("unread", ()))]


def _devices(trace: Trace) -> str:
    if not trace.has_device:
        named = [str(each["name"]) for each in trace.meta.get("devices", ()) if each.get("name")]
        return f"{', '.join(dict.fromkeys(named))}, no work recorded" if named else "no GPU"
    counts = Counter(device_names(trace).values())
    return ", ".join(f"{count}× {name}" if count > 1 else name for name, count in counts.items())


def _cuda(version: object) -> str | None:
    """CUDA counts 13000 for 13.0."""
    if isinstance(version, int) and version >= 1000:
        return f"CUDA {version // 1000}.{version % 1000 // 10}"
    return None
