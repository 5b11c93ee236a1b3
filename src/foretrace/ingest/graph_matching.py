"""Which capture a graph launch replays, and which captured call each of its nodes comes from.

A capture fits a launch if it has as many launches as the launch has nodes, or as many kernels; where captured calls name their
kernels, most of these must be the same in order, and the captures with the fewest others are taken. Nodes stand in the order of their ids, which is that of the capture. Where ids are not
recorded, they stand in the order of their start, and nodes of several streams get only operators that warm-up runs confirm. Of several captures
that fit, as of a server that captures one graph for each batch size, these decide, in this order: the batch size that the range
around the launch names, the order of the recorded graph ids, which kernels the operators launch where they run eagerly, and the
capture that came last before the first launch. Where none does, operators are given only if all captures agree on them, without
the shapes that they do not agree on. Captures of single layers, with the same operators in other modules, are told apart by graph ids or by
the order of launches in a step; else modules are left out.
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.ingest import graph_captures, server_marks
from foretrace.ingest.graph_captures import Capture
from foretrace.trace import Trace

Array = NDArray[Any]

NO_CALL = -1
SHORTEST_RUN = 4  # kernels in a row that tell a place in an eager run
_MOST_EAGER = 20_000  # kernels of an eager recording that are compared one by one
_MOST_CHANGED = 0.2  # of the nodes: copies and fills that ran as kernels
_RANGES_ABOVE = 64  # spans around a launch that are searched for the name of a step


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch of a graph: its nodes in the order of the capture, as far as that is known."""

    id: int
    start_ns: int
    graph: int  # launches of one graph have the same number
    graph_id: int | None  # as recorded
    nodes: Array  # span ids
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    streams: tuple[int, ...]
    ordered: bool  # whether ids of nodes tell the order
    tokens_count: int | None  # that the range around it names
    step: int | None
    place: int = 0  # among the launches of the same kernels in its step
    places_count: int = 1

    @property
    def in_order(self) -> bool:
        """Whether the nodes stand in the order of the capture: branches do not, without ids."""
        return self.ordered or len(set(self.streams)) < 2


@dataclass(frozen=True, eq=False)
class Match:
    """For each node of a launch, the call in `trace` that it comes from, or NO_CALL."""

    launch: Launch
    trace: Trace
    since_ns: int  # what began before is no part of the capture
    calls: Array
    shapes_known: bool = True
    modules_known: bool = True


Fitting = list[tuple[Capture, Array]]


def launches(trace: Trace) -> list[Launch]:
    """The graph launches with recorded work, in order."""
    calls = graph_captures.graph_launches(trace)
    if calls.is_empty():
        return []
    work = trace.device_spans.filter(pl.col("launch_id").is_in(calls.implode()))
    ids = trace.kernels.select(pl.col("span_id").alias("id"), "graph_id", "graph_node_id")
    work = work.join(ids, on="id", how="left", maintain_order="left").sort("launch_id", "start_ns", "id")
    starts = dict(zip(calls.to_list(), trace.spans["start_ns"].gather(calls).to_list(), strict=True))
    parents, all_names = trace.spans["parent_id"].to_list(), trace.spans["name"]
    steps = dict(zip(calls.to_list(), trace.spans["step"].gather(calls).to_list(), strict=True))
    names, kinds = graph_captures.node_names(work), work["kind"].cast(pl.String).to_list()
    rows, tracks = work["id"].to_numpy(), work["track_id"].to_list()
    graph_ids, node_ids = work["graph_id"].to_list(), work["graph_node_id"].to_list()
    call_of, numbers, found = work["launch_id"].to_numpy(), dict[Any, int](), list[Launch]()
    edges = [0, *(np.flatnonzero(np.diff(call_of)) + 1).tolist(), len(call_of)]
    for first, end in pairwise(edges if len(call_of) else []):
        call, places = int(call_of[first]), list(range(first, end))
        of_kernels = [node_ids[place] for place in places if kinds[place] == "kernel"]
        ordered = bool(of_kernels) and None not in of_kernels and len(set(of_kernels)) == len(of_kernels)
        if ordered:
            places = _by_node_id(places, node_ids)
        graph_id = next((graph_ids[place] for place in places if graph_ids[place] is not None), None)
        own = tuple(names[place] for place in places)
        number = numbers.setdefault((graph_id, own), len(numbers))
        found.append(
            Launch(
                call, starts[call], number, graph_id, rows[places], tuple(kinds[place] for place in places), own,
                tuple(tracks[place] for place in places), ordered, _tokens_around(call, parents, all_names), steps[call],
            )
        )  # fmt: skip
    return _placed(found)


def _placed(found: list[Launch]) -> list[Launch]:
    """The launches with their places among those of the same kernels in a step."""
    counts = Counter((launch.step, launch.names) for launch in found)
    seen: Counter[tuple[int | None, tuple[str, ...]]] = Counter()
    placed = []
    for launch in found:
        key = (launch.step, launch.names)
        if launch.step is not None:
            launch = replace(launch, place=seen[key], places_count=counts[key])
        seen[key] += 1
        placed.append(launch)
    return placed


def _by_node_id(places: list[int], node_ids: list[int | None]) -> list[int]:
    """Kernels in the order of their ids; copies and fills, whose ids no table holds, after the kernel before them."""
    keys, last = [], -1
    for place in places:
        node_id = node_ids[place]
        last = last if node_id is None else node_id
        keys.append((last, node_id is None))
    return [place for _, place in sorted(zip(keys, places, strict=True))]


def _tokens_around(call: int, parents: list[int | None], names: pl.Series) -> int | None:
    """The tokens of the step that the ranges around a call name."""
    at = parents[call]
    for _ in range(_RANGES_ABOVE):
        if at is None:
            return None
        tokens = server_marks.tokens_of(str(names[at]))
        if tokens is not None:
            return tokens
        at = parents[at]
    return None


def matches(trace: Trace, others: Sequence[Trace] = ()) -> list[Match]:
    """What each launch replays, from captures in the recording itself, else in the others, else from eager work there."""
    ran = launches(trace)
    own, foreign = graph_captures.captures(trace), [
        capture for other in others for capture in graph_captures.captures(other)
    ]  # fmt: skip
    found: list[Match] = []
    for _, of_graph in itertools.groupby(
        sorted(ran, key=lambda launch: (launch.graph, launch.id)), lambda launch: launch.graph
    ):
        same = list(of_graph)
        earlier = [capture for capture in own if capture.end_ns < same[0].start_ns]
        given = _captured(same, earlier, ran) or _captured(same, foreign, ran)
        found += given or _eager(same, [other for other in others if not graph_captures.captures(other)])
    return sorted(found, key=lambda match: match.launch.id)


def _captured(same: list[Launch], known: Sequence[Capture], ran: list[Launch]) -> list[Match]:
    """Matches of the launches of one graph with the captures that fit."""
    fitting = [(capture, calls) for capture in known if (calls := _fit(same[0], capture)) is not None]
    fitting = _closest(fitting)
    found = []
    by_launch: dict[tuple[int | None, int, int], _Choice | None] = {}
    for launch in same if fitting else ():
        key = (launch.tokens_count, launch.place, launch.places_count)
        if key not in by_launch:
            by_launch[key] = _chosen(launch, fitting, ran)
        choice = by_launch[key]
        if choice is not None:
            capture, calls = choice.fit
            found.append(
                Match(
                    launch, capture.trace, capture.begin_ns, calls, choice.shapes_known, choice.modules_known
                )
            )
    return found


def _closest(fitting: Fitting) -> Fitting:
    """Where calls name their kernels, the captures that differ least: those of a model's parts are much like one another."""
    if not fitting or any(capture.names is None for capture, _ in fitting):
        return fitting
    # Nodes and calls that have no partner
    others = [
        len(calls) + len(capture.calls) - 2 * int((calls != NO_CALL).sum()) for capture, calls in fitting
    ]
    return [fit for fit, count in zip(fitting, others, strict=True) if count == min(others)]


def _fit(launch: Launch, capture: Capture) -> Array | None:
    """For each node the call of the capture, where both have the same kernels; None where they differ."""
    if capture.names is not None:
        return _by_names(launch, capture.names, capture.calls)
    if _alike(capture.kinds, launch.kinds):
        ranks = _ranks(launch, capture)
        calls = np.asarray(capture.calls, np.int64)[ranks]
        return calls if launch.in_order else _confirmed(launch, capture, ranks, calls)
    wanted, given = _places(launch.kinds), _places(capture.kinds)
    if not wanted["kernel"] or len(wanted["kernel"]) != len(given["kernel"]):
        return None
    calls = np.full(len(launch.kinds), NO_CALL, np.int64)
    for kind, places in wanted.items():
        if len(places) == len(given[kind]):
            calls[places] = capture.calls[given[kind]]
    return calls


def _alike(captured: Sequence[str], ran: Sequence[str]) -> bool:
    """Whether captured calls and nodes are of the same kinds, but for a few copies and fills that the driver made kernels."""
    if len(captured) != len(ran):
        return False
    others = [(call, node) for call, node in zip(captured, ran, strict=True) if call != node]
    return len(others) <= _MOST_CHANGED * len(ran) and all(node == "kernel" for _, node in others)


def _by_names(launch: Launch, names: Sequence[str], calls: Array) -> Array | None:
    """By the kernels that captured calls name, as on ROCm; None where most of them are others."""
    matcher = difflib.SequenceMatcher(None, launch.names, names, autojunk=False)
    found = np.full(len(launch.names), NO_CALL, np.int64)
    for block in matcher.get_matching_blocks():
        found[block.a : block.a + block.size] = calls[block.b : block.b + block.size]
    return found if 2 * (found != NO_CALL).sum() > len(found) else None


def _ranks(launch: Launch, capture: Capture) -> Array:
    """For each node its place in the capture: the order of nodes, or for branches without ids, the order that warm-up runs tell.

    Work of one stream stays in order. Of the streams' next nodes, the one comes first whose kernel the captured operator was seen
    to launch eagerly; else the one that started first.
    """
    order = np.arange(len(launch.nodes))
    seen = graph_captures.eager_kernels(capture.trace)
    if launch.in_order or not seen:
        return order
    queues: dict[int, list[int]] = {}
    for place, stream in enumerate(launch.streams):
        queues.setdefault(stream, []).append(place)
    waiting = [queue[::-1] for queue in queues.values()]
    for number, (op, shapes) in enumerate(zip(capture.op_names, capture.shapes, strict=True)):
        heads = sorted((queue for queue in waiting if queue), key=lambda queue: queue[-1])
        known = [queue for queue in heads if op is not None and (op, shapes, launch.names[queue[-1]]) in seen]
        known = known or [
            queue for queue in heads if op is not None and (op, None, launch.names[queue[-1]]) in seen
        ]
        order[(known or heads)[0].pop()] = number
    return order


def _confirmed(launch: Launch, capture: Capture, ranks: Array, calls: Array) -> Array | None:
    """The calls of nodes whose kernel the operator was seen to launch eagerly; None where there is none."""
    seen = graph_captures.eager_kernels(capture.trace)
    sure = np.zeros(len(calls), bool)
    for node, rank in enumerate(ranks.tolist()):
        op, shapes, name = capture.op_names[rank], capture.shapes[rank], launch.names[node]
        sure[node] = op is not None and ((op, shapes, name) in seen or (op, None, name) in seen)
    return np.where(sure, calls, NO_CALL) if sure.any() else None


def _places(kinds: Iterable[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {"kernel": [], "copy": [], "set": []}
    for place, kind in enumerate(kinds):
        places[kind].append(place)
    return places


@dataclass(frozen=True)
class _Choice:
    """The capture that a launch replays, or one that stands for it where others are alike."""

    fit: tuple[Capture, Array]
    shapes_known: bool = True
    modules_known: bool = True


def _chosen(launch: Launch, fitting: Fitting, ran: list[Launch]) -> _Choice | None:
    """The capture that the launch replays; None where those that fit have other operators and nothing tells which it is."""
    deciding: tuple[Callable[[Launch, Fitting, list[Launch]], Fitting], ...] = (
        _by_tokens, _by_graph_id, _by_kernels, _by_time
    )  # fmt: skip
    for decide in deciding:
        if len({(tuple(capture.op_names), tuple(capture.shapes)) for capture, _ in fitting}) > 1:
            fitting = decide(launch, fitting, ran) or fitting
    if len({tuple(capture.op_names) for capture, _ in fitting}) > 1:
        return None
    shapes_known = len({tuple(capture.shapes) for capture, _ in fitting}) == 1
    if len({tuple(capture.modules) for capture, _ in fitting}) > 1:
        # Layers captured one by one: the same operators in other modules.
        fitting = _by_graph_id(launch, fitting, ran) or _by_place(launch, fitting) or fitting
    modules_known = len({tuple(capture.modules) for capture, _ in fitting}) == 1
    return _Choice(fitting[-1], shapes_known, modules_known)


def _by_place(launch: Launch, fitting: Fitting) -> Fitting:
    """By the order in a step, where it launches as many graphs of these kernels as captures fit."""
    in_order = sorted(fitting, key=lambda fit: fit[0].end_ns)
    return [in_order[launch.place]] if launch.places_count == len(fitting) else []


def _by_tokens(launch: Launch, fitting: Fitting, _: list[Launch]) -> Fitting:
    """The smallest batch that holds the tokens of the step: servers pad to the next size that they captured."""
    if launch.tokens_count is None:
        return []
    rows = [capture.rows_count or 0 for capture, _ in fitting]
    enough = [count for count in rows if count >= launch.tokens_count]
    return [fit for fit, count in zip(fitting, rows, strict=True) if enough and count == min(enough)]


def _by_graph_id(launch: Launch, fitting: Fitting, ran: list[Launch]) -> Fitting:
    """By the order of graph ids, where as many graphs ran as captures fit: ids count up as graphs are made."""
    alike = {other.graph_id for other in ran if other.kinds == launch.kinds}
    if launch.graph_id is None or None in alike or len(alike) != len(fitting):
        return []
    place = sorted(number for number in alike if number is not None).index(launch.graph_id)
    return [sorted(fitting, key=lambda fit: fit[0].end_ns)[place]]


def _by_kernels(launch: Launch, fitting: Fitting, _: list[Launch]) -> Fitting:
    """Those whose operators launch most of these kernels where they run eagerly, with the same shapes if possible."""
    scores = []
    for capture, calls in fitting:
        seen = graph_captures.eager_kernels(capture.trace)
        places = {int(call): place for place, call in enumerate(capture.calls)}
        score = 0
        for name, call in zip(launch.names, calls.tolist(), strict=True):
            op = capture.op_names[places[call]] if call != NO_CALL else None
            if op is not None:
                score += ((op, None, name) in seen) + ((op, capture.shapes[places[call]], name) in seen)
        scores.append(score)
    best = max(scores)
    return [fit for fit, score in zip(fitting, scores, strict=True) if score == best] if best else []


def _by_time(launch: Launch, fitting: Fitting, ran: list[Launch]) -> Fitting:
    """The one capture between the launch before and the first launch of this graph; several tell nothing."""
    first = min(other.start_ns for other in ran if other.graph == launch.graph)
    before = max((other.start_ns for other in ran if other.start_ns < first), default=-1)
    recent = [fit for fit in fitting if before < fit[0].end_ns < first and fit[0].trace is not None]
    return recent if len(recent) == 1 else []


def _eager(same: list[Launch], others: Sequence[Trace]) -> list[Match]:
    """Matches with a recording of the same program run eagerly, by the names of kernels in order."""
    for other in others:
        calls = _aligned(same[0].names, graph_captures.eager(other))
        if (calls != NO_CALL).any():
            return [Match(launch, other, -1, calls) for launch in same]
    return []


def _aligned(names: Sequence[str], run: graph_captures.Eager) -> Array:
    """The eager call of each node: a whole run of the same names, else the longest runs that are in the same order."""
    calls = np.full(len(names), NO_CALL, np.int64)
    codes: dict[str, int] = {}
    wanted = np.array([codes.setdefault(name, len(codes)) for name in names])
    there = np.array([codes.get(name, -1) for name in run.names])
    for start in reversed(
        np.flatnonzero(there[: max(len(there) - len(wanted) + 1, 0)] == wanted[0]).tolist()
    ):
        if (there[start : start + len(wanted)] == wanted).all():
            calls[:] = run.calls[start : start + len(wanted)]
            return calls
    matcher = difflib.SequenceMatcher(None, wanted.tolist(), there[-_MOST_EAGER:].tolist(), autojunk=False)
    offset = max(len(there) - _MOST_EAGER, 0)
    for block in matcher.get_matching_blocks():
        if block.size >= SHORTEST_RUN:
            calls[block.a : block.a + block.size] = run.calls[
                offset + block.b : offset + block.b + block.size
            ]
    return calls
