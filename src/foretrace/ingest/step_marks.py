"""Step marks: which ranges of a recording are its steps, and which step each span therefore belongs to.

In this order: the ranges that the user names (`--step`), torch's ProfilerStep#, and where `step()` was not called what the
program marks by itself: optimizer steps, an inference server's ranges, batches of a DataLoader, ranges that the name tells
to be steps. `trace.meta["step_marks"]` says which were taken, and the trust report repeats it. A mark inside another of the
same kind counts once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import polars as pl

from foretrace.errors import MissingDataError, UsageError
from foretrace.ingest.column_files import blocks, series
from foretrace.ingest.columns import NULL_I32, Array
from foretrace.ingest.server_marks import ANYBODYS_MARK, SERVER_MARKS, kind_of
from foretrace.sourced import JUDGEMENT, Count, Share
from foretrace.trace import Step, Trace
from foretrace.units import visible

# Two marks that lie on one another this much are one step: clocks in whole microseconds let neighbours overlap a little.
LEAST_OVERLAP = Share(0.5, "the shorter of two marks", JUDGEMENT)
# Ranges with less of the work inside are a part of what the program does, not its steps.
LEAST_WORK = Share(0.5, "launches, or without a GPU of operators", JUDGEMENT)
LEAST_RANGES = Count(3, "ranges of one name that are taken to be steps", JUDGEMENT)
LEAST_PERIODS = Count(2, "optimizer steps or batches that are taken to be steps", JUDGEMENT)
# Optimizers that take turns with so little between them end one step together.
FEW_OPERATORS = Share(0.1, "the operators that lie between most optimizer steps", JUDGEMENT)
_MOST_GAPS = 0.9  # the quantile that "most" means
_SHOWN = 5  # names in a message

_DEVICE = ("kernel", "copy", "set", "sync")
_OPTIMIZER = r"^Optimizer\.step#"
_LOADER = r"^enumerate\((?:DataLoader|DataPipe)\)#"
_OF_LIBRARIES = re.compile(
    r"ProfilerStep#|Optimizer\.|enumerate\(|(?:nccl|rccl|gloo|mpi|ucc|xccl):|Distributed|Fully|FSDP|Torch-|"
    r"TorchDynamo|Inductor|(?:## )?Call CompiledFxGraph|CompiledFunction|autograd::|aten::|cuda|c10d::|triton"
)
_STEP_WORD = re.compile(
    r"(?:^|[^a-z])(?:step|iter|iteration|batch|train|training|inference|infer|generate|generation|predict|request|forward)"
    r"(?:[^a-z]|$)"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NUMBER = re.compile(r"[0-9]+")
_MOST_DIGITS = 10  # a step's number has 32 bits


@dataclass(frozen=True)
class Marks:
    """The steps that were found: by what, under which name, and how many marks inside others were left out."""

    source: str  # profiler, chosen, optimizer, server, loader or range
    name: str
    steps: tuple[Step, ...]
    nested_count: int = 0


def settled(trace: Trace) -> Trace:
    """The recording with its steps: one at a time, and found where `step()` was not called."""
    marked = once(trace.steps)
    if trace.steps:
        marks = Marks("profiler", "ProfilerStep", marked, len(trace.steps) - len(marked))
        return _with(trace, marks, moved=bool(marks.nested_count))
    host = _host(trace)
    for find in (_optimizer_steps, _server_steps, _batches, _named_ranges):
        found = find(trace, host)
        if found is not None:
            return _with(trace, found)
    return trace


def chosen(trace: Trace, name: str) -> Trace:
    """The recording with the ranges of this name as its steps: an exact name, else how it begins; after ~ a pattern."""
    host, matching = _host(trace), _matching(name)
    for kind in ("annotation", "op", "python"):
        spans = host.filter(pl.col("kind") == kind)
        for matches in matching:
            rows = _named(spans, matches)
            if rows.height:
                steps = _steps(rows)
                return _with(trace, Marks("chosen", name, steps, rows.height - len(steps)))
    there = repeated_ranges(trace)
    tail = f"; ranges that repeat: {', '.join(there)}" if there else "; no range repeats"
    raise MissingDataError(f"{trace.path.name}: no range is named {visible(name)}{tail}")


def once(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps without marks inside others; a mark around several is no step, but what holds them."""
    ordered = sorted(steps, key=lambda step: (step.start_ns, -step.end_ns))
    children: dict[int, int] = {}
    around: list[tuple[int, int, int]] = []  # marks that are open: place, end, and the end of the last child
    for place, step in enumerate(ordered):
        while around and around[-1][1] <= step.start_ns:
            around.pop()
        if around and step.end_ns <= around[-1][1]:
            holder, end, last = around[-1]
            if step.start_ns >= last:
                children[holder] = children.get(holder, 0) + 1
                around[-1] = (holder, end, step.end_ns)
        around.append((place, step.end_ns, step.start_ns))
    kept: list[Step] = []
    for place, step in enumerate(ordered):
        if children.get(place, 0) < 2 and not (kept and _same(kept[-1], step)):
            kept.append(step)
    return tuple(kept)


def _same(first: Step, second: Step) -> bool:
    common = min(first.end_ns, second.end_ns) - second.start_ns
    shorter = min(first.end_ns - first.start_ns, second.end_ns - second.start_ns)
    return second.start_ns < first.end_ns and common >= LEAST_OVERLAP * shorter


def repeated_ranges(trace: Trace) -> list[str]:
    """Names of the program's own ranges that repeat, the most work first; to choose steps from."""
    found = sorted(_own_ranges(trace, _host(trace)), key=lambda found: -found[2])
    return [f"{visible(name)} ({len(steps):,})" for name, steps, _ in found[:_SHOWN]]


def _with(trace: Trace, marks: Marks, *, moved: bool = True) -> Trace:
    """The recording with these steps, and its spans in them where that is not known yet."""
    facts = {
        "source": marks.source,
        "name": marks.name,
        "count": len(marks.steps),
        "nested_count": marks.nested_count,
    }
    steps = [[step.number, step.start_ns, step.end_ns, step.kind] for step in marks.steps]
    meta = {**trace.meta, "steps": steps, "step_marks": facts}
    made: dict[str, pl.DataFrame] = {}

    def load(table: str) -> pl.DataFrame:
        if table != "spans" or not moved:
            return trace.table(table)
        if table not in made:
            spans = trace.spans
            made[table] = spans.with_columns(step_of(spans, marks.steps)).select(spans.columns)
        return made[table]

    return Trace(trace.path, trace.format, meta, trace.repairs, load, trace.profile)


def step_of(spans: pl.DataFrame, steps: Sequence[Step]) -> pl.Series:
    """For each span the step that it, or what launched it, started in: the rule of the linker."""
    start_ns = spans["start_ns"].to_numpy()
    place = np.empty(len(start_ns), np.int32)
    for block in blocks(len(place)):
        place[block] = _place(steps, start_ns[block])
    numbers = np.array([step.number for step in steps] or [NULL_I32], np.int32)
    on_device = spans["kind"].is_in(_DEVICE).arg_true()
    # Causes are of the host: their places are not changed by this.
    for block in blocks(len(on_device)):
        rows = on_device[block]
        cause = spans["launch_id"].gather(rows)
        if cause.null_count():
            cause = pl.select(pl.coalesce(cause, spans["op_id"].gather(rows))).to_series()
        of_cause = place[cause.fill_null(0).to_numpy()]
        place[rows.to_numpy()] = np.where(cause.is_null().to_numpy(), -1, of_cause)
    for block in blocks(len(place)):
        place[block] = np.where(place[block] < 0, NULL_I32, numbers[np.maximum(place[block], 0)])
    return series("step", place)


def _place(steps: Sequence[Step], at_ns: Array) -> Array:
    """Which step each time lies in; -1 for none."""
    if not steps:
        return np.full(len(at_ns), -1, np.int32)
    starts = np.array([step.start_ns for step in steps], np.int64)
    ends = np.array([step.end_ns for step in steps], np.int64)
    place = np.searchsorted(starts, at_ns, side="right").astype(np.int32) - 1
    place[at_ns >= ends[place]] = -1  # before the first the last one's end is looked at, and -1 stays
    return place


def _host(trace: Trace) -> pl.LazyFrame:
    """Ranges, operators and Python calls of host threads that took time; a device's copies of ranges are none of them.

    Lazy: there may be many, of which few are asked for.
    """
    tracks = trace.tracks.filter(pl.col("device").is_null())
    spans = trace.spans.lazy()
    works = pl.col("kind").is_in(("op", "python", "runtime"))
    active = spans.filter(works).select(pl.col("track_id").unique()).collect()["track_id"]
    own = tracks.filter(pl.col("id").is_in(active.implode()))
    of_process = tracks.filter(
        pl.col("id").is_in(active.implode()) | pl.col("process").is_in(own["process"].drop_nulls().implode())
    )
    chosen = of_process if own.height else tracks
    return spans.filter(
        pl.col("kind").is_in(("annotation", "op", "python"))
        & (pl.col("dur_ns") > 0)
        & pl.col("track_id").is_in(chosen["id"].implode())
    ).select("kind", "name", "start_ns", "dur_ns")


def _matching(name: str) -> tuple[Callable[[str], bool], ...]:
    """The ways in which a recorded name may be the one that was asked for, the strictest first."""
    if not name.startswith("~"):
        return (lambda text: text == name), (lambda text: text.startswith(name))
    try:
        pattern = re.compile(name[1:])
    except re.error as error:
        raise UsageError(f"--step {visible(name)}: not a pattern: {error}") from error
    return (lambda text: pattern.search(text) is not None,)


def _named(spans: pl.LazyFrame, matches: Callable[[str], object]) -> pl.DataFrame:
    distinct = spans.select(pl.col("name").unique()).collect()["name"]
    names = [name for name in distinct.cast(pl.String).to_list() if matches(name)]
    wanted = pl.Series(names, dtype=pl.String).cast(distinct.dtype)
    return (
        spans.filter(pl.col("name").is_in(wanted.implode())).collect() if names else spans.clear().collect()
    )


def _steps(rows: pl.DataFrame) -> tuple[Step, ...]:
    """The rows as steps, one at a time, numbered as their names are where the names count up, else from 0."""
    names = rows["name"].cast(pl.String).to_list()
    times = zip(names, rows["start_ns"].to_list(), rows["dur_ns"].to_list(), strict=True)
    steps = once([Step(_number_in(name), start, start + dur, kind_of(name)) for name, start, dur in times])
    numbers = [step.number for step in steps]
    counts_up = min(numbers, default=0) >= 0 and all(first < second for first, second in pairwise(numbers))
    return steps if counts_up else tuple(replace(step, number=place) for place, step in enumerate(steps))


def _number_in(name: str) -> int:
    """The one number in a name; -1 where there is none, or several."""
    found = _NUMBER.findall(name)
    return int(found[0]) if len(found) == 1 and len(found[0]) < _MOST_DIGITS else -1


def _optimizer_steps(_: Trace, host: pl.LazyFrame) -> Marks | None:
    """Steps that end with those of the optimizer; the first begins with the recording."""
    rows = _seldom(_named(host, lambda name: re.match(_OPTIMIZER, name) is not None))
    if rows.is_empty():
        return None
    every = _together(_steps(rows), host)
    if len(every) < LEAST_PERIODS:
        return None
    begin = host.filter(pl.col("kind") != "python").select(pl.col("start_ns").min()).collect().item()
    edges = [int(begin), *(step.end_ns for step in every)]
    steps = [Step(place, start, end) for place, (start, end) in enumerate(pairwise(edges))]
    return Marks("optimizer", _common_name(rows), tuple(steps))


def _seldom(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the optimizer that steps least often, as in recording; of several, the last to step."""
    by_name = rows.group_by("name").agg(count=pl.len(), last=pl.col("start_ns").max())
    name = by_name.sort("count", "last", descending=(False, True))["name"].head(1)
    return rows.filter(pl.col("name").is_in(name.implode()))


def _together(steps: Sequence[Step], host: pl.LazyFrame) -> list[Step]:
    """Optimizer steps, those as one that hardly anything lies between: several optimizers that take turns."""
    starts = (
        host.filter(pl.col("kind") == "op").select(pl.col("start_ns").sort()).collect().to_series().to_numpy()
    )
    ends = np.array([step.end_ns for step in steps[:-1]], np.int64)
    following = np.array([step.start_ns for step in steps[1:]], np.int64)
    between = np.searchsorted(starts, following) - np.searchsorted(starts, ends)
    few = FEW_OPERATORS * float(np.quantile(between, _MOST_GAPS)) if len(between) else 0.0
    joined: list[Step] = list(steps[:1])
    for step, count in zip(steps[1:], between.tolist(), strict=True):
        if count < few:
            joined[-1] = replace(joined[-1], end_ns=step.end_ns)
        else:
            joined.append(step)
    return joined


def _server_steps(trace: Trace, host: pl.LazyFrame) -> Marks | None:
    """An inference server's own ranges around each batch that it runs."""
    ranges = host.filter(pl.col("kind") == "annotation")
    for is_mark in SERVER_MARKS:
        rows = _named(ranges, is_mark)
        steps = marked = _steps(rows)
        if steps and is_mark is not ANYBODYS_MARK:
            steps = _with_work_after(trace, steps)
        if steps and _share_inside(trace, steps) >= LEAST_WORK:
            in_order = tuple(replace(step, number=place) for place, step in enumerate(steps))
            return Marks("server", _common_name(rows), in_order, rows.height - len(marked))
    return None


def _with_work_after(trace: Trace, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Servers end their marks before they sample: a step has what follows its mark, until a pause as long as the mark."""
    begins_ns, ends_ns = _work(trace)
    longer = []
    for step, until_ns in zip(steps, [*(step.start_ns for step in steps[1:]), None], strict=False):
        pause_ns, end_ns = step.end_ns - step.start_ns, step.end_ns
        first = int(np.searchsorted(begins_ns, step.end_ns))
        last = len(begins_ns) if until_ns is None else int(np.searchsorted(begins_ns, until_ns))
        for begin, end in zip(begins_ns[first:last].tolist(), ends_ns[first:last].tolist(), strict=True):
            if begin - end_ns > pause_ns:
                break
            end_ns = max(end_ns, end)
        longer.append(
            replace(step, end_ns=end_ns if until_ns is None else max(min(end_ns, until_ns), step.end_ns))
        )
    return tuple(longer)


def _batches(trace: Trace, host: pl.LazyFrame) -> Marks | None:
    """Steps that begin with asking the DataLoader for a batch; the last ends with the recording, if it works at all."""
    rows = _named(host, lambda name: re.match(_LOADER, name) is not None)
    asked = _steps(rows)
    if not asked:
        return None
    spans = host.filter(pl.col("kind") != "python")
    last = spans.select((pl.col("start_ns") + pl.col("dur_ns").fill_null(0)).max()).collect().item()
    edges = [*(step.start_ns for step in asked), asked[-1].end_ns if last is None else int(last)]
    steps = [Step(place, start, end) for place, (start, end) in enumerate(pairwise(edges))]
    counts = np.bincount(_place(steps, _work_ns(trace)) + 1, minlength=len(steps) + 1)[1:]
    if len(steps) > 1 and counts[-1] < LEAST_WORK * float(np.median(counts[:-1])):
        steps = steps[:-1]  # the loader had no more, or the recording ended
    if len(steps) < LEAST_PERIODS or _share_inside(trace, steps) < LEAST_WORK:
        return None
    return Marks("loader", _common_name(rows), tuple(steps))


def _named_ranges(trace: Trace, host: pl.LazyFrame) -> Marks | None:
    """The program's own ranges that repeat, hold most of its work, and are called a step or the like."""
    found = [
        (share, -len(steps), name, steps)
        for name, steps, share in _own_ranges(trace, host, _says_step)
        if share >= LEAST_WORK
    ]
    if not found:
        return None
    _, _, name, steps = max(found, key=lambda range_: range_[:3])
    return Marks("range", name, steps)


def _says_step(name: str) -> bool:
    return _STEP_WORD.search(_CAMEL.sub(" ", name).lower()) is not None


def _own_ranges(
    trace: Trace, host: pl.LazyFrame, wanted: Callable[[str], bool] = bool
) -> list[tuple[str, tuple[Step, ...], float]]:
    """The program's ranges that repeat: their name without numbers, each as a step, and the share of the work inside."""
    ranges = _named(
        host.filter(pl.col("kind") == "annotation"),
        lambda name: bool(name.strip()) and not _OF_LIBRARIES.match(name) and wanted(_NUMBER.sub("#", name)),
    )
    found = []
    plain = ranges["name"].cast(pl.String).str.replace_all(r"[0-9]+", "#")
    for (name,), rows in ranges.with_columns(plain=plain).group_by("plain", maintain_order=True):
        steps = _steps(rows)
        if len(steps) >= LEAST_RANGES:
            found.append((str(name), steps, _share_inside(trace, steps)))
    return found


def _share_inside(trace: Trace, steps: Sequence[Step]) -> float:
    """What share of the work begins inside the steps."""
    at_ns = _work_ns(trace)
    return float((_place(steps, at_ns) >= 0).mean()) if len(at_ns) else 0.0


def _work_ns(trace: Trace) -> Array:
    """When launches began; without any, operators."""
    return trace.spans["start_ns"].filter(_is_work(trace.spans)).to_numpy()


def _work(trace: Trace) -> tuple[Array, Array]:
    """When launches began and ended, in this order; without any, operators."""
    work = trace.spans.select("start_ns", "dur_ns").filter(_is_work(trace.spans))
    begins_ns = work["start_ns"].to_numpy()
    return begins_ns, begins_ns + work["dur_ns"].fill_null(0).to_numpy()


def _is_work(spans: pl.DataFrame) -> pl.Series:
    """Which spans are launches; without any, operators."""
    is_launch = np.zeros(spans.height, bool)
    is_launch[spans["launch_id"].drop_nulls().to_numpy()] = True
    return pl.Series(is_launch) if is_launch.any() else spans["kind"] == "op"


def _common_name(rows: pl.DataFrame) -> str:
    """The most frequent name, without numbers."""
    names = rows["name"].cast(pl.String).value_counts(sort=True)["name"]
    return str(names[0]) if len(names) else ""
