"""`ranks/stack`: one step of several ranks, one below the other on the common clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from foretrace.errors import UsageError
from foretrace.ranks import stacked
from foretrace.ranks.reduce import Ranks


def of_query(job: Ranks, query: Mapping[str, str]) -> dict[str, Any]:
    """As asked: `step`, and `ranks` divided by commas, to which others are added."""
    unknown = set(query) - {"step", "ranks"}
    if unknown:
        raise UsageError(f"ranks/stack takes step and ranks, not {', '.join(sorted(unknown))[:200]}")
    step = _number(query["step"]) if "step" in query else stacked.worst_step(job)
    asked = [_number(text) for text in query.get("ranks", "").split(",") if text]
    return of_step(job, step, asked)


def of_step(job: Ranks, step: int, asked: Sequence[int]) -> dict[str, Any]:
    """The rows, with the communication at which arrivals are furthest apart."""
    found = stacked.stack(job, step, stacked.choose(job, step, asked))
    kinds = found.calls["kind"].unique(maintain_order=True).to_list()
    code = {kind: place for place, kind in enumerate(kinds)}
    spans, calls = _by_rank(found.spans), _by_rank(found.calls)
    return {
        "step": found.step,
        "ranks": list(found.ranks),
        "left_out": list(found.left_out),
        "end_ns": int(found.spans["end_ns"].max() or 0),  # type: ignore[arg-type]  # of integers
        "parts": list(stacked.PARTS),
        "kinds": kinds,
        "spans": [[each[1:] for each in spans.get(rank, ())] for rank in found.ranks],
        "calls": [
            [(each[1], code[each[2]], *each[3:]) for each in calls.get(rank, ())] for rank in found.ranks
        ],
        "longest": _longest(found),
    }


def _by_rank(frame: pl.DataFrame) -> dict[int, list[tuple[Any, ...]]]:
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for row in frame.iter_rows():
        rows.setdefault(row[0], []).append(row)
    return rows


def _longest(found: stacked.Stack) -> dict[str, Any] | None:
    """The communication at which one of these ranks arrived longest before the last of all."""
    calls = found.calls.with_columns(wait_ns=pl.col("latest_ns") - pl.col("arrive_ns"))
    if calls.is_empty():
        return None
    names = ("communication", "kind", "rank", "wait_ns", "last_rank")
    longest = calls.sort("wait_ns", maintain_order=True).row(-1, named=True)
    return {name: longest[name] for name in names} if longest["wait_ns"] > 0 else None


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise UsageError(f"not a number: {text[:200]!r}")
    return int(text)
