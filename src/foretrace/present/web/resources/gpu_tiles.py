"""Tiles of the Overview: the few numbers that say how well the GPU was used, each with what it is a share of."""

from __future__ import annotations

from typing import Any

from foretrace.analyze.concepts.memory import memory_curve
from foretrace.present.web.recording_view import RecordingView
from foretrace.units import format_value

# The analysis and its value, the words, and the page that shows more.
_TILES = (
    ("overview", "gpu_busy_pct", "Kernels running", "waiting"),
    ("overview", "gpu_idle_pct", "GPU idle", "waiting"),
    ("overview", "sm_efficiency_pct", "SM efficiency", "kernels"),
    ("overview", "occupancy_pct", "Occupancy", "kernels"),
    ("gpu-efficiency", "tensor_core_pct", "On tensor cores", "kernels"),
    ("gpu-efficiency", "mfu_pct", "Of peak FLOPs", "roofline"),
    ("overview", "items_per_s", "Items, as recorded", "overview"),
    ("overview", "tokens_per_s", "Tokens, as recorded", "overview"),
)


def gpu_tiles(view: RecordingView) -> list[dict[str, Any]]:
    """The tiles whose number is known; none without a GPU."""
    if not view.trace.has_device:
        return []
    tiles = []
    for name, value, label, page in _TILES:
        result = view.maybe(name)
        known = None if result is None else result.values.get(value)
        if result is not None and known is not None:
            says = result.denominators.get(value, "")
            tiles.append({"label": label, "value": format_value(value, known), "says": says, "view": page})
    if view.trace.allocations.height:
        curve = memory_curve.curves(view.trace)[0]
        peak = format_value("_bytes", curve.peak_bytes)
        tiles.append(
            {"label": "Memory at peak", "value": peak, "says": f"on {curve.device}", "view": "memory"}
        )
    return tiles
