"""The kind of a span: the few sorts of work that have a colour on the page."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals, schema
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.device.device_roles import ATTENTION_PIECES, FUSED_ATTENTION, ROLES
from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.concepts.names.per_name import by_name
from foretrace.intervals import Intervals
from foretrace.trace import Trace

# The order of web/src/data/types.ts: a kind travels as its number, those of the host behind those of the device.
KINDS = ("gemm", "attn", "elem", "reduce", "copy", "optim", "transfer", "comm", "idle", "wait")
HOST_KINDS = ("op", "rt", "note", "py", "sync")
WORK = KINDS[:8]
NUMBER = {kind: number for number, kind in enumerate((*KINDS, *HOST_KINDS))}
LABELS = {
    "gemm": "Matrix multiply, convolution",
    "attn": "Fused attention",
    "elem": "Elementwise, other",
    "reduce": "Softmax, norm, reduction",
    "copy": "Copy, cast, layout",
    "optim": "Optimizer",
    "transfer": "Host and device copies",
    "comm": "Communication",
    "idle": "GPU idle, other",
    "wait": "Waiting for data",
}
_OF_ROLE = {
    "gemm": "gemm", "convolution": "gemm", FUSED_ATTENTION: "attn", "attention": "attn", "elementwise": "elem",
    "reduction": "reduce", "norm": "reduce", "softmax": "reduce", "optimizer": "optim", "embedding": "copy",
    "copy": "copy", "communication": "comm", "other": "elem", "unknown": "elem",
}  # fmt: skip
_OF_PART = {
    "matrix products": "gemm", "convolutions": "gemm", "attention": "attn", "norms": "reduce", "softmax": "reduce",
    "reductions": "reduce", "optimizer kernels": "optim", "copies on the GPU": "copy", "copies": "copy",
    "embedding and indexing": "copy", "copies to and from the host": "transfer", "communication": "comm",
    "Python between operators": "idle",
}  # fmt: skip
_WITHIN_DEVICE = r"DtoD|Device -> Device|DeviceToDevice"
_HOST = {"op": "op", "runtime": "rt", "annotation": "note", "python": "py", "sync": "sync", "overhead": "rt"}
_WAITS = r"Synchronize|WaitEvent|StreamWait|EventQuery"
Numbers = NDArray[np.uint8]
# Which of several kinds a moment counts for when they run at once: computing hides moving, never the reverse.
_FIRST = ("gemm", "attn", "reduce", "elem", "optim", "copy", "comm", "transfer")


def role_kind(role: str) -> str:
    """The kind that shows a role of device work or of a kernel's name."""
    return _OF_ROLE.get(role, "elem")


def cause_kind(what: str, kind: str) -> str:
    """The kind that shows a cause of a comparison: a part of the step by its name (see compare/parts.py)."""
    if kind in ("GPU", "host"):
        return _OF_PART.get(what, "elem")
    return {"waiting for data": "wait", "communication": "comm"}.get(what, "idle")


def kernel_kind(name: str) -> str:
    """The kind of a kernel, by its name alone."""
    return role_kind(decode(name).role)


def device_kinds(trace: Trace, classified: pl.DataFrame) -> Numbers:
    """For each row of `trace.device_spans`, the number of its kind; `classified` is device_roles' table."""
    work = device_time.device_work(trace)
    kind = by_name(work["name"], _of_names)
    moved = (work["kind"] == "copy").to_numpy()
    inside = work["name"].is_in(device_time.names_like(work, _WITHIN_DEVICE)).to_numpy()
    kind[moved & ~inside] = NUMBER["transfer"]
    kind[(moved & inside) | (work["kind"] == "set").to_numpy()] = NUMBER["copy"]
    kind[work["communication"].to_numpy()] = NUMBER["comm"]
    launched = np.flatnonzero(~work["orphan"].to_numpy())
    kind[launched] = _by_role(classified, kind[launched])
    return kind.astype(np.uint8)


def _by_role(classified: pl.DataFrame, named: Numbers) -> Numbers:
    """What the operator behind it makes of device work; a piece of attention stays what its kernel does."""
    role = classified["role"].to_numpy()
    table = np.array([NUMBER[role_kind(each)] for each in ROLES], np.uint8)
    keeps = (role == ROLES.index(ATTENTION_PIECES)) | (role == ROLES.index("copy"))
    return np.where(keeps, named, table[role]).astype(np.uint8)


def _of_names(names: pl.Series) -> Numbers:
    return np.array([NUMBER[kernel_kind(name)] for name in names.to_list()], np.uint8)


def host_kinds(spans: pl.DataFrame) -> Numbers:
    """For each span of the host, the number of its kind; a call that waits for the device is a sync."""
    table = np.array([NUMBER[_HOST.get(kind, "op")] for kind in schema.KINDS], np.uint8)
    found: Numbers = table[spans["kind"].to_physical().to_numpy()]
    calls = np.flatnonzero(found == NUMBER["rt"])
    names = spans["name"].gather(calls)
    waits = names.is_in(device_time.names_like(pl.DataFrame({"name": names}), _WAITS)).to_numpy()
    found[calls[waits]] = NUMBER["sync"]
    return found


def shares(parts: Mapping[str, Intervals], edges: NDArray[np.int64]) -> tuple[list[str], NDArray[np.float64]]:
    """Between each two edges the nanoseconds of every kind that occurs, from `exclusive`."""
    found = [kind for kind in WORK if kind in parts]
    columns = [intervals.covered_ns(parts[kind], edges[:-1], edges[1:]) for kind in found]
    empty = np.zeros((len(edges) - 1, 0))
    return found, np.stack(columns, axis=1).astype(np.float64) if columns else empty


def exclusive(trace: Trace, kinds: Numbers) -> dict[str, Intervals]:
    """When the device did work of each kind; where several ran at once, the moment is given to one."""
    spans = trace.device_spans
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    claimed = intervals.EMPTY
    found = {}
    for kind in _FIRST:
        of_kind = kinds == NUMBER[kind]
        if not of_kind.any():
            continue
        busy = intervals.union(start[of_kind], end[of_kind])
        found[kind] = intervals.subtract(busy, claimed)
        claimed = intervals.either(claimed, busy)
    return found
