"""Nesting of columns is that of the Kineto linker, also where ranges overlap."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from foretrace.ingest.columns import NULL_I64, NULL_U32
from foretrace.ingest.nesting import ancestor, nest, nested
from tests.ingest.comparison import needs_native

pytestmark = pytest.mark.fast


def one_by_one(track: list[int], start: list[int], dur: list[int]) -> tuple[list[int], list[int]]:
    """The rule of `kineto_link`: a span is inside the last that began before it and ends no earlier."""
    depth, parent = [0] * len(start), [NULL_U32] * len(start)
    opened: dict[int, list[tuple[int, int]]] = {}
    for row, (thread, begin, length) in enumerate(zip(track, start, dur, strict=True)):
        stack = opened.setdefault(thread, [])
        while stack and (begin >= stack[-1][0] or begin + length > stack[-1][0]):
            stack.pop()
        if stack:
            parent[row], depth[row] = stack[-1][1], depth[stack[-1][1]] + 1
        stack.append((begin + length, row))
    return depth, parent


@pytest.mark.parametrize("seed", range(60))
def test_any_spans_nest_by_the_rule(seed: int) -> None:
    """Random spans, most of which overlap, some without length."""
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 60))
    track, start = random.integers(0, 3, count), random.integers(0, 50, count)
    dur = random.integers(0, 30, count) * (random.random(count) > 0.2)
    order = np.lexsort((-dur, start))
    track, start, dur = track[order], start[order], dur[order]
    depth, parent = nest(track, start, dur)
    assert (depth.tolist(), parent.tolist()) == one_by_one(track.tolist(), start.tolist(), dur.tolist())


@needs_native
@pytest.mark.parametrize("seed", range(30))
def test_the_extension_nests_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with rows of devices between, durations that are not known, and block after block."""
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 80))
    track, start = random.integers(0, 3, count).astype(np.uint32), np.sort(random.integers(0, 40, count))
    dur = random.integers(0, 30, count)
    order = np.lexsort((-dur, start))
    track, start, dur = track[order], start[order], dur[order]
    dur[random.random(count) < 0.1] = NULL_I64
    role = random.choice(3, count, p=(0.2, 0.4, 0.4)).astype(np.uint8)
    cuts = np.unique(np.concatenate(([0, count], random.integers(0, count + 1, 3)))).tolist()
    blocks = [slice(*edges) for edges in pairwise(cuts)]
    quick = list(nested(track, start, dur, role=role, blocks=blocks))
    assert [block for block, *_ in quick] == blocks
    monkeypatch.setenv("FORETRACE_PURE_PYTHON", "1")
    ((_, *slow),) = nested(track, start, dur, role=role, blocks=blocks)
    joined = [
        np.concatenate([np.empty(0, np.uint32), *columns])
        for columns in zip(*(row[1:] for row in quick), strict=True)
    ]
    assert [column.tolist() for column in joined] == [column.tolist() for column in slow][: len(joined)]


def test_the_nearest_chosen_row_around() -> None:
    track = np.zeros(5, np.uint32)
    start, dur = np.array([0, 1, 2, 3, 20]), np.array([15, 12, 8, 1, 1])
    depth, parent = nest(track, start, dur)
    assert depth.tolist() == [0, 1, 2, 3, 0]
    chosen = np.array([True, False, True, False, False])
    assert ancestor(parent, depth, chosen).tolist() == [NULL_U32, 0, 0, 2, NULL_U32]
