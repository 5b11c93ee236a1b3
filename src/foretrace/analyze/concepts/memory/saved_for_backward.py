"""What modules save for the backward pass: blocks allocated in a module's forward that are live when its backward begins.

Of a module that is checkpointed, autograd keeps the input alone. That is allocated before the module begins. Its output is
allocated within, and is the next one's input, so it is kept too; a recording does not name it: it is taken to be the largest
block that outlives the module among those of its last operator that leaves one of some size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from foretrace.analyze.concepts.memory import memory_replay
from foretrace.analyze.concepts.memory.memory_replay import Memory, MemoryChange, Times, pieces
from foretrace.analyze.concepts.trees import attribution, module_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.sourced import JUDGEMENT, Share
from foretrace.trace import Trace, once_per_trace

Forward = Literal["highest", "output", "saved"]
_NUMBER = re.compile(r"_\d+$")
_LEAST_OUTPUT = Share(
    0.02, "the largest block that a module leaves, as large as its output is at least", JUDGEMENT
)


@dataclass(frozen=True)
class Call:
    """One call of a module in a forward pass, with its backward."""

    module: int
    start_ns: int
    end_ns: int
    back_ns: int  # when its backward begins
    back_end_ns: int
    saved: Times  # rows of blocks that autograd keeps, without the output
    output: int | None  # the row of the block that it returns
    highest_ns: int  # when what it allocated was most

    def saved_bytes(self, memory: Memory) -> int:
        """What it saves beyond its input and output."""
        return int(memory.size_bytes[self.saved].sum())

    def live_at_most(self, memory: Memory) -> Times:
        """Rows of the blocks that it had allocated when they were most."""
        made = memory.within(self.start_ns, self.end_ns)
        return made[(memory.end_ns[made] > self.highest_ns) & (memory.start_ns[made] <= self.highest_ns)]


@dataclass(frozen=True)
class Repeated:
    """Modules of one class at one depth of the tree: the layers of a model."""

    name: str  # the class
    modules: tuple[int, ...]
    calls: tuple[Call, ...]

    def checkpointed(self, memory: Memory, *, forward: Forward = "highest") -> MemoryChange:
        """The curve with what these modules save freed behind their forward, and computed again before their backward.

        At the moment at which it is computed again there is, of what the `forward` allocates, the most that it held at once;
        or that and the output too; or no more than what is saved.
        """
        rows: list[int] = []
        start: list[int] = []
        end: list[int] = []
        more: list[tuple[int, int, int]] = []
        for call in self.calls:
            rows += call.saved.tolist()
            start += [call.end_ns] * len(call.saved)
            end += [call.back_ns + 1] * len(call.saved)
            live = call.saved if forward == "saved" else call.live_at_most(memory)
            more += [(row, call.back_ns, call.back_ns + 1) for row in live.tolist() if row != call.output]
            if forward == "output" and call.output is not None:
                more.append((call.output, call.back_ns, call.back_end_ns))
        again = pieces(*zip(*more, strict=True)) if more else pieces()
        return MemoryChange(f"{self.name} checkpointed", absent=pieces(rows, start, end), again=again)


class Saved:
    """The calls of all modules of a recording, with what each saves."""

    def __init__(self, trace: Trace, memory: Memory) -> None:
        self.memory = memory
        self._trace = trace
        self.tree = module_tree.find(trace, "modules")
        self._nested = attribution.nesting(trace)
        self._is_op = (trace.spans["kind"] == "op").to_numpy()
        self._start = trace.spans["start_ns"].to_numpy()
        self._forward, self._back, self._back_end = _backwards(trace)

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """In order of time; those whose backward was recorded."""
        spans = np.flatnonzero(
            (self.tree.carried >= 0) & (self.tree.carried < len(self.tree.names)) & ~self._is_op
        )
        start, end = self._start[spans], self._nested.end_ns[spans]
        low, high = np.searchsorted(self._forward, start), np.searchsorted(self._forward, end)
        there = low < high
        spans, start, end, low, high = (each[there] for each in (spans, start, end, low, high))
        if not len(spans):
            return ()
        back = _of_ranges(np.minimum, self._back, low, high)
        back_end = _of_ranges(np.maximum, self._back_end, low, high)
        # When the backward pass is over that a module's backward is in: before the next forward.
        following = np.append(self._forward, np.iinfo(np.int64).max // 4 - 1)
        pass_end = following[np.searchsorted(self._forward, back_end)]
        made, made_end = (np.searchsorted(self.memory.start_ns, at) for at in (start, end))
        columns = (self.tree.carried[spans], start, end, back, back_end, pass_end, made, made_end)
        calls = zip(*(column[back >= end].tolist() for column in columns), strict=True)
        return tuple(self._call(*call) for call in calls)

    def _call(
        self,
        module: int,
        start: int,
        end: int,
        back: int,
        back_end: int,
        pass_end: int,
        made: int,
        made_end: int,
    ) -> Call:
        """One call, of a module whose blocks are the rows from `made` on."""
        until = self.memory.end_ns
        left = np.flatnonzero(until[made:made_end] > end) + made
        output = self._output(left)
        saved = left[(until[left] >= back) & (left != output)]
        # What outlives the whole backward is no activation: a cache, or what the caller keeps.
        saved = saved[until[saved] <= pass_end]
        highest = _highest_ns(self.memory, slice(made, made_end), end)
        return Call(module, start, end, back, back_end, saved, output, highest)

    def _output(self, left: Times) -> int | None:
        """The last block of some size that is left, or a larger one of the same operator: no norm's mean and variance."""
        size = self.memory.size_bytes
        left = left[size[left] >= _LEAST_OUTPUT * size[left].max(initial=0)]
        if not len(left):
            return None
        op = self._made_by[int(left[-1])]
        if op is None:
            return int(left[-1])
        outer = self._outermost(op)
        last = left[self.memory.start_ns[left] >= self._start[outer]]
        # Of several that are as large, such as dropout's mask and its result, the result comes last.
        return int(last[::-1][int(np.argmax(size[last][::-1]))])

    @cached_property
    def _made_by(self) -> list[int | None]:
        """The operator that allocated each block; None where that is not known."""
        made_by: list[int | None] = self.memory.blocks["op_id"].to_list()
        return made_by

    def _outermost(self, op: int) -> int:
        """The outermost operator around an operator."""
        parent = self._nested.parent
        while parent[op] != NOBODY and self._is_op[parent[op]]:
            op = int(parent[op])
        return op

    def repeated(self) -> Iterator[Repeated]:
        """Modules of one class and depth of which there are two or more, outer ones first."""
        depth = attribution.depths(self.tree.parent)
        groups: dict[tuple[int, str], list[Call]] = {}
        for call in self.calls:
            groups.setdefault((int(depth[call.module]), self.class_of(call.module)), []).append(call)
        for (_, name), calls in sorted(groups.items(), key=lambda item: item[0][0]):
            modules = tuple(sorted({call.module for call in calls}))
            if len(modules) > 1:
                yield Repeated(name, modules, tuple(calls))

    def class_of(self, module: int) -> str:
        """The name of a module's class."""
        return _NUMBER.sub("", self.tree.names[module])


@once_per_trace
def find(trace: Trace) -> Saved:
    """What the modules of a recording save; MissingDataError where modules or memory were not recorded."""
    memory = memory_replay.find(trace)
    return Saved(trace, memory)


def _backwards(trace: Trace) -> tuple[Times, Times, Times]:
    """Operators of the forward pass in order of start: when each starts, and when its backward starts and ends."""
    linked = trace.ops.select("span_id", "forward_id").drop_nulls()
    spans = trace.spans.select("start_ns", "dur_ns")
    forward = spans["start_ns"].gather(linked["forward_id"]).to_numpy()
    start = spans["start_ns"].gather(linked["span_id"]).to_numpy()
    end = start + spans["dur_ns"].gather(linked["span_id"]).fill_null(0).to_numpy()
    order = np.argsort(forward, kind="stable")
    return forward[order], start[order], end[order]


def _of_ranges(ufunc: np.ufunc, values: Times, low: Times, high: Times) -> Times:
    """The least or the greatest of the values from each `low` to before each `high`, which is above it."""
    bounds = np.stack((low, high), axis=1).ravel()
    found: Times = ufunc.reduceat(np.append(values, values[-1]), bounds)[::2]
    return found


def _highest_ns(memory: Memory, made: slice, end_ns: int) -> int:
    """When the blocks that a call allocated were most, while it ran."""
    at = np.concatenate((memory.start_ns[made], memory.end_ns[made]))
    size = np.concatenate((memory.size_bytes[made], -memory.size_bytes[made]))
    at, size = at[at <= end_ns], size[at <= end_ns]
    if not len(at):
        return end_ns
    order = np.argsort(at, kind="stable")
    return int(at[order][int(np.argmax(np.cumsum(size[order])))])


def best_to_checkpoint(saved: Saved) -> Repeated | None:
    """The repeated modules whose checkpointing leaves the lowest peak; None where none lowers it."""
    memory, best, lowest = saved.memory, None, saved.memory.peak_bytes
    for modules in saved.repeated():
        if not any(len(call.saved) for call in modules.calls):
            continue
        peak = memory.peak_with([modules.checkpointed(memory)])
        if peak < lowest:
            best, lowest = modules, peak
    return best
