"""The device work of a Program as a table, with what the recording says of it."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from foretrace.analyze.concepts.device.device_peaks import find_device
from foretrace.hardware import Device
from foretrace.predict.program import Program
from foretrace.trace import Trace


def task_table(trace: Trace, program: Program) -> pl.DataFrame:
    """One row a task, in order: its span's id, name, kind, op_id and launch_id, its place, duration, stream, call and step."""
    owner = program.task_call
    return trace.spans[program.task_span].select(
        "id", "name", "kind", "op_id", "launch_id",
        task=pl.int_range(pl.len(), dtype=pl.Int64),
        dur_ns=pl.Series(program.task_dur_ns),
        stream=pl.Series(program.task_stream),
        call=pl.Series(owner, dtype=pl.Int64),
        step=pl.Series(program.step[owner]),
    )  # fmt: skip


def device_of(trace: Trace) -> Device | None:
    """The first GPU that the recording names whose peaks are known."""
    devices = (find_device(each) for each in trace.meta.get("devices", ()) if isinstance(each, Mapping))
    return next((found for found in devices if found), None)
