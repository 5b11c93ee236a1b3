"""A link from the details of one span to another."""

from __future__ import annotations

from typing import Any

from foretrace.present.web.short_names import short
from foretrace.trace import Trace


def link(trace: Trace, label: str, number: int) -> dict[str, Any]:
    """Where the link leads, and in words what is there."""
    row = trace.spans.row(number, named=True)
    return {
        "label": f"{label}: {short(row['name'], row['kind'])}", "id": number, "from_ns": row["start_ns"],
        "to_ns": row["start_ns"] + (row["dur_ns"] or 0),
    }  # fmt: skip
