"""Changes that a user can write: a verb, what it applies to, and how much.

    scale kernel:~flash 0.5           durations times 0.5 where the name matches the pattern
    set kernel:~softmax 20us          durations of 20 microseconds
    remove op:aten::copy_             operators with their host time, calls and device work
    remove op:aten::copy_ under:Block_0
    unwait call:~Synchronize          calls that return without waiting
    move copy:~HtoD                   device work on a stream of its own
    scale host 0.8                    the host's own work
    add host 50us                     host work at the start of every step
    graph step                        every step's launches replayed as CUDA graphs
    fuse kernel:~elementwise          kernels that follow one another on a stream as one kernel
    scale batch 2                     twice the items in every step; the speed-up is then per item

A selector is KIND:NAME for one name or KIND:~PATTERN for a regular expression; kinds are kernel, copy, set,
op and call. `under:NAME` keeps what lies in a module or annotation of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device.graph_origins import has_capture
from foretrace.analyze.concepts.trees.attribution import nearest
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.errors import MissingDataError, UsageError, did_you_mean, near_names, unknown
from foretrace.predict import batch, edits, fusion, graph_capture
from foretrace.predict.calibrate import scaled_host
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import NO_CALLS, NO_TASKS, NO_TIME, Calls, ProgramTime, Tasks
from foretrace.predict.program import BLOCKING_COPY, SYNC, Program
from foretrace.predict.tasks import task_table
from foretrace.trace import Trace

VERBS = ("scale", "set", "remove", "unwait", "move", "add", "graph", "fuse")
Numbers = TypeVar("Numbers", Calls, Tasks)
_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s)")
_SELECTOR = re.compile(r"(kernel|copy|set|op|call):(~?)(.+)")
Spans = NDArray[np.uint32]


@dataclass(frozen=True)
class Change:
    """Something to try, in words, and the edit that it makes to a program."""

    says: str
    edit: Edit
    host_scale: float = 1.0
    exact: bool = False  # whether the edit is taken as given, and not a model of what a fix would do
    upside: float = 1.0  # how much better a fix may turn out than the edit has it, as a factor
    others: tuple[Edit, ...] = ()  # the same change where what is not known about it lies at its ends
    items: float = 1.0  # how many times the items a step holds then
    doubt: str = ""  # why nothing is promised, whatever the replay says

    def applied(self, program: Program) -> Program:
        """The program with this change made."""
        return apply(program, (self,))


def apply(program: Program, changes: tuple[Change, ...]) -> Program:
    """The program with all changes made together."""
    return applied(program, edits.merge(change.edit for change in changes), changes)


def applied(program: Program, merged: Edit, changes: tuple[Change, ...]) -> Program:
    """The same, with the edits of the changes merged already."""
    changed = edits.apply(program, merged)
    for change in changes:
        if change.host_scale != 1.0:
            changed = scaled_host(changed, change.host_scale)
    return changed


def parse(text: str, trace: Trace, program: Program) -> Change:
    """The change that the text describes, on this recording."""
    words = text.split()
    if not words or words[0] not in VERBS:
        verb = words[0] if words else ""
        # `fix` and `compile` are looked up before, by who has a diagnosis.
        raise unknown(
            f"change {text!r}: begins with a verb", verb, (*VERBS, "fix", "compile"), listed="which is one of"
        )
    verb, rest = words[0], words[1:]
    under = [word.removeprefix("under:") for word in rest if word.startswith("under:")]
    rest = [word for word in rest if not word.startswith("under:")]
    if len(under) > 1:
        raise UsageError(f"change {text!r}: takes one under:NAME")
    if rest[:1] == ["host"] or verb == "graph" or (verb, *rest[:1]) == ("scale", "batch"):
        if under:
            raise UsageError(f"change {text!r}: is of the whole step and takes no under:NAME")
        return _whole(text, verb, rest, trace, program)
    value = rest.pop() if verb in ("scale", "set") and len(rest) > 1 else None
    match = _SELECTOR.fullmatch(" ".join(rest))
    if not match:
        selector = " ".join(rest).partition(":")[0]
        says = f"change {text!r}: names what it changes as kernel:NAME, copy:, set:, op:, call: or host"
        raise unknown(says, selector, ("kernel", "copy", "set", "op", "call", "host"), listed="")
    name = "" if match[2] else match[3]
    chosen = _Chosen(trace, program, match[1], name, _name_test(match, text), under[0] if under else None)
    if verb == "fuse":
        return _fuse(chosen, text)
    return Change(text, _EDITS[verb](chosen, value, text), exact=True)


def _whole(text: str, verb: str, rest: list[str], trace: Trace, program: Program) -> Change:
    """A change of whole steps: of their launches, their items, or the host."""
    if verb == "graph":
        return _graph(text, rest, trace, program)
    if rest[0] == "batch":
        return _batch(text, rest[1:], trace, program)
    return _host(text, verb, rest[1:], program)


def _graph(text: str, rest: list[str], trace: Trace, program: Program) -> Change:
    if rest != ["step"]:
        raise UsageError(f"change {text!r}: only whole steps are captured: `graph step`")
    captured = graph_capture.capturable(trace, program)
    if not (captured & (np.diff(program.task_from) > 0)).any():
        raise MissingDataError(
            f"change {text!r}: no launches in the recorded steps that a graph could replay"
        )
    if obstacle := graph_capture.obstacle(trace, program):
        raise MissingDataError(
            f"change {text!r}: no CUDA graph can be made of the recorded steps: {obstacle}"
        )
    return Change(
        f"{text}: launches replayed as CUDA graphs",
        graph_capture.edit(program, captured),
        doubt=graph_capture.doubt(trace, program),
    )


def _batch(text: str, rest: list[str], trace: Trace, program: Program) -> Change:
    if len(rest) != 1 or (times := _factor(rest[0], text, example="2")) < 1:
        raise UsageError(
            f"change {text!r}: needs a factor of at least 1, such as 2; what fewer items take is not modelled"
        )
    if not len(program.task_span):
        raise MissingDataError(f"change {text!r}: no launched GPU work in the recorded steps")
    grown = batch.growth(trace, program, times)
    return Change(f"{text}: {grown.says}", grown.edit, others=grown.others, items=times, exact=times == 1)


def _fuse(chosen: _Chosen, text: str) -> Change:
    if chosen.kind != "kernel":
        raise UsageError(f"change {text!r}: only kernels are fused: `fuse kernel:~PATTERN`")
    runs = fusion.fused_runs(chosen.trace, chosen.program, chosen.some(chosen.tasks(), text))
    if not runs:
        raise MissingDataError(
            f"change {text!r}: no two {chosen.what.replace('kernel', 'kernels', 1)} follow one another "
            "on a stream with no wait between them"
        )
    steps = max(len(chosen.trace.steps), 1)
    modelled = sum(run.modelled for run in runs)
    how = ["by what their operators move and compute"] * (modelled > 0)
    how += ["as long as the longest of their kernels"] * (modelled < len(runs))
    if len(how) > 1:
        how = [f"{count} {words}" for count, words in zip((modelled, len(runs) - modelled), how, strict=True)]
    per_step = (
        f"{sum(len(run.tasks) for run in runs) / steps:.3g} kernels a step become {len(runs) / steps:.3g}"
    )
    return Change(f"{text}: {per_step}, their durations {' and '.join(how)}", fusion.edit(runs))


def _host(text: str, verb: str, rest: list[str], program: Program) -> Change:
    if verb == "scale" and len(rest) == 1:
        return Change(text, Edit(), host_scale=_factor(rest[0], text), exact=True)
    if verb == "add" and len(rest) == 1:
        extra = _duration(rest[0], text)
        return Change(
            text,
            Edit(added_host_ns={int(call): extra for call in program.step_calls if call < len(program.kind)}),
            exact=True,
        )
    raise UsageError(f"change {text!r}: the host takes `scale host FACTOR` or `add host DURATION`")


def _name_test(match: re.Match[str], text: str) -> Callable[[str], bool]:
    if not match[2]:
        return lambda name: name == match[3]
    try:
        pattern = re.compile(match[3])
    except re.error as error:
        raise UsageError(f"change {text!r}: {error}") from error
    return lambda name: bool(pattern.search(name))


def _factor(text: str | None, change: str, *, example: str = "0.5") -> float:
    try:
        factor = float(text or "")
    except ValueError:
        factor = -1.0
    if not 0 <= factor < 1e6:
        raise UsageError(f"change {change!r}: needs a factor such as {example}")
    return factor


def _duration(text: str | None, change: str) -> int:
    match = _DURATION.fullmatch(text or "")
    if not match:
        raise UsageError(f"change {change!r}: needs a duration such as 20us or 1.5ms")
    return round(float(match[1]) * _UNITS[match[2]])


class _Chosen:
    """The spans that a selector names, as tasks, calls and host time of the program."""

    def __init__(
        self,
        trace: Trace,
        program: Program,
        kind: str,
        name: str,  # empty: chosen by a pattern
        test: Callable[[str], bool],
        under: str | None,
    ) -> None:
        self.trace, self.program, self.kind = trace, program, kind
        wanted = {"call": "runtime"}.get(kind, kind)
        spans = trace.spans.filter(pl.col("kind") == wanted)
        self.name, self.others = name, spans["name"].unique().cast(pl.String).sort()
        names = [other for other in self.others if test(other)]
        self.spans = spans.filter(pl.col("name").cast(pl.String).is_in(names))
        if under is not None:
            self.spans = _below(trace, self.spans, under)
        self.what = f"{kind} of that name" + (f" under {under}" if under else "")

    def some(self, found: Numbers, text: str) -> Numbers:
        """The numbers found; an error if there is none in the recorded steps."""
        if not len(found):
            near = near_names(self.name, self.others) if self.name and self.spans.is_empty() else []
            raise MissingDataError(
                f"change {text!r}: no {self.what} in the recorded steps{did_you_mean(near)}"
            )
        return found

    def tasks(self) -> Tasks:
        """Device work that is chosen, or that was launched by what is."""
        ids = self.spans["id"].to_numpy()
        if self.kind in ("kernel", "copy", "set"):
            return Tasks(np.flatnonzero(np.isin(self.program.task_span, ids)))
        launched = np.isin(self.program.task_call, self.calls())
        launched[self.replayed()] = True
        return Tasks(np.flatnonzero(launched))

    def replayed(self) -> Tasks:
        """Device work of CUDA graphs that the chosen operators were captured for."""
        if self.kind != "op":
            return NO_TASKS
        parent = self.trace.spans["parent_id"].cast(pl.Int32).fill_null(NOBODY).to_numpy()
        marked = np.zeros(len(parent), bool)
        marked[self.spans["id"].to_numpy()] = True
        nodes = task_table(self.trace, self.program).filter(has_capture())
        inside = nearest(parent, marked)[nodes["op_id"].to_numpy()] != NOBODY
        return Tasks(nodes["task"].to_numpy()[inside])

    def calls(self) -> Calls:
        """Calls that are chosen, or that lie within what is."""
        if self.kind == "call":
            return Calls(np.flatnonzero(np.isin(self.program.call_span, self.spans["id"].to_numpy())))
        host = self.host()
        inside = intervals.covered_ns(host, self.program.call_start_ns, self.program.call_end_ns)
        return Calls(
            np.flatnonzero((inside > 0) & (inside == self.program.call_end_ns - self.program.call_start_ns))
        )

    def host(self) -> ProgramTime:
        """The host time of the chosen operators or calls."""
        if self.kind not in ("op", "call"):
            return NO_TIME
        start = (self.spans["start_ns"] - self.program.start_ns).to_numpy()
        return ProgramTime(intervals.union(start, start + self.spans["dur_ns"].fill_null(0).to_numpy()))


def _below(trace: Trace, spans: pl.DataFrame, name: str) -> pl.DataFrame:
    """Those of the spans whose operator lies in a module or annotation of this name."""
    modules = trace.modules
    inside = set(modules.filter(pl.col("name") == name)["id"])
    for number, parent in modules.select("id", "parent_id").iter_rows():  # parents come before children
        if parent in inside:
            inside.add(number)
    in_module = trace.ops.filter(pl.col("module_id").is_in(list(inside)))["span_id"]
    ranges = trace.spans.filter((pl.col("kind") == "annotation") & (pl.col("name").cast(pl.String) == name))
    host = trace.tracks.filter(pl.col("device").is_null())["id"].implode()
    ranges = ranges.filter(pl.col("track_id").is_in(host))
    cover = intervals.union(
        ranges["start_ns"].to_numpy(), (ranges["start_ns"] + ranges["dur_ns"].fill_null(0)).to_numpy()
    )
    keyed = spans.with_columns(key=pl.coalesce(pl.when(pl.col("kind") == "op").then("id"), "op_id"))
    starts = trace.spans["start_ns"]
    begins = starts.gather(keyed["key"].fill_null(0)).to_numpy()
    annotated = intervals.covered_ns(cover, begins, begins + 1) > 0
    return keyed.filter(
        pl.col("key").is_in(in_module.implode()) | (pl.Series(annotated) & pl.col("key").is_not_null())
    )


def _scale(chosen: _Chosen, value: str | None, text: str) -> Edit:
    factor = _factor(value, text)
    dur = chosen.program.task_dur_ns
    return Edit(durations_ns={int(t): round(int(dur[t]) * factor) for t in chosen.some(chosen.tasks(), text)})


def _set(chosen: _Chosen, value: str | None, text: str) -> Edit:
    new = _duration(value, text)
    return Edit(durations_ns={int(task): new for task in chosen.some(chosen.tasks(), text)})


def _remove(chosen: _Chosen, _: str | None, text: str) -> Edit:
    if chosen.kind in ("kernel", "copy", "set"):
        return Edit(removed_tasks=chosen.some(chosen.tasks(), text))
    if chosen.spans.is_empty():
        chosen.some(NO_CALLS, text)
    return Edit(removed_host=chosen.host(), removed_calls=chosen.calls(), removed_tasks=chosen.replayed())


def _unwait(chosen: _Chosen, _: str | None, text: str) -> Edit:
    calls = chosen.calls()
    waiting = Calls(calls[np.isin(chosen.program.kind[calls], (SYNC, BLOCKING_COPY))])
    return Edit(unwaited_calls=chosen.some(waiting, text))


def _move(chosen: _Chosen, _: str | None, text: str) -> Edit:
    own = len(chosen.program.stream_free_ns)
    return Edit(moved_tasks={int(task): own for task in chosen.some(chosen.tasks(), text)})


def _add(chosen: _Chosen, _: str | None, text: str) -> Edit:
    raise UsageError(f"change {text!r}: only host work can be added: `add host 50us`")


_EDITS: dict[str, Callable[[_Chosen, str | None, str], Edit]] = {
    "scale": _scale, "set": _set, "remove": _remove, "unwait": _unwait, "move": _move, "add": _add,
}  # fmt: skip


def _valued(keys: dict[int, int], values: NDArray[np.float64]) -> dict[int, int]:
    """The same keys with these values."""
    return dict(zip(keys, values.astype(np.int64).tolist(), strict=True))


def with_times_scaled(change: Change, *, durations: float, host: float) -> Change:
    """The change with its modelled durations this much longer, and the host work that it adds."""
    edit = change.edit
    scaled, added = edit.durations_ns, edit.added_host_ns
    if durations != 1 and not edit.modelled.isdisjoint(scaled):
        known = np.fromiter(scaled.values(), np.float64, len(scaled))
        modelled = np.fromiter(map(edit.modelled.__contains__, scaled), bool, len(scaled))
        scaled = _valued(scaled, np.where(modelled, np.rint(known * durations), known))
    if host != 1 and added:
        extra = np.fromiter(added.values(), np.float64, len(added))
        added = _valued(added, np.where(extra > 0, np.rint(extra * host), extra))
    if scaled is edit.durations_ns and added is edit.added_host_ns:
        return change
    return replace(change, edit=replace(edit, durations_ns=scaled, added_host_ns=added))
