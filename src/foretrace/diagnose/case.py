"""The Case: one recording with what rules ask of it, each worked out once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import analyze, hardware
from foretrace.analyze.result import Result
from foretrace.diagnose.finding import Place
from foretrace.errors import MissingDataError
from foretrace.predict.calibrate import Calibration, calibrate
from foretrace.predict.program import Program, build
from foretrace.trace import Trace

# Frames of libraries: the line to change is the user's.
_LIBRARY = re.compile(r"site-packages|dist-packages|/torch/|lib/python|^torch/|<frozen|<string>")


class Case:
    """A trace, its analyses, and its steps ready to be replayed."""

    def __init__(self, trace: Trace, *, step_ns: float | None = None) -> None:
        self.trace = trace
        self.measured_step_ns = step_ns
        self._results: dict[str, Result] = {}

    def result(self, name: str, **options: Any) -> Result:
        """One analysis."""
        key = name + repr(sorted(options.items()))
        if key not in self._results:
            self._results[key] = analyze.run(self.trace, name, **options)
        return self._results[key]

    @cached_property
    def calibration(self) -> Calibration:
        """The recorded steps on an unprofiled host."""
        return calibrate(self.trace, build(self.trace), step_ns=self.measured_step_ns)

    def require_replay(self) -> None:
        """Raises MissingDataError where the recording holds nothing that could be replayed."""
        if not self.trace.has_device:
            raise MissingDataError(
                f"{self.trace.path.name}: no GPU work recorded, so there is nothing to replay"
            )
        if not len(self.calibration.program.task_span):
            raise MissingDataError(
                f"{self.trace.path.name}: no launched GPU work in the recorded steps to replay"
            )

    @property
    def program(self) -> Program:
        """The calibrated program, which changes edit."""
        return self.calibration.program

    @property
    def step_ns(self) -> float:
        """The step time without a profiler, measured or estimated."""
        return self.calibration.step_ns

    @property
    def step_count(self) -> int:
        """How many steps the program holds."""
        return max(len(self.trace.steps), 1)

    @cached_property
    def device(self) -> hardware.Device | None:
        """The GPU that the recording names, with its peaks."""
        for each in self.trace.meta.get("devices", ()):
            found = hardware.match(
                str(each.get("name") or ""),
                memory_bytes=each.get("totalGlobalMem"),
                sm_count=each.get("numSms"),
            )
            if found:
                return found
        return None

    @cached_property
    def task_owner(self) -> NDArray[np.int64]:
        """For each task of the program, the call that started it."""
        return np.repeat(np.arange(len(self.program.kind)), np.diff(self.program.task_from))

    @cached_property
    def tasks(self) -> pl.DataFrame:
        """The program's device work: `task` and its span's name, kind, op, stream and duration."""
        spans = self.trace.spans
        rows = spans[self.program.task_span].select("id", "name", "kind", "op_id", "launch_id")
        return rows.with_columns(
            task=pl.int_range(pl.len(), dtype=pl.Int64),
            dur_ns=pl.Series(self.program.task_dur_ns),
            stream=pl.Series(self.program.task_stream),
            call=pl.Series(self.task_owner),
        )

    def places(self, op_ids: Sequence[int], *, limit: int = 3) -> tuple[Place, ...]:
        """The source lines behind operators, most frequent first; their names where no stack was recorded."""
        if not len(op_ids):
            return ()
        ops = self.trace.ops.filter(pl.col("span_id").is_in(list(op_ids)))
        ops = self._with_forward_stack(ops)
        stacks = self.trace.stacks
        known = ops.drop_nulls("stack_id")
        if known.is_empty() or stacks.is_empty():
            names = self.trace.spans["name"].cast(pl.String).gather(list(op_ids)).value_counts(sort=True)
            return tuple(Place(None, None, name) for name in names["name"].head(limit))
        lines: dict[Place, int] = {}
        for stack, count in known["stack_id"].value_counts(sort=True).iter_rows():
            place = self.user_frame(stack)
            lines[place] = lines.get(place, 0) + count
        return tuple(sorted(lines, key=lambda place: -lines[place])[:limit])

    @cached_property
    def _frames(self) -> list[tuple[int | None, str | None, int | None, str]]:
        return list(self.trace.stacks.select("parent_id", "file", "line", "function").iter_rows())

    def user_frame(self, stack: int) -> Place:
        """The innermost frame of a stack outside libraries, else the innermost with a file."""
        innermost: Place | None = None
        node: int | None = stack
        while node is not None:
            parent, file, line, function = self._frames[node]
            if file is not None:
                innermost = innermost or Place(file, line, function)
                if not _LIBRARY.search(file):
                    return Place(file, line, function)
            node = parent
        return innermost or Place(None, None, "unknown")

    def _with_forward_stack(self, ops: pl.DataFrame) -> pl.DataFrame:
        """Operators with the stack of their forward operator where they have none: autograd's thread runs no Python."""
        forward = self.trace.ops.select(
            pl.col("span_id").alias("forward_id"), pl.col("stack_id").alias("_forward")
        )
        joined = ops.join(forward, on="forward_id", how="left", maintain_order="left")
        return joined.with_columns(stack_id=pl.coalesce("stack_id", "_forward"))
