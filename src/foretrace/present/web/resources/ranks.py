"""`ranks`: how the ranks of a distributed run spent their device's time, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from foretrace.errors import MissingDataError
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import table
from foretrace.units import counted, format_value

_PARTS = {
    "computation": "compute", "exposed_communication": "exposed communication", "exposed_copy": "exposed copies",
    "earlier": "work from before", "idle": "idle",
}  # fmt: skip
_SAYS = {
    "step_ns": "median step, on the GPU's clock where there is one",
    "communication_ns": "time in which anything communicated",
    "exposed_communication_ns": "the part of it in which nothing computed",
    "overlap_pct": "of communication_ns, hidden behind computation",
    "computation_ns": "time in which kernels computed",
    "idle_ns": "time in which the device did nothing",
    "idle_pct": "of the measured time",
}


def ranks(view: RecordingView, peers: Sequence[RecordingView] = ()) -> dict[str, Any]:
    """This run's rank, with those of its peers: runs of the same group with other ranks."""
    members: dict[int, RecordingView] = {_rank(view): view}
    for peer in peers:
        if peer.group == view.group:
            members.setdefault(_rank(peer), peer)
    ordered = [members[number] for number in sorted(members)]
    shares = [_shares(each) for each in ordered]
    if not any(shares):
        raise MissingDataError(
            f"{view.trace.path.name}: no GPU work recorded; record with ProfilerActivity.CUDA"
        )
    frame = pl.DataFrame([_row(each) for each in ordered], infer_schema_length=None)
    return {
        "says": _says(view, ordered),
        "ranks": sorted(members),
        "parts": list(_PARTS.values()),
        "share_pct": [share or [0.0] * len(_PARTS) for share in shares],
        "table": {"name": "ranks", "says": _says(view, ordered), **table.of_frame(frame, _SAYS), "values": [],
                  "notes": []},
    }  # fmt: skip


def _rank(view: RecordingView) -> int:
    return int(view.trace.meta.get("rank") or 0)


def _shares(view: RecordingView) -> list[float]:
    values = view.result("overview").values
    shares = [values.get(f"{part}_pct") for part in _PARTS]
    known = [float(share) for share in shares if isinstance(share, int | float)]
    return known if len(known) == len(shares) else []


def _row(view: RecordingView) -> dict[str, Any]:
    values = view.result("overview").values
    communication = view.maybe("communication")
    talk = communication.values if communication is not None else {}
    return {
        "rank": _rank(view),
        "name": view.name,
        "step_ns": values.get("step_gpu_ns") or values.get("step_host_ns"),
        "computation_ns": values.get("computation_ns"),
        "communication_ns": talk.get("communication_ns"),
        "exposed_communication_ns": talk.get("exposed_ns"),
        "overlap_pct": talk.get("overlap_pct"),
        "idle_ns": values.get("idle_ns"),
        "idle_pct": values.get("idle_pct"),
    }


def _says(view: RecordingView, ordered: list[RecordingView]) -> str:
    size = view.trace.meta.get("world_size")
    if len(ordered) == 1:
        of = f" of {size}" if size else ""
        return f"rank {_rank(view)}{of}: open the recordings of the other ranks beside it to compare them"
    rows = [_row(each) for each in ordered]
    waits = [(row["exposed_communication_ns"] or 0, row["rank"]) for row in rows]
    most, where = max(waits)
    return f"{counted(len(ordered), 'rank')}; rank {where} has the most exposed communication, {format_value('_ns', most)}"
