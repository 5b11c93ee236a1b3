"""Operators as a recording writes them, and the nodes that the compiler's model makes of them."""

from __future__ import annotations

import json
from typing import Any

from foretrace.predict.compiler.nodes import Node, Shape, shape_of

FLOAT, HALF, LONG, SCALAR = "float", "c10::BFloat16", "long int", "Scalar"
LONG_NS = 1_000_000_000  # recorded, so that nothing is cut off


def seen(
    op: str,
    *arguments: tuple[list[Any], str] | str | None,
    strides: list[Any] | None = None,
    kernel: str | None = None,
) -> Shape:
    """How the compiler sees a call with these arguments: a tensor's shape and type, or the text of another value."""
    pairs = [each if isinstance(each, tuple) else ([], "" if each is None else SCALAR) for each in arguments]
    texts = ["" if isinstance(each, tuple) or each is None else each for each in arguments]
    written = (json.dumps(part) for part in ([shape for shape, _ in pairs], [dtype for _, dtype in pairs]))
    return shape_of(
        f"aten::{op}", *written, None if strides is None else json.dumps(strides), json.dumps(texts), kernel
    )


class Step:
    """The operators of one step, in order."""

    def __init__(self, *, dur_ns: int = LONG_NS) -> None:
        self.nodes: list[Node] = []
        self.backward = False
        self.dur_ns = dur_ns

    def add(self, op: str, *arguments: tuple[list[Any], str] | str | None, **more: Any) -> Step:
        """One more operator, with one task."""
        return self.put(op, seen(op, *arguments, **more))

    def put(self, op: str, shape: Shape) -> Step:
        place = len(self.nodes)
        self.nodes.append(Node(place, f"aten::{op}", (place,), self.dur_ns, shape, self.backward))
        return self

    def back(self) -> Step:
        """The backward pass begins."""
        self.backward = True
        return self
