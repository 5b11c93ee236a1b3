"""Cold start: whether the first recorded step spent extra time on loading, compiling or allocating."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.names import named_spans
from foretrace.analyze.concepts.names.named_spans import Ids
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.steps import measured_window, step_windows
from foretrace.errors import MissingDataError
from foretrace.intervals import Intervals
from foretrace.runtime_names import Effect, calls_that
from foretrace.sourced import JUDGEMENT, Factor, Share
from foretrace.trace import Step, Trace
from foretrace.units import counted, format_value

SIGNS = ("profiler", "compiling", "loading", "initialisation", "allocation", "label_gap")
_PROFILER = r"^Activity Buffer Request|^Buffer Flush|^Instrumentation|^Resource"
_COMPILING = (
    r"\(dynamo_timed\)$|^dynamo$|^entire_frame_compile$|(?i)autotun|^triton_?compile|benchmark_all_configs"
)
_LOADING = r"(?i)Lazy Function Loading|Module Loading|Driver Compiler"
# Queries and set-up that take microseconds when warm; what is longer waited for a context, a handle or a module.
_SET_UP = (
    r"^(?:cuda|hip)(?:FuncGetAttributes|FuncSetAttribute|GetSymbolAddress|DeviceGetAttribute|GetDevice|SetDevice|"
    r"GetDeviceProperties|StreamCreate|EventCreate|Occupancy|DeviceGetStreamPriorityRange|GetDeviceCount|Init)"
    r"|^cu(?:Init|CtxCreate|DevicePrimaryCtxRetain|DeviceGet)|^(?:cublas|cudnn|cusparse|cusolver|hipblas|rocblas|miopen)\w*Create"
)
_NOT_A_LABEL = r"^ProfilerStep#|^## |_data: |compile_id="
_WARM_CALL_NS = 50_000
COLD_RATIO = Factor(1.5, "times the other steps, on either clock", JUDGEMENT)
_COMPARED = (
    "verdict", "first_host_ns", "others_host_ns", "first_gpu_ns", "others_gpu_ns", "excess_ns", "explained_pct",
    "mean_host_ns", "typical_host_ns",
)  # fmt: skip
_PROFILER_SHARE = 0.5
SIGN_SHARE = Share(0.05, "what the first step takes beyond the others", JUDGEMENT)
# The S1 tutorial's two cases are 1 % (overhead-bound) and 92 % (compute-bound); between these shares neither holds.
_OVERHEAD_BELOW_PCT, _COMPUTE_ABOVE_PCT = 20.0, 80.0


@analysis(
    Subject.REST,
    denominators={
        "explained_pct": "of excess_ns, the first step's host time above the median of the others",
        "busy_pct": "time with GPU work running, of the steps (without steps, of the recording)",
    },
)
def cold_start(trace: Trace) -> Result:
    """Cold-start work in each step: module loading, compilation, initialisation, allocation, profiler start-up.

    Columns
        host_ns, gpu_ns: the step's duration on the host's and on the GPU's clock, as in `steps`.
        launched_count: GPU tasks that the step launched. Many more in the first step than in later ones are usually
        trial runs by cuDNN or an autotuner.
        The other columns are the step's host time by cause, on any thread. Time with several causes counts once, for
        the first of them in this order:
        profiler: the profiler's own buffers (Activity Buffer Request, Buffer Flush).
        compiling: torch.compile and autotuning.
        loading: loading of modules and functions, and launch calls of 50 us or more that launch a kernel for the
        first time on an empty stream.
        initialisation: queries and creation of attributes, streams and handles that take 50 us or more.
        allocation: cudaMalloc and similar calls.
        label_gap: from the start of each annotation of the program to the first operator or call inside it.

    Values
        first_host_ns, others_host_ns, first_gpu_ns, others_gpu_ns: the first complete step and the median of the
        other complete steps, on each clock. Their ratio is compared with 1.5.
        excess_ns: how much longer than that median the first step took.
        explained_pct: the share of excess_ns that the causes above account for.
        mean_host_ns, typical_host_ns: mean and median over all steps; over few steps, a mean hides a cold one.
        busy_pct: time with GPU work running, of the steps.
        bound: what busy_pct suggests: overhead below 20 %, compute above 80 %, otherwise neither.
        verdict: warm if neither ratio reaches 1.5; profiler if profiler start-up is at least half of the excess;
        cold if compiling, loading, initialisation and allocation are at least 5 % of it; slow otherwise (a label gap
        alone proves nothing, since a profiler slows the first steps it sees). Null with fewer than two complete steps.

    What it cannot tell
        Time in libraries that make no recorded call (cuBLAS heuristics, cuDNN plans, imports): it remains in the
        excess, unexplained. Costs paid before the recording began.
    """
    if trace.spans.is_empty():
        raise MissingDataError(f"{trace.path.name}: nothing recorded")
    signs = _signs(trace)
    steps = _steps(trace)
    table = _table(trace, steps, signs)
    values = _values(trace, table, marked=bool(trace.steps))
    return Result(says=_says(values), table=table, values=values, notes=_notes(trace, table, values))


def _steps(trace: Trace) -> list[Step]:
    """The steps on the host, one per number; without steps, the whole recording as one."""
    merged: dict[int, Step] = {}
    for step in trace.steps:
        known = merged.get(step.number, step)
        start, end = min(known.start_ns, step.start_ns), max(known.end_ns, step.end_ns)
        merged[step.number] = Step(step.number, start, end)
    return sorted(merged.values(), key=lambda step: step.start_ns) or [Step(-1, 0, trace.duration_ns)]


def _signs(trace: Trace) -> dict[str, Intervals]:
    """When each sign was seen; time with several signs belongs to the first."""
    host = named_spans.on_host(trace) & (trace.spans["dur_ns"] > 0).fill_null(value=False).to_numpy()

    def like(pattern: str, *kinds: str) -> pl.DataFrame:
        ids = named_spans.ids_like(trace, kinds, pattern)
        return _rows(trace, ids[host[ids]])

    def calls(wanted: Effect) -> pl.DataFrame:
        ids = named_spans.ids_where(trace, "runtime", lambda names: calls_that(names, wanted))
        return _rows(trace, ids[host[ids]])

    long = pl.col("dur_ns") >= _WARM_CALL_NS
    columns = ("start_ns", "end_ns")
    loading = pl.concat(
        each.select(columns)
        for each in (like(_LOADING, "overhead"), calls(Effect.LOAD), _first_launches(trace, host))
    )
    seen = {
        "profiler": device_time.covered(like(_PROFILER, "overhead")),
        "compiling": device_time.covered(like(_COMPILING, "op", "annotation")),
        "loading": device_time.covered(loading),
        "initialisation": device_time.covered(like(_SET_UP, "runtime").filter(long)),
        "allocation": device_time.covered(calls(Effect.ALLOCATE)),
        "label_gap": _label_gaps(trace, host),
    }
    return _exclusive(seen)


def _exclusive(signs: Mapping[str, Intervals]) -> dict[str, Intervals]:
    """Each sign without the time that the signs before it cover."""
    claimed = intervals.EMPTY
    parts = {}
    for name, seen in signs.items():
        parts[name] = intervals.subtract(seen, claimed)
        claimed = intervals.either(claimed, seen)
    return parts


def _rows(trace: Trace, ids: Ids) -> pl.DataFrame:
    """Some spans of sound duration."""
    spans = trace.spans.select("id", "track_id", "kind", "start_ns", "dur_ns")[ids]
    return spans.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))


def _first_launches(trace: Trace, host: NDArray[np.bool_]) -> pl.DataFrame:
    """Long launch calls that launch a kernel for the first time, onto an idle stream."""
    work = trace.device_spans.select("kind", "name", "launch_id", "start_ns")
    work = work.filter((pl.col("kind") == "kernel") & pl.col("launch_id").is_not_null())
    first = work.group_by("name").agg(
        pl.col("launch_id").first(), pl.col("start_ns").first().alias("begun_ns")
    )
    called = np.unique(first["launch_id"].to_numpy())
    called = called[host[called] & named_spans.of_kind(trace, "runtime")[called]]
    calls = _rows(trace, called).filter(pl.col("dur_ns") >= _WARM_CALL_NS)
    joined = calls.join(first, left_on="id", right_on="launch_id", how="inner")
    # A launch into a full queue is long too, but then its kernel starts long after the call.
    return joined.filter(pl.col("begun_ns") - pl.col("end_ns") < _WARM_CALL_NS)


def _label_gaps(trace: Trace, host: NDArray[np.bool_]) -> Intervals:
    """From the start of each annotation of the program to the first operator or call inside it."""
    labels = named_spans.ids_where(
        trace, "annotation", lambda names: ~names.str.contains(_NOT_A_LABEL).to_numpy()
    )
    labels = labels[host[labels]]
    if not len(labels):
        return intervals.EMPTY
    track, start = trace.spans["track_id"].to_numpy(), trace.spans["start_ns"].to_numpy()
    begins = host & named_spans.of_kind(trace, ("op", "runtime", "overhead"))
    at, first = start[labels], np.full(len(labels), np.iinfo(np.int64).max)
    not_before = np.searchsorted(start, at)  # spans are in order of start
    for number in np.unique(track[labels]):
        mine = np.flatnonzero(track[labels] == number)
        begun = np.flatnonzero(begins & (track == number))
        place = np.searchsorted(begun, not_before[mine])
        inside = place < len(begun)
        first[mine[inside]] = start[begun[place[inside]]]
    inside = first <= at + trace.spans["dur_ns"].gather(labels).to_numpy()
    return intervals.union(at[inside], first[inside])


def _table(trace: Trace, steps: list[Step], signs: Mapping[str, Intervals]) -> pl.DataFrame:
    """One row per step."""
    starts, ends = (
        np.array([getattr(step, name) for step in steps], np.int64) for name in ("start_ns", "end_ns")
    )
    windows = {window.number: window for window in step_windows(trace)}
    known = [windows.get(step.number) for step in steps]
    frame = pl.DataFrame(
        {
            "step": [step.number if trace.steps else None for step in steps],
            "whole": [window.whole if window else None for window in known],
            "host_ns": ends - starts,
            "gpu_ns": [window.gpu_ns if window else None for window in known],
            "launched_count": [
                window.launched_count if window and trace.has_device else None for window in known
            ],
        },
        schema_overrides={
            "step": pl.Int32,
            "whole": pl.Boolean,
            "gpu_ns": pl.Int64,
            "launched_count": pl.Int64,
        },
    )
    return frame.with_columns(
        **{f"{name}_ns": pl.Series(intervals.covered_ns(seen, starts, ends)) for name, seen in signs.items()}
    )


def _values(trace: Trace, table: pl.DataFrame, *, marked: bool) -> dict[str, Value]:
    whole = table.filter(pl.col("whole")) if marked else table.clear()
    later = whole.slice(1)
    values: dict[str, Value] = dict.fromkeys(_COMPARED)
    if whole.height:
        values |= {"mean_host_ns": _mean(whole["host_ns"]), "typical_host_ns": _median(whole["host_ns"])}
    if later.height:
        first = whole.row(0, named=True)
        for clock in ("host", "gpu"):
            values[f"first_{clock}_ns"] = first[f"{clock}_ns"]
            values[f"others_{clock}_ns"] = _median(later[f"{clock}_ns"])
        ratios = [ratio for clock in ("host", "gpu") if (ratio := _ratio(values, clock)) is not None]
        excess = max(first["host_ns"] - (_median(later["host_ns"]) or 0), 0)
        extra = {sign: max(first[f"{sign}_ns"] - (_median(later[f"{sign}_ns"]) or 0), 0) for sign in SIGNS}
        values["excess_ns"] = excess
        values["explained_pct"] = min(100 * sum(extra.values()) / excess, 100.0) if excess else None
        values["verdict"] = _verdict(ratios, excess, extra)
    values |= {f"{sign}_ns": int(table[f"{sign}_ns"].sum()) for sign in SIGNS}
    return values | _bound(trace)


def _verdict(ratios: list[float], excess_ns: int, extra: Mapping[str, int]) -> str | None:
    """Whether the first step was cold, and if not, why it was slower."""
    if not ratios:
        return None
    if max(ratios) < COLD_RATIO or not excess_ns:
        return "warm"
    if extra["profiler"] >= _PROFILER_SHARE * excess_ns:
        return "profiler"
    # A label gap in the first step only may be the profiler's doing: it does not prove a cold start.
    own = sum(length for sign, length in extra.items() if sign not in ("profiler", "label_gap"))
    return "cold" if own >= SIGN_SHARE * excess_ns else "slow"


def _bound(trace: Trace) -> dict[str, Value]:
    """How much of the steps the GPU was busy, and what therefore limits the program."""
    if not trace.has_device:
        return {"busy_pct": None, "bound": None}
    window = measured_window(trace, step_windows(trace))
    work = device_time.device_work(trace).select("start_ns", "end_ns", "orphan").filter(~pl.col("orphan"))
    busy = intervals.clip(device_time.covered(work), window.start_ns, window.end_ns).total_ns
    share = 100 * busy / window.length_ns if window.length_ns > 0 else None
    if share is None:
        return {"busy_pct": None, "bound": None}
    bound = (
        "overhead" if share < _OVERHEAD_BELOW_PCT else "compute" if share > _COMPUTE_ABOVE_PCT else "neither"
    )
    return {"busy_pct": share, "bound": bound}


def _median(values: pl.Series) -> int | None:
    middle = values.drop_nulls().median()
    return round(float(middle)) if isinstance(middle, int | float) else None


def _mean(values: pl.Series) -> int | None:
    middle = values.drop_nulls().mean()
    return round(float(middle)) if isinstance(middle, int | float) else None


def _ratio(values: Mapping[str, Value], clock: str) -> float | None:
    """The first step over the others, on the host's or the GPU's clock."""
    first, others = values[f"first_{clock}_ns"], values[f"others_{clock}_ns"]
    return first / others if isinstance(first, int) and isinstance(others, int) and others else None


_VERDICTS = {
    "warm": "the first step is not cold",
    "cold": "the first step is cold",
    "profiler": "the first step is slow because the profiler was starting",
    "slow": "the first step is slower, for no visible reason",
}


def _says(values: Mapping[str, Value]) -> str:
    ratio, gpu = _ratio(values, "host"), _ratio(values, "gpu")
    seen = {sign: int(values[f"{sign}_ns"] or 0) for sign in SIGNS if sign != "label_gap"}
    top = max(seen, key=lambda sign: seen[sign])
    most = (
        f"{format_value('_ns', seen[top])} in {top}"
        if seen[top]
        else "no loading, compiling or allocation found"
    )
    if not isinstance(ratio, float):
        return f"too few steps to tell whether the first one was cold; {most}"
    clock = f", {gpu:.2f} on the GPU's clock" if isinstance(gpu, float) else ""
    explained = values["explained_pct"]
    over = f": {format_value('_ns', values['excess_ns'])} longer" if values["verdict"] != "warm" else ""
    known = f", {explained:.0f} % of it explained" if over and isinstance(explained, float) else ""
    comparison = f"{ratio:.2f} times the others{clock}"
    return f"{_VERDICTS[str(values['verdict'])]} ({comparison}){over}{known}; {most}"


def _notes(trace: Trace, table: pl.DataFrame, values: Mapping[str, Value]) -> tuple[str, ...]:
    notes = []
    if not trace.steps:
        notes.append("no steps recorded: totals are over the whole recording")
    elif values["verdict"] is None:
        notes.append("fewer than two complete steps: nothing to compare the first one with")
    if values["verdict"] == "profiler":
        notes.append(
            "most of the extra time is profiler start-up, not the program's: add a warm-up step to the schedule"
        )
    launched = table["launched_count"].drop_nulls()
    if launched.len() > 1 and (usual := _median(launched.slice(1))) and launched[0] > 1.2 * usual:
        extra = counted(int(launched[0] - usual), "more GPU task")
        notes.append(f"the first step launched {extra} than the others: trial runs (cuDNN, autotuning)?")
    return tuple(notes)
