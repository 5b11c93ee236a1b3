"""Operators fused into kernels, as torch's compiler does: by what flows between them.

A recording does not tell which tensor an operator reads. It tells how many elements and how wide: an operand is taken to
be the newest result of that kind that nobody has read, else the newest at all, else something from outside the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from foretrace.predict.compiler.nodes import (
    BARRIER,
    COLUMNS,
    FREE,
    PLANES,
    POINTWISE,
    ROWS,
    SCATTERS,
    Made,
    Node,
)
from foretrace.predict.costs import compiled
from foretrace.sourced import JUDGEMENT, Count

MOST_NODES = Count(64, "operators of one kernel", "torch._inductor.config.max_fusion_size")
MOST_RESULTS = Count(64, "results of one size that an operand may be, the newest", JUDGEMENT)
_HALF_BYTES = 2


@dataclass(eq=False)
class Token:
    """A result of an operator that stays, or of a kernel."""

    made: Made
    group: int
    in_kernel: bool
    reduced: bool = False  # ready only when its kernel has ended
    scattered: bool = False  # added up by atomic additions: no operator of its kernel may read it
    readers: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Kernel:
    """A kernel of compiled code."""

    group: int
    count: int
    nodes: list[Node] = field(default_factory=list)
    reads: dict[int, tuple[Token, int]] = field(
        default_factory=dict
    )  # results of others, and bytes read of each
    outside: list[Made] = field(
        default_factory=list
    )  # operands from outside the step, or saved by the forward
    tokens: list[Token] = field(default_factory=list)
    apart: set[int] = field(default_factory=set)  # groups whose results it reads in parts: from memory

    @property
    def pointwise(self) -> bool:
        """Whether it only computes element by element."""
        return all(node.shape.kind in (POINTWISE, FREE) for node in self.nodes)

    @property
    def reduces_rows(self) -> bool:
        """Whether it holds a reduction along rows, or a norm."""
        return any(node.shape.kind in (ROWS, PLANES) for node in self.nodes)

    @property
    def longest_row(self) -> int:
        """Elements of the longest row that it reduces."""
        return max((node.shape.row for node in self.nodes if node.shape.kind == ROWS), default=0)

    @property
    def tasks(self) -> list[int]:
        """The recorded tasks that it replaces, in order."""
        return sorted(task for node in self.nodes for task in node.tasks)

    @property
    def recorded_ns(self) -> int:
        """How long those take."""
        return sum(node.dur_ns for node in self.nodes)

    @property
    def written(self) -> list[Token]:
        """Its results that others read, or nobody in this step."""
        return [token for token in self.tokens if token.readers != {self.group}]

    @property
    def read_bytes(self) -> int:
        """What it reads."""
        return sum(size for _, size in self.reads.values()) + sum(made.bytes for made in self.outside)

    @property
    def moved_bytes(self) -> int:
        """What it reads and writes."""
        beside = sum(node.shape.saved_bytes for node in self.nodes)
        return self.read_bytes + sum(token.made.bytes for token in self.written) + beside

    @property
    def half_elements(self) -> int:
        """Elements of half precision that it reads or writes."""
        made = [*self.outside, *(token.made for token, _ in self.reads.values())]
        made += [token.made for token in self.written]
        return sum(tensor.count for tensor in made if tensor.item_bytes == _HALF_BYTES)


Operand = tuple[Token | None, Made]


class Flow:
    """Fuses the operators of one step, in their order."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.kernels: dict[int, Kernel] = {}
        self.barriers: list[Node] = []
        self._tokens: dict[int, list[Token]] = defaultdict(list)  # by number of elements, oldest first
        # Of each group, a kernel or an operator that stays, the groups and the results that it reads.
        self._parents: dict[int, set[int]] = {}
        self._read_by: dict[int, list[Token]] = defaultdict(list)
        self._last: dict[int, int] = {}  # place of the last operator of each group
        self._merged: dict[int, int] = {}
        for node in nodes:
            if node.shape.kind == BARRIER:
                self._leave(node)
            else:
                self._fuse(node)

    # --- what flows ------------------------------------------------------------------------------------------

    def _operands(self, node: Node) -> list[Operand]:
        found: list[Operand] = []
        for number, made in enumerate(node.shape.reads):
            if not made.count:
                continue
            token = None if node.saved(number) else self._token(made, [token for token, _ in found if token])
            if token and token.in_kernel and any(token is other for other, _ in found):
                token, made = None, self._other(made)
            found.append((token, made))
        return found

    def _token(self, made: Made, taken: list[Token]) -> Token | None:
        """What an operand is: another result than those that the operator reads already, where nobody has read it."""
        for count in filter(None, (made.whole, made.count)):
            if alike := self._alike(made, count):
                unread = [token for token in alike if not token.readers] if count == made.count else []
                another = [token for token in unread if not any(token is other for other in taken)]
                return (another or unread or alike)[-1]
        return None

    def _other(self, made: Made) -> Made:
        """What is read as the second of two equal operands: not the first again, but from outside or made here before."""
        within = len(self._alike(made, made.count)) > 1
        return replace(made, count=round(made.count * compiled.UNKNOWN_OPERAND)) if within else made

    def _alike(self, made: Made, count: int) -> list[Token]:
        return [token for token in self._tokens[count] if token.made.item_bytes == made.item_bytes]

    def _new_group(self, node: Node) -> int:
        group = len(self._parents) + 1
        self._parents[group], self._last[group] = set(), node.place
        return group

    def _root(self, group: int) -> int:
        while group in self._merged:
            group = self._merged[group]
        return group

    def _leave(self, node: Node) -> None:
        operands = self._operands(node)
        group = self._new_group(node)
        for token, _ in operands:
            if token:
                self._parents[group].add(self._root(token.group))
                token.readers.add(group)
        self.barriers.append(node)
        if node.shape.makes.count:
            self._keep(Token(node.shape.makes, group, in_kernel=False))

    def _keep(self, token: Token) -> None:
        """Lists a result among those of its size, of which only the newest are ever read again."""
        listed = self._tokens[token.made.count]
        listed.append(token)
        if len(listed) > 2 * MOST_RESULTS:
            del listed[:MOST_RESULTS]

    # --- what is fused ---------------------------------------------------------------------------------------

    def _fuse(self, node: Node) -> None:
        operands = self._operands(node)
        kernel = None
        for found in self._candidates(node, operands):
            found = self.kernels[self._root(found.group)]
            if kernel is None:
                kernel = found
            elif found is not kernel and self._may_merge(kernel, found):
                self._merge(kernel, found)
        if kernel is None:
            kernel = Kernel(self._new_group(node), node.shape.count)
            self.kernels[kernel.group] = kernel
        self._add(kernel, node, operands)

    def _candidates(self, node: Node, operands: list[Operand]) -> Iterator[Kernel]:
        """Kernels that made an operand, and could run the operator too."""
        if node.shape.kind == COLUMNS:
            return
        groups = {self._root(token.group) for token, _ in operands if token}
        apart = {
            self._root(token.group) for token, made in operands if token and token.made.count != made.count
        }
        for token, made in operands:
            if token is None or not token.in_kernel or token.made.count != made.count:
                continue
            found = self.kernels[self._root(token.group)]
            if found.group in apart or not self._fits(found, token, node):
                continue
            if not any(self._depends(other, found) for other in groups - {found.group}):
                yield found

    def _fits(self, kernel: Kernel, token: Token, node: Node) -> bool:
        """Whether an operator that reads this result can run in its kernel."""
        if len(kernel.nodes) >= MOST_NODES or node.backward != kernel.nodes[-1].backward:
            return False
        count = node.shape.count
        if token.reduced:  # only what goes on with the small result
            return node.shape.kind == POINTWISE and count == token.made.count and not token.scattered
        if node.shape.kind == PLANES and kernel.reduces_rows:
            return False
        if count > kernel.count:
            return kernel.pointwise  # computed where it is read
        return count == kernel.count or (kernel.reduces_rows and count == token.made.count)

    def _may_merge(self, one: Kernel, other: Kernel) -> bool:
        if one.count != other.count and not (one.pointwise and other.pointwise):
            return False
        if one.nodes[-1].backward != other.nodes[-1].backward:
            return False
        if len(one.nodes) + len(other.nodes) > MOST_NODES:
            return False
        if other.group in map(self._root, one.apart) or one.group in map(self._root, other.apart):
            return False
        return not self._depends_through_others(one, other) and not self._depends_through_others(other, one)

    def _depends(self, group: int, kernel: Kernel) -> bool:
        """Whether a group needs results of a kernel."""
        first = kernel.nodes[0].place
        seen: set[int] = set()
        ahead = [group]
        while ahead:
            here = self._root(ahead.pop())
            if here == kernel.group:
                return True
            if here not in seen and self._last[here] >= first:
                seen.add(here)
                ahead.extend(self._parents[here])
        return False

    def _depends_through_others(self, one: Kernel, other: Kernel) -> bool:
        parents = {self._root(parent) for parent in self._parents[one.group]} - {other.group, one.group}
        return any(self._depends(parent, other) for parent in parents)

    def _merge(self, kernel: Kernel, other: Kernel) -> None:
        self._merged[other.group] = kernel.group
        parents = self._parents[kernel.group] | self._parents[other.group]
        self._parents[kernel.group] = {self._root(parent) for parent in parents} - {kernel.group}
        self._last[kernel.group] = max(self._last[kernel.group], self._last[other.group])
        kernel.nodes = sorted(kernel.nodes + other.nodes, key=lambda node: node.place)
        kernel.count = max(kernel.count, other.count)
        kernel.tokens += other.tokens
        kernel.outside += other.outside
        kernel.apart |= other.apart
        kernel.reads.update(other.reads)
        kernel.reads = {
            key: (token, size)
            for key, (token, size) in kernel.reads.items()
            if self._root(token.group) != kernel.group
        }
        for token in self._read_by.pop(other.group, ()):
            token.readers.discard(other.group)
            token.readers.add(kernel.group)
            self._read_by[kernel.group].append(token)
        del self.kernels[other.group]

    def _add(self, kernel: Kernel, node: Node, operands: list[Operand]) -> None:
        of_node: set[int] = set()
        for token, made in operands:
            if token is None:
                kernel.outside.append(made)
                continue
            token.readers.add(kernel.group)
            self._read_by[kernel.group].append(token)
            root = self._root(token.group)
            if token.made.count != made.count and token.in_kernel:
                kernel.apart.add(root)
            if root == kernel.group:
                continue
            # One operator with several results, such as attention's gradients, has one token: read twice by one operator.
            before = kernel.reads[id(token)][1] if id(token) in of_node else 0
            kernel.reads[id(token)] = (token, before + made.bytes)
            of_node.add(id(token))
            self._parents[kernel.group].add(root)
        kernel.nodes.append(node)
        kernel.count = max(kernel.count, node.shape.count)
        self._last[kernel.group] = node.place
        in_place = node.op.endswith("_") and node.op != "aten::copy_" and node.shape.kind != SCATTERS
        changed = operands[0][0] if in_place and operands else None
        if changed in (listed := self._tokens[node.shape.makes.count]):
            listed.remove(changed)  # changed in place: what it was is gone
        scattered = node.shape.kind == SCATTERS
        reduced = scattered or node.shape.kind == COLUMNS
        result = Token(node.shape.makes, kernel.group, in_kernel=True, reduced=reduced, scattered=scattered)
        kernel.tokens.append(result)
        if result.made.count:
            self._keep(result)
