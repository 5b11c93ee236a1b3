"""`span/ID`: everything that the recording knows of one span, and the spans that it is linked to."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.concepts.names.line_text import line_text
from foretrace.diagnose.source_lines import SourceLines
from foretrace.errors import UsageError
from foretrace.present.web.idle_gaps import first_id, idle_gaps
from foretrace.present.web.kinds import LABELS, kernel_kind
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.gap import gap
from foretrace.present.web.resources.links import link
from foretrace.present.web.short_names import short
from foretrace.schema import DEVICE_KINDS
from foretrace.trace import Trace
from foretrace.units import format_value, heading

_LINKS = 20
_ARGUMENTS = 12
_LONGEST = 2_000


def span(view: RecordingView, number: str) -> dict[str, Any]:
    """One span by its id."""
    trace = view.trace
    if number.isdigit() and int(number) >= first_id(trace):
        return _gap(view, int(number))
    if not number.isdigit():
        raise UsageError(f"no span {number!r}; ids are 0 to {trace.spans.height - 1}")
    row = trace.spans.row(int(number), named=True)
    track = trace.tracks.row(row["track_id"], named=True)
    start, length = row["start_ns"], row["dur_ns"]
    shown = _Facts()
    _when(trace, row, shown)
    _operator(view, row, shown)
    _launch(trace, row, shown)
    _kernel(trace, row, shown)
    _copy(trace, row, shown)
    _arguments(trace, row, shown)
    return {
        "id": row["id"],
        "title": short(row["name"], row["kind"]),
        "subtitle": track_title(track),
        "name": row["name"],
        "from_ns": start,
        "to_ns": start + (length or 0),
        "facts": shown.facts,
        "finding": view.finding_of.get(row["id"]),
        "links": _links(trace, row),
    }


def _gap(view: RecordingView, number: int) -> dict[str, Any]:
    """An idle gap: their ids follow those of the spans."""
    found = idle_gaps(view)
    first = first_id(view.trace)
    if found is None or number - first >= found.gaps.height:
        raise UsageError(f"no span '{number}'; ids are 0 to {first - 1}")
    return gap(view, found, number - first)


class _Facts:
    """Facts in order; what was not recorded is left out."""

    def __init__(self) -> None:
        self.facts: list[dict[str, Any]] = []

    def add(self, label: str, value: object, *, code: bool = False) -> None:
        """One more, unless there is nothing to say."""
        if value is not None and value != "":
            self.facts.append({"label": label, "value": str(value)[:_LONGEST], "code": code})


def track_title(track: dict[str, Any]) -> str:
    """stream 7, or the thread's name."""
    if track["stream"] is not None:
        return f"GPU {track['device'] or 0}, stream {track['stream']}"
    return str(track["name"])


def _when(trace: Trace, row: dict[str, Any], shown: _Facts) -> None:
    length = "not recorded" if row["dur_ns"] is None else format_value("_ns", row["dur_ns"])
    shown.add("Duration", f"{length}, from {row['start_ns'] / 1e6:,.3f} ms")
    shown.add("Step", row["step"])
    if row["kind"] == "kernel":
        decoded = decode(row["name"])
        shown.add("What it does", decoded.text)
        shown.add("Kind", LABELS[kernel_kind(row["name"])])
        shown.add("Library", decoded.family if decoded.family != "unknown" else None)


def _operator(view: RecordingView, row: dict[str, Any], shown: _Facts) -> None:
    trace = view.trace
    op = row["id"] if row["kind"] == "op" else row["op_id"]
    if op is None:
        if row["kind"] == "python":
            _python(view, row, shown)
        return
    rows = trace.ops.filter(pl.col("span_id") == op)
    known = rows.row(0, named=True) if rows.height else None
    if row["kind"] != "op":
        shown.add("Operator", _called(trace, op, known), code=True)
    if known is None:
        return
    if row["kind"] == "op":
        shown.add("Inputs", _inputs(known), code=True)
        shown.add("Scalars", _scalars(known["inputs"]), code=True)
        shown.add("FLOPs", None if not known["flops"] else format_value("_flops", known["flops"]))
        shown.add("Sequence", known["sequence"])
    lines = view.keep("source lines", lambda: SourceLines(trace, view.case.source_folders))
    place = lines.of_span(op, str(trace.spans["name"][op]))
    if place is not None:
        route = ", through its forward operator" if known["forward_id"] is not None else ""
        shown.add("Source", place.text + route, code=True)
    if known["module_id"] is not None:
        shown.add("Module", trace.modules["name"][known["module_id"]], code=True)


def _python(view: RecordingView, row: dict[str, Any], shown: _Facts) -> None:
    call = view.trace.python.filter(pl.col("span_id") == row["id"])
    if call.height and call["stack_id"][0] is not None:
        frame = view.trace.stacks.row(call["stack_id"][0], named=True)
        lines = None if frame["line"] is None else (frame["line"], None)
        if frame["file"]:
            shown.add("Source", line_text(frame["file"], frame["function"], lines=lines), code=True)


def _called(trace: Trace, op: int, known: dict[str, Any] | None) -> str:
    name = trace.spans.row(op, named=True)["name"]
    inputs = _inputs(known) if known else None
    return f"{name} {inputs}" if inputs else str(name)


def _inputs(known: dict[str, Any]) -> str | None:
    """[4, 12, 2048, 2048] bf16, ... of the tensors."""
    shapes, types = _parsed(known["shapes"]), _parsed(known["dtypes"])
    if not shapes:
        return None
    shown = []
    for place, shape in enumerate(shapes):
        if isinstance(shape, list) and shape:
            kind = types[place] if place < len(types) else ""
            shown.append(f"{json.dumps(shape)} {_DTYPES.get(kind, kind)}".strip())
    return ", ".join(shown) or None


_DTYPES = {
    "float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16", "long int": "int64",
    "int": "int32", "bool": "bool", "unsigned char": "uint8",
}  # fmt: skip


def _parsed(text: str | None) -> list[Any]:
    if text is None:
        return []
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return value if isinstance(value, list) else []


def _scalars(text: str | None) -> str | None:
    values = [str(each) for each in _parsed(text) if each not in ("", None)]
    return ", ".join(values) or None


def _launch(trace: Trace, row: dict[str, Any], shown: _Facts) -> None:
    if row["kind"] not in DEVICE_KINDS:
        return
    if row["launch_id"] is None:
        shown.add("Launched", "before the recording began, or its launch was not recorded")
        return
    call = trace.spans.row(row["launch_id"], named=True)
    before = format_value("_ns", row["start_ns"] - call["start_ns"])
    shown.add("Launched", f"{before} earlier by {call['name']}")


def _kernel(trace: Trace, row: dict[str, Any], shown: _Facts) -> None:
    if row["kind"] != "kernel":
        return
    known = trace.kernels.filter(pl.col("span_id") == row["id"])
    if not known.height:
        return
    facts = known.row(0, named=True)
    if facts["grid_x"] is not None and facts["block_x"] is not None:
        blocks = facts["grid_x"] * (facts["grid_y"] or 1) * (facts["grid_z"] or 1)
        threads = facts["block_x"] * (facts["block_y"] or 1) * (facts["block_z"] or 1)
        shown.add("Grid, block", f"{blocks:,} × {threads} threads")
    if facts["occupancy_pct"] is not None:
        shown.add("Occupancy", f"{facts['occupancy_pct']:.0f} % (estimate from launch size)")
    shown.add("Registers", facts["registers"])
    if facts["shared_bytes"]:
        shown.add("Shared memory", format_value("_bytes", facts["shared_bytes"]))
    shown.add("Graph node", facts["graph_node_id"])


def _copy(trace: Trace, row: dict[str, Any], shown: _Facts) -> None:
    if row["kind"] not in ("copy", "set"):
        return
    known = trace.copies.filter(pl.col("span_id") == row["id"])
    if not known.height:
        return
    facts = known.row(0, named=True)
    if facts["size_bytes"] is not None:
        rate = facts["size_bytes"] / row["dur_ns"] * 1e9 if row["dur_ns"] else None
        reached = "" if rate is None else f", {format_value('_bytes_per_s', rate)}"
        shown.add("Size", format_value("_bytes", facts["size_bytes"]) + reached)
    shown.add("Direction", facts["direction"])
    if facts["pageable"] is not None:
        shown.add("Host memory", "pageable" if facts["pageable"] else "pinned")


def _arguments(trace: Trace, row: dict[str, Any], shown: _Facts) -> None:
    arguments = trace.args.filter(pl.col("span_id") == row["id"]).head(_ARGUMENTS)
    for key, whole, number, text in arguments.select("key", "int", "float", "text").iter_rows():
        value = next((each for each in (whole, number, text) if each is not None), None)
        shown.add(heading(str(key)), value, code=True)


def _links(trace: Trace, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The launch, the operator, its forward, what encloses it; and for a call or operator, its GPU work."""
    wanted: list[tuple[str, int]] = []
    for label, column in (("launch", "launch_id"), ("operator", "op_id"), ("inside", "parent_id")):
        if row[column] is not None:
            wanted.append((label, row[column]))
    if row["kind"] == "op":
        ops = trace.ops.filter(pl.col("span_id") == row["id"])
        if ops.height and ops["forward_id"][0] is not None:
            wanted.append(("forward", ops["forward_id"][0]))
        backward = trace.ops.filter(pl.col("forward_id") == row["id"])["span_id"].head(_LINKS)
        wanted += [("backward", each) for each in backward]
    if row["kind"] in ("op", "runtime"):
        column = "op_id" if row["kind"] == "op" else "launch_id"
        work = trace.device_spans.filter(pl.col(column) == row["id"])["id"].head(_LINKS)
        wanted += [("kernel", each) for each in work]
    return [link(trace, label, number) for label, number in wanted]
