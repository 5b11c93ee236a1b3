"""`compare/OTHER` of two benchmarks: their cases side by side, as `foretrace compare` judges them."""

from __future__ import annotations

from typing import Any

import polars as pl

from foretrace.compare.benches import Bench, BenchComparison, compare_benches
from foretrace.errors import MissingDataError
from foretrace.present.text import bench_tables
from foretrace.present.text.comparison import frame
from foretrace.present.web.bench_plots import names_of
from foretrace.present.web.bench_view import BenchView
from foretrace.present.web.resources import table
from foretrace.units import counted, visible

_SAYS = {
    "what": "what was timed",
    "verdict": "by the samples of both: faster, slower, same or inconclusive",
    "speedup": "the first time divided by the second",
    "before_ns": "median of the first benchmark",
    "after_ns": "median of the second benchmark",
    "difference_ns": "second less first",
}
_HEADINGS = {"what": "case", "before_ns": "first", "after_ns": "second", "difference_ns": "difference"}
_LISTED = 5  # cases that are named where one side lacks them


def bench_compare(view: BenchView, other: BenchView) -> dict[str, Any]:
    """Each case that both hold, and all of them together."""
    sides = {"a": _side(view), "b": _side(other)}
    try:
        found = compare_benches(view.compared, other.compared)
    except MissingDataError as error:
        return {
            "verdict": "inconclusive",
            "says": str(error),
            "shared": "",
            **sides,
            "table": None,
            "speedups": [],
            "notes": [],
        }
    labels = _labels(view)
    cases = frame(found).with_columns(pl.col("what").replace(labels))
    made = table.of_frame(cases, _SAYS)
    for column in made["columns"]:
        column["heading"] = _HEADINGS.get(column["name"], column["heading"])
    return {
        "verdict": found.verdict,
        "says": found.says,
        "shared": _shared(view),
        **sides,
        "table": {"name": "cases", "says": found.says, **made, "values": [], "notes": []},
        "speedups": _speedups(found, labels),
        "notes": [
            *map(visible, found.notes),
            *_alone(found.before, found.only_before),
            *_alone(found.after, found.only_after),
        ],
    }


def _side(view: BenchView) -> dict[str, str]:
    found = view.benchmark
    return {"name": view.name, "device": visible(found.device), "torch": visible(found.torch)}


def _labels(view: BenchView) -> dict[str, str]:
    """The cases in words, without what all of them share."""
    compared = view.compared.rows
    return dict(zip(compared, names_of(view.benchmark, list(compared.values())), strict=True))


def _shared(view: BenchView) -> str:
    same = bench_tables.constants(view.benchmark, view.benchmark.rows)
    return ", ".join(f"{field} {bench_tables.cell(field, value)}" for field, value in same.items())


def _speedups(found: BenchComparison, labels: dict[str, str]) -> list[dict[str, Any]]:
    """The cases with times on both sides, in the order of the table."""
    return [
        {"label": visible(labels[row.what]), "verdict": row.judged.verdict, **vars(row.judged.speedup)}
        for row in found.timed
        if row.judged
    ]


def _alone(side: Bench, cases: tuple[str, ...]) -> list[str]:
    if not cases:
        return []
    rest = "" if len(cases) <= _LISTED else f"; and {len(cases) - _LISTED} more"
    return [visible(f"{counted(len(cases), 'case')} only in {side.name}: {'; '.join(cases[:_LISTED])}{rest}")]
