"""A Benchmark is the rows of one sweep: each case with its status, its times and all samples."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretrace._version import __version__
from foretrace.errors import FormatError

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
    def from_dict(cls, document: Mapping[str, Any]) -> Benchmark:
        """What `to_dict` gave, or a file holds; raises FormatError where it is something else."""
        if document.get("schema") != SCHEMA:
            raise FormatError(
                f"not a benchmark that this version reads: its schema is {document.get('schema')!r}"
            )
        try:
            return cls(
                kind=document["kind"],
                device=document["device"],
                torch=document["torch"],
                case=tuple(document["case"]),
                rows=tuple(document["rows"]),
                notes=tuple(document.get("notes", ())),
                timing=document.get("timing", {}),
                clock=document.get("clock", {}),
                began=document.get("began"),
                command=document.get("command"),
            )
        except KeyError as error:
            raise FormatError(f"a benchmark without {error}") from error

    def to_json(self) -> str:
        """One JSON document; rows stand on one line each, since samples are many."""
        document = _plain(self.to_dict())
        rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in document.pop("rows"))
        text = json.dumps(document, indent=1, allow_nan=False)
        return f'{text[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'

    def cases(self) -> tuple[tuple[Any, ...], ...]:
        """What each row timed, by the names in `case`."""
        return tuple(tuple(row.get(name) for name in self.case) for row in self.rows)


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
