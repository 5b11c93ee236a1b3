"""XProf's Chrome trace, as JAX's and TensorFlow's profilers write it (`trace.json.gz`): a timeline of devices and the host.

A process is a device or the host, by its name ("/device:GPU:0"). Of a GPU the threads called "Stream" hold what ran; of a TPU
it is "XLA Ops". The other lines of a device (modules, steps, name scopes) say the same again and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from foretrace.errors import FormatError
from foretrace.ingest import json_document
from foretrace.ingest.formats import Format
from foretrace.ingest.json_document import mapping, objects
from foretrace.ingest.source import Progress, Source
from foretrace.ingest.span_tables import ARGS, DEVICE, HOST, Recorded, frame, nanoseconds, to_trace, whole
from foretrace.trace import Trace

FORMATS = (
    Format(
        "XProf trace (JAX, TensorFlow)",
        "*.trace.json.gz",
        "jax.profiler.trace(FOLDER)",
        "timeline",
        "torch's operators, shapes and memory; which device it was; in files of about a million events XProf keeps no more",
    ),
)
_PROCESS = re.compile(r"/(?P<where>device|host):(?P<kind>\w+)(?::(?P<number>[0-9]{1,6}))?")
_OWN = re.compile(rb'"highres-ticks"|"name"\s*:\s*"/(?:device|host):(?:GPU|TPU|CPU)|"hlo_module"')
_OF_OTHERS = re.compile(rb'"(?:schemaVersion|deviceProperties|call_stack)"')
_STREAM = re.compile(r"Stream #?(?P<number>[0-9]+)", re.IGNORECASE)
_RUNTIME = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*(?:\b|$)")
_DETAIL = re.compile(r"(\w+):\s*([^\s]+)")
_KEPT = ("hlo_op", "hlo_module", "tf_op", "name", "long_name", "step_num", "group_id")


def accepts(head: bytes) -> bool:
    """Whether a file that begins like this is a Chrome trace of XProf."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") and bool(_OWN.search(text)) and not _OF_OTHERS.search(text)


def read(
    source: Source, *, reader: str | None = None, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """The recording as a Trace; `reader` is for formats with several."""
    events = objects(mapping(json_document.load(source, progress)).get("traceEvents"))
    if not events:
        raise FormatError(f"{source.path.name}: no traceEvents in it")
    lanes = _Lanes(events)
    host: list[dict[str, Any]] = []
    device: list[dict[str, Any]] = []
    args: list[dict[str, Any]] = []
    for row, event in enumerate(events):
        start_ns, dur_ns = nanoseconds(event.get("ts")), nanoseconds(event.get("dur", 0))
        if event.get("ph") != "X" or start_ns is None or dur_ns is None:
            continue
        name, about = str(event.get("name")), mapping(event.get("args"))
        span = {
            "name": name, "start_ns": start_ns, "end_ns": start_ns + dur_ns, "row": row,
            "correlation": whole(about.get("correlation_id")),
        }  # fmt: skip
        place = lanes.place(event)
        if place is None:
            continue
        if "device" in place:
            device.append({**span, **place, **_work(name, about)})
        else:
            host.append({**span, **place, "kind": _host_kind(name, about)})
        args += [
            {"row": row, "key": key, "text": str(about[key])[:2000]}
            for key in _KEPT
            if about.get(key) is not None
        ]
    recorded = Recorded(
        source.path, "xprof", frame(host, HOST), frame(device, DEVICE), frame(args, ARGS), lanes.devices(),
        {"compression": source.compression or None},
    )  # fmt: skip
    return to_trace(recorded, pid=pid, file_bytes=source.size)


class _Lanes:
    """Which device and stream, or which thread of the host, each lane of the file is."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.processes: dict[object, re.Match[str] | None] = {}
        self.threads: dict[tuple[object, object], str] = {}
        for event in events:
            if event.get("ph") != "M":
                continue
            name = mapping(event.get("args")).get("name")
            process, thread = _key(event.get("pid")), _key(event.get("tid"))
            if event.get("name") == "process_name" and isinstance(name, str):
                self.processes[process] = _PROCESS.match(name)
            elif event.get("name") == "thread_name" and isinstance(name, str):
                self.threads[process, thread] = name
        self.streamed = {process for (process, _), name in self.threads.items() if _STREAM.match(name)}
        self.numbers: dict[object, int] = {}
        for process, match in self.processes.items():
            if match and match["where"] == "device":
                number = int(match["number"]) if match["number"] else len(self.numbers)
                self.numbers[process] = (
                    number if number not in self.numbers.values() else max(self.numbers.values()) + 1
                )

    def place(self, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """Where an event belongs; null for lines that repeat others."""
        process, thread = _key(event.get("pid")), _key(event.get("tid"))
        name = self.threads.get((process, thread), "")
        if process not in self.numbers:
            return {"thread": whole(thread), "track": name or None}
        stream = _STREAM.match(name)
        wanted = bool(stream) if process in self.streamed else name == "XLA Ops" or not name
        if not wanted:
            return None
        number = whole(stream["number"]) if stream else whole(thread)
        return {"device": self.numbers[process], "stream": number}

    def devices(self) -> list[dict[str, Any]]:
        """The devices; their names are not recorded."""
        return [
            {"id": number, "name": f"{match['kind']} {number} (XProf names none)"}
            for process, number in self.numbers.items()
            if (match := self.processes[process])
        ]


def _key(value: object) -> object:
    """A pid or tid that can be looked up, whatever the file holds."""
    return value if isinstance(value, int | str) else None


def _host_kind(name: str, about: Mapping[str, Any]) -> str:
    if _RUNTIME.match(name) and (about.get("correlation_id") is not None or name.startswith(("cuda", "hip"))):
        return "runtime"
    return "python" if name.startswith("$") else "annotation"


def _work(name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """The kind of device work, and its geometry or size where the details tell them."""
    if "memcpy_details" in about or name.startswith(("Memcpy", "MEMCPY")):
        told = dict(_DETAIL.findall(str(about.get("memcpy_details") or "")))
        return {"kind": "copy", "size_bytes": whole(told.get("size")), "direction": _direction(name)}
    if "memset_details" in about or name.startswith(("Memset", "MEMSET")):
        told = dict(_DETAIL.findall(str(about.get("memset_details") or "")))
        return {"kind": "set", "size_bytes": whole(told.get("size")), "direction": "set"}
    told = dict(_DETAIL.findall(str(about.get("kernel_details") or "")))
    geometry = {
        "kind": "kernel",
        "registers": whole(told.get("regs")),
        "occupancy_pct": _share(told.get("occ_pct")),
    }
    shared = [
        size for key in ("static_shared", "dynamic_shared") if (size := whole(told.get(key))) is not None
    ]
    geometry |= {"shared_bytes": sum(shared) if shared else None}
    for what in ("grid", "block"):
        extents = [whole(each) for each in str(told.get(what) or "").split(",")]
        if len(extents) == 3:
            geometry |= {f"{what}_{axis}": extent for axis, extent in zip("xyz", extents, strict=True)}
    return geometry


def _direction(name: str) -> str | None:
    match = re.search(r"(?P<from>[HDP])(?:2|to)(?P<to>[HDP])", name, re.IGNORECASE)
    return f"{match['from'].upper()}to{match['to'].upper()}" if match else None


def _share(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value <= 100 else None
