"""The shapes of the tensors that an operator was called with, read from the recording's text."""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod

MOST_ELEMENTS = 1 << 50  # of one tensor: more than any machine's memory holds, and still countable in 64 bits


@lru_cache(maxsize=16384)
def tensor_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """Those of its tensors with at least one dimension, in order; none where the text is damaged."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(listed, list):
        return ()
    shapes = (
        tuple(shape) for shape in listed if isinstance(shape, list) and shape and all(map(_is_size, shape))
    )
    return tuple(shape for shape in shapes if prod(shape) <= MOST_ELEMENTS)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
