"""Sections: the ranges that a program marks with record_function, and which of them is around what.

A section is a path of names, outermost first; step annotations are not sections. A range nested in one of the same name
belongs to the same section, so that it is not counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device.phases import cause_of, distinct
from foretrace.analyze.concepts.trees.attribution import parents
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array, ending_track
from foretrace.trace import Trace

_STEP_MARK = r"^ProfilerStep#\d+$"


@dataclass(frozen=True)
class SectionTree:
    """Ranges on the host, in order of start, and the sections that they belong to."""

    span_id: Array
    parent: Array  # row of the range around it, or NOBODY
    section: Array  # per range: its section
    outer: Array  # per range: whether none of its own section is around it
    paths: tuple[tuple[str, ...], ...]  # per section: its names, outermost first
    above: tuple[int, ...]  # per section: the one around it, or NOBODY

    def line(self, section: int) -> list[int]:
        """A section and those around it, innermost first."""
        sections = [section]
        while self.above[sections[-1]] != NOBODY:
            sections.append(self.above[sections[-1]])
        return sections


def build(trace: Trace) -> SectionTree:
    """All ranges that the program marked."""
    ranges = _ranges(trace)
    ids = ranges["id"].to_numpy()
    around = trace.spans["parent_id"].gather(ids).cast(pl.Int64).fill_null(NOBODY).to_numpy()
    parent = _rows_around(trace, ids, around)
    texts = (
        ranges["name"].cast(pl.String).unique(maintain_order=True).to_list()
    )  # sections in order of their start
    number = {text: place for place, text in enumerate(texts)}
    names = np.array([number[text] for text in ranges["name"].cast(pl.String)], np.int64)
    section, outer = np.full(len(ids), NOBODY, np.int64), np.ones(len(ids), bool)
    places: dict[tuple[str, ...], int] = {}
    # From the outside in; each pair of a section and a name inside it is looked at once.
    level = np.flatnonzero(parent == NOBODY)
    while len(level):
        of_parent = np.where(parent[level] == NOBODY, NOBODY, section[parent[level]])
        pairs, which = np.unique(np.stack((of_parent, names[level])), axis=1, return_inverse=True)
        paths = list(places)
        inner = [
            _inside(paths[above] if above != NOBODY else (), texts[name]) for above, name in pairs.T.tolist()
        ]
        section[level] = np.array([places.setdefault(path, len(places)) for path, _ in inner])[which]
        outer[level] = np.array([new for _, new in inner])[which]
        reached = np.zeros(len(ids) + 1, bool)
        reached[level] = True
        level = np.flatnonzero((section == NOBODY) & reached[parent])
    above = tuple(places.get(path[:-1], NOBODY) for path in places)
    return SectionTree(ids, parent, section, outer, tuple(places), above)


def _inside(above: tuple[str, ...], name: str) -> tuple[tuple[str, ...], bool]:
    """The section of a name inside another, and whether it is not that or one around that already."""
    if name in above:
        return above[: above.index(name) + 1], False
    return (*above, name), True


def _ranges(trace: Trace) -> pl.DataFrame:
    """The program's annotations on the host, with a sound duration."""
    marked = trace.spans.filter(
        (pl.col("kind") == "annotation")
        & pl.col("dur_ns").is_not_null()
        & pl.col("track_id").is_in(_host_tracks(trace).implode())
    )
    # Only now text: cast to it, the names of all spans would cost more than all the rest.
    steps = pl.col("name").cast(pl.String).str.contains(_STEP_MARK)
    return marked.filter(~steps).select("id", "name")


def _host_tracks(trace: Trace) -> pl.Series:
    return trace.tracks.filter(pl.col("device").is_null())["id"]


def _rows_around(trace: Trace, ids: Array, spans: Array) -> Array:
    """For each of these spans, the row of the range that is it or the nearest around it, or NOBODY."""
    parent, count = parents(trace), trace.spans.height
    row = np.full(count + 1, NOBODY, np.int64)
    row[ids] = np.arange(len(ids))
    nearest = np.full(count + 1, NOBODY, np.int64)  # NOBODY is the last place
    asking = at = distinct(spans, count)
    while len(asking):
        here = row[at]
        nearest[asking] = here
        asking, at = asking[here == NOBODY], parent[at[here == NOBODY]]
        asking, at = asking[at != NOBODY], at[at != NOBODY]
    return nearest[spans]


def sections_of_work(trace: Trace, tree: SectionTree, work: pl.DataFrame) -> Array:
    """For each row of device work the innermost section that launched it, or NOBODY.

    Autograd launches from a thread of its own, on which the program marks nothing: such work belongs to what
    is open on the thread that marks ranges, since that one waits for it.
    """
    if not len(tree.span_id):
        return np.full(work.height, NOBODY, np.int64)
    ranges = _rows_around(trace, tree.span_id, cause_of(work))
    missing = np.flatnonzero((ranges == NOBODY) & work["launch_id"].is_not_null().to_numpy())
    if len(missing):
        launch = work["launch_id"].gather(missing).to_numpy()
        ranges[missing] = _open_at(trace, tree, launch)
    return np.where(ranges == NOBODY, NOBODY, tree.section[ranges])


def ranges_of_other_threads(trace: Trace, tree: SectionTree, work: pl.DataFrame) -> Array:
    """For each row of device work that a thread without ranges launched, the range open on the marking thread, else NOBODY."""
    found = np.full(work.height, NOBODY, np.int64)
    if len(tree.span_id):
        inside = _rows_around(trace, tree.span_id, cause_of(work))
        missing = np.flatnonzero((inside == NOBODY) & work["launch_id"].is_not_null().to_numpy())
        found[missing] = _open_at(trace, tree, work["launch_id"].gather(missing).to_numpy())
    return found


def _open_at(trace: Trace, tree: SectionTree, launch: Array) -> Array:
    """For each launch of another thread, the innermost range open on the marking thread; else NOBODY."""
    spans = trace.spans
    track = spans["track_id"].to_numpy()
    ranges = spans.filter(pl.col("kind") == "annotation")
    marking = ending_track(trace, ranges.filter(pl.col("track_id").is_in(_host_tracks(trace).implode())))
    if marking is None:
        return np.full(len(launch), NOBODY, np.int64)
    on_thread = np.flatnonzero(track[tree.span_id] == marking)
    if not len(on_thread):  # it marks steps alone; what is open elsewhere waits for nothing here
        return np.full(len(launch), NOBODY, np.int64)
    start = spans["start_ns"].to_numpy()
    end = start[tree.span_id] + spans["dur_ns"].gather(tree.span_id).fill_null(0).to_numpy()
    at = start[launch]
    place = np.searchsorted(start[tree.span_id[on_thread]], at, side="right") - 1
    row = np.where((place >= 0) & (track[launch] != marking), on_thread[np.maximum(place, 0)], NOBODY)
    process = trace.tracks["process"].fill_null(NOBODY).to_numpy()
    row[process[track[launch]] != process[marking]] = NOBODY
    while len(up := np.flatnonzero((row != NOBODY) & (end[row] <= at))):
        row[up] = tree.parent[row[up]]
    return row
