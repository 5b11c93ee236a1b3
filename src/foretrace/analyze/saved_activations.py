"""What each module saves for the backward pass, and what checkpointing the repeated ones would free."""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace.analyze.concepts.memory import saved_for_backward
from foretrace.analyze.concepts.memory.saved_for_backward import Repeated, Saved
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from foretrace.units import format_value


@analysis(
    Subject.MEMORY,
    denominators={
        "saved_pct": "of the bytes live on the device at its peak",
        "freed_pct": "of the bytes live on the device at its peak",
    },
    keep=("module", "saved_bytes", "saved_pct", "at_peak_bytes"),
)
def saved_activations(trace: Trace) -> Result:
    """What each module saves for the backward pass beyond its input and output, and what checkpointing would free.

    From the allocator's events and the calls of modules (profile_memory=True, with_stack=True). A block of memory is saved by
    a module if the module's forward allocates it and it is still there when the module's backward begins. The input is
    allocated before; the output is the next module's input, so checkpointing keeps both.

    Columns:
        saved_bytes: what one call of the module saves, with the modules inside it; of several calls the one that saves most.
        saved_pct: of the bytes live on the device at its peak.
        at_peak_bytes: what of it, over all calls, was live at the peak.
        output_bytes: the block taken to be its output, which is kept.
        calls_count: calls in the recording whose backward was recorded too.

    Values:
        checkpoint: the class of repeated modules whose checkpointing leaves the lowest peak.
        freed_bytes: how much lower the peak would be: the curve is replayed with what they save freed behind their forward
            and allocated again when their backward begins.
        peak_after_bytes: that peak.

    What it cannot tell: which tensor is the output. It is taken to be the largest block that outlives the module among those
    of its last operator that allocates any.
    """
    saved = saved_for_backward.find(trace)
    if not len(saved.calls):
        raise MissingDataError(f"{trace.path.name}: no module whose backward was recorded")
    best = saved_for_backward.best_to_checkpoint(saved)
    table = _table(saved)
    values = _values(saved, best)
    return Result(says=_says(values), table=table, values=values, notes=_notes(best))


def _table(saved: Saved) -> pl.DataFrame:
    memory, calls = saved.memory, saved.calls
    size = calls.saved_bytes(memory)
    there = np.zeros(len(memory.size_bytes), np.int64)
    live = memory.live_at(memory.peak_at_ns)
    there[live] = memory.size_bytes[live]
    at_peak = calls.saved.sums(there)
    rows = []
    for module in dict.fromkeys(calls.module.tolist()):
        mine = np.flatnonzero(calls.module == module)
        most = mine[int(np.argmax(size[mine]))]
        output = None if calls.output[most] == NOBODY else int(memory.size_bytes[calls.output[most]])
        kept, share = int(size[most]), 100 * int(size[most]) / max(memory.peak_bytes, 1)
        rows.append((saved.paths[module], kept, share, int(at_peak[mine].sum()), output, len(mine)))
    schema = {
        "module": pl.String, "saved_bytes": pl.Int64, "saved_pct": pl.Float64, "at_peak_bytes": pl.Int64,
        "output_bytes": pl.Int64, "calls_count": pl.Int64,
    }  # fmt: skip
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return table.sort("saved_bytes", "module", descending=(True, False), maintain_order=True)


def _values(saved: Saved, best: Repeated | None) -> dict[str, Value]:
    memory = saved.memory
    after = memory.peak_bytes if best is None else memory.peak_with([best.checkpointed(memory)])
    freed = memory.peak_bytes - after
    return {
        "device_name": memory.curve.device,
        "peak_bytes": memory.peak_bytes,
        "checkpoint": None if best is None else best.name,
        "modules_count": None if best is None else len(best.modules),
        "freed_bytes": freed,
        "freed_pct": 100 * freed / max(memory.peak_bytes, 1),
        "peak_after_bytes": after,
    }


def _says(values: dict[str, Value]) -> str:
    peak = format_value("_bytes", values["peak_bytes"])
    if values["checkpoint"] is None:
        return f"{values['device_name']} peaked at {peak}; checkpointing no repeated module would lower that"
    after, freed = (format_value("_bytes", values[name]) for name in ("peak_after_bytes", "freed_bytes"))
    return (
        f"{values['device_name']} peaked at {peak}; with the {values['modules_count']} {values['checkpoint']} modules "
        f"checkpointed it would peak at {after}: {freed} less"
    )


def _notes(best: Repeated | None) -> tuple[str, ...]:
    return () if best is None else ("a module's row includes what the modules inside it save",)
