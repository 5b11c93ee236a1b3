"""The differential flame graph of two recordings: a tree of both steps, and where each of its frames lies.

Below the step are what the GPU works on (modules, operators, kernels, by summed durations) and what it waits for. A frame is as wide
as the larger of its two sides, or as its children together: what was removed stays visible. Colour shows the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from foretrace.compare.traces import Comparison
from foretrace.sourced import JUDGEMENT, Share

LEAST = Share(0.0005, "the whole, below which a frame is not drawn", JUDGEMENT)
_WORKS, _WAITS, _HOST = "GPU works", "GPU waits", "on the host"
_OF_KIND = {"wait": _WAITS, "recording": "profiler"}
_NO_MODULE = "(no module)"


@dataclass
class Node:
    """A frame on both sides; children by name, in the order in which they came."""

    name: str
    before_ns: float = 0.0
    after_ns: float = 0.0
    children: dict[str, Node] = field(default_factory=dict)

    def add(self, path: Iterable[str], before_ns: float, after_ns: float) -> None:
        """Gives time to a path below this frame, and to all frames on it."""
        node = self
        for name in path:
            node = node.children.setdefault(name, Node(name))
            node.before_ns += before_ns
            node.after_ns += after_ns

    @property
    def width(self) -> float:
        """As wide as the larger side, and as its children together."""
        return max(self.before_ns, self.after_ns, sum(child.width for child in self.children.values()))


@dataclass(frozen=True)
class Frame:
    """Where a frame lies: shares of the whole width, and its depth from the top."""

    name: str
    depth: int
    start: float
    width: float
    before_ns: float
    after_ns: float

    @property
    def change(self) -> float:
        """From -1, it is gone, to 1, it is new."""
        larger = max(self.before_ns, self.after_ns)
        return (self.after_ns - self.before_ns) / larger if larger > 0 else 0.0


def tree(found: Comparison) -> Node:
    """The tree of both steps."""
    steps = found.steps
    root = Node("the step", steps.before_ns, steps.after_ns)
    works = _WORKS if found.a_trace.has_device or found.b_trace.has_device else _HOST
    same_device = found.a.device == found.b.device
    for row in found.operators.iter_rows(named=True):
        modules = row["module"].split("/") if row["module"] else [_NO_MODULE]
        for side in ("before", "after"):
            ns = row[f"{side}_ns"]
            if not ns or ns <= 0:
                continue
            kernel = [row[f"{side}_kernel"]] if same_device and row[f"{side}_kernel"] else []
            times = (ns, 0.0) if side == "before" else (0.0, ns)
            root.add([works, *modules, row["op"], *kernel], *times)
    for cause in steps.causes:
        if cause.kind in _OF_KIND:
            root.add([_OF_KIND[cause.kind], cause.what], max(cause.before_ns, 0.0), max(cause.after_ns, 0.0))
    return root


def frames(root: Node) -> list[Frame]:
    """The frames that are wide enough to be drawn, callers before callees, the widest first."""
    whole = root.width
    return list(_laid(root, 0, 0.0, whole)) if whole > 0 else []


def _laid(node: Node, depth: int, start: float, whole: float) -> Iterator[Frame]:
    share = node.width / whole
    if share < LEAST:
        return
    yield Frame(node.name, depth, start, share, node.before_ns, node.after_ns)
    for child in sorted(node.children.values(), key=lambda child: (-child.width, child.name)):
        yield from _laid(child, depth + 1, start, whole)
        start += child.width / whole
