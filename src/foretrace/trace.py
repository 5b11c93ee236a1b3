"""The Trace: one recording as tables (see schema.py), each loaded when first asked for."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from foretrace import schema
from foretrace.errors import MissingDataError
from foretrace.kernel_profile import KernelProfile
from foretrace.pandas_frames import to_pandas

Loader = Callable[[str], pl.DataFrame]
_T = TypeVar("_T")
_AT_ONCE = 1 << 18  # rows that are added up together: all at once take as much memory as a column


@dataclass(frozen=True)
class Repair:
    """Something that reading put right or had to leave out."""

    code: str
    says: str
    count: int
    offset: int | None = None  # of the first case, in bytes of the uncompressed text


@dataclass(frozen=True)
class Step:
    """One recorded step, as the host saw it."""

    number: int
    start_ns: int
    end_ns: int
    kind: str | None = None  # of a server's steps: prefill, decode, mixed, ...; null where it is not told


@dataclass
class Trace:
    """A recording: `trace.spans` and the other tables are polars frames; `meta` says where it is from."""

    path: Path
    format: str
    meta: Mapping[str, Any]
    repairs: tuple[Repair, ...]
    _load: Loader = field(repr=False)
    profile: KernelProfile | None = None  # what a profiler of single kernels measured of this program
    _frames: dict[str, pl.DataFrame] = field(default_factory=dict, repr=False)
    _derived: dict[Callable[[Trace], Any], Any] = field(default_factory=dict, repr=False, compare=False)

    def table(self, name: str, *, keep: bool = True) -> pl.DataFrame:
        """One table, whole; kept for whoever asks next, or not, where one asks for much that nobody else needs."""
        if name in self._frames:
            return self._frames[name]
        frame = self._load(name)
        if keep:
            self._frames[name] = frame
        return frame

    @property
    def spans(self) -> pl.DataFrame:
        """Everything that took time, in order of start."""
        return self.table("spans")

    @property
    def tracks(self) -> pl.DataFrame:
        """Threads and streams."""
        return self.table("tracks")

    @property
    def kernels(self) -> pl.DataFrame:
        """Launch geometry of device kernels."""
        return self.table("kernels")

    @property
    def copies(self) -> pl.DataFrame:
        """Copies between memories, and memsets."""
        return self.table("copies")

    @property
    def collectives(self) -> pl.DataFrame:
        """Communication between ranks."""
        return self.table("collectives")

    @property
    def ops(self) -> pl.DataFrame:
        """What operators were called with."""
        return self.table("ops")

    @property
    def python(self) -> pl.DataFrame:
        """Python calls."""
        return self.table("python")

    @property
    def counters(self) -> pl.DataFrame:
        """Values over time."""
        return self.table("counters")

    @property
    def allocations(self) -> pl.DataFrame:
        """Blocks of memory and how long they lived."""
        return self.table("allocations")

    @property
    def stacks(self) -> pl.DataFrame:
        """Python frames, each with its caller."""
        return self.table("stacks")

    @property
    def callers(self) -> pl.DataFrame:
        """The user's lines that called operators and Python functions, where the recorder wrote them down."""
        return self.table("callers")

    @property
    def modules(self) -> pl.DataFrame:
        """The tree of nn.Modules."""
        return self.table("modules")

    @property
    def args(self) -> pl.DataFrame:
        """Arguments of spans that no other table holds."""
        return self.table("args")

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The recorded steps in order, of which no two are at the same time; empty when the program marked none."""
        return tuple(Step(int(n), int(a), int(b), *kind) for n, a, b, *kind in self.meta.get("steps", ()))

    @cached_property
    def device_spans(self) -> pl.DataFrame:
        """Kernels, copies and memsets with a sound duration, with `end_ns`, `device` and `stream`."""
        spans = self.spans.filter(pl.col("kind").is_in(schema.DEVICE_KINDS) & pl.col("dur_ns").is_not_null())
        # Row numbers are ids: gathering is a join, and the quicker one.
        where = self.tracks.select("device", "stream")[spans["track_id"]]
        return spans.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns")).hstack(where)

    @cached_property
    def kernel_spans(self) -> pl.DataFrame:
        """The kernels table with each kernel's name, duration, launch and operator; a duration may be null."""
        spans = self.spans.select("name", "dur_ns", "launch_id", "op_id")
        return spans[self.kernels["span_id"]].hstack(self.kernels)

    @cached_property
    def has_device(self) -> bool:
        """Whether any work of a GPU with a sound duration was recorded."""
        sound = pl.col("kind").is_in(schema.DEVICE_KINDS) & pl.col("dur_ns").is_not_null()
        return any(part.select(sound.any()).item() for part in self.span_parts("kind", "dur_ns"))

    @property
    def duration_ns(self) -> int:
        """From the first start to the last end."""
        end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
        parts = self.span_parts("start_ns", "dur_ns")
        return max((int(part.select(end.max()).item()) for part in parts), default=0)

    def span_parts(self, *columns: str) -> Iterator[pl.DataFrame]:
        """These columns of the spans, a part of the rows at a time: what is worked out of all at once takes as much memory again."""
        spans = self.spans.select(*columns)
        for first in range(0, spans.height, _AT_ONCE):
            yield spans.slice(first, _AT_ONCE)

    def forget_device_spans(self) -> None:
        """Lets go of the device's spans, which are large; whoever asks for them gathers them anew."""
        self.__dict__.pop("device_spans", None)

    def forget(self, kept: Callable[[Trace], Any]) -> None:
        """Lets go of what a function of `once_per_trace` returned."""
        self._derived.pop(getattr(kept, "__wrapped__", kept), None)

    def to_pandas(self, table: str) -> Any:
        """One table as a pandas.DataFrame; needs pandas, and no pyarrow."""
        return to_pandas(self.table(table))

    def require(self, table: str, why: str) -> pl.DataFrame:
        """A table that must not be empty; the error says what to record."""
        frame = self.table(table)
        if frame.is_empty():
            raise MissingDataError(f"{self.path.name}: {why}")
        return frame

    def _repr_html_(self) -> str:
        devices = (
            ", ".join(str(device.get("name") or "unnamed GPU") for device in self.meta.get("devices", ()))
            or "no GPU"
        )
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>{self.table(name).height:,}</td></tr>"
            for name in schema.TABLES
        )
        return (
            f"<b>{html.escape(self.path.name)}</b>: {html.escape(self.format)}, {html.escape(devices)}, "
            f"{len(self.steps)} steps, {self.duration_ns / 1e6:,.1f} ms<table>{rows}</table>"
        )


def once_per_trace(compute: Callable[[Trace], _T]) -> Callable[[Trace], _T]:
    """The function, its result kept with the recording: for what many analyses ask for and nobody changes."""

    @wraps(compute)
    def kept(trace: Trace) -> _T:
        if compute not in trace._derived:
            trace._derived[compute] = compute(trace)
        value: _T = trace._derived[compute]
        return value

    return kept
