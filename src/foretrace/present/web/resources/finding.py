"""A finding as the page shows it: words, evidence as bars and facts, the fix, and where to look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import foretrace.diagnose as diagnose
from foretrace.diagnose.finding import Alternative, Finding
from foretrace.predict.prediction import Prediction, to_dict
from foretrace.present.text.findings import freed_text, place_dict
from foretrace.present.web import kinds
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.occurrences import in_middle_step, occurring
from foretrace.present.web.short_names import short
from foretrace.schema import DEVICE_KINDS
from foretrace.units import format_value, heading

_BARS = 5
_LABELS = {"bytes_per_s": "Rate"}
_SPANS = 200
_TOGETHER = 12  # spans of a finding that one look at the timeline should hold
_DENSE = 0.25  # of that look that they must fill
_AROUND = 0.15  # of that look, on either side
_HIGH, _MEDIUM = 1.5, 2.5  # how far apart the ends of a speedup may lie


def finding(view: RecordingView, number: int) -> dict[str, Any]:
    """One finding, by its number."""
    each = view.diagnosis.findings[number - 1]
    spans = view.finding_spans[number - 1]
    shown, start, end = _look(view, spans)
    return {
        "number": number,
        "rule": each.rule,
        "severity": each.severity,
        "title": diagnose.find(each.rule).title,
        "says": each.says,
        "why": each.why,
        "unless": each.unless,
        "where": [{**place_dict(place), "text": place.text} for place in each.where],
        "of": view.step_times.of,
        "bars": _bars(view, each, spans),
        "facts": facts(each.evidence),
        "fix": {"says": each.fix.says, "code": each.fix.code},
        "label": each.label,
        "alternatives": [_alternative(other) for other in each.alternatives],
        "predicted": None if each.predicted is None else predicted(each.predicted),
        **({} if each.freed_bytes is None else {"freed": freed_text(each.freed_bytes)}),
        "confidence": confidence(view, each.predicted),
        "spans": spans[:_SPANS].tolist(),
        "span": shown,
        "from_ns": start,
        "to_ns": end,
        "manual": diagnose.find(each.rule).manual,
    }


def _alternative(other: Alternative) -> dict[str, Any]:
    """Another fix of the same cause."""
    return {
        "label": other.label,
        "fix": {"says": other.fix.says, "code": other.fix.code},
        "unless": other.unless,
        "predicted": None if other.predicted is None else predicted(other.predicted),
    }


def predicted(prediction: Prediction) -> dict[str, Any]:
    """A prediction in milliseconds, with what it saves."""
    plain = to_dict(prediction)
    after, step = plain["after_ms"], plain["step_ms"]
    saved = {"point": step - after["point"], "low": step - after["high"], "high": step - after["low"]}
    return {**plain, "saved_ms": saved}


def confidence(view: RecordingView, prediction: Prediction | None) -> str:
    """How narrow the range is; a step time that was only estimated is never known well."""
    if prediction is None or prediction.verdict == "uncertain" or prediction.speedup.low <= 0:
        return "Low"
    width = prediction.speedup.high / prediction.speedup.low
    if width <= _HIGH and view.case.measured_step_ns is not None and prediction.verdict == "gain":
        return "High"
    return "Medium" if width <= _MEDIUM else "Low"


def facts(evidence: Mapping[str, Any]) -> list[dict[str, str]]:
    """The evidence in words; spans are drawn, not written."""
    shown = []
    for name, value in evidence.items():
        if name == "spans" or value is None:
            continue
        label = _LABELS.get(name) or heading(name).replace("-", " ") + (
            ", share" if name.endswith("_pct") else ""
        )
        unit = f"_{name}" if name.endswith("_per_s") else name
        shown.append({"label": label[:1].upper() + label[1:], "value": format_value(unit, value)})
    return shown


def _bars(view: RecordingView, each: Finding, spans: NDArray[np.int64]) -> list[dict[str, Any]]:
    """The finding's own work by name, per step, the longest first; else the times in its evidence."""
    rows = view.trace.spans[spans.astype(np.uint32)] if len(spans) else view.trace.spans.clear()
    on_device = rows.filter(pl.col("kind").is_in(DEVICE_KINDS))
    on_host = rows.filter(~pl.col("kind").is_in(DEVICE_KINDS))
    # Without a change, spans are examples and not all that there is.
    if on_device.height and each.change is not None:
        return _device_bars(view, on_device)
    if each.rule == "input-bound" and on_host.height and (inside := _loading_bars(view, on_host)):
        return inside
    timed = [(name, value) for name, value in each.evidence.items() if name.endswith("_ns") and value]
    if timed:
        return [{"label": heading(name), "kind": "wait", "ns": float(value)} for name, value in timed[:_BARS]]
    return _host_bars(view, on_host)


def _device_bars(view: RecordingView, rows: pl.DataFrame) -> list[dict[str, Any]]:
    """By operator, as the program calls it; by kernel where none is linked."""
    operator = view.trace.spans["name"].gather(rows["op_id"]).alias("op")
    sums = (
        rows.with_columns(operator)
        .group_by("name", "kind", "op", maintain_order=True)
        .agg(pl.col("dur_ns").sum())
    )
    totals: dict[str, float] = {}
    most: dict[str, tuple[float, str]] = {}
    for name, kind, operator, spent in sums.cast(
        {"name": pl.String, "kind": pl.String, "op": pl.String}
    ).iter_rows():
        label = short(operator, "op").strip("_") if operator else short(name, kind)
        shown = kinds.kernel_kind(name) if kind == "kernel" else _copy_kind(name)
        totals[label] = totals.get(label, 0.0) + spent / view.case.step_count
        most[label] = max(most.get(label, (0.0, shown)), (float(spent), shown))
    return _longest({(label, most[label][1]): spent for label, spent in totals.items()})


def _copy_kind(name: str) -> str:
    return "copy" if "DtoD" in name or name.startswith("Memset") else "transfer"


def _host_bars(view: RecordingView, rows: pl.DataFrame) -> list[dict[str, Any]]:
    if rows.is_empty():
        return []
    kind = kinds.host_kinds(rows)
    names = (*kinds.KINDS, *kinds.HOST_KINDS)
    totals: dict[tuple[str, str], float] = {}
    for name, sort, spent, number in zip(
        rows["name"].cast(pl.String),
        rows["kind"].cast(pl.String),
        rows["dur_ns"].fill_null(0),
        kind,
        strict=True,
    ):
        key = short(name, sort), names[number]
        totals[key] = totals.get(key, 0.0) + spent / view.case.step_count
    return _longest(totals)


def _loading_bars(view: RecordingView, waits: pl.DataFrame) -> list[dict[str, Any]]:
    """The outermost operators inside the waits for data: what loading is made of."""
    spans = view.trace.spans
    around = waits["id"].implode()
    inside = spans.filter(pl.col("kind") == "op")
    parent = spans.select("id", parent_kind="kind", parent_name="name")
    begin, end = waits["start_ns"].to_numpy(), (waits["start_ns"] + waits["dur_ns"].fill_null(0)).to_numpy()
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    place = np.searchsorted(begin, inside["start_ns"].to_numpy(), side="right") - 1
    within = (place >= 0) & (inside["start_ns"].to_numpy() < end[np.maximum(place, 0)])
    inside = inside.filter(pl.Series(within) & ~pl.col("id").is_in(around))
    inside = inside.join(parent, left_on="parent_id", right_on="id", how="left")
    outer = inside.filter(
        (pl.col("parent_kind") != "op").fill_null(value=True) | pl.col("parent_id").is_in(around)
    )
    totals = {
        (short(name, "op"), "op"): spent / view.case.step_count
        for name, spent in outer.group_by("name", maintain_order=True)
        .agg(pl.col("dur_ns").sum())
        .cast({"name": pl.String})
        .iter_rows()
    }
    return _longest(totals)


def _longest(totals: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
    ordered = sorted(totals.items(), key=lambda item: -item[1])[:_BARS]
    return [{"label": label, "kind": kind, "ns": spent} for (label, kind), spent in ordered if spent > 0]


def _densest(start: NDArray[np.int64], dur: NDArray[np.int64]) -> tuple[int, int]:
    """Consecutive spans that take the most time, as many as lie close together."""
    sums = np.concatenate(([0], np.cumsum(dur)))
    ends = np.maximum.accumulate(start + dur)
    for count in (_TOGETHER, 4, 1):
        if count > len(start):
            continue
        spent = sums[count:] - sums[:-count]
        reach = ends[count - 1 :]
        # Spans of two steps with a long pause between them are no picture of the problem.
        close = spent >= _DENSE * np.maximum(reach - start[: len(reach)], 1)
        if close.any() or count == 1:
            best = int(np.argmax(np.where(close, spent, 0) if close.any() else spent))
            return int(start[best]), int(max(reach[best], start[best] + dur[best]))
    return int(start[0]), int(ends[0])


def _look(view: RecordingView, spans: NDArray[np.int64]) -> tuple[int | None, int | None, int | None]:
    """A span of a middle step to select, and around it as much as holds a dozen of the finding's spans."""
    if not len(spans):
        return None, None, None
    rows = view.trace.spans[spans.astype(np.uint32)].with_columns(pl.col("dur_ns").fill_null(0))
    device = rows.filter(pl.col("kind").is_in(DEVICE_KINDS))
    rows = in_middle_step(device if device.height else rows).sort("start_ns")
    begin, end = _densest(rows["start_ns"].to_numpy(), rows["dur_ns"].to_numpy())
    places = occurring(view.trace, rows["id"].cast(pl.Int64).to_numpy())
    places = places.filter((pl.col("from_ns") <= end) & (pl.col("to_ns") >= begin))
    longest = int((places["to_ns"] - places["from_ns"]).arg_max() or 0)
    pad = max(int((end - begin) * _AROUND), 1_000)
    return int(places["span"][longest]), max(begin - pad, 0), min(end + pad, view.trace.duration_ns)
