"""`table/NAME`: one analysis as columns with units, shown by the page with no code of its own."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import polars as pl

from foretrace import analyze
from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.result import Result
from foretrace.analyze.steps import step_windows
from foretrace.errors import UsageError, unknown
from foretrace.present.web.kinds import kernel_kind
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.short_names import short
from foretrace.units import format_value, heading, suffix

LIMIT = 5_000
_CODE = frozenset(
    ("name", "op", "kernel", "top_kernel", "call", "api", "where", "file", "function", "module", "path", "shapes",
     "dtype", "roles", "sequence", "code", "doing", "collective", "waited_for")
)  # fmt: skip
_UNITS = {
    "_ns": "ns", "_bytes": "bytes", "_flops": "flops", "_pct": "pct", "_count": "count", "_per_s": "per_s",
    "_flops_per_byte": "flops_per_byte",
}  # fmt: skip
_FACTS = {
    "title": "its name in a few words; the whole is in the last column",
    "per_step_ns": "time in a step, the mean of the complete ones",
    "per_step_count": "calls in a step, the mean of the complete ones",
    "tensor_cores": "whether it runs on tensor cores, by its name; empty where the name does not tell",
}
_DOCUMENTED = re.compile(r"^ +((?:\w+, )*\w+): (.+)$")


def table(view: RecordingView, name: str, query: Mapping[str, str]) -> dict[str, Any]:
    """One analysis, whole up to a limit of rows."""
    chosen = analyze.find(name)
    kinds = {key: hint for key, hint in get_type_hints(chosen.function).items() if key in chosen.options}
    options = _options(kinds, {key: value for key, value in query.items() if key != "limit"})
    limit = _limit(query.get("limit"))
    result = view.result(name, **options)
    if name == "kernels":
        result = replace(result, table=_with_facts(view, result.table))
    says = {**documented(name), **_FACTS}
    if not view.trace.has_device:  # nothing is said of what was not there
        unknown_columns = {column.name for column in result.table if not column.count()}
        says = {key: text for key, text in says.items() if key not in unknown_columns}
        known = {key: text for key, text in result.denominators.items() if key not in unknown_columns}
        result = replace(result, denominators=known)
    return of_result(result, says=says, limit=limit)


def _with_facts(view: RecordingView, rows: pl.DataFrame) -> pl.DataFrame:
    """Kernels with what the page marks them by: kind of work, tensor cores, a short title and a span to show."""
    if "name" not in rows.columns:
        return rows
    names = rows["name"].cast(pl.String).to_list()
    shown = _middle_spans(view)
    cores = {True: "yes", False: "no", None: None}
    per_step = _per_step(view) if len(set(names)) == len(names) else {}
    return rows.with_columns(
        pl.Series("per_step_ns", [per_step.get(name, (None, None))[0] for name in names], dtype=pl.Float64),
        pl.Series(
            "per_step_count", [per_step.get(name, (None, None))[1] for name in names], dtype=pl.Float64
        ),
        pl.Series("kind", [kernel_kind(name) for name in names], dtype=pl.String),
        pl.Series("title", [short(name, "kernel") for name in names], dtype=pl.String),
        pl.Series("tensor_cores", [cores[decode(name).tensor_cores] for name in names], dtype=pl.String),
        pl.Series("span", [shown.get(name) for name in names], dtype=pl.Int64),
    )


def _per_step(view: RecordingView) -> dict[str, tuple[float, float]]:
    """For each kernel name its time and its calls in a step: the mean of the complete ones; empty without steps."""
    whole = [window.number for window in step_windows(view.trace) if window.averaged]
    kernels = view.trace.device_spans.filter((pl.col("kind") == "kernel") & pl.col("step").is_not_null())
    if not whole or kernels.is_empty():
        return {}
    inside = pl.col("step").is_in(whole)
    sums = kernels.group_by("name").agg(pl.col("dur_ns").filter(inside).sum(), inside.sum().alias("calls"))
    return {
        name: (spent / len(whole), calls / len(whole))
        for name, spent, calls in sums.select(pl.col("name").cast(pl.String), "dur_ns", "calls").iter_rows()
    }


def _middle_spans(view: RecordingView) -> dict[str, int]:
    """For each kernel name a span to show: the longest of its middle step; of those launched in the recording, if any."""
    spans = view.trace.device_spans.filter(pl.col("kind") == "kernel").with_columns(
        early=pl.col("launch_id").is_null()
    )
    spans = spans.filter((pl.col("early") == pl.col("early").min()).over("name"))
    steps = spans.group_by("name").agg(pl.col("step").drop_nulls().unique().sort())
    middle = steps.with_columns(
        step=pl.col("step").list.get(pl.col("step").list.len() // 2, null_on_oob=True)
    )
    chosen = spans.join(middle, on=["name", "step"], how="semi", nulls_equal=True)
    longest = chosen.sort("dur_ns", descending=True, maintain_order=True).unique("name", keep="first")
    return dict(zip(longest["name"].cast(pl.String), longest["id"], strict=True))


def _limit(text: str | None) -> int:
    if text is None:
        return LIMIT
    if not text.isdigit() or not 0 < int(text) <= 1_000_000:
        raise UsageError(f"limit {text!r}: a count of rows is from 1 to 1,000,000")
    return int(text)


def _options(kinds: Mapping[str, Any], asked: Mapping[str, str]) -> dict[str, Any]:
    """The options of the analysis that the query gives: words, whole numbers and yes or no."""
    options: dict[str, Any] = {}
    for key, text in asked.items():
        if key not in kinds:
            raise unknown(f"no option {key!r}", key, kinds)
        if kinds[key] is bool:
            options[key] = text in ("1", "true", "yes")
        elif get_origin(kinds[key]) is Literal:
            if text not in get_args(kinds[key]):
                raise unknown(f"{key}={text}", text, get_args(kinds[key]), listed="one of")
            options[key] = text
        elif int in (kinds[key], *get_args(kinds[key])) and text.isdigit():
            options[key] = int(text)
        else:
            raise UsageError(f"{key} cannot be asked for here")
    return options


def of_result(result: Result, *, says: Mapping[str, str] | None = None, limit: int = LIMIT) -> dict[str, Any]:
    """A Result as the page's Table."""
    frame = result.table
    about = {**(says or {}), **result.denominators}
    return {
        "name": result.name,
        "says": result.says,
        **of_frame(frame, about, limit=limit),
        "values": [
            {"name": name, "heading": heading(name), "text": format_value(name, value)}
            for name, value in result.values.items()
        ],
        "notes": list(result.notes),
    }


def of_frame(frame: pl.DataFrame, says: Mapping[str, str], *, limit: int = LIMIT) -> dict[str, Any]:
    """The columns and cells of a frame."""
    shown = frame.head(limit)
    columns = [
        {"name": name, "heading": heading(name), "unit": unit(name, dtype), "says": says.get(name, ""),
         "code": name in _CODE}
        for name, dtype in shown.schema.items()
    ]  # fmt: skip
    return {
        "columns": columns,
        "data": [cells(shown[name]) for name in shown.columns],
        "rows_count": frame.height,
    }


def unit(name: str, dtype: pl.DataType) -> str:
    """The unit of a column: by its suffix where it is a number, else what sort of value it holds."""
    if dtype == pl.Boolean:
        return "bool"
    # A column in which nothing was recorded has no type, but still a unit.
    if not dtype.is_numeric() and dtype != pl.Null:
        return "text"
    return _UNITS.get(suffix(name), "text" if dtype == pl.Null else "number")


def cells(column: pl.Series) -> list[Any]:
    """The values as JSON has them; what is no number becomes null."""
    if column.dtype.is_float():
        return [value if value is None or math.isfinite(value) else None for value in column.to_list()]
    if column.dtype.is_integer() or column.dtype == pl.Boolean:
        return column.to_list()
    if isinstance(column.dtype, pl.List):
        return [None if value is None else format_value("", list(value)) for value in column.to_list()]
    return column.cast(pl.String).to_list()


def documented(name: str) -> dict[str, str]:
    """What the analysis's own page says of its columns."""
    found: dict[str, str] = {}
    lines = (inspect.getdoc(analyze.find(name).function) or "").splitlines()
    last: list[str] = []
    for line in lines:
        match = _DOCUMENTED.match(line)
        if match:
            last = match[1].split(", ")
            found |= dict.fromkeys(last, match[2])
        elif line.startswith("        ") and last:
            found |= {each: f"{found[each]} {line.strip()}" for each in last}
        else:
            last = []
    return found
