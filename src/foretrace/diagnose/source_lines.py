"""The user's lines behind spans: exact where the recording proves them, else the function and which of its lines they may be.

What proves a line, in this order: the caller that the recorder wrote down, a stack with the lines that ran, and the source where it
lies on this machine and has one line that calls such a thing. torch itself records where a function was entered, and of a function
that ran when recording began the line of that moment, which proves no more than the function.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.diagnose.finding import Place
from foretrace.source_calls import MOST_BYTES, Function, function_at, functions_of
from foretrace.trace import Trace
from foretrace.user_files import Owner, owner

# <built-in method matmul of type object at 0x7f>, <built-in function linear>, <method 'sum' of 'torch._C.TensorBase' objects>
_BUILT_IN = re.compile(r"<(?:built-in (?:method|function) |method ')(\w+)")
_PASSED_ON = re.compile(
    r"(?:.*/)?torch/_tensor\.py:wrapped$"
)  # runs the operator whose name its caller wrote
_MOST_SPANS = 100  # of one stack: enough to tell which line of a function called them


@dataclass(frozen=True)
class Frame:
    """A row of `stacks`."""

    parent: int | None
    file: str | None
    function: str
    line: int | None
    line_by: str | None
    start_line: int | None


@dataclass(frozen=True)
class _Found:
    """A stack's frame to name: the innermost of the user, else of an installed package, else any with a file."""

    node: int | None
    called: str = ""  # what the frame calls on the way to the innermost
    package: int | None = None  # the innermost frame of an installed package, below the user's


class SourceLines:
    """The user's places behind the spans of a trace."""

    def __init__(self, trace: Trace, folders: Sequence[Path]) -> None:
        self._trace, self._folders = trace, folders
        self._user_frames: dict[int, _Found] = {}

    def places(
        self,
        spans: Sequence[int] | NDArray[np.int64],
        name_of: Callable[[int], str],
        *,
        by_time: bool,
        limit: int,
    ) -> tuple[Place, ...]:
        """Where operators or calls come from: the user's files first, then by their number, or `by_time`."""
        ids = np.asarray(spans, np.int64)
        weight = np.ones(len(ids))
        if by_time:
            weight += self._trace.spans["dur_ns"].gather(ids).fill_null(0).to_numpy()
        near, stack = self._origins(ids)
        exact: Counter[Place] = Counter()
        packages: Counter[Place] = Counter()  # what lies between the user's lines and torch
        in_functions: dict[int, Counter[str]] = {}
        order = np.lexsort((ids, stack, near))
        groups = np.flatnonzero((np.diff(near[order]) != 0) | (np.diff(stack[order]) != 0)) + 1
        for rows in np.split(order, groups) if len(order) else ():
            total = float(weight[rows].sum())
            frame = self._user_frame(int(stack[rows[0]])) if stack[rows[0]] != NOBODY else _Found(None)
            if frame.package is not None:
                packages[self._in_function(self._frames[frame.package], {})] += total  # type: ignore[assignment]
            recorded = self._caller(int(near[rows[0]]))
            if recorded is not None:
                exact[recorded] += total  # type: ignore[assignment]
                continue
            if frame.node is None:
                continue
            counted = in_functions.setdefault(frame.node, Counter())
            for row in rows[:_MOST_SPANS].tolist():
                counted[frame.called or name_of(int(ids[row]))] += total / min(len(rows), _MOST_SPANS)  # type: ignore[assignment]
        for node, counted in in_functions.items():
            exact[self._in_function(self._frames[node], counted)] += counted.total()
        users = [place for place, _ in exact.most_common() if _rank(place) == 0]
        others = Counter({place: count for place, count in exact.items() if _rank(place)}) + packages
        rest = sorted(others, key=lambda place: (_rank(place), -others[place]))
        return (*users[: limit - bool(rest)], *rest)[:limit]

    def of_stack(self, stack: int) -> Place:
        """The user's innermost function of a stack, without a line that is not proven."""
        frame = self._user_frame(stack)
        if frame.node is None:
            return Place(None, None, "unknown")
        return self._in_function(self._frames[frame.node], {frame.called: 1} if frame.called else {})

    def of_span(self, span: int, name: str = "") -> Place | None:
        """The place of one span; None where nothing is recorded of it."""
        return next(iter(self.places([span], lambda _: name, by_time=False, limit=1)), None)

    def _origins(self, ids: NDArray[np.int64]) -> tuple[Array, Array]:
        """For each span the nearest span around it that says where it is from, and the stack; of backward work its forward's."""
        asked = ids.copy()
        near = self._nearest[asked] if len(ids) else asked
        backward = np.flatnonzero(near != NOBODY)
        backward = backward[self._forward[near[backward]] != NOBODY]
        asked[backward] = self._forward[near[backward]]
        near = self._nearest[asked] if len(ids) else asked
        described = self._described[asked] if len(ids) else asked
        stack = np.where(described == NOBODY, NOBODY, self._stack[described])
        return near, stack

    @cached_property
    def _forward(self) -> Array:
        """For each span, the forward operator that it is the backward of; NOBODY where it is of none."""
        forward = np.full(self._trace.spans.height, NOBODY, np.int64)
        linked = self._trace.ops.select("span_id", "forward_id").drop_nulls()
        forward[linked["span_id"].to_numpy()] = linked["forward_id"].to_numpy()
        stacked = self._stack[forward[linked["span_id"].to_numpy()]] != NOBODY if linked.height else []
        named = self._caller_row[forward[linked["span_id"].to_numpy()]] != NOBODY if linked.height else []
        unknown = linked["span_id"].to_numpy()[~(np.asarray(stacked, bool) | np.asarray(named, bool))]
        forward[unknown] = NOBODY
        return forward

    @cached_property
    def _stack(self) -> Array:
        """For each operator and Python call its stack, or NOBODY."""
        stack = np.full(self._trace.spans.height, NOBODY, np.int64)
        for table in (self._trace.ops, self._trace.python):
            known = table.select("span_id", "stack_id").drop_nulls()
            stack[known["span_id"].to_numpy()] = known["stack_id"].to_numpy()
        return stack

    @cached_property
    def _caller_row(self) -> Array:
        rows = np.full(self._trace.spans.height, NOBODY, np.int64)
        rows[self._trace.callers["span_id"].to_numpy()] = np.arange(self._trace.callers.height)
        return rows

    @cached_property
    def _own_call(self) -> NDArray[np.bool_]:
        """For each span whether it is a call of a user's function: what runs in it has no line of a caller."""
        files = self._trace.stacks["file"]
        users = [file for file in files.unique().drop_nulls() if owner(file) == "user"]
        by_stack = files.is_in(users).fill_null(value=False).to_numpy()
        own = np.zeros(self._trace.spans.height, bool)
        calls = self._trace.python.select("span_id", "stack_id").drop_nulls()
        own[calls["span_id"].to_numpy()] = by_stack[calls["stack_id"].to_numpy()] if calls.height else False
        return own

    @cached_property
    def _nearest(self) -> Array:
        marked = (self._caller_row != NOBODY) | (self._forward != NOBODY) | self._own_call
        return attribution.nearest(attribution.parents(self._trace), marked)

    @cached_property
    def _described(self) -> Array:
        """For each span the nearest around it that has a stack."""
        return attribution.nearest(attribution.parents(self._trace), self._stack != NOBODY)

    @cached_property
    def _callers(self) -> list[Place]:
        columns = self._trace.callers.select(pl.col("file", "function").cast(pl.String), "line", "last_line")
        places = []
        for file, function, line, last in columns.iter_rows():
            if line is None:
                places.append(Place(file, None, function, line_by="function"))
            elif last is not None:
                places.append(Place(file, None, function, (line, last), "range"))
            else:
                places.append(Place(file, line, function, line_by="caller"))
        return places

    def _caller(self, span: int) -> Place | None:
        """The place that the recorder wrote down for a span, unless that is a user's function of its own."""
        row = NOBODY if span == NOBODY or self._own_call[span] else int(self._caller_row[span])
        return None if row == NOBODY else self._callers[row]

    @cached_property
    def _frames(self) -> list[Frame]:
        columns = self._trace.stacks.select("parent_id", "file", "function", "line", "line_by", "start_line")
        return [Frame(*row) for row in columns.iter_rows()]

    def _user_frame(self, stack: int) -> _Found:
        if stack not in self._user_frames:
            self._user_frames[stack] = self._find_user_frame(stack)
        return self._user_frames[stack]

    def _find_user_frame(self, stack: int) -> _Found:
        best: dict[Owner, tuple[int, str]] = {}
        node: int | None = stack
        called = ""
        while node is not None:
            frame = self._frames[node]
            if frame.file is not None:
                whose = owner(frame.file)
                best.setdefault(whose, (node, called))
                if whose == "user":
                    break
            built_in = _BUILT_IN.match(frame.function)
            called = built_in[1] if built_in else frame.function
            if _PASSED_ON.match(f"{frame.file}:{called}"):
                called = ""
            node = frame.parent
        package = best["package"][0] if "user" in best and "package" in best else None
        node, called = best.get("user") or best.get("package") or best.get("library") or (None, "")
        return _Found(node, called, package)

    def _in_function(self, frame: Frame, called: Mapping[str, float]) -> Place:
        place = Place(frame.file, None, frame.function, line_by="function")
        if frame.line is not None and frame.line_by == "ran":
            return replace(place, line=frame.line, line_by="recorded")
        function = source_function(frame, self._folders)
        if function is None:
            if frame.line is None or frame.function == "<module>":
                return place
            return replace(place, lines=(frame.line, None), line_by="entry")
        return in_source(place, function, called)


def in_source(place: Place, function: Function, called: Mapping[str, float]) -> Place:
    """The place with the only line of its function that makes most of these calls; else the lines that may."""
    lines = {name: function.lines_of(name) for name in called}
    sure: Counter[int] = Counter()
    for name, count in called.items():
        if len(lines[name]) == 1:
            sure[lines[name][0]] += count  # type: ignore[assignment]
    if sure and 2 * sure.most_common(1)[0][1] >= sum(called.values()):
        return replace(place, line=sure.most_common(1)[0][0], lines=None, line_by="source")
    possible = sorted({line for those in lines.values() for line in those}) if all(lines.values()) else []
    if not possible and function.name == "<module>":
        return place  # all of a file says nothing
    first, last = (possible[0], possible[-1]) if possible else (function.first, function.last)
    return replace(place, lines=(first, last), line_by="range")


def source_function(frame: Frame, folders: Sequence[Path]) -> Function | None:
    """The function of a frame in its source, where that lies in one of the folders and still has it there."""
    line = frame.start_line if frame.line is None else frame.line
    if frame.file is None or line is None:
        return None
    for folder in folders:
        functions = _functions(folder / frame.file)
        function = function_at(functions, frame.function, line, begins=False)
        if function is not None:
            return function
    return None


def _rank(place: Place) -> int:
    return 3 if place.file is None else ("user", "package", "library").index(owner(place.file))


def _functions(path: Path) -> tuple[Function, ...]:
    try:
        facts = path.stat()
    except (OSError, ValueError):  # a name that is too long, or holds a zero byte
        return ()
    return _parsed(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _parsed(path: Path, size: int, _changed_ns: int) -> tuple[Function, ...]:
    try:
        return functions_of(path.read_bytes()) if path.is_file() and size <= MOST_BYTES else ()
    except OSError:
        return ()  # the function's name is what remains
