"""The user's lines that called recorded operators: torch keeps them in memory, and its JSON leaves them out.

With `with_stack`, each Python call in torch's tree of events keeps the line that its caller was at. The recording's file gets one
more member with the lines of operators and long Python calls, by their start and name. The tree is private to torch: a version
without it leaves no more than a note.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import sysconfig
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretrace.source_calls import MOST_BYTES, Function, function_at, functions_of
from foretrace.user_files import owner

MEMBER = "foretraceCallers"
_VERSION = 1
_MOST_ROWS = 400_000  # about 6 MB
_MOST_S = 5.0
_LONG_NS = 20_000  # a Python call that may be a gap between operators
_LOOK_EVERY = 4096  # events between looks at the clock

Place = tuple[str, str, int | None, int | None]  # file, function, line, last line
# Regions that torch itself opens. The names of others are the user's own texts: what they hold stays in the events.
_TORCH_REGIONS = ("Optimizer.", "enumerate(DataLoader)#")


def add_to(path: Path, profiler: Any) -> str | None:
    """Writes the lines into the recording that this stopped profiler exported; why there are none, where that is so."""
    try:
        roots = profiler.profiler.kineto_results.experimental_event_tree()
    except Exception as error:  # private: whatever another version of torch raises
        return f"lines of operators are not recorded: torch {_torch_version()} does not give its events ({type(error).__name__})"
    tree = _Tree()
    try:
        tree.walk(roots)
        member = tree.to_json()
    except (AttributeError, TypeError) as error:
        return f"lines of operators are not recorded: torch {_torch_version()} has other events ({error})"
    _append(path, member)
    return tree.limit


def _torch_version() -> str:
    return str(getattr(sys.modules.get("torch"), "__version__", ""))


@dataclass
class _Call:
    """A call of a user's function: its own operators have lines between those of the calls that it makes."""

    file: str
    function: str
    line: int
    calls: list[tuple[int, int]] = field(default_factory=list)  # start and line
    operators: list[tuple[int, str]] = field(default_factory=list)  # start and name


class _Tree:
    """What is read from a tree of events."""

    def __init__(self) -> None:
        self.limit: str | None = None
        self._files = _UserFiles()
        self._rows: list[tuple[int, str, Place]] = []
        self._functions: list[_Call] = []
        self._until = time.monotonic() + _MOST_S

    def walk(self, roots: Any) -> None:
        """Reads the events, outer ones first."""
        work: list[tuple[Any, Place | _Call | None, _Call | None, bool]] = []
        work += [(event, None, None, False) for event in roots]
        count = 0
        while work:
            event, place, call, in_operator = work.pop()
            count += 1
            if count % _LOOK_EVERY == 0 and self._full():
                return
            kind = event.tag.name
            if kind in ("PyCall", "PyCCall"):
                place, call = self._python(event, kind == "PyCall", place, call)
                in_operator = False
            elif kind == "TorchOp":
                region = event.extra_fields.scope.name == "USER_SCOPE"
                if not in_operator and (not region or event.name.startswith(_TORCH_REGIONS)):
                    self._operator(event, place)
                in_operator = not region
            work.extend((child, place, call, in_operator) for child in event.children)

    def _full(self) -> bool:
        if len(self._rows) > _MOST_ROWS:
            self.limit = f"lines of the first {len(self._rows):,} calls are recorded, of more they would take too much room"
        elif time.monotonic() > self._until:
            self.limit = (
                f"lines of the first {len(self._rows):,} calls are recorded, reading more would take too long"
            )
        return self.limit is not None

    def _python(
        self, event: Any, of_python: bool, place: Place | _Call | None, call: _Call | None
    ) -> tuple[Place | _Call | None, _Call | None]:
        """Whose operators run below a Python call: its own where it is the user's, else those of the line that called it."""
        caller = event.extra_fields.caller
        if self._files.has(caller.file_name):
            place = (caller.file_name, caller.function_name, caller.line_number, None)
            if call is not None and (call.file, call.function) == (caller.file_name, caller.function_name):
                call.calls.append((event.start_time_ns, caller.line_number))
            if event.duration_time_ns >= _LONG_NS:
                self._rows.append((event.start_time_ns, event.name, place))
        if not of_python:
            return place, call
        site = event.extra_fields.callsite
        if not self._files.has(site.file_name):
            return place, call
        own = _Call(site.file_name, site.function_name, site.line_number)
        self._functions.append(own)
        return own, own

    def _operator(self, event: Any, place: Place | _Call | None) -> None:
        if isinstance(place, _Call):
            place.operators.append((event.start_time_ns, event.name))
        elif place is not None:
            self._rows.append((event.start_time_ns, event.name, place))

    def _own_operators(self) -> Iterator[tuple[int, str, Place]]:
        """A function's own operators, such as `a @ b`: on the only line that has such a thing between two calls."""
        for call in self._functions:
            if not call.operators:
                continue
            function = self._files.function(call)
            calls = sorted(call.calls)
            for start, name in call.operators:
                place = bisect_right(calls, (start, sys.maxsize))
                before = calls[place - 1][1] if place else None
                after = calls[place][1] if place < len(calls) else None
                lines = () if function is None else function.between(function.lines_of(name), before, after)
                first, last = (lines[0], lines[-1]) if lines else (None, None)
                yield start, name, (call.file, call.function, first, None if first == last else last)

    def to_json(self) -> str:
        """The member's value: columns, texts once, times as differences."""
        rows = sorted((*self._rows, *self._own_operators()), key=lambda row: row[:2])
        names, places = _codes(row[1] for row in rows), _codes(row[2] for row in rows)
        texts = _codes(text for file, function, *_ in places for text in (file, function))
        begins = [row[0] for row in rows]
        return json.dumps(
            {
                "version": _VERSION,
                "names": list(names),
                "texts": list(texts),
                "places": [[texts[file], texts[function], *lines] for file, function, *lines in places],
                "start": [start - before for start, before in zip(begins, [0, *begins], strict=False)],
                "name": [names[row[1]] for row in rows],
                "place": [places[row[2]] for row in rows],
            },
            separators=(",", ":"),
            ensure_ascii=False,  # as Kineto writes: secrets are looked for in that form
        )


def _codes(values: Iterator[Any]) -> dict[Any, int]:
    return {value: code for code, value in enumerate(dict.fromkeys(values))}


class _UserFiles:
    """Which files are the user's, and their source. torch names files relative to where modules are found."""

    def __init__(self) -> None:
        self._of_user: dict[str, bool] = {}
        self._functions: dict[str, tuple[Function, ...]] = {}
        self._local: frozenset[str] | None = None
        folders = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parents[1])
        self._library = tuple(os.path.realpath(folder) + os.sep for folder in folders if folder)

    def has(self, file: str) -> bool:
        """Whether a file is the user's own, or of a package that was installed from a folder of this machine."""
        known = self._of_user.get(file)
        if known is None:
            known = self._of_user[file] = self._is_of_user(file)
        return known

    def function(self, call: _Call) -> Function | None:
        """The function that was called, as its source has it."""
        functions = self._functions.get(call.file)
        if functions is None:
            source = "".join(linecache.getlines(self._path(call.file)))
            functions = functions_of(source) if 0 < len(source) <= MOST_BYTES else ()
            self._functions[call.file] = functions
        return function_at(functions, call.function, call.line, begins=False)

    def _is_of_user(self, file: str) -> bool:
        if owner(file) == "library":
            return False
        path = self._path(file)
        if "-packages/" in path.replace(os.sep, "/"):
            return self._is_local(path)
        if not os.path.isabs(path):
            return owner(file) == "user"
        return not os.path.realpath(path).startswith(self._library)

    @staticmethod
    def _path(file: str) -> str:
        if os.path.isabs(file) or file.startswith("<"):
            return file
        found = (os.path.join(folder or os.curdir, file) for folder in sys.path if isinstance(folder, str))
        return next((path for path in found if os.path.isfile(path)), file)

    def _is_local(self, path: str) -> bool:
        inside = path.replace(os.sep, "/").rpartition("-packages/")[2]
        if self._local is None:
            folders = {Path(folder) for folder in sys.path if folder.endswith("-packages")}
            self._local = frozenset(name for folder in folders for name in _local_packages(folder))
        return inside.partition("/")[0].removesuffix(".py") in self._local


def _local_packages(folder: Path) -> Iterator[str]:
    """The modules of packages that were installed from a folder of this machine."""
    for origin in folder.glob("*.dist-info/direct_url.json"):
        try:
            url = json.loads(origin.read_bytes()).get("url", "")
            record = (origin.parent / "RECORD").read_text(encoding="utf-8")
        except (
            OSError,
            ValueError,
            AttributeError,
        ):  # a package without them was not installed from a folder
            continue
        if str(url).startswith("file:"):
            for line in record.splitlines():
                name = line.partition("/")[0].partition(",")[0]
                if not name.endswith((".dist-info", "..", ".pth", "__pycache__")):
                    yield name.removesuffix(".py")


def _append(path: Path, member: str) -> None:
    """Adds the member at the end of the object that the file holds."""
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        at = file.tell()
        file.seek(max(at - 64, 0))
        tail = file.read()
        end = tail.rstrip()
        if not end.endswith(b"}"):
            return
        file.seek(at - len(tail) + len(end) - 1)
        file.write(b',\n"%s": %s\n}\n' % (MEMBER.encode(), member.encode()))
        file.truncate()
