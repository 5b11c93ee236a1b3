"""What must hold for every analysis of every recording, whatever is in it.

One test for each recording: it is opened once, each analysis is made once, and every check that fails is told, with its name.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace import analyze, ingest
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.result import Result
from foretrace.analyze.steps import ROLES as STEP_ROLES
from foretrace.errors import MissingDataError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus, unlike

NO_TRACES = {"rocprof", "memory", "ncu", "proton", "nsys", "nsys_synthetic"}


def recordings() -> list[Path]:
    """The recordings of torch.profiler in the corpus."""
    found = [*CORPUS.rglob("*.json"), *CORPUS.rglob("*.json.gz")]
    return unlike(path for path in found if "truth" not in path.name and path.parent.name not in NO_TRACES)


def label(path: Path) -> str:
    return path.relative_to(CORPUS).as_posix().removesuffix(".gz").removesuffix(".json")


RECORDINGS = recordings()
NAMES = [each.name for each in analyze.ANALYSES]
SUFFIXES = ("_ns", "_bytes", "_count", "_flops", "_pct", "_per_s")
# One of each sort, for what would take too long on all: not large, with and without stacks, memory, NCCL,
# graphs, AMD, old formats, no GPU.
VARIED = [
    path
    for path in RECORDINGS
    if label(path).startswith(
        (
            "h200/item_sync.slow.rich", "h200/tutorial_layer.fixed.lite", "h200/decode_launch_bound.fixed.lite",
            "h200/naive_attention.slow.rich", "other/cold_start/matmul_cold_wait0", "other/multirank_gloo/rank2",
            "peers/hta/amd", "peers/hta/critical_path_cuda_event_sync_multi", "peers/hta/trace_filter__sampled_rank-0",
            "peers/hta/cupti", "peers/kineto/gpu_metrics_input", "peers/tracelens/vllm", "peers/tracelens/mi300",
        )
    )
]  # fmt: skip

# (analysis, column or value): why it may be negative.
NEGATIVE = {
    ("operators", "host_self_ns"): "as in torch's table: an operator that ends after its caller",
    ("operators", "host_self_pct"): "of the same",
    ("operators", "host_memory_bytes"): "more was freed than taken",
    ("operators", "host_self_memory_bytes"): "more was freed than taken",
    ("operators", "device_memory_bytes"): "more was freed than taken",
    ("operators", "device_self_memory_bytes"): "more was freed than taken",
    ("memory", "increase_bytes"): "more was freed than taken",
    ("memory", "self_increase_bytes"): "more was freed than taken",
}
# (analysis, column or value): why it may be above 100 %.
ABOVE_100 = {
    ("memory-fit", "largest_batch_pct"): "of the recorded batch: most devices have room for more",
    ("memory-fit", "largest_batch_low_pct"): "likewise",
    ("memory-fit", "largest_batch_high_pct"): "likewise",
    ("operators", "device_self_pct"): "an annotation's row on the device covers idle time too",
    ("operators", "host_total_pct"): "an annotation on a thread of its own; the whole is self time",
    ("trust", "share_pct"): "the first step's time, of the others'",
    (
        "roofline",
        "roof_pct",
    ): "operands that stay in the L2 cache outrun the memory; over 110 % is an anomaly",
}
ROUNDING_PCT = 1e-6


@lru_cache(maxsize=2)
def trace_of(path: Path) -> foretrace.Trace:
    return ingest.open_trace(path, cache=False)


@lru_cache(
    maxsize=200
)  # more than there are analyses and their options, and no more recordings in memory than needed
def result_of(path: Path, name: str, **options: Any) -> Result | None:
    """The result, or None where the recording does not hold what it needs."""
    result = result_or_reason(trace_of(path), name, **options)
    if isinstance(result, Result):
        return result
    assert path.name in result, "says which recording"
    assert "\n" not in result
    return None


def result_or_reason(trace: foretrace.Trace, name: str, **options: Any) -> Result | str:
    """The result, or why there is none: no other exception is allowed."""
    try:
        return analyze.run(trace, name, **options)
    except MissingDataError as missing:
        return str(missing)


def numbers(result: Result) -> dict[str, list[float]]:
    """Every number of a Result, by its column or value."""
    found: dict[str, list[float]] = {}
    for name, dtype in result.table.schema.items():
        if dtype.is_numeric():
            found.setdefault(name, []).extend(result.table[name].drop_nulls().to_list())
    for name, value in result.values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.setdefault(name, []).append(value)
    return found


def problems(result: Result) -> list[str]:
    """What is wrong with the numbers of a Result, whatever it is about."""
    found = []
    for measure, values in numbers(result).items():
        least, most = min(values, default=0), max(values, default=0)
        where = (result.name, measure)
        if not all(math.isfinite(value) for value in values):
            found.append(f"{measure} is not finite")
        if measure.endswith(SUFFIXES) and least < 0 and where not in NEGATIVE:
            found.append(f"{measure} is negative: {least}")
        if measure.endswith("_pct") and most > 100 + ROUNDING_PCT and where not in ABOVE_100:
            found.append(f"{measure} is above 100 %: {most}")
        if measure.endswith("_pct") and values and measure not in result.denominators:
            found.append(f"{measure}: a share of what?")
    if not result.says or {"nan", "inf", "None"} & set(result.says.split()):
        found.append(f"says {result.says!r}")
    return found


Check = Callable[[Path], None]
CHECKS: list[Check] = []  # for every recording
VARIED_CHECKS: list[Check] = []  # for one of each sort


def for_every_recording(check: Check) -> Check:
    CHECKS.append(check)
    return check


def for_varied_recordings(check: Check) -> Check:
    VARIED_CHECKS.append(check)
    return check


@for_every_recording
def every_number_is_possible(path: Path) -> None:
    faults = {}
    for name in NAMES:
        result = result_of(path, name)
        if result is not None:
            assert result.name == name
            faults[name] = problems(result)
    assert {name: found for name, found in faults.items() if found} == {}


def value(result: Result, name: str) -> int:
    found = result.values[name]
    assert isinstance(found, int), name
    return found


def sum_of(result: Result, *columns: str) -> int:
    return sum(int(result.table[column].sum()) for column in columns)


def same_row_sums(result: Result, whole: str, parts: Sequence[str]) -> bool:
    """Whether the parts of every row sum to its whole exactly."""
    table = result.table.with_columns(pl.col(parts).fill_null(0))
    return bool((table.select(pl.sum_horizontal(parts)).to_series() == table[whole]).all())


def shares_sum(result: Result, columns: Sequence[str]) -> float:
    return sum(float(result.values[column] or 0) for column in columns)


TIMELINE = ("computation", "exposed_communication", "exposed_copy", "earlier", "idle")


@for_every_recording
def time_of_a_device_sums_to_its_span(path: Path) -> None:
    result = result_of(path, "overview")
    assert result is not None
    if result.table.height:
        assert same_row_sums(result, "span_ns", [f"{part}_ns" for part in TIMELINE])
        assert same_row_sums(result, "span_ns", ["busy_ns", "earlier_ns", "idle_ns"])
        assert shares_sum(result, [f"{part}_pct" for part in TIMELINE]) in (0, pytest.approx(100))


@for_every_recording
def timeline_sums_to_its_span(path: Path) -> None:
    for by in ("device", "step"):
        result = result_of(path, "timeline", by=by)
        if result is not None:
            assert same_row_sums(result, "span_ns", [f"{part}_ns" for part in TIMELINE]), by
            assert same_row_sums(result, "idle_ns", ["macro_idle_ns", "micro_idle_ns"]), by
            assert shares_sum(result, [f"{part}_pct" for part in TIMELINE]) == pytest.approx(100), by


@for_every_recording
def steps_of_a_timeline_sum_to_the_whole(path: Path) -> None:
    steps, whole = result_of(path, "timeline", by="step"), result_of(path, "timeline")
    if steps is not None and whole is not None:
        parts = [f"{part}_ns" for part in TIMELINE]
        assert [sum_of(steps, part) for part in parts] == [value(whole, part) for part in parts]


@for_every_recording
def roles_of_a_step_sum_to_it(path: Path) -> None:
    result = result_of(path, "steps")
    if result is not None:
        roles = [f"{role}_ns" for role in STEP_ROLES]
        assert same_row_sums(result, "wall_ns", roles)
        shares = shares_sum(result, [f"{role}_pct" for role in STEP_ROLES])
        assert shares == pytest.approx(100) or not result.values["step_count"]


@for_every_recording
def causes_of_idle_time_sum_to_it(path: Path) -> None:
    idle, timeline = result_of(path, "idle"), result_of(path, "timeline")
    assert (idle is None) == (timeline is None)
    if idle is not None and timeline is not None:
        assert sum_of(idle, "total_ns") == value(idle, "idle_ns") == value(timeline, "idle_ns")
        assert value(idle, "span_ns") == value(timeline, "span_ns")
        assert idle.table["share_pct"].sum() == pytest.approx(100) or value(idle, "idle_ns") == 0


@for_every_recording
def work_of_a_device_is_the_same_in_every_view(path: Path) -> None:
    """Roles, phases, sections, modules and source lines divide the same launched work."""
    roles = result_of(path, "roles")
    work = device_time.device_work(trace_of(path)).filter(~pl.col("orphan"))
    total = int(work["dur_ns"].sum())
    if roles is None:
        assert work.is_empty()
        return
    assert value(roles, "total_ns") == total == sum_of(roles, "total_ns")
    assert roles.table["total_pct"].sum() == pytest.approx(100) or not total
    phases = ("forward_pct", "backward_pct", "recompute_pct", "optimizer_phase_pct")
    assert shares_sum(roles, phases) <= 100 + ROUNDING_PCT
    if (sections := result_of(path, "sections")) is not None:
        assert value(sections, "device_ns") == total
        assert sum_of(sections, "device_exclusive_ns") + value(sections, "outside_ns") == total
    if (modules := result_of(path, "modules")) is not None:
        assert value(modules, "device_ns") == total == sum_of(modules, "device_self_ns")
        assert value(modules, "device_in_modules_ns") <= total
    if (stacks := result_of(path, "stacks")) is not None:
        assert value(stacks, "device_ns") == total
        assert sum_of(stacks, "device_self_ns") == total >= value(stacks, "unattributed_device_ns")


@for_every_recording
def steps_and_orphans_make_the_whole(path: Path) -> None:
    """Each piece of device work belongs to one step, to none, or was launched before the recording."""
    trace = trace_of(path)
    roles = result_of(path, "roles", per_step=True)
    whole = int(trace.device_spans["dur_ns"].sum())
    work = device_time.device_work(trace)
    orphans = int(work.filter(pl.col("orphan"))["dur_ns"].sum())
    assert (sum_of(roles, "total_ns") if roles is not None else 0) + orphans == whole
    kernels = result_of(path, "kernels")
    if kernels is not None:
        everything = result_of(path, "kernels", orphans=True)
        assert everything is not None
        assert value(kernels, "total_ns") + value(kernels, "orphan_ns") == value(everything, "total_ns")
        assert sum_of(kernels, "total_ns") == value(kernels, "total_ns")
        assert sum_of(kernels, "calls_count") == value(kernels, "kernel_count")


@for_every_recording
def a_union_is_at_most_the_sum_and_the_span(path: Path) -> None:
    overview = result_of(path, "overview")
    assert overview is not None
    if not overview.table.height:
        return
    for device, work in device_time.by_device(
        device_time.device_work(trace_of(path)).filter(~pl.col("orphan"))
    ):
        row = overview.table.filter(pl.col("device").eq_missing(device) & pl.col("name").ne("all devices"))[0]
        assert row["busy_ns"].item() <= work["dur_ns"].sum()
        assert row["busy_ns"].item() <= row["span_ns"].item()
        assert row["communication_ns"].item() >= row["exposed_communication_ns"].item()
        assert row["copy_ns"].item() >= row["exposed_copy_ns"].item()


@for_every_recording
def the_critical_path_is_as_long_as_its_stretch(path: Path) -> None:
    result = result_of(path, "critical-path")
    if result is not None:
        parts = [name for name in result.table.columns if name.endswith("_ns") and name != "length_ns"]
        assert same_row_sums(result, "length_ns", parts)
        shares = [name for name in result.values if name.endswith("_pct")]
        assert shares_sum(result, shares) == pytest.approx(100)


@for_every_recording
def what_is_counted_in_rows_is_counted_in_the_headline(path: Path) -> None:
    totals = {
        "syncs": {"calls_count": "calls_count", "wait_ns": "wait_ns"},
        "input": {"calls_count": "calls_count"},
        "launches": {"launches_count": "launches_count", "started_count": "started_count"},
        "communication": {"calls_count": "collectives_count"},
    }
    for name, pairs in totals.items():
        if (result := result_of(path, name)) is not None:
            for column, headline in pairs.items():
                assert sum_of(result, column) == value(result, headline), (name, column)
    if (memory := result_of(path, "memory")) is not None:
        device = memory.table.filter(pl.col("device_name") == memory.values["device_name"])
        assert device["peak_bytes"].sum() == value(memory, "peak_bytes")
    talk = result_of(path, "communication")
    if (
        talk is not None and talk.values["overlapped_ns"] is not None
    ):  # null where collectives ran on the host
        assert value(talk, "overlapped_ns") + value(talk, "exposed_ns") == value(talk, "communication_ns")
    if (cores := result_of(path, "gpu-efficiency")) is not None and cores.values[
        "tensor_core_pct"
    ] is not None:
        names = ("tensor_core_pct", "no_tensor_core_pct", "unknown_tensor_core_pct")
        assert shares_sum(cores, names) == pytest.approx(100)


@needs_corpus
def test_overlapping_kernels_of_one_stream_count_once() -> None:
    """The B200 recording: with programmatic dependent launch a kernel starts before the one ahead has ended."""
    path = CORPUS / "peers" / "tracelens" / "b200_eager.json.gz"
    kernels = trace_of(path).device_spans.filter(pl.col("kind") == "kernel").sort("track_id", "start_ns")
    overlap = kernels.filter(pl.col("start_ns") < pl.col("end_ns").shift(1).over("track_id"))
    assert overlap.height >= 70
    covered = device_time.covered(kernels).total_ns
    assert covered < int(kernels["dur_ns"].sum())
    overview = result_of(path, "overview")
    assert overview is not None
    assert value(overview, "busy_ns") <= value(overview, "span_ns")
    assert value(overview, "computation_ns") <= covered + int(trace_of(path).device_spans["dur_ns"].sum())
    assert float(overview.values["gpu_busy_pct"] or 0) <= 100


def test_nested_ranges_of_one_name_count_once(tmp_path: Path) -> None:
    """Optimizer.step inside Optimizer.step: 100 us, not 190, on the host; 50 us, not 100, on the GPU."""
    recording = (
        Recording()
        .step(1, 0, 200)
        .annotation("Optimizer.step", 10, 110)
        .annotation("Optimizer.step", 15, 105)
    )
    recording.op("aten::add", 20, 60).launch(30, "add_kernel", 40, 90)
    trace = recording.open(tmp_path)
    for flat in (False, True):
        table = analyze.run(trace, "sections", flat=flat).table
        assert table["section"].to_list() == ["Optimizer.step"]
        assert table["host_ns"].to_list() == [100_000]
        assert table["device_ns"].to_list() == [50_000]
        assert table["host_exclusive_ns"].to_list() == [100_000]


def degenerate() -> dict[str, Recording]:
    """Recordings that lack what an analysis may take for granted."""
    return {
        "empty": Recording(),
        "host only": Recording().step(1, 0, 100).op("aten::add", 10, 20),
        "no steps": Recording().op("aten::add", 0, 50).launch(10, "k", 20, 40),
        "no launches": Recording().step(1, 0, 100).op("aten::add", 0, 50).kernel("k", 20, 40),
        "kernels only": Recording().kernel("k", 0, 10).kernel("k", 5, 20).copy("Memcpy HtoD", 30, 40),
        "no length": Recording().step(1, 0, 0).op("aten::add", 0, 0).launch(0, "k", 0, 0, call=0),
        "one python call": Recording().python("train.py(1): main", 0, 10),
        "one step": Recording().step(1, 0, 10),
        "one copy": Recording()
        .step(1, 0, 100)
        .launch(0, "Memcpy DtoH (Device -> Pageable)", 5, 20, category="gpu_memcpy"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", degenerate())
def test_every_analysis_of_a_poor_recording(case: str, tmp_path: Path) -> None:
    trace = ingest.open_trace(degenerate()[case].write(tmp_path), cache=False)
    faults: dict[str, object] = {}
    for name in NAMES:
        result = result_or_reason(trace, name)
        if isinstance(result, Result):
            faults[name] = problems(result)
        elif "trace.json" not in result:
            faults[name] = f"does not say which recording: {result}"
    assert {name: fault for name, fault in faults.items() if fault} == {}


def every_option() -> list[tuple[str, str, Any]]:
    """Each choice of each option that has a few."""
    found = []
    for chosen in analyze.ANALYSES:
        hints = typing.get_type_hints(chosen.function)
        for option, parameter in chosen.options.items():
            choices = (
                typing.get_args(hints[option]) if typing.get_origin(hints[option]) is typing.Literal else ()
            )
            choices = (True, False) if isinstance(parameter.default, bool) else choices
            found += [(chosen.name, option, choice) for choice in choices if choice != parameter.default]
    return found


@for_varied_recordings
def every_choice_of_every_option(path: Path) -> None:
    faults = {}
    for name, option, choice in every_option():
        result = result_of(path, name, **{option: choice})
        if result is not None:
            faults[name, option, choice] = problems(result)
    assert {chosen: found for chosen, found in faults.items() if found} == {}


def differences(one: Result | None, other: Result | str) -> list[str]:
    """In what two results differ; nothing where they are the same to the last row."""
    if one is None or isinstance(other, str):
        return [] if one is None and isinstance(other, str) else ["only one of the two has what it needs"]
    found = [name for name in one.values if one.values[name] != other.values.get(name)]
    if not one.table.equals(other.table):
        found.append("the table")
    if (one.says, one.notes, one.denominators) != (other.says, other.notes, other.denominators):
        found.append("what it says")
    return found


def differing(path: Path, again: foretrace.Trace) -> dict[str, list[str]]:
    """What differs in each analysis between a recording and the same one read once more."""
    found = {name: differences(result_of(path, name), result_or_reason(again, name)) for name in NAMES}
    return {name: faults for name, faults in found.items() if faults}


@for_varied_recordings
def analysing_twice_gives_the_same(path: Path) -> None:
    """A recording against itself: nothing differs, not even the order of rows that weigh the same."""
    assert differing(path, ingest.open_trace(path, cache=False)) == {}


@for_varied_recordings
def both_readers_lead_to_the_same_results(path: Path) -> None:
    if path in VARIED[::2]:
        assert differing(path, ingest.open_trace(path, cache=False, reader="python")) == {}


@needs_corpus
@pytest.mark.parametrize("path", RECORDINGS, ids=label)
def test_what_must_hold_for_every_recording(path: Path) -> None:
    failures = []
    for check in [*CHECKS, *(VARIED_CHECKS if path in VARIED else ())]:
        try:
            check(path)
        except Exception as failure:
            failure.add_note(f"in the check {check.__name__} of {label(path)}")
            failures.append(failure)
    if failures:
        raise ExceptionGroup(f"{label(path)}: {len(failures)} checks failed", failures)
