"""The device work of a Program as a table, with what the recording says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from foretrace.analyze.concepts.device.device_peaks import find_device, profiled_bandwidth
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
    """The first GPU that the recording names whose peaks are known; its bandwidth as Nsight Compute measured it, where it did."""
    devices = (find_device(each) for each in trace.meta.get("devices", ()) if isinstance(each, Mapping))
    found = next((found for found in devices if found), None)
    measured = profiled_bandwidth(trace)
    if found is None or measured is None:
        return found
    sources = {**found.sources, "memory_bandwidth_bytes": "Nsight Compute: bytes a cycle x memory clock"}
    return replace(found, memory_bandwidth_bytes=measured, sources=sources)
