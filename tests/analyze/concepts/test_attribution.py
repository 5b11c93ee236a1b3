"""Nearest carriers and trees, against the plain way to find them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """Parents, each before its children."""
    count = draw(st.integers(0, 40))
    return [draw(st.integers(NOBODY, node - 1)) for node in range(count)]


def ancestors(parent: list[int], node: int) -> list[int]:
    """The node and all above it, innermost first."""
    found = []
    while node != NOBODY:
        found.append(node)
        node = parent[node]
    return found


@given(trees(), st.data())
def test_nearest_is_the_first_marked_on_the_way_up(parent: list[int], data: st.DataObject) -> None:
    marked = [data.draw(st.booleans()) for _ in parent]
    found = attribution.nearest(np.array(parent, np.int32), np.array(marked, bool))
    for node in range(len(parent)):
        expected = next((each for each in ancestors(parent, node) if marked[each]), NOBODY)
        assert found[node] == expected


@given(trees(), st.data())
def test_sums_depths_and_order_of_a_tree(parent: list[int], data: st.DataObject) -> None:
    amount = [data.draw(st.integers(0, 9)) for _ in parent]
    array = np.array(parent, np.int64)
    total = attribution.with_descendants(array, np.array(amount, np.int64))
    depth = attribution.depths(array)
    expected = [0] * len(parent)
    for node in range(len(parent)):
        assert depth[node] == len(ancestors(parent, node)) - 1
        for above in ancestors(parent, node):
            expected[above] += amount[node]
    assert total.tolist() == expected

    def below(node: int) -> list[int]:
        children = [each for each, above in enumerate(parent) if above == node]
        return [each for child in children for each in (child, *below(child))]

    assert attribution.tree_order(array).tolist() == below(NOBODY)


def test_nothing_is_no_trouble() -> None:
    empty = np.empty(0, np.int32)
    assert attribution.nearest(empty, empty.astype(bool)).tolist() == []
    assert attribution.levels(empty) == []
