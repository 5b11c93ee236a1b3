"""Cold start: whether the first recorded step paid for loading, compiling or allocating, and what for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.result import Result, Value, analysis
from foretrace.analyze.steps import measured_window, step_windows
from foretrace.errors import MissingDataError
from foretrace.intervals import Intervals, Times
from foretrace.sourced import JUDGEMENT, Factor, Share
from foretrace.trace import Step, Trace
from foretrace.units import counted, format_value

SIGNS = ("profiler", "compiling", "loading", "initialisation", "allocation", "label_gap")
_PROFILER = r"^Activity Buffer Request|^Buffer Flush|^Instrumentation|^Resource"
_COMPILING = (
    r"\(dynamo_timed\)$|^dynamo$|^entire_frame_compile$|(?i)autotun|^triton_?compile|benchmark_all_configs"
)
_LOADING = r"(?i)Lazy Function Loading|Module Loading|Driver Compiler|^(?:cu|hip)(?:Module|Library)Load|^hipModuleLoad|^cudaLibraryLoad"
# Queries and set-up that take microseconds when warm; what is longer waited for a context, a handle or a module.
_SET_UP = (
    r"^(?:cuda|hip)(?:FuncGetAttributes|FuncSetAttribute|GetSymbolAddress|DeviceGetAttribute|GetDevice|SetDevice|"
    r"GetDeviceProperties|StreamCreate|EventCreate|Occupancy|DeviceGetStreamPriorityRange|GetDeviceCount|Init)"
    r"|^cu(?:Init|CtxCreate|DevicePrimaryCtxRetain|DeviceGet)|^(?:cublas|cudnn|cusparse|cusolver|hipblas|rocblas|miopen)\w*Create"
)
_ALLOCATION = (
    r"^(?:cuda|hip)(?:Malloc|ExtMalloc|HostAlloc|HostMalloc|HostRegister)|^cuMem(?:Alloc|Create|Map|Host)"
)
_WARM_CALL_NS = 50_000
COLD_RATIO = Factor(1.5, of="times the other steps, on either clock", source=JUDGEMENT)
_COMPARED = (
    "verdict", "first_host_ns", "others_host_ns", "first_gpu_ns", "others_gpu_ns", "excess_ns", "explained_pct",
    "mean_host_ns", "typical_host_ns",
)  # fmt: skip
_PROFILER_SHARE = 0.5
SIGN_SHARE = Share(0.05, of="what the first step takes beyond the others", source=JUDGEMENT)
# The S1 tutorial's two cases are 1 % (overhead-bound) and 92 % (compute-bound); between these shares neither holds.
_OVERHEAD_BELOW_PCT, _COMPUTE_ABOVE_PCT = 20.0, 80.0


@analysis
def cold_start(trace: Trace) -> Result:
    """Signs of a cold start by step: module loading, compiling, set-up, allocation, the profiler's own start.

    Columns
        host_ns, gpu_ns: the step on either clock, as in `steps`. launched_count: GPU spans that it launched; many
        more in the first step than later are trial runs of cuDNN or of an autotuner.
        The rest is the step's host time in each sign, on any thread, each taking what earlier ones left:
        profiler: the profiler's own buffers (Activity Buffer Request, Buffer Flush).
        compiling: torch.compile and autotuning. loading: modules and functions being loaded, and launch calls of
        50 us or more that launch a kernel for the first time onto an empty stream.
        initialisation: queries and creations (attributes, streams, handles) of 50 us or more.
        allocation: cudaMalloc and its like. label_gap: from the start of each of the program's annotations to the
        first operator or call inside it.

    Values
        first_host_ns against others_host_ns, first_gpu_ns against others_gpu_ns: the first whole step and the median
        of the other whole ones, on either clock; their ratio is compared with 1.5.
        excess_ns: what the first step took beyond that median; explained_pct: of it, the signs above in the first
        step beyond their median in the others.
        mean_host_ns against typical_host_ns, the median of all steps: a mean over few steps hides a cold one.
        busy_pct: any launched GPU work running, of the steps; bound: below 20 % overhead, above 80 % compute.
        verdict: warm: neither ratio is 1.5 or more. profiler: the profiler's own start is half of the excess or more.
        cold: compiling, loading, initialisation and allocation are 5 % of it or more. slow: slower without these (a
        label gap alone does not tell: a profiler slows the first steps that it sees). Null with fewer than two
        whole steps.

    What it cannot tell
        Time in libraries that make no recorded call (cuBLAS heuristics, cuDNN plans, imports): it stays in the
        excess, unexplained. What was paid before the recording began.
    """
    if trace.spans.is_empty():
        raise MissingDataError(f"{trace.path.name}: nothing recorded")
    signs = _signs(trace)
    steps = _steps(trace)
    table = _table(trace, steps, signs)
    values = _values(trace, table, marked=bool(trace.steps))
    return Result(
        name="cold-start",
        says=_says(values),
        table=table,
        values=values,
        denominators={
            "explained_pct": "of excess_ns: the first step's host time beyond the median of the others",
            "busy_pct": "time with launched GPU work running, of the steps or without steps of the recording",
        },
        notes=_notes(trace, table, values),
    )


def _steps(trace: Trace) -> list[Step]:
    """The steps on the host, one per number; without steps the recording as one."""
    merged: dict[int, Step] = {}
    for step in trace.steps:
        known = merged.get(step.number, step)
        start, end = min(known.start_ns, step.start_ns), max(known.end_ns, step.end_ns)
        merged[step.number] = Step(step.number, start, end)
    return sorted(merged.values(), key=lambda step: step.start_ns) or [Step(-1, 0, trace.duration_ns)]


def _signs(trace: Trace) -> dict[str, Intervals]:
    """When each sign was seen, each without what earlier ones cover."""
    on_host = trace.tracks.filter(pl.col("device").is_null() & pl.col("stream").is_null())["id"]
    host = trace.spans.lazy().filter(pl.col("kind").is_in(("op", "annotation", "runtime", "overhead")))
    host = host.filter(pl.col("dur_ns") > 0).select("id", "track_id", "kind", "name", "start_ns", "dur_ns")
    spans = host.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns")).collect()
    spans = spans.filter(pl.col("track_id").is_in(on_host.implode()))

    def like(pattern: str, *kinds: str) -> pl.DataFrame:
        some = spans.filter(pl.col("kind").is_in(kinds))
        return some.filter(pl.col("name").is_in(device_time.names_like(some, pattern)))

    long = pl.col("dur_ns") >= _WARM_CALL_NS
    columns = ("start_ns", "end_ns")
    loading = pl.concat(
        (like(_LOADING, "overhead", "runtime").select(columns), _first_launches(trace, spans).select(columns))
    )
    found = {
        "profiler": device_time.covered(like(_PROFILER, "overhead")),
        "compiling": device_time.covered(like(_COMPILING, "op", "annotation")),
        "loading": device_time.covered(loading),
        "initialisation": device_time.covered(like(_SET_UP, "runtime").filter(long)),
        "allocation": device_time.covered(like(_ALLOCATION, "runtime")),
        "label_gap": _label_gaps(spans),
    }
    return _exclusive(found)


def _exclusive(found: Mapping[str, Intervals]) -> dict[str, Intervals]:
    """Each set without what the sets before it cover."""
    claimed = intervals.EMPTY
    parts = {}
    for name, each in found.items():
        parts[name] = intervals.subtract(each, claimed)
        claimed = intervals.union(
            np.concatenate((claimed.start, each.start)), np.concatenate((claimed.end, each.end))
        )
    return parts


def _first_launches(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Long launch calls of kernels not launched before in the recording, onto a stream that had nothing to do."""
    work = trace.device_spans.filter(pl.col("kind") == "kernel").drop_nulls("launch_id")
    first = work.group_by("name").agg(
        pl.col("launch_id").first(), pl.col("start_ns").first().alias("begun_ns")
    )
    calls = spans.filter((pl.col("kind") == "runtime") & (pl.col("dur_ns") >= _WARM_CALL_NS)).drop("name")
    joined = calls.join(first, left_on="id", right_on="launch_id", how="inner")
    # Behind a full queue a launch is long, too: then its kernel starts long after the call.
    return joined.filter(pl.col("begun_ns") - pl.col("end_ns") < _WARM_CALL_NS)


def _label_gaps(spans: pl.DataFrame) -> Intervals:
    """From the start of each annotation of the program to the first operator or call inside it."""
    labels = spans.filter(pl.col("kind") == "annotation")
    own = labels["name"].unique()
    own = own.filter(~own.cast(pl.String).str.contains(r"^ProfilerStep#|^## |_data: |compile_id="))
    labels = labels.filter(pl.col("name").is_in(own.implode())).select("track_id", "end_ns", at_ns="start_ns")
    begins = spans.filter(pl.col("kind") != "annotation").select(
        "track_id", first_ns="start_ns", at_ns="start_ns"
    )
    joined = labels.sort("at_ns").join_asof(
        begins.sort("at_ns"), on="at_ns", by="track_id", strategy="forward", check_sortedness=False
    )
    inside = joined.filter(pl.col("first_ns") <= pl.col("end_ns"))
    return intervals.union(inside["at_ns"].to_numpy(), inside["first_ns"].to_numpy())


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
        **{f"{name}_ns": pl.Series(_within(each, starts, ends)) for name, each in signs.items()}
    )


def _within(sign: Intervals, starts: Times, ends: Times) -> Times:
    return intervals.covered_ns(sign, starts, ends)


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
    """Whether the first step was cold, and if not why it was slower."""
    if not ratios:
        return None
    if max(ratios) < COLD_RATIO or not excess_ns:
        return "warm"
    if extra["profiler"] >= _PROFILER_SHARE * excess_ns:
        return "profiler"
    # A label's gap that only the first step has may be the profiler's as well: it is no proof of a cold start.
    own = sum(length for sign, length in extra.items() if sign not in ("profiler", "label_gap"))
    return "cold" if own >= SIGN_SHARE * excess_ns else "slow"


def _bound(trace: Trace) -> dict[str, Value]:
    """How much of the steps the GPU worked, and what that says of the program."""
    if not trace.has_device:
        return {"busy_pct": None, "bound": None}
    window = measured_window(trace, step_windows(trace))
    work = device_time.device_work(trace).filter(~pl.col("orphan"))
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
    "profiler": "the first step is slow by the profiler's own start",
    "slow": "the first step is slower, without a sign of what for",
}


def _says(values: Mapping[str, Value]) -> str:
    ratio, gpu = _ratio(values, "host"), _ratio(values, "gpu")
    seen = {sign: int(values[f"{sign}_ns"] or 0) for sign in SIGNS if sign != "label_gap"}
    top = max(seen, key=lambda sign: seen[sign])
    most = (
        f"{format_value('_ns', seen[top])} in {top}"
        if seen[top]
        else "no loading, compiling or allocation seen"
    )
    if not isinstance(ratio, float):
        return f"too few steps to tell whether the first was cold; {most}"
    clock = f", {gpu:.2f} on the GPU's clock" if isinstance(gpu, float) else ""
    explained = values["explained_pct"]
    over = f": {format_value('_ns', values['excess_ns'])} more" if values["verdict"] != "warm" else ""
    known = f", {explained:.0f} % of it explained" if over and isinstance(explained, float) else ""
    said = f"{_VERDICTS[str(values['verdict'])]} ({ratio:.2f} times the others{clock}){over}{known}"
    return f"{said}; {most}"


def _notes(trace: Trace, table: pl.DataFrame, values: Mapping[str, Value]) -> tuple[str, ...]:
    notes = []
    if not trace.steps:
        notes.append("no steps recorded: the signs are of the whole recording")
    elif values["verdict"] is None:
        notes.append("fewer than two whole steps: nothing to compare the first with")
    if values["verdict"] == "profiler":
        notes.append(
            "most of the excess is the profiler's own start, not the program's: record a warm-up step"
        )
    launched = table["launched_count"].drop_nulls()
    if launched.len() > 1 and (usual := _median(launched.slice(1))) and launched[0] > 1.2 * usual:
        extra = counted(int(launched[0] - usual), "GPU span")
        notes.append(f"the first step launched {extra} more than the others: trial runs (cuDNN, autotuning)?")
    return tuple(notes)
