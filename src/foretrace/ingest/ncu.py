"""Nsight Compute's CSV: `ncu --csv --page raw` (one row a launch) and `--page details` (one row a metric or rule result).

What a program prints, and ncu's ==PROF== lines, may stand between the rows. A report (.ncu-rep) is read through the tool or
package that is installed (ncu_report_file.py). Launches have durations and no times: the Trace has a profile and no spans.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from foretrace import schema
from foretrace.errors import FormatError, InputError
from foretrace.ingest import ncu_metrics, ncu_report_file
from foretrace.ingest.formats import Format
from foretrace.ingest.ncu_units import factor, number
from foretrace.ingest.source import Progress, Source
from foretrace.kernel_profile import LAUNCHES, RULES, STALLS, KernelProfile, frame, together
from foretrace.trace import Repair, Trace
from foretrace.units import visible

FORMAT = "ncu"
FORMATS = (
    Format(
        "Nsight Compute CSV",
        "*.csv, .gz",
        "ncu --csv --page raw --print-units base, or --page details",
        "kernels",
        "when anything ran: record a timeline as well, and give both (--ncu FILE, or one folder)",
    ),
    Format(
        "Nsight Compute report",
        "*.ncu-rep",
        "ncu --export FILE",
        "kernels",
        "the same; it is read through an installed ncu or ncu-report",
    ),
)
REPAIRS = {
    "other-lines": "lines that are no rows of ncu were left out",
    "short-rows": "rows that break off were left out",
    "no-units": "the units are missing; values were read as ncu's base units",
    "broken-stream": "the compressed stream is broken, or the connection broke off; everything before was read",
}
_HEADER = re.compile(r'"?ID"?\s*,\s*"?Process ID"?\s*,\s*"?Process Name"?\s*,')
_ROW = re.compile(r'"?[0-9]{1,9}"?\s*,')
_SIZES = re.compile(r"\(?\s*(\d{1,10})\s*[,x]\s*(\d{1,10})\s*[,x]\s*(\d{1,10})\s*\)?")
_NAME, _SECTION, _RULE = "Kernel Name", "Section Name", "Rule Name"
_LARGEST_BYTES = 1 << 30
_LONGEST_ROW_LINES = 40  # a rule's text may break its line
_BASE_TIME_S = 1e-9  # ncu's base unit of time is the nanosecond
_LEAST_CLOCK_HZ = 1e6  # a clock below is in cycles a nanosecond, as old versions print it


def accepts(head: bytes) -> bool:
    """Whether a file that begins like this may be ncu's."""
    return ncu_report_file.is_report(head) or bool(_HEADER.search(head.decode("utf-8", "replace")))


def read(
    source: Source, *, reader: str | None = None, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """The launches as a Trace with a profile and without spans; of one process, where `pid` names it."""
    del reader
    if ncu_report_file.is_report(source.head):
        pages = [_Page(text) for text in ncu_report_file.pages(source.path)]
    else:
        pages = [_Page(_text(source, progress))]
    counts = Counter[str]()
    for page in pages:
        counts.update(page.repairs)
    if source.broken:
        counts["broken-stream"] = 1
    repairs = tuple(Repair(code, REPAIRS[code], count) for code, count in counts.items())
    chosen = [[each for each in page.launches if pid in (None, str(each.process))] for page in pages]
    if not any(chosen):
        raise FormatError(f"{source.path}: Nsight Compute's CSV without a launch in it{_why(pages, pid)}")
    profile = together([profile_of(source.path, launches, repairs) for launches in chosen if launches])
    return as_trace(source.path, profile, repairs)


def as_trace(path: Path, profile: KernelProfile, repairs: tuple[Repair, ...] = ()) -> Trace:
    """A Trace that holds a profile and nothing else."""
    names = profile.launches["device_name"].drop_nulls().unique(maintain_order=True)
    meta = {"devices": [{"id": number, "name": name} for number, name in enumerate(names)], "steps": []}
    return Trace(path, FORMAT, meta, repairs, _empty, profile=profile)


def _empty(table: str) -> pl.DataFrame:
    return pl.DataFrame(schema=schema.polars_schema(table))


def _why(pages: Sequence[_Page], pid: str | None) -> str:
    processes = sorted({str(each.process) for page in pages for each in page.launches})
    return f" of process {visible(pid)}; there are {', '.join(processes[:10])}" if pid and processes else ""


def _text(source: Source, progress: Progress | None) -> str:
    pieces, size = [], 0
    for piece in source.chunks(progress):
        size += len(piece)
        if size > _LARGEST_BYTES:
            raise InputError(
                f"{source.path}: more than 1 GiB of CSV; print fewer launches, or the raw page alone"
            )
        pieces.append(piece)
    return b"".join(pieces).decode("utf-8-sig", "replace")


@dataclass
class Launch:
    """One launch as it is being read: what tells it apart, its metrics in base units, and the rules about it."""

    launch: int
    process: int | None
    kernel: str
    device: int | None
    grid: tuple[int | None, ...]
    block: tuple[int | None, ...]
    device_name: str | None = None
    values: dict[str, float] = field(default_factory=dict)
    rules: list[dict[str, object]] = field(default_factory=list)


def profile_of(path: Path, launches: Sequence[Launch], repairs: Sequence[Repair] = ()) -> KernelProfile:
    """The tables of these launches."""
    rows, rules, stalls = [], [], []
    for row_id, each in enumerate(launches):
        sizes = {f"grid_{axis}": size for axis, size in zip("xyz", each.grid, strict=True)}
        sizes |= {f"block_{axis}": size for axis, size in zip("xyz", each.block, strict=True)}
        facts = {"launch": each.launch, "process": each.process, "kernel": each.kernel, "device": each.device}
        facts |= {"id": row_id, "device_name": each.device_name}
        rows.append({**facts, **sizes, **ncu_metrics.columns(each.values)})
        rules += [{"id": row_id, **rule} for rule in each.rules]
        waited = ncu_metrics.stalls(each.values)
        stalls += [{"id": row_id, "reason": reason, "cycles": cycles} for reason, cycles in waited.items()]
    notes = tuple(f"{repair.says} ({repair.count:,})" for repair in repairs)
    return KernelProfile((path,), frame(LAUNCHES, rows), frame(RULES, rules), frame(STALLS, stalls), notes)


class _Page:
    """One page of CSV as launches; a header in the middle begins anew, as where several processes print."""

    def __init__(self, text: str) -> None:
        self.repairs = Counter[str]()
        self._known: dict[tuple[object, ...], Launch] = {}
        self._columns: dict[str, int] = {}
        self._metrics: list[tuple[int, str]] = []
        self._units: list[str] | None = None
        self._number = 0  # of the header: launches are told apart by it too
        for fields in self._rows(text):
            self._take(fields)
        self.launches = list(self._known.values())

    def _rows(self, text: str) -> Iterator[list[str]]:
        """The header and all rows behind it; a row whose quotes are open goes on in the next line."""
        lines = text.splitlines()
        begun, number = False, 0
        while number < len(lines):
            line = lines[number]
            number += 1
            if _HEADER.match(line.lstrip("\ufeff \t")):
                begun = True
            elif not begun or not (
                _ROW.match(line) or (self._units is None and line.startswith(('"",', ",")))
            ):
                self._count("other-lines", bool(line.strip()) and begun)
                continue
            joined = 1
            while line.count('"') % 2 and number < len(lines) and joined < _LONGEST_ROW_LINES:
                if _ROW.match(lines[number]) or lines[number].startswith("=="):
                    break
                line += f" {lines[number]}"
                number, joined = number + 1, joined + 1
            try:
                yield next(csv.reader([line], skipinitialspace=True))
            except (csv.Error, StopIteration):
                self._count("short-rows")

    def _count(self, code: str, happened: bool = True) -> None:
        if happened:
            self.repairs[code] += 1

    def _take(self, fields: list[str]) -> None:
        if fields[:1] == ["ID"]:
            self._columns = {name: place for place, name in enumerate(fields)}
            self._metrics = [
                (place, name) for name, place in self._columns.items() if ncu_metrics.wanted(name)
            ]
            self._units, self._number = None, self._number + 1
            return
        if not fields[0]:
            self._units = fields
            return
        if _NAME not in self._columns or len(fields) <= self._columns[_NAME] or number(fields[0]) is None:
            self._count("short-rows")
            return
        launch = self._launch(fields)
        if _SECTION in self._columns:
            self._detail(launch, fields)
        else:
            self._raw(launch, fields)

    def _field(self, fields: list[str], name: str) -> str:
        place = self._columns.get(name)
        return fields[place].strip() if place is not None and place < len(fields) else ""

    def _launch(self, fields: list[str]) -> Launch:
        texts = tuple(
            self._field(fields, name)
            for name in ("ID", "Process ID", _NAME, "Device", "Grid Size", "Block Size")
        )
        key = (self._number, *texts)
        if key not in self._known:
            grid, block = (_sizes(text) for text in texts[4:])
            process, device = (_whole(text) for text in (texts[1], texts[3]))
            self._known[key] = Launch(_whole(texts[0]) or 0, process, texts[2], device, grid, block)
        return self._known[key]

    def _raw(self, launch: Launch, fields: list[str]) -> None:
        self._count("no-units", self._units is None and not self.repairs["no-units"])
        for place, name in self._metrics:
            if place >= len(fields) or not fields[place]:
                continue
            if name == "device__attribute_display_name":
                launch.device_name = fields[place]
                continue
            unit = None if self._units is None else self._units[place] if place < len(self._units) else ""
            self._set(launch, name, fields[place], unit)

    def _detail(self, launch: Launch, fields: list[str]) -> None:
        section = self._field(fields, _SECTION)
        if rule := self._field(fields, _RULE):
            told = {"section": section, "rule": rule, "kind": self._field(fields, "Rule Type") or None}
            says = " ".join(self._field(fields, "Rule Description").split())
            kind = self._field(fields, "Estimated Speedup Type") or None
            gain = number(self._field(fields, "Estimated Speedup"))
            launch.rules.append({**told, "says": says, "speedup_type": kind, "speedup_pct": gain})
            return
        metric = ncu_metrics.metric_of(section, self._field(fields, "Metric Name"))
        if metric is None:
            return
        unit = self._field(fields, "Metric Unit") if "Metric Unit" in self._columns else None
        self._count("no-units", unit is None and not self.repairs["no-units"])
        self._set(launch, metric, self._field(fields, "Metric Value"), unit)

    def _set(self, launch: Launch, metric: str, text: str, unit: str | None) -> None:
        value = number(text)
        if value is None:
            return
        launch.values[metric] = value * (factor(unit) if unit else _base_factor(metric, value, unit))


def _base_factor(metric: str, value: float, unit: str | None) -> float:
    """Of a value without a unit: base units are bytes and nanoseconds; of an empty unit, one."""
    if unit is not None:
        return 1.0
    if metric == "gpu__time_duration.sum":
        return _BASE_TIME_S
    if metric.endswith("cycles_elapsed.avg.per_second") and value < _LEAST_CLOCK_HZ:
        return 1 / _BASE_TIME_S
    return 1.0


def _whole(text: str) -> int | None:
    value = number(text)
    return int(value) if value is not None and abs(value) < 1 << 53 else None


def _sizes(text: str) -> tuple[int | None, ...]:
    """(32, 4, 1) as three numbers; a single number is the whole size."""
    if found := _SIZES.fullmatch(text.strip()):
        return tuple(int(size) for size in found.groups())
    return (None, None, None)
