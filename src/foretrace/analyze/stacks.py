"""Stacks: host and GPU time by source line, and as weighted stacks for flame graphs."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from foretrace.analyze.concepts.names.line_text import line_text
from foretrace.analyze.concepts.trees import attribution, stack_tree
from foretrace.analyze.concepts.trees.attribution import Attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.analyze.concepts.trees.stack_tree import StackTree
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.trace import Trace
from foretrace.units import format_value

Metric = Literal["host", "device"]

# Frames of torch, the standard library and the interpreter; their time counts for their caller.
_LIBRARY = (
    r"^<|(?:^|/)torch/|/lib/python[0-9.]+/[^/]+\.py$|^(?:threading|contextlib|functools|multiprocessing|concurrent|"
    r"asyncio|runpy|queue|selectors|importlib|copy|typing|inspect|abc|enum|collections|weakref)(?:/|\.py$)"
)
_NO_FRAME = "(no source line)"


@analysis(
    Subject.CODE,
    denominators={
        "host_self_pct": "of the time of all recorded frames, on all threads",
        "device_self_pct": "of the summed duration of all GPU work launched in the recording",
        "device_total_pct": "of the summed duration of all GPU work launched in the recording",
    },
)
def stacks(trace: Trace, *, frames: Literal["user", "all"] = "user") -> Result:
    """Source lines by the GPU and host time spent in them, self and total.

    A row is a function: its file and its first line, as the profiler records it (torch before 2.0: the line that ran).
    The line is empty for a function that already ran when recording began, whose first line is not recorded.
    With frames="user", time in built-in functions, torch and the standard library counts as self time of the user
    function that called them; frames="all" gives each frame its own row.

    Columns:
        host_self_ns: time in the function, excluding functions it calls, plus the backward operators of the operators
            it ran (matched by autograd's sequence number). Includes waiting.
        host_total_ns: including everything it calls; for a recursive function, of the outermost call.
        device_self_ns: summed duration of the kernels, copies and memsets launched while this was the innermost frame,
            or by the backward of operators it ran.
        device_total_ns: including everything it calls.
        device_backward_ns: the backward part of device_total_ns.
        host_self_pct: of the time of all recorded frames, on all threads.
        device_self_pct, device_total_pct: of all GPU work launched in the recording.

    The self shares sum to 100 %. The last row holds what has no frame: backward work without a known forward, and
    threads without Python. GPU work queued before the recording is excluded. Python code run by the backward pass
    itself (a compiled or custom function's) keeps its own lines.

    What it cannot tell: which line inside a function, and anything inside a compiled region. Where only operators have
    stacks (torch before 2.0), host time covers operators only.
    """
    tree = stack_tree.find(trace)
    given = attribution.attribute(trace, tree.carried)
    kept = _kept(tree.frames) if frames == "user" else np.ones(len(tree.parent), bool)
    fold = np.append(attribution.nearest(tree.parent, kept), NOBODY)
    work = attribution.device_owners(trace, given)
    owner = fold[work["owner"].fill_null(NOBODY).to_numpy()]
    table = _table(trace, tree, fold[given.owner], given, owner, work, kept)
    values: dict[str, Value] = {
        "host_ns": int(table["host_self_ns"].sum()),
        "device_ns": int(table["device_self_ns"].sum()) if trace.has_device else None,
        "functions_count": table.height - int((table["function"] == _NO_FRAME).sum()),
        "unattributed_device_ns": int(work["dur_ns"].to_numpy()[owner == NOBODY].sum()) if trace.has_device else None,
    }  # fmt: skip
    return Result(says=_says(table, values), table=table, values=values, notes=_notes(trace))


def weighted(trace: Trace, tree: StackTree, metric: Metric) -> pl.DataFrame:
    """Distinct stacks with their own time: `stack` (null where none), `backward`, `leaf` (a kernel) and `self_ns`."""
    given = attribution.attribute(trace, tree.carried)
    if metric == "device":
        rows = attribution.device_owners(trace, given).select(
            pl.col("owner").alias("stack"), "backward", pl.col("name").alias("leaf"), pl.col("dur_ns").alias("self_ns")
        )  # fmt: skip
    else:
        rows = pl.DataFrame(
            {
                "stack": given.owner[given.carriers],
                "backward": given.backward[given.carriers],
                "leaf": pl.Series([None], dtype=pl.String).new_from_index(0, len(given.carriers)),
                "self_ns": given.self_ns,
            }
        )
    summed = rows.group_by("stack", "backward", "leaf", maintain_order=True).agg(pl.col("self_ns").sum())
    return summed.filter(pl.col("self_ns") > 0).with_columns(pl.col("leaf").cast(pl.String))


def _kept(frames: pl.DataFrame) -> Array:
    """For each stack, whether its innermost frame is the user's."""
    file = pl.col("file")
    return frames.select((file.is_not_null() & ~file.str.contains(_LIBRARY)).fill_null(value=False)).to_series().to_numpy()  # fmt: skip


def _table(
    trace: Trace,
    tree: StackTree,
    owner_of_span: Array,
    given: Attribution,
    owner_of_work: Array,
    work: pl.DataFrame,
    kept: Array,
) -> pl.DataFrame:
    """One row per function with any time, the most GPU or host time first; what has no frame last."""
    parent, keys = tree.parent, tree.frames
    count = len(parent)
    dur = work["dur_ns"].to_numpy()
    backward = work["backward"].to_numpy()
    own = {
        "host": attribution.sums(owner_of_span[given.carriers], given.self_ns, count),
        "device": attribution.sums(owner_of_work, dur, count),
        "device_backward": attribution.sums(owner_of_work[backward], dur[backward], count),
    }
    code = keys.select(pl.struct(pl.all()).rank("dense") - 1).to_series().cast(pl.Int64).to_numpy()
    outermost = ~_recursive(parent, code)
    size = int(code.max(initial=-1)) + 1
    columns: dict[str, Array] = {}
    for name, amount in own.items():
        total = attribution.with_descendants(parent, amount)
        columns[f"{name}_self_ns"] = attribution.sums(code, amount, size)
        columns[f"{name}_total_ns"] = attribution.sums(code[outermost], total[outermost], size)
    first = np.zeros(size, np.int64)
    first[code[::-1]] = np.arange(count)[::-1]
    table = keys[first].with_columns(calls_count=_calls(tree, code, size), **columns)
    table = table.filter(pl.Series(kept[first], dtype=pl.Boolean))
    rest = {
        "host_self_ns": int(given.self_ns[owner_of_span[given.carriers] == NOBODY].sum()),
        "device_self_ns": int(dur[owner_of_work == NOBODY].sum()),
    }
    return _finished(table, rest, has_device=trace.has_device)


def _recursive(parent: Array, code: Array) -> Array:
    """For each stack, whether its innermost function is also one of its callers."""
    recursive = np.zeros(len(parent), bool)
    rows = np.flatnonzero(parent != NOBODY)
    above = parent[rows]
    while len(rows):
        recursive[rows] |= code[above] == code[rows]
        above = parent[above]
        inside = above != NOBODY
        rows, above = rows[inside], above[inside]
    return recursive


def _calls(tree: StackTree, code: Array, size: int) -> pl.Series:
    """Python calls per function; null where calls were not recorded."""
    if tree.calls is None:
        return pl.Series([None] * size, dtype=pl.Int64)
    return pl.Series(attribution.sums(code, tree.calls, size)).cast(pl.Int64)


def _finished(table: pl.DataFrame, rest: dict[str, int], *, has_device: bool) -> pl.DataFrame:
    """The table with shares, in order, ending with what has no frame."""
    by = ("device_self_ns", "host_self_ns") if has_device else ("host_self_ns", "host_total_ns")
    table = table.filter((pl.col("host_self_ns") > 0) | (pl.col("device_self_ns") > 0) | (pl.col("device_total_ns") > 0))  # fmt: skip
    table = table.sort(*by, "function", descending=(True, True, False), nulls_last=True, maintain_order=True)
    if any(rest.values()):
        row = {"function": _NO_FRAME, **rest, "host_total_ns": rest["host_self_ns"], "device_total_ns": rest["device_self_ns"]}  # fmt: skip
        table = pl.concat((table, pl.DataFrame([row])), how="diagonal_relaxed")
    host, device = int(table["host_self_ns"].sum()), int(table["device_self_ns"].sum())
    backward = pl.col("device_backward_total_ns").alias("device_backward_ns")
    table = table.select(
        "function", "file", "line", "calls_count",
        "device_self_ns", _share("device_self_ns", device), "device_total_ns", _share("device_total_ns", device),
        backward, "host_self_ns", _share("host_self_ns", host), "host_total_ns",
    )  # fmt: skip
    if has_device:
        return table
    unknown = [name for name in table.columns if name.startswith("device_") and name.endswith("_ns")]
    return table.with_columns(pl.lit(None, pl.Int64).alias(name) for name in unknown)


def _share(column: str, total: int) -> pl.Expr:
    name = column.replace("_ns", "_pct")
    return (100 * pl.col(column) / total if total else pl.lit(None, pl.Float64)).alias(name)


def _says(table: pl.DataFrame, values: dict[str, Value]) -> str:
    on, by = ("device", "device_self_ns") if values["device_ns"] else ("host", "host_self_ns")
    named = table.filter(pl.col("function") != _NO_FRAME)
    if named.is_empty() or not named[by][0]:
        return f"no {on} time is attributed to a source line"
    top = named.row(0, named=True)
    lines = None if top["line"] is None else (top["line"], None)
    where = line_text(top["file"], top["function"], lines=lines)
    share = top[by.replace("_ns", "_pct")]
    return f"{where} has the largest self time: {format_value('_ns', top[by])} of {on} time, {share:.1f} %"


def _notes(trace: Trace) -> tuple[str, ...]:
    notes = []
    if trace.python.is_empty():
        notes.append(
            "Python calls were not recorded: host time covers operators only, not the Python between them"
        )
    return (*notes, *attribution.limits(trace, "source lines"))
