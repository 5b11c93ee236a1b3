"""Recorded steps compiled: the operators of each, fused, with what every kernel would take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device.phases import BACKWARD, OPTIMIZER, PHASES
from foretrace.analyze.concepts.names.named_spans import rows_of
from foretrace.analyze.concepts.names.per_name import distinct_rows, matching
from foretrace.hardware import Device
from foretrace.predict.compiler import nodes as shapes
from foretrace.predict.compiler.kernels import Flow
from foretrace.predict.compiler.nodes import BARRIER, NOTHING, Node, Shape
from foretrace.predict.compiler.prices import launches, price_ns
from foretrace.predict.costs import attention
from foretrace.predict.costs.attention import Mask
from foretrace.predict.costs.channels_last import CONVERSIONS
from foretrace.sourced import Count, Factor
from foretrace.trace import Trace

_JOINS = "CatArray"  # kernels of concatenations, which alone tell the type
_ACROSS_ROWS = "GammaBeta"  # the kernel of a norm's backward that makes the gradients of its parameters
_HEAVY = re.compile(r"mm$|conv|attention|rnn|_linear")
_LOSS = re.compile(r"_loss|log_softmax")
_RULES = "torch/_inductor/graph.py, decide_layout_opt"
_SMALL_CHANNELS = Count(64, "channels, up to which convolutions are small", _RULES)
_GROUPED, _SMALL, _NARROWING, _OTHER = "grouped", "small", "narrowing", "other"
_IN_ONE_LAYOUT = {
    _GROUPED: Factor(
        1.358, "the time of a grouped convolution of an inference, in channels-last order", _RULES
    ),
    _SMALL: Factor(0.783, "the same of one with few channels", _RULES),
    _NARROWING: Factor(0.725, "the same of one that halves its channels", _RULES),
    _OTHER: Factor(0.823, "the same of any other", _RULES),
}
_NO_PHASE = 255  # where it is not known
_PLANAR = 5  # extents of the weight of a convolution over planes: four, and the groups


@dataclass(frozen=True)
class Fused:
    """A kernel of compiled code in place of recorded tasks."""

    tasks: tuple[int, ...]
    dur_ns: int
    launches: int
    of_loss: bool

    @property
    def computes(self) -> bool:
        """Whether there is a kernel at all: constants are made where they are read."""
        return self.launches > 0


@dataclass(frozen=True)
class CompiledStep:
    """One step: kernels in place of operators, and what stays."""

    kernels: tuple[Fused, ...]
    kept: tuple[tuple[int, ...], ...]  # tasks of each operator that stays, without conversions that go
    kept_forward: int  # of these, in the forward pass
    converting: tuple[int, ...]  # tasks that change layouts, where the compiler keeps one
    operators: int  # before
    graphs: (
        int  # that the host enters: one of the forward pass, and one of the backward pass where there is one
    )
    # Tasks of attention that gets a mask, and how many times as long they take.
    masking: dict[int, float] = field(default_factory=dict)


def compiled_steps(
    trace: Trace, tasks: pl.DataFrame, device: Device, *, masks: bool = False
) -> list[CompiledStep]:
    """Each recorded step, compiled; `masks`: compiled, it makes masks for attention that now goes without.

    `tasks` are the program's device work, with the `phase` that device_roles tells.
    """
    converts = frozenset(tasks.filter(matching(tasks["name"], CONVERSIONS))["task"])
    compiled, known, number = [], {}, _Numbers()
    seen: dict[bytes, CompiledStep] = {}
    for rows in _steps(_work(trace, tasks)):
        if (step := seen.get(rows.key)) is None:
            nodes = _of_model(rows.nodes())
            alike = tuple((node.op, number(node.shape), len(node.tasks), node.backward) for node in nodes)
            if alike not in known:
                known[alike] = (_plan(nodes, device), _loss(nodes), _one_layout(nodes))
            turned = frozenset(place for place, task in enumerate(rows.tasks) if task in converts)
            step = _compiled(nodes, *known[alike], turned)
            seen[rows.key] = step = replace(step, masking=_masking(nodes, device)) if masks else step
        compiled.append(_of_tasks(step, rows.tasks, rows.dur_ns))
    return compiled


def _of_tasks(step: CompiledStep, tasks: list[int], dur_ns: list[int]) -> CompiledStep:
    """The step with these tasks, which take so long: `step` has their places in it, and no kernel takes longer than they do."""
    task_at, dur_at = tasks.__getitem__, dur_ns.__getitem__
    return replace(
        step,
        kernels=tuple(
            Fused(
                tuple(map(task_at, kernel.tasks)),
                min(kernel.dur_ns, sum(map(dur_at, kernel.tasks))),
                kernel.launches,
                kernel.of_loss,
            )
            for kernel in step.kernels
        ),
        kept=tuple(tuple(map(task_at, places)) for places in step.kept),
        converting=tuple(map(task_at, step.converting)),
        masking={tasks[place]: longer for place, longer in step.masking.items()},
    )


class _Numbers:
    """Numbers for shapes, the same for equal ones: a shape is long to hash, and most come again as they are."""

    def __init__(self) -> None:
        self._of_equal: dict[Shape, int] = {}
        self._of_object: dict[int, tuple[Shape, int]] = {}  # by address, with the shape: it keeps its address

    def __call__(self, shape: Shape) -> int:
        if (known := self._of_object.get(id(shape))) is not None:
            return known[1]
        number = self._of_equal.setdefault(shape, len(self._of_equal))
        self._of_object[id(shape)] = (shape, number)
        return number


def _work(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """The tasks in order, with operator and arguments; without the optimizer's."""
    given = trace.ops.select("shapes", "dtypes", "strides", "inputs")
    work = work.hstack(given.select(pl.all().gather(rows_of(trace, "ops", work["op_id"]))))
    work = work.with_columns(op=trace.spans["name"].gather(work["op_id"]))
    return work.filter(pl.col("phase").fill_null(0) != PHASES.index(OPTIMIZER))


@dataclass(frozen=True)
class _Rows:
    """The device work of one step, in order."""

    key: bytes  # the same for steps of the same calls
    tasks: list[int]
    dur_ns: list[int]
    calls: list[tuple[str, Shape, bool]]  # operator, how the compiler sees it, whether it works across rows
    op_ids: list[int | None]
    backward: list[bool]

    def nodes(self) -> list[Node]:
        """The operators, with their tasks by their places in the step."""
        nodes: list[Node] = []
        last_op = None
        for place, (op_id, dur_ns) in enumerate(zip(self.op_ids, self.dur_ns, strict=True)):
            op, shape, across = self.calls[place]
            if op_id is not None and op_id == last_op and not across:
                last = nodes[-1]
                nodes[-1] = last._replace(tasks=(*last.tasks, place), dur_ns=last.dur_ns + dur_ns)
                continue
            if across and op_id == last_op and shape.kind != BARRIER:
                shape = shapes.columns_of(shape)
            nodes.append(Node(len(nodes), op, (place,), dur_ns, shape, self.backward[place]))
            last_op = op_id
        return nodes


def _steps(work: pl.DataFrame) -> Iterator[_Rows]:
    # Most calls come again in every step: how the compiler sees one is told once.
    calls, which = distinct_rows(work.select("op", "shapes", "dtypes", "strides", "inputs", "name", "kind"))
    told = [
        (call[0] or "", _seen(call, name, kind), _ACROSS_ROWS in name)
        for *call, name, kind in calls.with_columns(pl.all().cast(pl.String)).iter_rows()
    ]
    tasks, dur_ns, op_ids = (work[name].to_list() for name in ("task", "dur_ns", "op_id"))
    calling = work["op_id"].cast(pl.Int64).fill_null(-1).to_numpy()
    phases = work["phase"].fill_null(_NO_PHASE).to_numpy()
    steps: dict[int | None, list[int]] = {}
    for row, step in enumerate(work["step"].to_list()):
        steps.setdefault(step, []).append(row)
    for rows in steps.values():
        same_op = np.diff(calling[rows]) == 0
        yield _Rows(
            key=which[rows].tobytes() + same_op.tobytes() + phases[rows].tobytes(),
            tasks=[tasks[row] for row in rows],
            dur_ns=[dur_ns[row] for row in rows],
            calls=[told[number] for number in which[rows].tolist()],
            op_ids=[op_ids[row] for row in rows],
            backward=(phases[rows] == PHASES.index(BACKWARD)).tolist(),
        )


def _of_model(nodes: list[Node]) -> list[Node]:
    """The operators without what follows the backward pass: clipping, logging, updates by hand."""
    last = max((node.place for node in nodes if node.backward), default=len(nodes) - 1)
    return nodes[: last + 1]


def _seen(call: list[str | None], name: str, kind: str) -> Shape:
    """How the compiler sees an operator: copies from and to the host and Triton kernels stay as they are."""
    if call[0] is None or name.startswith("triton_") or (kind == "copy" and "DtoD" not in name):
        return NOTHING
    op, *arguments = call
    return shapes.shape_of(op, *arguments, name if _JOINS in name else None)


Plan = list[tuple[list[int], int, int]]  # places of a kernel's operators, its duration and launches


def _plan(nodes: list[Node], device: Device) -> Plan:
    kernels = Flow(nodes).kernels.values()
    return [
        ([node.place for node in kernel.nodes], price_ns(device, kernel), launches(kernel))
        for kernel in kernels
    ]


def _compiled(
    nodes: list[Node], plan: Plan, loss: frozenset[int], one_layout: bool, converts: frozenset[int]
) -> CompiledStep:
    kernels = []
    for places, dur_ns, started in plan:
        tasks = sorted(task for place in places for task in nodes[place].tasks)
        kernels.append(Fused(tuple(tasks), dur_ns, started, loss.issuperset(places)))
    staying = [node for node in nodes if node.shape.kind == BARRIER and node.op]
    gone = converts if one_layout else frozenset()
    kept = [tuple(task for task in node.tasks if task not in gone) for node in staying]
    converting = tuple(task for node in staying for task in node.tasks if task in gone)
    graphs = 1 + any(node.backward for node in nodes)
    before = sum(bool(node.op) for node in nodes)
    forward = sum(not node.backward for node in staying)
    return CompiledStep(tuple(kernels), tuple(filter(None, kept)), forward, converting, before, graphs)


def _masking(nodes: list[Node], device: Device) -> dict[int, float]:
    """The tasks of attention without a mask, and how many times as long they take with one from memory."""
    longer: dict[int, float] = {}
    for node in nodes:
        if (call := node.shape.attention) is None:
            continue
        size = attention.Size(call.heads, call.queries, call.keys, call.width, call.half)
        now = Mask.CAUSAL if call.causal else Mask.NONE
        before, after = (
            attention.time_ns(device, size, backward=call.backward, mask=mask)
            for mask in (now, Mask.FROM_MEMORY)
        )
        longer |= dict.fromkeys(node.tasks, max(after / before, 1.0))
    return longer


def _loss(nodes: list[Node]) -> frozenset[int]:
    """Operators of the loss: behind the last product of the forward and before the first of the backward."""
    first = next((place for place, node in enumerate(nodes) if node.backward), None)
    if first is None:
        return frozenset()
    heavy = [bool(_HEAVY.search(node.op)) for node in nodes]
    last = max((place for place in range(first) if heavy[place]), default=-1)
    next_ = next((place for place in range(first, len(nodes)) if heavy[place]), len(nodes))
    places = range(last + 1, next_)
    return frozenset(places) if any(_LOSS.search(nodes[place].op) for place in places) else frozenset()


def _one_layout(nodes: list[Node]) -> bool:
    """Whether the compiler keeps convolutions in channels-last order, by the rules of its decide_layout_opt."""
    convolutions = [node.shape for node in nodes if node.shape.weight]
    if not convolutions or any(len(shape.weight) != _PLANAR for shape in convolutions):
        return False
    kinds = [_kind(*shape.weight) for shape in convolutions]
    if any(node.backward for node in nodes):
        small = all(max(shape.weight[:2]) <= _SMALL_CHANNELS for shape in convolutions)
        narrowing = any(_narrows(*shape.weight) for shape in convolutions)
        return not (small or narrowing or _GROUPED in kinds)
    work = [shape.makes.count * prod(shape.weight[1:-1]) for shape in convolutions]
    weighted = sum(part * _IN_ONE_LAYOUT[kind] for part, kind in zip(work, kinds, strict=True))
    return weighted <= sum(work)


def _kind(outer: int, inner: int, height: int, width: int, groups: int) -> str:
    if groups > 1 and inner > 1:
        return _GROUPED
    if outer <= _SMALL_CHANNELS and inner <= _SMALL_CHANNELS:
        return _SMALL
    return _NARROWING if _narrows(outer, inner, height, width, groups) else _OTHER


def _narrows(outer: int, inner: int, height: int, _width: int, _groups: int) -> bool:
    return 2 * outer <= inner and height > 1
