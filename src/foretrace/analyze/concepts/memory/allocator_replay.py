"""The recorded requests for memory, given to the caching allocator again: what it would hold with a larger batch, and whether it fits.

The curve of allocated bytes leaves out what splitting wastes: a large block of the forward pass that holds an optimizer's state from the
first step on is no longer there for the next large block. So the beginning of the program is replayed too: parameters, a first
step, the optimizer's state behind it, then the recorded steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.analyze.concepts.memory import batch_bytes, memory_replay, trained_parameters
from foretrace.analyze.concepts.memory.caching_allocator import CachingAllocator, NoRoomError
from foretrace.analyze.concepts.memory.memory_replay import Memory, Times
from foretrace.sourced import JUDGEMENT, Count, Share
from foretrace.trace import Trace, once_per_trace

AGREES = Share(
    0.05,
    "what the allocator held when recorded, by which the replay of the recorded batch may be off to be believed",
    "2 % at most in four models on an H200: benchmarks/memory_predictions.py",
)
MOST_BLOCKS = Count(100_000, "blocks of a recording, up to which they are replayed", JUDGEMENT)
_OVER = Share(
    0.1,
    "what is not listed, by which parameters and states of their sizes may come to more than it",
    JUDGEMENT,
)
_STATE = None  # in a list of requests: the optimizer makes its state


@dataclass(frozen=True)
class Requests:
    """What is asked of the allocator, in order: a block's row, ~row where it is given back, None for the optimizer's state."""

    first_bytes: tuple[int, ...]  # there before anything else, for ever
    state_bytes: tuple[int, ...]  # for ever from the first step of the optimizer on
    rehearsal: tuple[int | None, ...]  # a step before the recorded ones
    recorded: tuple[int, ...]


@once_per_trace
def replayable(trace: Trace) -> Requests | None:
    """The requests of a recording; None where replaying them does not hold what the allocator held when recorded."""
    memory = memory_replay.find(trace)
    held = memory.curve.reserved_peak_bytes
    if held is None or memory.curve.baseline_bytes is None or len(memory.size_bytes) > MOST_BLOCKS:
        return None
    requests = _requests(trace, memory)
    replayed = held_bytes(requests, memory.size_bytes)
    return requests if replayed is not None and abs(replayed / held - 1) <= AGREES else None


def held_bytes(requests: Requests, sizes: Times, *, most_bytes: float = float("inf")) -> int | None:
    """The most that the allocator holds with blocks of these sizes; None where they do not fit."""
    allocator = CachingAllocator(most_bytes)
    listed = sizes.tolist()
    there: dict[int, int] = {}
    try:
        for size in requests.first_bytes:
            allocator.allocate(size)
        for request in (*requests.rehearsal, *requests.recorded):
            if request is None:
                for size in requests.state_bytes:
                    allocator.allocate(size)
            elif request >= 0:
                there[request] = allocator.allocate(listed[request])
            elif ~request in there:
                allocator.give_back(there.pop(~request))
    except NoRoomError:
        return None
    return allocator.peak_bytes


def _requests(trace: Trace, memory: Memory) -> Requests:
    old = np.flatnonzero(memory.start_ns < 0)
    unlisted = (memory.curve.baseline_bytes or 0) - int(memory.size_bytes[old].sum())
    parameters = trained_parameters.of_a_step(trace)["size_bytes"].to_list()[::-1]
    trained = sum(parameters)
    copies = max(int((1 + _OVER) * unlisted / trained) - 1, 0) if trained else 0
    rest = unlisted - trained * (1 + copies)
    first = (*([rest] if rest > 0 else ()), *parameters)
    window = _first_step(trace)
    rehearsal = _rehearsed(trace, memory, *window) if window else [_STATE]
    recorded = [*old.tolist(), *_in_order(memory, 0, np.iinfo(np.int64).max)]
    return Requests(tuple(first), tuple(parameters * copies), tuple(rehearsal), tuple(recorded))


def _first_step(trace: Trace) -> tuple[int, int] | None:
    steps = trace.steps
    if not steps:
        return None
    return steps[0].start_ns, steps[1].start_ns if len(steps) > 1 else steps[0].end_ns


def _rehearsed(trace: Trace, memory: Memory, start_ns: int, end_ns: int) -> list[int | None]:
    """The requests of the step, with the optimizer's state where the optimizer steps; all of it is given back at the end."""
    at_ns = next(
        (begin for begin, _ in batch_bytes.optimizer_steps(trace) if start_ns <= begin < end_ns), end_ns
    )
    before, behind = _in_order(memory, start_ns, at_ns), _in_order(memory, at_ns, end_ns)
    left = dict.fromkeys(row for row in (*before, *behind) if row >= 0)
    for row in (*before, *behind):
        if row < 0:
            left.pop(~row, None)
    return [*before, _STATE, *behind, *(~row for row in left)]


def _in_order(memory: Memory, start_ns: int, end_ns: int) -> Sequence[int]:
    """Blocks that are asked for and given back in this time; what is given back at the same moment comes first."""
    begun = np.flatnonzero((memory.start_ns >= start_ns) & (memory.start_ns < end_ns))
    ended = np.flatnonzero((memory.end_ns >= start_ns) & (memory.end_ns < end_ns))
    at = np.concatenate((memory.start_ns[begun], memory.end_ns[ended]))
    asks = np.concatenate((np.ones(len(begun), bool), np.zeros(len(ended), bool)))
    order = np.lexsort((asks, at))
    requests: list[int] = np.concatenate((begun, ~ended))[order].tolist()
    return requests
