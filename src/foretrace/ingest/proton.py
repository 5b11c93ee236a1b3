"""Triton's Proton: its tree of scopes (`.hatchet`) as sums, its timeline (`.chrome_trace`) as spans with their scopes.

Times that Proton measured inside a kernel are cycles of the GPU's clock, whatever unit the file says: they are kept as
cycles, never as nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from foretrace.errors import FormatError, InputError
from foretrace.ingest import json_document, totals
from foretrace.ingest.formats import Format
from foretrace.ingest.json_document import mapping, objects
from foretrace.ingest.source import Progress, Source
from foretrace.ingest.span_tables import ARGS, DEVICE, HOST, Recorded, frame, nanoseconds, to_trace, whole
from foretrace.trace import Trace

FORMATS = (
    Format(
        "Proton profile",
        "*.hatchet",
        "triton.profiler.start(NAME) ... finalize()",
        "totals",
        "when anything ran, launches, idle time: start(..., data='trace') records a timeline; a device's name",
    ),
    Format(
        "Proton timeline",
        "*.chrome_trace",
        "triton.profiler.start(NAME, data='trace')",
        "timeline",
        "calls of the runtime, operators and launch geometry; what was measured inside kernels is shown in cycles",
    ),
)
CYCLES = "cycles"
_UNIT = re.compile(rb'\s*\{\s*"displayTimeUnit"\s*:\s*"(?:us|ns)"')
_PROPERTY = re.compile(r" ?\((?:inc|exc|pty)\)$")
_TIME = "time (ns)"
_COUNTED = re.compile(r"flops(?:8|16|32|64)?|bytes|cycles|normalized_cycles")
_MOST_NODES = 2_000_000
_COPY = re.compile(r"<?memcpy|<?memset", re.IGNORECASE)


def accepts(head: bytes) -> bool:
    """Whether a file that begins like this is a profile or a timeline of Proton."""
    return is_profile(head) or is_timeline(head)


def is_profile(head: bytes) -> bool:
    """Whether a file that begins like this is a tree of scopes as JSON."""
    parts = all(part in head for part in (b'"children"', b'"frame"', b'"metrics"'))
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[") and parts and b'"ph"' not in head


def is_timeline(head: bytes) -> bool:
    """Whether a file that begins like this is a Chrome trace of Proton."""
    of_kineto = b'"schemaVersion"' in head or b'"deviceProperties"' in head
    return bool(_UNIT.match(head)) and b'"call_stack"' in head and not of_kineto


def read(
    source: Source, *, reader: str | None = None, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """The profile or timeline as a Trace; `reader` is for formats with several."""
    document = json_document.load(source, progress)
    if isinstance(document, list):
        return _profile(source, document)
    return _timeline(source, mapping(document), pid)


def _profile(source: Source, document: list[Any]) -> Trace:
    if not document or not isinstance(document[0], dict) or "frame" not in document[0]:
        raise FormatError(f"{source.path.name}: no tree of scopes in it")
    entries: list[totals.Entry] = []
    scopes: list[totals.Scope] = []
    for path, metrics in _walked(document[0], source.path.name):
        counted = {name: float(value) for name, value in metrics.items() if _is_counted(name, value)}
        time = _amount(metrics.get(_TIME))
        if time:
            device = whole(metrics.get("device_id"))
            kind = "copy" if _COPY.match(path[-1]) else "kernel"
            calls = _amount(metrics.get("count"))
            entries.append(
                totals.Entry(path[:-1], path[-1], kind, time, calls, device=_index(device), metrics=counted)
            )
        if counted:
            scopes.append(totals.Scope(path, counted))
    if not entries and not any(_is_cycles(scope) for scope in scopes):
        raise InputError(f"{source.path}: no scope in it has a time or a number of cycles")
    devices = [
        _device(whole(number), mapping(facts), kind)
        for kind, each in mapping(document[1] if len(document) > 1 else None).items()
        for number, facts in mapping(each).items()
    ]
    if not entries:
        entries = [
            totals.Entry(scope.path[:-1], scope.path[-1], "kernel", 0)
            for scope in scopes
            if _is_cycles(scope)
        ]
    return totals.to_trace(
        source.path,
        "proton",
        entries,
        file_bytes=source.size,
        scopes=scopes,
        devices=[each for each in devices if each],
    )


def _walked(root: Mapping[str, Any], name: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every node but the root: the names from the outermost scope to it, and its metrics without their properties."""
    waiting: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), root)]
    seen = 0
    while waiting:
        above, node = waiting.pop()
        seen += 1
        if seen > _MOST_NODES:
            raise InputError(f"{name}: more than {_MOST_NODES:,} scopes; profile less")
        label = mapping(node.get("frame")).get("name")
        path = above if node is root else (*above, str(label) if label is not None else "unnamed")
        if node is not root:
            yield (
                path,
                {_PROPERTY.sub("", str(key)): value for key, value in mapping(node.get("metrics")).items()},
            )
        waiting += [(path, child) for child in reversed(objects(node.get("children")))]


def _is_counted(name: str, value: object) -> bool:
    return bool(_COUNTED.fullmatch(name)) and isinstance(value, int | float) and 0 < value < 1e30


def _is_cycles(scope: totals.Scope) -> bool:
    return CYCLES in scope.metrics or "normalized_cycles" in scope.metrics


def _amount(value: object) -> int | None:
    """A number of nanoseconds or calls; null where it is none."""
    number = int(value) if isinstance(value, int | float) and -1e18 < value < 1e18 else whole(value)
    return number if number is not None and number >= 0 else None


def _index(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < 2**31 else None


def _device(number: int | None, facts: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    """What Proton knows of a device, under Kineto's names; it has no name, so what there is stands for it."""
    if _index(number) is None:
        return None
    arch = str(facts.get("arch") or "")[:20]
    units, clock, width = (whole(facts.get(key)) for key in ("num_sms", "memory_clock_rate", "bus_width"))
    known = {"id": number, "numSms": units if units and units > 0 else None}
    # Two transfers a cycle; the clock is in kHz, the bus in bits.
    if clock and width and clock > 0 and width > 0 and clock * width < 2**60:
        known["memoryBandwidth"] = 2 * clock * 1000 * width // 8
    label = f"{kind[:20]} {arch}".strip() + (f" with {units} SMs" if units else "")
    return {"name": label, **{key: value for key, value in known.items() if value is not None}}


def _timeline(source: Source, document: Mapping[str, Any], pid: str | None) -> Trace:
    device: list[dict[str, Any]] = []
    args: list[dict[str, Any]] = []
    cycles: dict[tuple[str, ...], float] = {}
    for row, event in enumerate(objects(document.get("traceEvents"))):
        start_ns, dur_ns = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if event.get("ph") != "X" or start_ns is None or dur_ns is None:
            continue
        name = str(event.get("name"))
        if event.get("cat") not in ("kernel", "metric"):
            key = (str(event.get("pid", "kernel")), name)
            cycles[key] = cycles.get(key, 0.0) + dur_ns  # Proton writes a cycle as a nanosecond
            continue
        about = mapping(event.get("args"))
        stack = _names(about.get("call_stack"))
        device.append(
            {"kind": "copy" if _COPY.match(name) else "kernel", "name": name, "start_ns": start_ns, "row": row, "device": 0,
             "end_ns": start_ns + dur_ns, "stream": whole(event.get("tid"))}
        )  # fmt: skip
        scope = stack[:-1] if stack and stack[-1] == name else stack
        args += [{"row": row, "key": totals.SCOPE, "text": totals.BETWEEN.join(scope)}] if scope else []
        args += [
            {"row": row, "key": key, "float": float(value)}
            for key, value in about.items()
            if _is_counted(key, value)
        ]
    if not device and cycles:
        scopes = [totals.Scope(path, {CYCLES: total}) for path, total in cycles.items()]
        entries = [totals.Entry(path[:-1], path[-1], "kernel", 0) for path in cycles]
        return totals.to_trace(source.path, "proton-trace", entries, file_bytes=source.size, scopes=scopes)
    recorded = Recorded(
        source.path, "proton-trace", pl.DataFrame(schema=HOST), frame(device, DEVICE), frame(args, ARGS),
        meta={"compression": source.compression or None},
    )  # fmt: skip
    return to_trace(recorded, pid=pid, file_bytes=source.size)


def _names(stack: object) -> list[str]:
    """The scopes of a call stack, from the outermost in."""
    return [str(each) for each in stack if each != "ROOT"] if isinstance(stack, list) else []
