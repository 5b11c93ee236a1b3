"""A Benchmark is the rows of one sweep: each case with its status, its times and all samples."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from foretrace import own_files
from foretrace._version import __version__
from foretrace.errors import FormatError
from foretrace.own_files import Finite, Integer

SCHEMA = "foretrace.bench/1"
_UNSHOWN = ("samples_ms", "turns_ms", "calls", "stopped", "bwd_avg_ms", "bwd_std_ms", "chance", "effect")
CLOCKS = GPU_CLOCK, CPU_CLOCK = ("The GPU's clock", "The CPU's clock")  # how notes begin that tell of it
OK, OOM, ERROR, TIMEOUT = STATUSES = ("OK", "OOM", "ERROR", "TIMEOUT")


@dataclass(frozen=True)
class Benchmark:
    """What one sweep measured. `case` names the fields of a row that say what was timed; the others say how it went."""

    kind: str
    device: str
    torch: str
    case: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()
    timing: Mapping[str, Any] = field(default_factory=dict)
    clock: Mapping[str, Any] = field(default_factory=dict)
    began: str | None = None  # date and time, UTC; None: an older version wrote it
    command: str | None = None  # None: asked for from Python

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as the JSON has it; see docs/guide/bench.md."""
        return {
            "schema": SCHEMA,
            "foretrace": __version__,
            "kind": self.kind,
            "device": self.device,
            "torch": self.torch,
            "began": self.began,
            "command": self.command,
            "timing": dict(self.timing),
            "clock": dict(self.clock),
            "case": list(self.case),
            "rows": [dict(row) for row in self.rows],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, document: object, where: str = "benchmark") -> Benchmark:
        """What `to_dict` gave, or a file holds; raises FormatError where it is something else."""
        schema = document.get("schema") if isinstance(document, Mapping) else None
        if schema != SCHEMA:
            raise FormatError(f"{where}: not a benchmark that this version reads: its schema is {schema!r}")
        saved = own_files.converted(document, _Saved, where)
        own_files.converted(saved.clock, _Clock, f"{where}: clock")
        if len(set(saved.case)) < len(saved.case):
            raise FormatError(f"{where}: damaged: a name twice - at `$.case`")
        for number, row in enumerate(saved.rows):
            for name, value in row.items():
                if _MEASURE.search(name) and isinstance(value, str | bool):
                    raise FormatError(f"{where}: damaged: Expected a number - at `$.rows[{number}].{name}`")
            if row.get("status") not in STATUSES:
                raise FormatError(
                    f"{where}: damaged: Expected one of {STATUSES} - at `$.rows[{number}].status`"
                )
        fields = {name: getattr(saved, name) for name in _Saved.__struct_fields__ if name != "schema"}
        return cls(**{**fields, "device": saved.device or "", "torch": saved.torch or ""})

    def to_json(self) -> str:
        """One JSON document; rows stand on one line each, since samples are many."""
        document = _plain(self.to_dict())
        rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in document.pop("rows"))
        text = json.dumps(document, indent=1, allow_nan=False)
        return f'{text[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'

    def cases(self) -> tuple[tuple[Any, ...], ...]:
        """What each row timed, by the names in `case`."""
        return tuple(tuple(row.get(name) for name in self.case) for row in self.rows)


Cell = Finite | Integer | bool | str | list[Finite | None] | None
_MEASURE = re.compile(
    r"_(ns|us|ms|bytes|MiB|flops|tflops|pct|count|per_s|GBps|mhz)$|^(tflops|speedup)$"
)  # names of what is a number, if it is there


class _Clock(Struct):
    """What is read of `clock`."""

    by: str | None = None
    slowed_by: list[str] | None = None


class _Saved(Struct, frozen=True):
    """A Benchmark as its file holds it."""

    schema: Literal["foretrace.bench/1"]
    kind: str
    device: str | None
    torch: str | None
    case: tuple[str, ...]
    rows: tuple[dict[str, Cell], ...]
    notes: tuple[str, ...] = ()
    timing: dict[str, Any] = {}
    clock: dict[str, Any] = {}
    began: str | None = None
    command: str | None = None


def read_benchmark(path: Path) -> Benchmark:
    """The benchmark in a file; an error names the file, and the field that is wrong."""
    return Benchmark.from_dict(own_files.parsed(own_files.read_bytes(path), path), str(path))


def short_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns for people: without the samples, how they were taken, and what stands under another name too."""
    names = dict.fromkeys(name for row in rows for name in row)
    twice = ("median_ms",) if {"fwd_ms", "p50_ms"} & set(names) else ()
    return [name for name in names if name not in twice and not name.endswith(_UNSHOWN)]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
