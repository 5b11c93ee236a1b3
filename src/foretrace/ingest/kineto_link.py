"""Linking in numpy: order, nesting, launches, operators, steps, stacks, forward and backward.

The reference for `_native/linker.hpp`, rule by rule.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace.ingest import kineto_python as scan
from foretrace.ingest.columns import ARG_INT, GROUPS, NULL_I32, NULL_I64, NULL_U32, NULL_U64, Array
from foretrace.ingest.operator_numbers import operator_numbers

if TYPE_CHECKING:
    from foretrace.ingest.kineto_python import Scanner

_CONTAINERS = (scan.OP, scan.PYTHON, scan.ANNOTATION, scan.RUNTIME, scan.OVERHEAD)


def link(scanner: Scanner, left_out: Array) -> tuple[dict[str, dict[str, Array]], int]:
    """All groups of `columns.GROUPS` without the marked rows, and the absolute time of the trace's beginning."""
    core = np.array(scanner.core, np.int64).reshape(-1, 5)
    start, dur, name, lane, kind = (np.ascontiguousarray(core[:, i]) for i in range(5))
    keep = _sound_starts(scanner, start) & ~left_out
    counters = _group("counters", scanner.rows["counters"])
    times = np.concatenate((start[keep], counters["at"]))
    origin = int(times.min()) if len(times) else 0
    start -= origin
    counters["at"] -= origin
    spans = np.flatnonzero(keep & (kind != scan.MEMORY))
    order = spans[np.lexsort((spans, -_known(dur[spans]), start[spans]))]
    new_id = np.full(len(start), NULL_U32, np.uint32)
    new_id[order] = np.arange(len(order), dtype=np.uint32)
    nest = _nest(scanner, start, _known(dur), name, lane, kind, keep)
    steps = _steps(scanner, start, dur, name, kind, keep)
    launch, op, step = _causes(scanner, start, kind, order, nest["op"], steps)

    def renamed(rows: Array) -> Array:
        """Row numbers of the file become span ids."""
        known = rows != NULL_U32
        renamed = np.full(len(rows), NULL_U32, np.uint32)
        renamed[known] = new_id[rows[known]]
        return renamed

    def of_kind(*kinds: int) -> tuple[Array, Array]:
        """Row numbers of the kept events of these kinds, in span order, and their place within their kind."""
        rows = order[np.isin(kind[order], kinds)]
        return rows, _place_in_kind(kind)[rows]

    groups = {
        "spans": {
            "track": lane[order].astype(np.uint32), "kind": kind[order].astype(np.uint8),
            "name": name[order].astype(np.uint32), "start": start[order], "dur": dur[order],
            "depth": nest["depth"][order], "parent": renamed(nest["parent"])[order],
            "launch": renamed(launch)[order], "op": renamed(op)[order], "step": step[order],
        },
        "kernels": _kernels(scanner, *of_kind(scan.KERNEL), new_id),
        "copies": _copies(scanner, kind, order, new_id),
        "ops": _ops(scanner, *of_kind(scan.OP), start, nest, new_id),
        "python": _python(scanner, *of_kind(scan.PYTHON), nest, new_id, renamed),
        "counters": counters,
        "memory": _memory(scanner, start, kind, keep, nest, renamed(nest["op"])),
        "stacks": nest["stacks"], "modules": nest["modules"],
        "args": _args(scanner, new_id),
        "lanes": _lanes(scanner),
        "labels": _group("labels", scanner.rows["labels"]),
        "instants": _shifted("instants", "at", scanner, origin),
        "windows": _shifted("windows", "start", scanner, origin),
        "steps": steps,
    }  # fmt: skip
    return groups, origin


def _group(group: str, rows: list[tuple[Any, ...]]) -> dict[str, Array]:
    columns = list(zip(*rows, strict=True)) or [()] * len(GROUPS[group])
    return {
        name: np.array(column, dtype)
        for (name, dtype), column in zip(GROUPS[group].items(), columns, strict=True)
    }


def _shifted(group: str, column: str, scanner: Scanner, origin: int) -> dict[str, Array]:
    columns = _group(group, scanner.rows[group])
    columns[column] -= origin
    return columns


def _known(dur: Array) -> Array:
    return np.where(dur == NULL_I64, 0, dur)


def _sound_starts(scanner: Scanner, start: Array) -> Array:
    """Which events start within a week of the median; the rest have no believable time."""
    keep = np.ones(len(start), bool)
    if len(start) and int(start.max()) - int(start.min()) > scan.LONGEST_NS:
        median = int(np.partition(start, len(start) // 2)[len(start) // 2])
        keep = np.abs(start - median) <= scan.LONGEST_NS
        scanner.repair("impossible-start", None, int((~keep).sum()))
    return keep


def _place_in_kind(kind: Array) -> Array:
    """For each row, how many rows of its kind come before it in the file."""
    place = np.empty(len(kind), np.int64)
    for value in np.unique(kind):
        rows = np.flatnonzero(kind == value)
        place[rows] = np.arange(len(rows))
    return place


def _nest(
    scanner: Scanner, start: Array, dur: Array, name: Array, lane: Array, kind: Array, keep: Array
) -> dict[str, Any]:
    """Parents, depths, innermost op, Python frame and module of every row, as file rows."""
    rows = np.flatnonzero(keep)
    rows = rows[np.lexsort((rows, -dur[rows], start[rows], lane[rows]))]
    parent, op, stack, module = (np.full(len(start), NULL_U32, np.uint32) for _ in range(4))
    depth = np.zeros(len(start), np.uint16)
    names = list(scanner.names)
    stacks, modules = _Trie(), _Trie()
    opened: list[tuple[int, int]] = []  # end, row
    calls = _PythonCalls(scanner, lane, keep)
    current = -1
    for row in rows.tolist():
        if lane[row] != current:
            current = lane[row]
            opened.clear()
        begin, end = int(start[row]), int(start[row] + dur[row])
        if kind[row] == scan.PYTHON:
            end = calls.end(row, begin, end)
        while opened and (begin >= opened[-1][0] or end > opened[-1][0]):
            opened.pop()
        kind_of = int(kind[row])
        if opened:
            above = opened[-1][1]
            parent[row] = above
            depth[row] = min(int(depth[above]) + 1, 65535)
            op[row] = above if kind[above] == scan.OP else op[above]
            stack[row], module[row] = stack[above], module[above]
        if kind_of == scan.PYTHON:
            stack[row] = stacks.child(int(stack[row]), int(name[row]))
            if names[int(name[row])].startswith(scan.MODULE_PREFIX):
                module[row] = modules.child(int(module[row]), int(name[row]))
        if kind_of in _CONTAINERS:
            opened.append((end, row))
    return {
        "parent": parent, "depth": depth, "op": op, "stack": stack, "module": module,
        "stacks": stacks.columns(), "modules": modules.columns(),
    }  # fmt: skip


class _PythonCalls:
    """Where Python calls end. One whose return was not recorded seems to last to the end of the recording:
    it ends no later than its caller on the same thread."""

    def __init__(self, scanner: Scanner, lane: Array, keep: Array) -> None:
        self.lane = lane
        self.ends: dict[int, int] = {}
        self.parent_of: dict[int, int | None] = {}
        self.rows: dict[int, int | None] = {}
        place = 0
        for row, (*_, kind) in enumerate(scanner.core):
            if kind == scan.PYTHON:
                fields = scanner.fields[scan.PYTHON][place]
                place += 1
                self.parent_of[row] = fields.get("python_parent")
                number = fields.get("python_id")
                if number is not None and keep[row]:
                    self.rows[number] = None if number in self.rows else row

    def end(self, row: int, begin: int, end: int) -> int:
        """The end of a call; those that began before it on its thread were asked about before."""
        parent = self.parent_of[row]
        caller = self.rows.get(parent) if parent is not None else None
        if caller is not None and self.lane[caller] == self.lane[row] and caller in self.ends:
            limit = self.ends[caller]
            end = min(end, limit) if limit > begin else end
        self.ends[row] = end
        return end


class _Trie:
    """Paths of names: each node is a name below a parent node."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], int] = {}

    def child(self, parent: int, name: int) -> int:
        return self.nodes.setdefault((parent, name), len(self.nodes))

    def columns(self) -> dict[str, Array]:
        pairs = np.array(list(self.nodes), np.uint32).reshape(-1, 2)
        return {"parent": pairs[:, 0].copy(), "name": pairs[:, 1].copy()}


def _steps(
    scanner: Scanner, start: Array, dur: Array, name: Array, kind: Array, keep: Array
) -> dict[str, Array]:
    """The host's step annotations in order of start."""
    numbers = {
        code: int(match[1])
        for text, code in scanner.names.items()
        if (match := scan._STEP.fullmatch(text)) and int(match[1]) < 2**31
    }
    gpu = np.array(scanner.on_gpu, bool)
    rows = np.flatnonzero(
        keep & (kind == scan.ANNOTATION) & ~gpu & (dur != NULL_I64) & np.isin(name, list(numbers))
    )
    rows = rows[np.lexsort((rows, start[rows]))]
    return {
        "number": np.array([numbers[int(code)] for code in name[rows]], np.int32),
        "start": start[rows],
        "end": start[rows] + dur[rows],
    }


def _causes(
    scanner: Scanner, start: Array, kind: Array, order: Array, nested_op: Array, steps: dict[str, Array]
) -> tuple[Array, Array, Array]:
    """Launch, op and step of every row, as file rows."""
    launch = np.full(len(start), NULL_U32, np.uint32)
    op = np.full(len(start), NULL_U32, np.uint32)
    step = np.full(len(start), NULL_I32, np.int32)
    place = _place_in_kind(kind)
    by_correlation = _Latest(order, start, place, scanner, scan.RUNTIME)
    by_external = _unique_external(scanner, order, kind, place)
    which = np.searchsorted(steps["start"], start[order], side="right") - 1
    for row, index in zip(order.tolist(), which.tolist(), strict=True):
        kind_of = int(kind[row])
        on_device = kind_of in (scan.KERNEL, scan.COPY, scan.SET, scan.SYNC)
        if not on_device and index >= 0 and start[row] < steps["end"][index]:
            step[row] = steps["number"][index]
    for row in order.tolist():
        kind_of = int(kind[row])
        fields = scanner.fields[kind_of][place[row]]
        if kind_of == scan.RUNTIME:
            op[row] = nested_op[row]
        elif kind_of not in (scan.KERNEL, scan.COPY, scan.SET, scan.SYNC):
            continue
        if op[row] == NULL_U32 and kind_of == scan.RUNTIME:
            op[row] = by_external.get(fields.get("external"), NULL_U32)
    for row in order.tolist():
        kind_of = int(kind[row])
        if kind_of not in (scan.KERNEL, scan.COPY, scan.SET, scan.SYNC):
            continue
        fields = scanner.fields[kind_of][place[row]]
        launch[row] = by_correlation.find(fields.get("correlation"), int(start[row]))
        if launch[row] != NULL_U32:
            op[row] = op[launch[row]]
            step[row] = step[launch[row]]
        if op[row] == NULL_U32:
            op[row] = by_external.get(fields.get("external"), NULL_U32)
            if op[row] != NULL_U32 and launch[row] == NULL_U32:
                step[row] = step[op[row]]
        if launch[row] == NULL_U32:
            _keep_correlation(scanner, row, fields.get("correlation"))
    return launch, op, step


def _keep_correlation(scanner: Scanner, row: int, correlation: int | None) -> None:
    """Keeps an id that leads nowhere as an argument: it still tells which work was launched together."""
    if correlation and correlation < 2**63 - 1:
        scanner.rows["args"].append((row, scanner.texts["correlation"], ARG_INT, correlation))


class _Latest:
    """Calls by correlation id: of several with one id, the last that began before the work did."""

    def __init__(self, order: Array, start: Array, place: Array, scanner: Scanner, kind: int) -> None:
        self.calls: dict[int, list[tuple[int, int]]] = {}
        for row in order.tolist():
            if scanner.core[row][4] == kind:
                correlation = scanner.fields[kind][place[row]].get("correlation")
                if correlation:
                    self.calls.setdefault(correlation, []).append((int(start[row]), row))

    def find(self, correlation: int | None, at: int) -> int:
        calls = self.calls.get(correlation or 0)
        if not calls:
            return NULL_U32
        before = bisect_right(calls, at, key=itemgetter(0))
        return calls[max(before - 1, 0)][1]


def _unique_external(scanner: Scanner, order: Array, kind: Array, place: Array) -> dict[int | None, int]:
    """Operator rows by External id, where just one operator has that id; the scanner keeps how many there are."""
    found: dict[int | None, int] = {}
    repeated: set[int] = set()
    for row in order[kind[order] == scan.OP].tolist():
        external = scanner.fields[scan.OP][place[row]].get("external")
        if external:
            if external in found:
                repeated.add(external)
            found[external] = row
    scanner.counts |= operator_numbers(found)
    return {external: row for external, row in found.items() if external not in repeated}


def _kernels(scanner: Scanner, rows: Array, place: Array, new_id: Array) -> dict[str, Array]:
    nulls = {"i4": NULL_I32, "i8": NULL_I64, "f8": np.nan}
    columns = {"span": new_id[rows]}
    for column, dtype in GROUPS["kernels"].items():
        if column != "span":
            values = scanner.field(scan.KERNEL, column, nulls[dtype.str[1:]], dtype)
            columns[column] = values[place]
    return columns


def _copies(scanner: Scanner, kind: Array, order: Array, new_id: Array) -> dict[str, Array]:
    size = np.full(len(kind), NULL_I64, np.int64)
    for value in (scan.COPY, scan.SET):
        size[kind == value] = scanner.field(value, "size", NULL_I64, np.dtype("i8"))
    rows = order[np.isin(kind[order], (scan.COPY, scan.SET))]
    return {"span": new_id[rows], "size": size[rows]}


def _ops(
    scanner: Scanner, rows: Array, place: Array, start: Array, nest: dict[str, Any], new_id: Array
) -> dict[str, Array]:
    columns = {"span": new_id[rows]}
    for column in ("shapes", "dtypes", "strides", "inputs", "call_stack"):
        columns[column] = scanner.field(scan.OP, column, NULL_U32, np.dtype("u4"))[place]
    for column in ("sequence", "flops"):
        columns[column] = scanner.field(scan.OP, column, NULL_I64, np.dtype("i8"))[place]
    columns["forward_thread"] = scanner.field(scan.OP, "forward_thread", NULL_I32, np.dtype("i4"))[place]
    columns["stack"], columns["module"] = nest["stack"][rows], nest["module"][rows]
    columns["forward"] = _forward(columns, start[rows])
    return {column: columns[column] for column in GROUPS["ops"]}


def _forward(ops: dict[str, Array], start: Array) -> Array:
    """For each backward op, the last forward op with its sequence number that began before it.

    Autograd advances the number when an op makes its backward node: of all ops that carry one number,
    the last to start is the one that made the node.
    """
    forward = np.full(len(start), NULL_U32, np.uint32)
    latest: dict[int, int] = {}
    sequences, threads = ops["sequence"].tolist(), ops["forward_thread"].tolist()
    for index, (sequence, thread) in enumerate(zip(sequences, threads, strict=True)):
        if sequence == NULL_I64:
            continue
        if thread in (0, NULL_I32):
            latest[sequence] = int(ops["span"][index])
        else:
            forward[index] = latest.get(sequence, NULL_U32)
    return forward


def _python(
    scanner: Scanner, rows: Array, place: Array, nest: dict[str, Any], new_id: Array, renamed: Any
) -> dict[str, Array]:
    ids = scanner.field(scan.PYTHON, "python_id", NULL_I64, np.dtype("i8"))[place]
    parents = scanner.field(scan.PYTHON, "python_parent", NULL_I64, np.dtype("i8"))[place]
    values, first, count = np.unique(ids, return_index=True, return_counts=True)
    row_of = {
        int(value): int(rows[index])
        for value, index, times in zip(values, first, count, strict=True)
        if times == 1 and value != NULL_I64
    }
    caller = np.array([row_of.get(int(parent), NULL_U32) for parent in parents], np.uint32)
    return {
        "span": new_id[rows], "caller": renamed(caller), "stack": nest["stack"][rows],
        "module": nest["module"][rows],
    }  # fmt: skip


def _memory(
    scanner: Scanner, start: Array, kind: Array, keep: Array, nest: dict[str, Any], op: Array
) -> dict[str, Array]:
    rows = np.flatnonzero(keep & (kind == scan.MEMORY))
    place = _place_in_kind(kind)
    rows = rows[np.lexsort((rows, start[rows]))]
    columns: dict[str, Array] = {"at": start[rows]}
    for column, dtype in GROUPS["memory"].items():
        if column in ("bytes", "address", "device_type", "device_id", "allocated", "reserved"):
            null = NULL_U64 if column == "address" else NULL_I64
            columns[column] = scanner.field(scan.MEMORY, column, null, dtype)[place[rows]]
    columns |= {"op": op[rows], "stack": nest["stack"][rows], "module": nest["module"][rows]}
    return columns


def _args(scanner: Scanner, new_id: Array) -> dict[str, Array]:
    """Arguments of kept spans in span order; of a repeated key, file order."""
    columns = _group("args", scanner.rows["args"])
    columns["span"] = new_id[columns["span"]]
    kept = np.flatnonzero(columns["span"] != NULL_U32)
    order = kept[np.argsort(columns["span"][kept], kind="stable")]
    return {name: column[order] for name, column in columns.items()}


def _lanes(scanner: Scanner) -> dict[str, Array]:
    unknown = (NULL_I64, NULL_I64)
    known = [scanner.lane_device.get(lane, unknown) for lane in range(len(scanner.lane_keys))]
    return _group("lanes", known)
