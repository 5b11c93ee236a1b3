"""Graph replays: the kernels that a CUDA graph replays get the operators of its capture.

A replayed kernel links to the one call that launched the graph. Where the capture is known (graph_matching.py), the operators
behind its launch calls, with the modules and ranges around them, are added below each launch call of the graph, as spans that
take no time: a replay costs the host nothing for them. `op_id` of a node is then such an operator. Its id is above that of the
launch, while an operator around the launch has a lower one: `op_id > launch_id` tells a node that has its operator from a capture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import schema
from foretrace.ingest import graph_captures, graph_matching
from foretrace.ingest.graph_matching import NO_CALL, Match
from foretrace.ingest.server_marks import SERVER_MARKS
from foretrace.trace import Trace

Array = NDArray[Any]

MODULE_CALL = "nn.Module: "
# Columns that hold the id of a span, by table; `spans.id` itself is the row.
_SPAN_IDS = {
    "spans": ("parent_id", "launch_id", "op_id"),
    "kernels": ("span_id",),
    "copies": ("span_id",),
    "collectives": ("span_id",),
    "ops": ("span_id", "forward_id"),
    "python": ("span_id", "caller_id"),
    "callers": ("span_id",),
    "allocations": ("op_id",),
    "args": ("span_id",),
}
_OF_SHAPES = ("shapes", "strides", "inputs", "flops")
_NOBODY = -1
_DEEPEST = 2**16 - 1
_STEP = re.compile(r"ProfilerStep#|PyTorch Profiler")
Take = Callable[[pl.Series], pl.Series]  # ids of another recording's table become ids of this one's


def attributed(trace: Trace, others: Sequence[Trace] = ()) -> Trace:
    """The recording with the operators of captures, its own or those of the other recordings, behind replayed kernels."""
    if not others and (graph_captures.graph_launches(trace).is_empty() or not graph_captures.captures(trace)):
        return trace
    ops = trace.spans["op_id"].cast(pl.Int64).fill_null(_NOBODY).to_numpy()
    # A launch may have its operators already: this recording's own captures were used when it was first read.
    found = [
        match
        for match in graph_matching.matches(trace, others)
        if not (ops[match.launch.nodes] > match.launch.id).any()
    ]
    given = _Replays(trace, found).added() if found else trace
    if not others:
        return given
    meta = {**given.meta, "capture_traces": [other.path.name for other in others]}
    return Trace(given.path, given.format, meta, given.repairs, given.table, given.profile)


@dataclass(frozen=True, eq=False)
class _Template:
    """The spans of a capture that stand below each of some launches: parents before children."""

    rows: Array  # ids in the capture's recording
    parent: Array  # places in `rows`, or NOBODY
    depth: Array
    op_of_node: Array  # place in `rows` of each node's operator, or NOBODY
    matches: list[Match]  # that it stands below


class _Replays:
    """A recording and what is to be added to it."""

    def __init__(self, trace: Trace, found: list[Match]) -> None:
        self.trace = trace
        templates: dict[tuple[int, bytes, bool, bool], _Template] = {}
        for match in found:
            key = (id(match.trace), match.calls.tobytes(), match.shapes_known, match.modules_known)
            if key not in templates:
                templates[key] = _template(match)
            templates[key].matches.append(match)
        self.templates = list(templates.values())
        counts = np.zeros(trace.spans.height, np.int64)
        for template in self.templates:
            counts[[match.launch.id for match in template.matches]] = len(template.rows)
        # Added spans follow their launch, which started when they do: spans stay in order of start.
        self.moved = np.arange(len(counts)) + np.cumsum(counts) - counts

    def added(self) -> Trace:
        """The recording with the added spans."""
        frames = {name: self._renumbered(name) for name in schema.TABLES}
        modules = _Grown(frames["modules"], ("name",))
        stacks = _Grown(frames["stacks"], ("file", "line", "line_by", "start_line", "function"))
        parts = [self._part(template, modules, stacks) for template in self.templates]
        frames["modules"], frames["stacks"] = modules.frame(), stacks.frame()
        frames["spans"] = frames["spans"].with_columns(self._ops_of_nodes(frames["spans"]["op_id"]))
        for table, id_column in (("spans", "id"), ("ops", "span_id"), ("python", "span_id")):
            frames[table] = pl.concat([frames[table], *(part[table] for part in parts)]).sort(id_column)
        trace = self.trace
        return Trace(
            trace.path, trace.format, trace.meta, trace.repairs, frames.__getitem__, trace.profile, frames
        )

    def _renumbered(self, name: str) -> pl.DataFrame:
        """A table of the recording with the new numbers of spans."""
        frame = self.trace.table(name)
        columns = [self._new_ids(frame[column]) for column in _SPAN_IDS.get(name, ())]
        if name == "spans":
            columns.append(pl.Series("id", self.moved, pl.UInt32))
        return frame.with_columns(columns)

    def _new_ids(self, ids: pl.Series) -> pl.Series:
        moved = pl.Series(ids.name, self.moved[ids.fill_null(0).to_numpy()], pl.UInt32)
        return moved.set(ids.is_null(), None)

    def _ops_of_nodes(self, op_ids: pl.Series) -> pl.Series:
        """`op_id` of all spans, in their old order, with the operators of nodes."""
        ops = op_ids.cast(pl.Int64).fill_null(_NOBODY).to_numpy().copy()
        for template in self.templates:
            known = template.op_of_node != _NOBODY
            for match in template.matches:
                ops[match.launch.nodes[known]] = self._first(match) + template.op_of_node[known]
        given = pl.Series("op_id", ops)
        return given.set(given == _NOBODY, None).cast(pl.UInt32)

    def _first(self, match: Match) -> int:
        """The id of the first span that is added below a launch."""
        return int(self.moved[match.launch.id]) + 1

    def _part(self, template: _Template, modules: _Grown, stacks: _Grown) -> dict[str, pl.DataFrame]:
        """The rows that are added to `spans`, `ops` and `python` below the launches of a template."""
        source = template.matches[0].trace
        firsts = np.array([self._first(match) for match in template.matches], np.int64)
        take = None if source is self.trace else (modules.taken(source.modules), stacks.taken(source.stacks))
        part = {"spans": self._spans(template, source, firsts)}
        for table in ("ops", "python"):
            part[table] = _repeated(_rows_of(template, table, take), firsts)
        return part

    def _spans(self, template: _Template, source: Trace, firsts: Array) -> pl.DataFrame:
        count = len(template.rows)
        launches = self.trace.spans[[match.launch.id for match in template.matches]]
        of_launch = launches.select("track_id", "start_ns", "step", "depth")
        frame = pl.concat([source.spans[template.rows]] * len(firsts))
        each = of_launch[np.repeat(np.arange(len(firsts)), count)]
        first = np.repeat(firsts, count)
        parent = np.tile(template.parent, len(firsts))
        depth = each["depth"].cast(pl.Int64).to_numpy() + 1 + np.tile(template.depth, len(firsts))
        return frame.with_columns(
            each["track_id"], each["start_ns"], each["step"],
            pl.Series("id", first + np.tile(np.arange(count), len(firsts)), pl.UInt32),
            pl.Series("parent_id", np.where(parent == _NOBODY, first - 1, first + parent), pl.UInt32),
            pl.Series("depth", depth).clip(0, _DEEPEST).cast(pl.UInt16),
            pl.lit(0, pl.Int64).alias("dur_ns"),
            pl.lit(None, pl.UInt32).alias("launch_id"),
            pl.lit(None, pl.UInt32).alias("op_id"),
        ).select(self.trace.spans.columns)  # fmt: skip


def _rows_of(template: _Template, table: str, take: tuple[Take, Take] | None) -> pl.DataFrame:
    """The rows of `ops` or `python` that belong to a template; spans are places in it."""
    match = template.matches[0]
    frame = match.trace.table(table)
    place = pl.DataFrame({"span_id": template.rows.astype(np.uint32)}).with_row_index("place")
    rows = frame.join(place, on="span_id", how="inner", maintain_order="left")
    nothing = pl.lit(None)
    columns: list[pl.Series | pl.Expr] = [rows["place"].alias("span_id")]
    if take is not None and match.modules_known:
        columns += [take[0](rows["module_id"]), take[1](rows["stack_id"])]
    if table == "python":
        columns.append(nothing.cast(pl.UInt32).alias("caller_id"))
    else:
        forward = rows.select("forward_id").join(
            place, left_on="forward_id", right_on="span_id", how="left", maintain_order="left"
        )
        columns.append(forward["place"].alias("forward_id"))
        unknown = [
            *(() if match.shapes_known else _OF_SHAPES),
            *(() if match.modules_known else ("module_id", "stack_id")),
        ]
        columns += [nothing.cast(frame.schema[name]).alias(name) for name in unknown]
    return rows.with_columns(columns).select(frame.columns)


def _repeated(rows: pl.DataFrame, firsts: Array) -> pl.DataFrame:
    """The rows once for each launch: places become ids."""
    first = pl.Series("first", np.repeat(firsts, rows.height), pl.UInt32)
    ids = [name for name in ("span_id", "forward_id") if name in rows.columns]
    return pl.concat([rows] * len(firsts)).with_columns(pl.col(name) + first for name in ids)


def _template(match: Match) -> _Template:
    """The operators behind the nodes, and the operators, modules and ranges around those."""
    spans = match.trace.spans
    known = match.calls != NO_CALL
    ops = np.full(len(match.calls), _NOBODY, np.int64)
    ops[known] = spans["op_id"].gather(match.calls[known]).cast(pl.Int64).fill_null(_NOBODY).to_numpy()
    parents, starts = spans["parent_id"], spans["start_ns"]
    kept: dict[int, int] = {}  # span -> the kept span around it, or NOBODY
    for op in dict.fromkeys(ops[ops != _NOBODY].tolist()):
        inner, at = None, op
        while at is not None and at not in kept and starts[at] >= match.since_ns:
            if at == op or _counts(spans, at, modules=match.modules_known):
                if inner is not None:
                    kept[inner] = at
                kept[at] = _NOBODY
                inner = at
            at = parents[at]
        if inner is not None and at is not None and at in kept:
            kept[inner] = at
    rows = np.array(sorted(kept), np.int64)
    place = {row: number for number, row in enumerate(rows.tolist())}
    parent = np.array([place.get(kept[row], _NOBODY) for row in rows.tolist()], np.int64)
    depth = np.zeros(len(rows), np.int64)
    for number, above in enumerate(parent.tolist()):
        depth[number] = 0 if above == _NOBODY else depth[above] + 1
    op_of_node = np.array([place.get(op, _NOBODY) for op in ops.tolist()], np.int64)
    return _Template(rows, parent, depth, op_of_node, [])


def _counts(spans: pl.DataFrame, at: int, *, modules: bool) -> bool:
    """Whether a span around an operator is kept: operators, calls of modules, and the program's ranges that are no steps."""
    kind, name = spans["kind"][at], str(spans["name"][at])
    if kind == "annotation":
        return not _STEP.match(name) and not any(names(name) for names in SERVER_MARKS)
    return kind == "op" or (modules and kind == "python" and name.startswith(MODULE_CALL))


class _Grown:
    """A table of modules or frames that takes in those of other recordings: what is there by the same path stays one."""

    def __init__(self, frame: pl.DataFrame, fields: tuple[str, ...]) -> None:
        self._frame = frame
        self._fields = fields
        self._ids: dict[tuple[Any, ...], int] = {}
        self._more: list[tuple[Any, ...]] = []
        self._taken: dict[int, dict[int, int]] = {}

    def taken(self, other: pl.DataFrame) -> Callable[[pl.Series], pl.Series]:
        """A function from ids of the other table to ids here."""
        if not self._ids:
            for number, row in enumerate(self._frame.select("parent_id", *self._fields).iter_rows()):
                self._ids.setdefault(row, number)
        known = self._taken.setdefault(id(other), {})
        rows = other.select("parent_id", *self._fields)

        def renumbered(ids: pl.Series) -> pl.Series:
            for number in ids.drop_nulls().unique().to_list():
                self._take(rows, number, known)
            return pl.Series(
                ids.name, [None if number is None else known[number] for number in ids.to_list()], pl.UInt32
            )

        return renumbered

    def _take(self, rows: pl.DataFrame, number: int, known: dict[int, int]) -> None:
        """Takes in one row and those above it."""
        missing = []
        at: int | None = number
        while at is not None and at not in known:
            missing.append(at)
            at = rows["parent_id"][at]
        for place in reversed(missing):
            above, *fields = rows.row(place)
            key = (None if above is None else known[above], *fields)
            if key not in self._ids:
                self._ids[key] = self._frame.height + len(self._more)
                self._more.append(key)
            known[place] = self._ids[key]

    def frame(self) -> pl.DataFrame:
        """The table with what was taken in."""
        if not self._more:
            return self._frame
        more = pl.DataFrame(self._more, schema=["parent_id", *self._fields], orient="row").with_columns(
            id=pl.int_range(self._frame.height, self._frame.height + len(self._more))
        )
        cast = [pl.col(name).cast(dtype) for name, dtype in self._frame.schema.items()]
        return pl.concat([self._frame, more.select(cast)])
