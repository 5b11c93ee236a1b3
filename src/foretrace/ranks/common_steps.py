"""The steps that all ranks of a job have in common: a job can only be replayed, and its step timed, over these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from foretrace.ranks.gathered import Array
from foretrace.ranks.summary import NOBODY, STEP, Summary
from foretrace.sourced import JUDGEMENT, Share

LEAST_COMMON = Share(
    0.5, "a job's steps; a rank that recorded fewer of them is rebuilt like one that is cut off", JUDGEMENT
)
_LINKS = ("before", "queued")
_PARTS = ("computation_ns", "input_ns")


@dataclass(frozen=True)
class Common:
    """Summaries with the same steps; `short` are ranks with too few steps, kept as they are."""

    summaries: list[Summary]
    short: frozenset[int]
    dropped: tuple[int, ...]  # steps that some ranks recorded and others did not
    lacking: tuple[int, ...]  # ranks that lack any of these
    resumed: frozenset[int] = frozenset()  # ranks that now begin where a step before the others ended
    apart: tuple[Summary, ...] = ()  # summaries with none of these steps


def restrict(summaries: Sequence[Summary], cut: Iterable[int]) -> Common:
    """The summaries without the steps that some ranks lack; ranks in `cut` have no say, nor do those with few steps."""
    cut = set(cut)
    steps = {summary.rank: set(summary.steps["step"].to_list()) for summary in summaries}
    whole = {rank: own for rank, own in steps.items() if rank not in cut}
    unchanged = Common(list(summaries), frozenset(), (), ())
    if not whole or any(NOBODY in own for own in steps.values()):
        return unchanged
    counts = Counter(step for own in whole.values() for step in own)
    usual = {step for step, ranks in counts.items() if ranks >= LEAST_COMMON * len(whole)}
    short = frozenset(rank for rank, own in whole.items() if len(own & usual) < LEAST_COMMON * len(usual))
    common = _longest_run(
        sorted(counts), set.intersection(usual, *(own for rank, own in whole.items() if rank not in short))
    )
    dropped = tuple(sorted(set(counts) - common))
    if not common or not dropped:
        return replace(unchanged, short=short)
    lacking = tuple(sorted(rank for rank, own in whole.items() if not usual <= own))
    within = [summary for summary in summaries if steps[summary.rank] & common]
    apart = tuple(summary for summary in summaries if not steps[summary.rank] & common)
    restricted = [_only(summary, common) for summary in within]
    resumed = frozenset(
        new.rank for old, new in zip(within, restricted, strict=True) if new.begin_ns != old.begin_ns
    )
    short -= {summary.rank for summary in apart}
    return Common(restricted, short, dropped, lacking, resumed, apart)


def _longest_run(steps: Sequence[int], wanted: set[int]) -> set[int]:
    """The most steps in a row that are all wanted; of equally long runs the last."""
    runs: list[set[int]] = [set()]
    for step in steps:
        if step in wanted:
            runs[-1].add(step)
        else:
            runs.append(set())
    return max(reversed(runs), key=len)


def _only(summary: Summary, wanted: set[int]) -> Summary:
    """The summary of these steps alone: it begins where the device's work of the step before them ended."""
    rows = summary.rows
    steps = summary.steps.filter(pl.col("step").is_in(sorted(wanted)))
    keep = rows["step"].is_in(sorted(wanted)).to_numpy()
    if keep.all() and steps.height == summary.steps.height:
        return summary
    columns = {name: rows[name].to_numpy().copy() for name in rows.columns}
    marks = np.flatnonzero((columns["kind"] == STEP) & (columns["step"] < min(wanted)))
    begin_ns = int(steps["start_ns"].to_numpy().min())
    if len(marks):
        mark = int(marks[np.argmax(columns["step"][marks])])
        begin_ns = int(columns["start_ns"][mark])
        _begin_at(columns, mark, ~keep)
    place = np.where(keep, np.cumsum(keep) - 1, NOBODY)
    for name in _LINKS:
        columns[name] = np.where(columns[name] >= 0, place[np.maximum(columns[name], 0)], NOBODY)
    table = pl.DataFrame(
        [pl.Series(name, values[keep]).cast(rows.schema[name]) for name, values in columns.items()]
    )
    return replace(summary, rows=table, steps=steps, begin_ns=begin_ns)


def _begin_at(columns: dict[str, Array], mark: int, gone: Array) -> None:
    """Counts what led to the first communications from a mark on: what led to the mark itself lies before it."""
    begin = int(columns["start_ns"][mark])
    to_mark = {name: int(columns[name][mark]) for name in _PARTS}
    end = columns["start_ns"] + columns["dur_ns"]
    before, queued = columns["before"], columns["queued"]
    first = (before < 0) | gone[np.maximum(before, 0)]
    since = np.where(before >= 0, end[np.maximum(before, 0)], begin)
    same = before == before[mark]
    behind = first & (queued >= 0) & gone[np.maximum(queued, 0)] & (columns["queue_ns"] >= 0)
    lead = columns["lead_ns"] - np.maximum(begin - since, 0)
    lead = np.maximum(np.where(behind, columns["start_ns"] - begin, lead), 0)
    for name in _PARTS:
        less = np.clip(columns[name] - np.where(same, to_mark[name], 0), 0, lead)
        columns[name] = np.where(first, less, columns[name])
    columns["lead_ns"] = np.where(first, lead, columns["lead_ns"])
    columns["queue_ns"] = np.where(behind, NOBODY, columns["queue_ns"])
    _work_from(columns, begin, to_mark, end, gone)


def _work_from(
    columns: dict[str, Array], begin: int, to_mark: dict[str, int], end: Array, gone: Array
) -> None:
    """The same for the work before the first communication that the rank stands still for."""
    still = np.flatnonzero(columns["still"])
    kept, stalls = still[~gone[still]], still[gone[still] & (end[still] <= begin)]
    if not len(kept):
        return
    row = int(kept[np.argmin(end[kept])])
    since = int(end[stalls].max()) if len(stalls) else begin
    work = max(int(columns["work_ns"][row]) - (begin - since), 0)
    columns["work_ns"][row] = work
    for name in _PARTS:
        part = columns[f"work_{name}"]
        part[row] = min(max(int(part[row]) - to_mark[name], 0), work)
