"""Kernels of CUDA graphs that the profiler lost, as notes of the trust report.

A graph runs the same nodes in each replay, unless it has conditional nodes. A replay that lacks nodes of another therefore lost
them, or skipped them; the time tells which. Kernels that ran without being recorded leave gaps as long as they were; kernels
that were skipped leave none. At the ends of a replay, where idle time may follow anyway, only a lack of time tells.

Replays are compared where the recording says that their graph is the same (graph ids). Without ids, a replay is compared with
those at its place in other steps, then with any whose kernels contain its own; one whose kernels come back in every step at its
place is a graph of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.trust.evidence import Evidence, Note, some, weigh
from foretrace.ingest import graph_captures
from foretrace.runtime_names import Effect, calls_that
from foretrace.sourced import JUDGEMENT, Share

LEAST_LOSS = Share(0.02, "the kernels of a graph's replays", JUDGEMENT)
_ENOUGH = 0.5  # of the time of missing kernels: half-way between none of it and all of it
_MOST_SHAPES = 64  # different kernel lists that are compared with each other
_SUBGRAPH = 32  # bits of a node's id below those of the graph in which it was made

Array = NDArray[Any]


class Fate(Enum):
    """What became of the kernels that a replay lacks."""

    WHOLE = auto()  # it lacks none
    LOST = auto()  # they ran
    UNCLEAR = auto()  # they may have run
    SKIPPED = auto()  # they did not run, or the recording ended


@dataclass(frozen=True, eq=False)
class Replay:
    """The recorded kernels of one graph launch, in order of start; `keys` are ids of nodes, or of names without such ids."""

    launch_id: int
    called_ns: int
    place: tuple[int, int] | None  # number of its step, and which of the step's graph launches it is
    has_ids: bool
    keys: tuple[int, ...]
    start: Array
    end: Array
    before_ns: int  # since the launch call or the end of earlier device work
    after_ns: int | None  # until later device work or the end of a wait; None where the recording ends

    @cached_property
    def count(self) -> Counter[int]:
        """How often each kernel ran."""
        return Counter(self.keys)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Its kernels, in whatever order the streams ran them."""
        return tuple(sorted(self.keys))

    @cached_property
    def gaps_ns(self) -> int:
        """Time between the first start and the last end in which none of the kernels ran."""
        busy = intervals.union(self.start, self.end).total_ns
        return int(self.end.max() - self.start.min()) - int(busy)

    @cached_property
    def durations(self) -> dict[int, float]:
        """Mean duration of each kernel."""
        spent: dict[int, float] = defaultdict(float)
        for key, dur_ns in zip(self.keys, (self.end - self.start).tolist(), strict=True):
            spent[key] += dur_ns
        return {key: total / self.count[key] for key, total in spent.items()}


@dataclass
class Tally:
    """Missing and expected kernels."""

    lost: int = 0
    unclear: int = 0
    expected: int = 0
    replays: set[int] = field(default_factory=set)  # launches that lack some

    def add(self, replay: Replay, fate: Fate, missing: int) -> None:
        """Counts a replay; what was skipped on purpose was never expected."""
        self.expected += len(replay.keys)
        if fate in (Fate.LOST, Fate.UNCLEAR):
            self.expected += missing
            self.replays.add(replay.launch_id)
        self.lost += missing * (fate is Fate.LOST)
        self.unclear += missing * (fate is Fate.UNCLEAR)


def graph_losses(evidence: Evidence) -> Iterator[Note]:
    """Kernels that replays of CUDA graphs lost, may have lost, or lost in a share too small to matter."""
    replays = _replays(evidence)
    if not replays:
        return
    tally = Tally()
    captured = _captured_count(evidence, replays)
    if captured is not None:
        _judge_captured(replays, captured, tally)
    else:
        for group in _by_graph([replay for replay in replays if replay.has_ids]):
            _judge_group(group, tally)
        _judge_unnamed([replay for replay in replays if not replay.has_ids], tally)
    whole = _launches_without_work(evidence)
    if whole:
        usual = round(float(np.median([len(replay.keys) for replay in replays])))
        tally.lost += whole * usual
        tally.expected += whole * usual
    yield from _notes(tally, len(replays) + whole, whole)


def _notes(tally: Tally, count: int, whole: int) -> Iterator[Note]:
    expected = max(tally.expected, 1)
    affected = len(tally.replays) + whole
    share = tally.lost / expected
    values = {"affected_count": tally.lost, "kernels_count": expected, "share_pct": 100 * share}
    lost = f"{tally.lost:,} of {some(expected, 'kernel')} ({100 * share:.2g} %)"
    of_replays = f"in {affected:,} of {some(count, 'replay')} of CUDA graphs"
    if share >= LEAST_LOSS:
        empty = f", {whole:,} of which have none at all" if whole else ""
        yield Note(
            "graph-work-lost", weigh(100 * share),
            f"{lost} {of_replays} are missing{empty}: the graph has them, and the time in which they ran is there. "
            "The profiler lost them, so GPU time is too short.",
            values,
        )  # fmt: skip
    elif tally.lost:
        yield Note(
            "graph-work-few-lost", "info", f"{lost} {of_replays} are missing: the profiler lost them.", values
        )
    unclear = tally.unclear / expected
    if unclear >= LEAST_LOSS:
        yield Note(
            "graph-work-unclear", "care",
            f"{tally.unclear:,} of {some(expected, 'kernel')} ({100 * unclear:.2g} %) {of_replays} are missing, and there was "
            "time for them: the recording cannot tell whether the profiler lost them or a conditional node skipped them.",
            {"affected_count": tally.unclear, "kernels_count": expected, "share_pct": 100 * unclear},
        )  # fmt: skip


# --- replays -----------------------------------------------------------------------------------------------------


def _replays(evidence: Evidence) -> list[Replay]:
    """The graph launches with recorded kernels, in order of launch."""
    calls = _those(evidence.runtime, Effect.GRAPH).sort("start_ns")
    kernels = evidence.linked.filter(
        pl.col("launch_id").is_in(calls["id"].implode()) & (pl.col("kind") == "kernel")
    )
    if kernels.is_empty():
        return []
    ids = evidence.trace.kernels.select(pl.col("span_id").alias("id"), "graph_id", "graph_node_id")
    kernels = kernels.join(ids, on="id", how="left", maintain_order="left")
    node, graph = pl.col("graph_node_id"), pl.col("graph_id")
    # CUDA's ids of nodes contain that of the graph; ROCm numbers the nodes of each graph from 0.
    global_id = node >= 1 << _SUBGRAPH
    known = (global_id | (node.is_not_null() & (graph != 0))).fill_null(value=False)
    names = pl.col("name").cast(pl.String).rank("dense").cast(pl.Int64)
    kernels = kernels.with_columns(known=known.all().over("launch_id"), name_key=names)
    node = pl.when(global_id).then(node).otherwise(graph * (1 << _SUBGRAPH) + node)
    key = pl.when("known").then(node).otherwise("name_key").cast(pl.Int64)
    kernels = kernels.with_columns(key=key).sort("start_ns", "id")
    rooms, places = _Rooms(evidence), _places(calls)
    called = dict(calls.select("id", "start_ns").iter_rows())
    replays = []
    for (launch_id,), nodes in kernels.group_by("launch_id", maintain_order=True):
        launch = int(launch_id)
        start, end = nodes["start_ns"].to_numpy(), nodes["end_ns"].to_numpy()
        replays.append(
            Replay(
                launch, called[launch], places.get(launch),
                bool(nodes["known"][0]),
                tuple(nodes["key"].to_list()), start, end,
                rooms.before_ns(called[launch], int(start.min())), rooms.after_ns(called[launch], int(end.max())),
            )
        )  # fmt: skip
    return sorted(replays, key=lambda replay: replay.called_ns)


class _Rooms:
    """How long nothing is recorded around a replay."""

    def __init__(self, evidence: Evidence) -> None:
        device = evidence.device
        self._starts = device["start_ns"].to_numpy()  # in order
        self._reach = np.maximum.accumulate(device["end_ns"].to_numpy())
        spans = evidence.trace.spans
        waits = _those(evidence.runtime, Effect.SYNC)
        begun = waits["start_ns"].to_numpy()
        ended = begun + spans["dur_ns"].gather(waits["id"]).fill_null(0).to_numpy()
        order = np.argsort(ended, kind="stable")
        self._wait_ends, self._wait_begins = ended[order], begun[order]

    def before_ns(self, called_ns: int, start_ns: int) -> int:
        """Since the launch call, or since earlier work ended."""
        place = int(np.searchsorted(self._starts, start_ns, side="left"))
        earlier = int(self._reach[place - 1]) if place else called_ns
        return max(start_ns - max(earlier, called_ns), 0)

    def after_ns(self, called_ns: int, end_ns: int) -> int | None:
        """Until the next work begins, or a wait that began after the launch ends."""
        place = int(np.searchsorted(self._starts, end_ns, side="left"))
        after = [int(self._starts[place])] if place < len(self._starts) else []
        wait = int(np.searchsorted(self._wait_ends, end_ns, side="left"))
        while wait < len(self._wait_ends) and self._wait_begins[wait] < called_ns:
            wait += 1
        after += [int(self._wait_ends[wait])] if wait < len(self._wait_ends) else []
        return min(after) - end_ns if after else None


def _places(calls: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """Step and number within the step of each graph launch, where all steps launch as many graphs."""
    stepped = calls.filter(pl.col("step").is_not_null())
    if stepped["step"].n_unique() < 2 or stepped.group_by("step").len()["len"].n_unique() != 1:
        return {}
    numbered = stepped.with_columns(place=pl.int_range(pl.len()).over("step"))
    return {
        launch: (step, place) for launch, step, place in numbered.select("id", "step", "place").iter_rows()
    }


def _those(calls: pl.DataFrame, effect: Effect) -> pl.DataFrame:
    return calls.filter(pl.Series(calls_that(calls["name"], effect), dtype=pl.Boolean))


def _launches_without_work(evidence: Evidence) -> int:
    """Graph launches that have no work at all, although later launches have some."""
    missing = _those(evidence.missing, Effect.GRAPH)
    # Later work, or a later wait for the whole device, shows that the graph ran.
    later = (
        evidence.launches.filter("has_work")["start_ns"].max(),
        _those(evidence.runtime, Effect.WHOLE_DEVICE)["start_ns"].max(),
    )
    last = max((at for at in later if isinstance(at, int)), default=None)
    if missing.is_empty() or last is None:
        return 0
    # A driver call inside a runtime call is the same launch.
    parents = evidence.trace.spans["parent_id"]
    graphs = _those(evidence.launches, Effect.GRAPH)["id"]
    doubled = parents.gather(missing["id"]).is_in(graphs.implode()).fill_null(value=False)
    outer = missing["id"].is_in(parents.gather(graphs).drop_nulls().implode())
    return missing.filter(~doubled & ~outer & (missing["start_ns"] < last)).height


# --- judgement ---------------------------------------------------------------------------------------------------


def _by_graph(replays: Sequence[Replay]) -> list[list[Replay]]:
    """Replays that share nodes; those of the bodies of conditional nodes go with their graph."""
    by_parts: dict[frozenset[int], list[Replay]] = defaultdict(list)
    for replay in replays:
        by_parts[frozenset(key >> _SUBGRAPH for key in replay.count)].append(replay)
    groups: list[tuple[set[int], list[Replay]]] = []
    for parts, same in by_parts.items():
        joined = [group for group in groups if group[0] & parts]
        groups = [group for group in groups if not group[0] & parts]
        every = parts.union(*(group[0] for group in joined))
        groups.append((set(every), [*same, *(replay for group in joined for replay in group[1])]))
    return [group for _, group in groups]


def _judge_group(group: list[Replay], tally: Tally) -> None:
    """Replays of one graph by the ids of their nodes: what any of them ran, all should have run."""
    whole: Counter[int] = Counter()
    durations: dict[int, float] = {}
    for replay in group:
        whole |= replay.count
        durations.update(replay.durations)
    longest = max(group, key=lambda replay: len(replay.keys))
    every = set.intersection(*({key >> _SUBGRAPH for key in replay.count} for replay in group))
    complete = [replay for replay in group if replay.count == whole]
    usual_gap = np.quantile(np.concatenate([_gaps(replay) for replay in group]), 0.25)
    for replay in group:
        missing = _unless_skipped(whole - replay.count, whole, replay, every)
        if complete:
            spare_ns = replay.gaps_ns - _gaps_ns(complete, 0.9)
        else:
            spare_ns = replay.gaps_ns - usual_gap * (len(replay.keys) - 1)
        fate = _fate(replay, longest, missing, spare_ns, durations)
        tally.add(replay, fate, missing.total())


def _gaps_ns(replays: Sequence[Replay], quantile: float) -> float:
    """What gaps of these replays sum to."""
    return float(np.quantile([replay.gaps_ns for replay in replays], quantile))


def _gaps(replay: Replay) -> Array:
    """From each kernel to the next."""
    gaps: Array = np.maximum(replay.start[1:] - np.maximum.accumulate(replay.end)[:-1], 0)
    return gaps if len(gaps) else np.zeros(1)


def _unless_skipped(
    missing: Counter[int], whole: Counter[int], replay: Replay, every: set[int]
) -> Counter[int]:
    """The missing nodes without those of bodies of conditional nodes that did not run, or ran fewer times, as a whole."""
    bodies: dict[int, set[int]] = defaultdict(set)
    for key in whole:
        bodies[key >> _SUBGRAPH].add(key)
    skipped = {
        body
        for body, keys in bodies.items()
        if body not in every and len({replay.count[key] for key in keys}) == 1
    }
    return Counter({key: count for key, count in missing.items() if key >> _SUBGRAPH not in skipped})


def _fate(
    replay: Replay, other: Replay, missing: Counter[int], spare_ns: float, durations: dict[int, float]
) -> Fate:
    """What became of the missing kernels; `spare_ns` is how much longer the gaps of the replay are than usual."""
    if not missing:
        return Fate.WHOLE
    needed_ns = _ENOUGH * sum(durations[key] * count for key, count in missing.items())
    if spare_ns > needed_ns:
        return Fate.LOST
    count = len(replay.keys)
    # Names repeat: a replay that lacks the start of another may begin with the same name.
    at_start = replay.keys[0] != other.keys[0] or replay.keys == other.keys[-count:]
    at_end = replay.keys[-1] != other.keys[-1] or replay.keys == other.keys[:count]
    if at_end and replay.after_ns is None:
        return Fate.SKIPPED  # the recording ended
    room_ns = replay.before_ns * at_start + (replay.after_ns or 0) * at_end + max(spare_ns, 0)
    return Fate.UNCLEAR if room_ns > needed_ns else Fate.SKIPPED


def _captured_count(evidence: Evidence, replays: Sequence[Replay]) -> int | None:
    """How many kernels the recording's only capture has, where no replay after it has as many."""
    captures = graph_captures.captures(evidence.trace)
    if len(captures) != 1 or replays[0].called_ns < captures[0].end_ns:
        return None
    count = captures[0].kinds.count("kernel")
    return count if count > max(len(replay.keys) for replay in replays) else None


def _judge_captured(replays: Sequence[Replay], captured: int, tally: Tally) -> None:
    """Replays that all have fewer kernels than were captured."""
    usual_gap = np.quantile(np.concatenate([_gaps(replay) for replay in replays]), 0.25)
    for replay in replays:
        missing = captured - len(replay.keys)
        needed_ns = _ENOUGH * missing * float(np.mean(replay.end - replay.start))
        spare_ns = replay.gaps_ns - usual_gap * (len(replay.keys) - 1)
        tally.add(replay, Fate.LOST if spare_ns > needed_ns else Fate.UNCLEAR, missing)


def _judge_unnamed(replays: list[Replay], tally: Tally) -> None:
    """Replays without ids, by the names of their kernels."""
    alike: dict[tuple[int, ...], list[Replay]] = defaultdict(list)
    at_place: dict[int, dict[tuple[int, ...], Replay]] = defaultdict(dict)  # one of each shape
    at_places = Counter(replay.place[1] for replay in replays if replay.place)
    for replay in replays:
        alike[replay.shape].append(replay)
        if replay.place:
            at_place[replay.place[1]].setdefault(replay.shape, replay)
    longest = sorted(alike.values(), key=lambda same: -len(same[0].keys))[:_MOST_SHAPES]
    for replay in replays:
        neighbours = list(at_place[replay.place[1]].values()) if replay.place else []
        in_every_step = len(neighbours) == 1 and at_places[replay.place[1] if replay.place else 0] > 1
        other = None if in_every_step else _containing(replay, neighbours, alike)
        placed = other is not None
        if other is None and not in_every_step:
            other = _containing(replay, [same[0] for same in longest], alike)
        if other is None:
            tally.add(replay, Fate.WHOLE, 0)
            continue
        missing = other.count - replay.count
        # Where one replay with just these kernels has no time for others, they are all there are.
        spare_ns = _gaps_ns(alike[replay.shape], 0.1) - _gaps_ns(alike[other.shape], 0.9)
        fate = _fate(replay, other, missing, spare_ns, other.durations)
        # A graph may begin like another.
        fate = Fate.SKIPPED if fate == Fate.UNCLEAR and not placed else fate
        tally.add(replay, fate, missing.total())


def _containing(
    replay: Replay, others: Sequence[Replay], alike: dict[tuple[int, ...], list[Replay]]
) -> Replay | None:
    """Of the others that ran all kernels of the replay, as often, and more: the commonest, then the shortest."""
    longer = [other for other in others if len(other.keys) > len(replay.keys) and replay.count <= other.count]
    return min(longer, key=lambda other: (-len(alike[other.shape]), len(other.keys)), default=None)
