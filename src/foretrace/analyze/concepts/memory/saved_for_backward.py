"""What modules save for the backward pass: blocks allocated in a module's forward that are live when its backward begins.

Of a module that is checkpointed, autograd keeps the input alone. That is allocated before the module begins. Its output is
allocated within, and is the next one's input, so it is kept too; a recording does not name it: it is taken to be the largest
block that outlives the module among those of its last operator that leaves one of some size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.memory import memory_replay
from foretrace.analyze.concepts.memory.memory_replay import Memory, MemoryChange, Pieces, Times
from foretrace.analyze.concepts.names.named_spans import of_kind
from foretrace.analyze.concepts.trees import attribution, module_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.sourced import JUDGEMENT, Share
from foretrace.trace import Trace, once_per_trace

Forward = Literal["highest", "output", "saved"]
_NUMBER = re.compile(r"_\d+$")
_LEAST_OUTPUT = Share(
    0.02, "the largest block that a module leaves, as large as its output is at least", JUDGEMENT
)
_AT_ONCE = (
    1 << 16
)  # blocks of calls that are looked at together: a block counts once for each module around it


@dataclass(frozen=True)
class Blocks:
    """Rows of blocks, listed call by call."""

    count: Times  # per call
    rows: Times

    def sums(self, values: Times) -> Times:
        """For each call, the sum of its blocks' values."""
        total = np.concatenate(([0], np.cumsum(values[self.rows])))
        until = np.cumsum(self.count)
        summed: Times = total[until] - total[until - self.count]
        return summed

    def of_calls(self, chosen: Times) -> Blocks:
        """Those of some calls."""
        first = np.cumsum(self.count) - self.count
        count = self.count[chosen]
        return Blocks(count, self.rows[_each(first[chosen], count)])


@dataclass(frozen=True)
class Calls:
    """Calls of modules in a forward pass, with their backward, in order of time."""

    module: Times
    start_ns: Times
    end_ns: Times
    back_ns: Times  # when the backward begins
    back_end_ns: Times
    output: Times  # the row of the block that it returns, or NOBODY
    saved: Blocks  # that autograd keeps, without the output
    live_at_most: Blocks  # that it had allocated when they were most

    def __len__(self) -> int:
        return len(self.module)

    def chosen(self, calls: Times) -> Calls:
        """Some of the calls."""
        return Calls(
            module=self.module[calls],
            start_ns=self.start_ns[calls],
            end_ns=self.end_ns[calls],
            back_ns=self.back_ns[calls],
            back_end_ns=self.back_end_ns[calls],
            output=self.output[calls],
            saved=self.saved.of_calls(calls),
            live_at_most=self.live_at_most.of_calls(calls),
        )

    def saved_bytes(self, memory: Memory) -> Times:
        """What each saves beyond its input and output."""
        return self.saved.sums(memory.size_bytes)


@dataclass(frozen=True)
class Repeated:
    """Modules of one class at one depth of the tree: the layers of a model."""

    name: str  # the class
    modules: tuple[int, ...]
    calls: Calls

    def checkpointed(self, memory: Memory, *, forward: Forward = "highest") -> MemoryChange:
        """The curve with what these modules save freed behind their forward, and computed again before their backward.

        At the moment at which it is computed again there is, of what the `forward` allocates, the most that it held at once;
        or that and the output too; or no more than what is saved.
        """
        calls, saved = self.calls, self.calls.saved
        absent = Pieces(
            saved.rows, np.repeat(calls.end_ns, saved.count), np.repeat(calls.back_ns + 1, saved.count)
        )
        live = saved if forward == "saved" else calls.live_at_most
        back, output = np.repeat(calls.back_ns, live.count), np.repeat(calls.output, live.count)
        rows, back = live.rows[live.rows != output], back[live.rows != output]
        until = back + 1
        if forward == "output":
            there = calls.output != NOBODY
            rows = np.concatenate((rows, calls.output[there]))
            back = np.concatenate((back, calls.back_ns[there]))
            until = np.concatenate((until, calls.back_end_ns[there]))
        return MemoryChange(f"{self.name} checkpointed", absent=absent, again=Pieces(rows, back, until))


class Saved:
    """The calls of all modules of a recording, with what each saves."""

    def __init__(self, trace: Trace, memory: Memory) -> None:
        calls = module_tree.module_calls(trace)
        self.memory, self.names = memory, trace.modules["name"].to_list()
        self.parent = trace.modules["parent_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
        self.paths = module_tree.paths(self.names, self.parent)
        spans = calls["span_id"].to_numpy().astype(np.int64)
        start = trace.spans["start_ns"].to_numpy()[spans]
        module = calls["module_id"].to_numpy().astype(np.int64)
        self.calls = _calls(trace, memory, module, start, attribution.ends(trace, spans))

    @cached_property
    def repeated(self) -> tuple[Repeated, ...]:
        """Modules of one class and depth of which there are two or more, outer ones first."""
        depth = attribution.depths(self.parent)
        modules, first, place = np.unique(self.calls.module, return_index=True, return_inverse=True)
        # In the order in which each is called first.
        groups: dict[tuple[int, str], list[int]] = {}
        for which in np.argsort(first).tolist():
            module = int(modules[which])
            groups.setdefault((int(depth[module]), self.class_of(module)), []).append(which)
        found = []
        for (_, name), members in sorted(groups.items(), key=lambda item: item[0][0]):
            if len(members) > 1:
                mine = self.calls.chosen(np.flatnonzero(np.isin(place, members)))
                found.append(Repeated(name, tuple(modules[sorted(members)].tolist()), mine))
        return tuple(found)

    def class_of(self, module: int) -> str:
        """The name of a module's class."""
        return _NUMBER.sub("", self.names[module])


@once_per_trace
def find(trace: Trace) -> Saved:
    """What the modules of a recording save; MissingDataError where modules or memory were not recorded."""
    memory = memory_replay.find(trace)
    return Saved(trace, memory)


def _calls(trace: Trace, memory: Memory, module: Times, start: Times, end: Times) -> Calls:
    """Those of the calls whose backward was recorded."""
    module, start, end, back, back_end, pass_end = _with_backward(trace, module, start, end)
    allocated = _Allocated(memory, _operators_start(trace, memory))
    made, made_end = (np.searchsorted(memory.start_ns, at) for at in (start, end))
    upto = np.cumsum(made_end - made)
    parts: list[tuple[Times, Blocks, Blocks]] = []
    done = 0
    while done < len(module) or not parts:
        before = int(upto[done - 1]) if done else 0
        until = max(int(np.searchsorted(upto, before + _AT_ONCE, side="right")), done + 1)
        part = slice(done, until)
        parts.append(allocated.of(made[part], made_end[part], end[part], back[part], pass_end[part]))
        done = until
    output, saved, live = zip(*parts, strict=True)
    return Calls(module, start, end, back, back_end, np.concatenate(output), _joined(saved), _joined(live))


def _with_backward(trace: Trace, module: Times, start: Times, end: Times) -> tuple[Times, ...]:
    """Calls that have a backward: module, start and end, when the backward begins and ends, and when the pass does that it is in."""
    forward, backward, backward_end = _backwards(trace)
    low, high = np.searchsorted(forward, start), np.searchsorted(forward, end)
    there = low < high
    module, start, end, low, high = (each[there] for each in (module, start, end, low, high))
    back = _of_ranges(np.minimum, backward, low, high)
    back_end = _of_ranges(np.maximum, backward_end, low, high)
    # A pass is over before the next forward.
    following = np.append(forward, np.iinfo(np.int64).max // 4 - 1)
    columns = (module, start, end, back, back_end, following[np.searchsorted(forward, back_end)])
    return tuple(column[back >= end] for column in columns)


def _joined(parts: tuple[Blocks, ...]) -> Blocks:
    return Blocks(
        np.concatenate([part.count for part in parts]), np.concatenate([part.rows for part in parts])
    )


def _operators_start(trace: Trace, memory: Memory) -> Times:
    """For each block, when the outermost operator began in which it was allocated; never, where that is not known."""
    parent, is_op = attribution.parents(trace), of_kind(trace, "op")
    started = trace.spans["start_ns"].to_numpy()
    op = memory.blocks["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    outermost, rows = op.copy(), np.flatnonzero(op != NOBODY)
    while len(rows):
        above = parent[outermost[rows]]
        inside = above != NOBODY
        inside[inside] = is_op[above[inside]]
        rows = rows[inside]
        outermost[rows] = above[inside]
    since: Times = np.where(op == NOBODY, np.iinfo(np.int64).max, started[outermost])
    return since


class _Allocated:
    """What calls of modules allocate, and what they leave."""

    def __init__(self, memory: Memory, since_ns: Times) -> None:
        self._memory, self._since = memory, since_ns
        at = np.concatenate((memory.start_ns, memory.end_ns))
        order = np.argsort(at, kind="stable")
        self._at, self._change = at[order], np.concatenate((memory.size_bytes, -memory.size_bytes))[order]
        self._rank = np.empty(len(order), np.int32)
        self._rank[order] = np.arange(len(order), dtype=np.int32)

    def of(
        self, made: Times, made_end: Times, end: Times, back: Times, pass_end: Times
    ) -> tuple[Times, Blocks, Blocks]:
        """For each call its output, what it saves, and what was live when that was most; its blocks are rows from `made` on."""
        memory, count = self._memory, made_end - made
        row = _each(made, count)
        call = np.repeat(np.arange(len(made)), count)
        until = memory.end_ns[row]
        stays = until > end[call]
        output = self._output(call[stays], row[stays], len(made))
        # What outlives the whole backward is no activation: a cache, or what the caller keeps.
        saved = stays & (until >= back[call]) & (until <= pass_end[call]) & (row != output[call])
        highest = self._highest_ns(call, row, ~stays, end)
        live = (until > highest[call]) & (memory.start_ns[row] <= highest[call])
        found = [
            Blocks(np.bincount(call[which], minlength=len(made)), row[which].astype(np.int32))
            for which in (saved, live)
        ]
        return output, found[0], found[1]

    def _output(self, call: Times, row: Times, count: int) -> Times:
        """The last block of some size that is left, or a larger one of the same operator: no norm's mean and variance."""
        size = self._memory.size_bytes
        large = size[row] >= _LEAST_OUTPUT * _of_calls(np.maximum, size[row], call, count)[call]
        call, row = call[large], row[large]
        last = _last(call, row, count)
        same = self._memory.start_ns[row] >= self._since[last[call]]
        call, row = call[same], row[same]
        # Of several that are as large, such as dropout's mask and its result, the result comes last.
        most = size[row] == _of_calls(np.maximum, size[row], call, count)[call]
        largest = _last(call[most], row[most], count)
        return np.where(largest == NOBODY, last, largest)

    def _highest_ns(self, call: Times, row: Times, goes: NDArray[np.bool_], end: Times) -> Times:
        """When the blocks that a call allocated were most, while it ran."""
        freed = self._rank[len(self._memory.start_ns) + row[goes]]
        events = np.concatenate((call << 32 | self._rank[row], call[goes] << 32 | freed))
        events.sort()
        call, rank = events >> 32, events & 0xFFFFFFFF
        held = np.cumsum(self._change[rank])
        most = np.flatnonzero(held == _of_calls(np.maximum, held, call, len(end))[call])
        highest = end.copy()
        first = most[np.flatnonzero(np.diff(call[most], prepend=NOBODY))]
        highest[call[first]] = self._at[rank[first]]
        return highest


def _each(first: Times, count: Times) -> Times:
    """The numbers from each first on, as many as counted."""
    before = np.cumsum(count) - count
    numbers: Times = np.arange(int(count.sum())) + np.repeat(first - before, count)
    return numbers


def _of_calls(ufunc: np.ufunc, values: Times, call: Times, count: int) -> Times:
    """For each of `count` calls, the least or the greatest of its values, which are in order of calls; 0 where it has none."""
    found = np.zeros(count, np.int64)
    first = np.flatnonzero(np.diff(call, prepend=NOBODY))
    if len(first):
        found[call[first]] = ufunc.reduceat(values, first)
    return found


def _last(call: Times, row: Times, count: int) -> Times:
    """For each of `count` calls, the last of its rows, which are in order of calls; NOBODY where it has none."""
    found = np.full(count, NOBODY, np.int64)
    found[call] = row
    return found


def _backwards(trace: Trace) -> tuple[Times, Times, Times]:
    """Operators of the forward pass in order of start: when each starts, and when its backward starts and ends."""
    linked = trace.ops.select("span_id", "forward_id").drop_nulls()
    began, nodes = trace.spans["start_ns"].to_numpy(), linked["span_id"].to_numpy()
    forward = began[linked["forward_id"].to_numpy()]
    order = np.argsort(forward, kind="stable")
    return forward[order], began[nodes[order]], attribution.recorded_ends(trace, nodes[order])


def _of_ranges(ufunc: np.ufunc, values: Times, low: Times, high: Times) -> Times:
    """The least or the greatest of the values from each `low` to before each `high`, which is above it."""
    if not len(low):
        return np.zeros(0, np.int64)
    bounds = np.stack((low, high), axis=1).ravel()
    found: Times = ufunc.reduceat(np.append(values, values[-1]), bounds)[::2]
    return found


def best_to_checkpoint(saved: Saved) -> Repeated | None:
    """The repeated modules whose checkpointing leaves the lowest peak; None where none lowers it."""
    memory, best, lowest = saved.memory, None, saved.memory.peak_bytes
    for modules in saved.repeated:
        if not len(modules.calls.saved.rows):
            continue
        peak = memory.peak_with([modules.checkpointed(memory)])
        if peak < lowest:
            best, lowest = modules, peak
    return best
