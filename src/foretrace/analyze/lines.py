"""Lines: the time of a whole program by source line, function and phase, as the line sampler of a Run saw it."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import Literal

import polars as pl

from foretrace.analyze.concepts.lines import owned_time, phases
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError
from foretrace.ingest.line_samples import lines_of
from foretrace.line_samples import LineSamples
from foretrace.trace import Trace
from foretrace.units import counted, format_value

By = Literal["line", "statement", "function", "phase"]

LEAST_TICKS = 50  # fewer name no line
NO_USER_FRAME = "(no user frame)"
_KEYS: dict[By, tuple[str, ...]] = {
    "line": ("file", "line", "function"),
    "statement": ("file", "line", "column", "function"),
    "function": ("file", "function"),
    "phase": ("phase",),
}
_WORDS = {owned_time.PYTHON: "Python", owned_time.OPERATOR: "operators", owned_time.WAIT: "waiting"}
_KINDS = {"python_pct": owned_time.PYTHON, "operator_pct": owned_time.OPERATOR, "wait_pct": owned_time.WAIT}


@analysis(
    Subject.CODE,
    denominators={
        "share_pct": "of the sampled time, which `part` chooses",
        "error_pct": "of the sampled time: one standard error of share_pct",
        "python_pct": "of the sampled time: the part of share_pct in which the thread holds the interpreter's lock",
        "operator_pct": "of the sampled time: the part of share_pct in which it computes without that lock",
        "wait_pct": "of the sampled time: the part of share_pct in which it waits",
        "no_user_frame_pct": "of the sampled time",
        "recording_pct": "of the whole program's time: Foretrace itself, and steps under a profiler",
        "sampler_cost_pct": "of the whole program's time: processor time of the sampler",
    },
    keep=("file", "line", "share_pct", "function", "error_pct"),
)
def lines(
    trace: Trace,
    *,
    by: By = "line",
    part: Literal["steps", "program"] = "steps",
    processes: owned_time.Processes = "program",
) -> Result:
    """Time of the whole program by source line, function or phase, from samples without a profiler.

    Needs a Run of `foretrace run` on Linux, whose sampler looked at the stacks of all Python threads up to 100 times a second,
    from the program's start to its end. A line is the user's innermost: what it calls in libraries counts for it. The user's
    files are those outside of Python, of installed packages and of Foretrace. Shares sum to 100 %; what has no user's line on
    its stack is the row "(no user frame)".

    A moment counts for the thread that takes the steps, or, where that waits while other threads work, for these in equal
    parts. What passed under a profiler, or in Foretrace, is left out: it is not the program's own time.

    part: "steps" counts from the first to the last boundary of a step, with loading, logging and saving in between; "program"
        the whole program. Where no step was seen, it is the whole program.
    by: "statement" tells expressions in one line apart, by the column where they begin; "phase" has no lines.
    processes: "workers" counts the processes that the program forked or started, such as those of a DataLoader.

    Columns:
        time_ns: sampled time.
        share_pct, error_pct: its share, and one standard error of that.
        python_pct, operator_pct, wait_pct: what the thread did: Python code, work without the interpreter's lock, waiting.

    What it cannot tell: which line of a library, or of a kernel. With fewer than 50 ticks it names functions, no lines. Backward
    work counts for the line that calls backward().
    """
    samples = lines_of(trace)
    owned = owned_time.owned(samples, processes)
    in_steps = part == "steps" and samples.first_ns is not None
    own = _within_steps(samples, owned) if in_steps else owned
    own = own.filter(pl.col("phase") != phases.RECORDING)
    ticks = own["t_ns"].n_unique()
    if not ticks:
        missing = (
            "no other process was sampled" if processes == "workers" else "no tick of the sampler lies there"
        )
        advice = "let the program run longer, or choose --part program"
        raise MissingDataError(f"{trace.path.name}: {missing}; {advice}")
    given: By = "function" if ticks < LEAST_TICKS and by in ("line", "statement") else by
    table = _table(samples, own, given)
    whole = (
        "the workers' time" if processes == "workers" else "step time" if in_steps else "the program's time"
    )
    return Result(
        says=_says(table, given, whole),
        table=table,
        values=_values(samples, owned, own),
        notes=_notes(samples, given != by, ticks, part == "steps" and not in_steps),
    )


def _within_steps(samples: LineSamples, owned: pl.DataFrame) -> pl.DataFrame:
    """From the first boundary to the last, if the program's end was seen."""
    within = owned.filter(pl.col("t_ns") > samples.first_ns)
    return within.filter(pl.col("t_ns") <= samples.last_ns) if samples.last_ns is not None else within


def _values(samples: LineSamples, owned: pl.DataFrame, own: pl.DataFrame) -> dict[str, Value]:
    sampled = samples.processes.filter(pl.col("process").is_in(own["process"].unique().implode()))
    no_user = own.filter(pl.col("user_id").is_null())
    recording = owned.filter(pl.col("phase") == phases.RECORDING)
    wall = sampled["ended_ns"] - sampled["began_ns"]
    return {
        "ticks_count": own["t_ns"].n_unique(),
        "time_ns": round(_sum(own["time_ns"])),
        "no_user_frame_pct": 100 * _sum(no_user["time_ns"]) / _sum(own["time_ns"]),
        "recording_pct": 100 * _sum(recording["time_ns"]) / _sum(owned["time_ns"]),
        "torn_count": int(sampled["torn_count"].sum()),
        "sampler_cost_pct": 100 * _sum(sampled["cost_ns"]) / _sum(wall) if _sum(wall) else None,
    }


def _sum(column: pl.Series) -> float:
    return float(column.sum())


def _table(samples: LineSamples, own: pl.DataFrame, by: By) -> pl.DataFrame:
    """One row for each line, function or phase, the most time first; what has no user's frame last."""
    places = samples.places.select(pl.col("id").alias("user_id"), "file", "function", "line", "column")
    named = own.join(places, on="user_id", how="left").with_columns(
        function=pl.when(pl.col("user_id").is_null())
        .then(pl.lit(NO_USER_FRAME))
        .otherwise(pl.col("function"))
    )
    total = pl.col("time_ns").sum()
    whole = float(named["time_ns"].sum())
    effective = whole**2 / float(
        (named["time_ns"] ** 2).sum()
    )  # ticks of different lengths tell as much as so many alike
    share = pl.col("time_ns") / whole
    return (
        named.group_by(*_KEYS[by])
        .agg(total, *(_total_of(kind).alias(name) for name, kind in _KINDS.items()))
        .with_columns(
            share_pct=100 * share,
            error_pct=100 * (share * (1 - share) / effective).clip(0).sqrt(),
            **{name: 100 * pl.col(name) / whole for name in _KINDS},
        )
        .with_columns(pl.col("time_ns").round().cast(pl.Int64))
        .sort(
            *([pl.col("function") == NO_USER_FRAME] if by != "phase" else []),
            pl.col("time_ns"),
            *_KEYS[by],
            descending=[*([False] if by != "phase" else []), True, *(False for _ in _KEYS[by])],
        )
        .select(*_KEYS[by], "time_ns", "share_pct", "error_pct", *_KINDS)
    )


def _total_of(kind: str) -> pl.Expr:
    return pl.col("time_ns").filter(pl.col("kind") == kind).sum()


def _says(table: pl.DataFrame, by: By, of: str) -> str:
    row = table.row(0, named=True)
    share = f"{row['share_pct']:.0f} ± {max(1, math.ceil(row['error_pct'])):.0f} % of {of}"
    if by == "phase":
        return f"{row['phase']} takes {share}"
    if row["file"] is None:
        return f"no user's line is on the stack for {share}"
    kinds = {kind: row[name] for name, kind in _KINDS.items()}
    most = max(kinds, key=lambda kind: kinds[kind])
    place = (
        f"{PurePath(row['file']).name}:{row['line']} in {row['function']}"
        if by != "function"
        else f"{row['function']} in {PurePath(row['file']).name}"
    )
    return f"{place} takes {share}, most of it {_WORDS[most]}"


def _notes(samples: LineSamples, few: bool, ticks: int, no_steps: bool) -> tuple[str, ...]:
    notes = list(samples.notes)
    if few:
        notes.append(f"{counted(ticks, 'tick')}: too few to name lines, so these are functions")
    if no_steps:
        notes.append("no step was seen: shares are of the whole program")
    torn = int(samples.processes["torn_count"].sum())
    if torn > 0.01 * max(samples.samples.height, 1):
        lost = format_value("_pct", 100 * torn / (torn + samples.samples.height))
        notes.append(
            f"{counted(torn, 'stack')} changed while they were read ({lost} of all): they are in no row"
        )
    return tuple(notes)
