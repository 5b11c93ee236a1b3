"""What the page is given: the contract with `web/src/data/types.ts`.

A resource has a name and is made from a RecordingView, a BenchView or a SnapshotView: plain data, which travels as
JSON, or a binary payload.
The server and the report send the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from foretrace._version import __version__
from foretrace.errors import UsageError, contained, unknown
from foretrace.present.web.bench_view import BenchView
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.bench_compare import bench_compare
from foretrace.present.web.resources.benchmark import benchmark
from foretrace.present.web.resources.compare import compare
from foretrace.present.web.resources.memory import memory
from foretrace.present.web.resources.modules import modules
from foretrace.present.web.resources.occurrences import occurrences
from foretrace.present.web.resources.overview import overview
from foretrace.present.web.resources.ranks import ranks, stack
from foretrace.present.web.resources.roofline import roofline
from foretrace.present.web.resources.sections import sections
from foretrace.present.web.resources.snapshot import of_run, snapshot
from foretrace.present.web.resources.snapshot import window as snapshot_window
from foretrace.present.web.resources.snapshot_compare import snapshot_compare
from foretrace.present.web.resources.span import span
from foretrace.present.web.resources.table import table
from foretrace.present.web.resources.timeline import timeline, window
from foretrace.present.web.resources.waiting import waiting
from foretrace.present.web.resources.whatif import predict, whatif
from foretrace.present.web.snapshot_view import SnapshotView, of_recording

Answer = dict[str, Any] | bytes
Query = Mapping[str, str | Sequence[str]]
View = RecordingView | BenchView | SnapshotView
Find = Callable[[str], View]
Sort = TypeVar("Sort", RecordingView, BenchView, SnapshotView)

SCHEMA = 1


@dataclass(frozen=True)
class Request:
    """What a resource is asked with, beside the recording."""

    rest: str  # what follows the name: the 7 of span/7
    query: Query
    find: Find | None  # another run by its id
    peers: Sequence[RecordingView]  # the runs of the same group

    @property
    def single(self) -> dict[str, str]:
        """The query of a resource that takes each name once."""
        texts = {name: value for name, value in self.query.items() if isinstance(value, str)}
        if len(texts) < len(self.query):
            raise UsageError(f"given more than once: {', '.join(set(self.query) - set(texts))}")
        return texts


# A name that ends in "/" takes what follows it.
RESOURCES: Mapping[str, Callable[[RecordingView, Request], Answer]] = {
    "overview": lambda view, asked: overview(view, asked.single),
    "timeline": lambda view, asked: timeline(view, asked.single),
    "timeline/window": lambda view, asked: window(view, asked.single),
    "table/": lambda view, asked: table(view, asked.rest, asked.single),
    "finding/": lambda view, asked: occurrences(view, asked.rest),
    "span/": lambda view, asked: span(view, asked.rest),
    "waiting": lambda view, _: waiting(view),
    "modules": lambda view, _: modules(view),
    "sections": lambda view, _: sections(view),
    "memory": lambda view, _: memory(view),
    "memory/snapshot": lambda view, _: of_run(view),
    "memory/snapshot/curve": lambda view, asked: snapshot_window(of_recording(view), asked.single),
    "roofline": lambda view, _: roofline(view),
    "ranks": lambda view, asked: ranks(view, asked.peers),
    "ranks/stack": lambda view, asked: stack(view, asked.peers, asked.single),
    "compare/": lambda view, asked: compare(view, _of_same_sort(view, asked)),
    "predict": lambda view, asked: predict(view, asked.query),
    "whatif": lambda view, _: whatif(view),
}
# Of a benchmark.
BENCH_RESOURCES: Mapping[str, Callable[[BenchView, Request], Answer]] = {
    "benchmark": lambda view, _: benchmark(view),
    "compare/": lambda view, asked: bench_compare(view, _of_same_sort(view, asked)),
}
# Of a memory snapshot.
SNAPSHOT_RESOURCES: Mapping[str, Callable[[SnapshotView, Request], Answer]] = {
    "snapshot": lambda view, _: snapshot(view),
    "snapshot/curve": lambda view, asked: snapshot_window(view.findings, asked.single),
    "compare/": lambda view, asked: snapshot_compare(view, _of_same_sort(view, asked)),
}
# Asked for while the view moves, or made from another run: not part of a report as they stand.
LIVE = (
    "timeline/window",
    "memory/snapshot/curve",
    "ranks/stack",
    "predict",
    "span/",
    "finding/",
    "table/",
    "compare/",
)

# Made from the diagnosis; the first three also without it: `findings=no`.
DIAGNOSED = ("overview", "timeline", "timeline/window", "predict", "whatif")


def resource(
    view: View,
    name: str,
    query: Query | None = None,
    *,
    find: Find | None = None,
    peers: Sequence[View] = (),
) -> Answer:
    """One resource of a run; `find` gives another run by its id, `peers` are those loaded beside it."""
    recordings = tuple(peer for peer in peers if isinstance(peer, RecordingView))
    if isinstance(view, BenchView):
        key, rest = _split(name, BENCH_RESOURCES)
        with contained(name):
            return BENCH_RESOURCES[key](view, Request(rest, dict(query or {}), find, recordings))
    if isinstance(view, SnapshotView):
        key, rest = _split(name, SNAPSHOT_RESOURCES)
        with contained(name):
            return SNAPSHOT_RESOURCES[key](view, Request(rest, dict(query or {}), find, recordings))
    key, rest = _split(name, RESOURCES)
    with contained(name):
        return RESOURCES[key](view, Request(rest, dict(query or {}), find, recordings))


def _of_same_sort(view: Sort, asked: Request) -> Sort:
    """The other run, which must be a recording as this one is, or a benchmark or snapshot."""
    if asked.find is None:
        raise UsageError("there is no other run to compare with")
    try:
        other = asked.find(asked.rest)
    except KeyError:
        raise UsageError(f"no run {asked.rest[:200]!r} to compare with") from None
    if not isinstance(other, type(view)):
        raise UsageError(
            f"{view.name} and {other.name}: a {sort_of(view)} and a {sort_of(other)} cannot be compared"
        )
    return other


def _split(name: str, resources: Iterable[str]) -> tuple[str, str]:
    """The registered name and what follows it."""
    if name in resources and not name.endswith("/"):
        return name, ""
    head, slash, rest = name.partition("/")
    if not rest or head + slash not in resources:
        raise unknown(f"no resource {name[:200]!r}", name, resources)
    return head + slash, rest


def to_bytes(answer: Answer) -> bytes:
    """What travels: a payload as it is, plain data as JSON."""
    if isinstance(answer, bytes):
        return answer
    return json.dumps(answer, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def run_entry(view: View) -> dict[str, Any]:
    """A run that is ready, as `runs` lists it."""
    step = view.step_ns if isinstance(view, RecordingView) else None
    return {
        "id": view.id,
        "sort": sort_of(view),
        "name": view.name,
        "title": view.title,
        "group": view.group,
        "label": view.label,
        "state": "ready",
        "progress_pct": None,
        "says": None,
        "step_ms": None if step is None else step / 1e6,
    }


def sort_of(view: View) -> str:
    """Which pages a run has."""
    if isinstance(view, SnapshotView):
        return "snapshot"
    return "benchmark" if isinstance(view, BenchView) else "recording"


def runs(entries: Iterable[Mapping[str, Any]], *, embedded: bool = False) -> dict[str, Any]:
    """`runs`: what the server or the report's file holds."""
    return {
        "schema": SCHEMA,
        "foretrace": __version__,
        "embedded": embedded,
        "runs": [dict(entry) for entry in entries],
    }
