"""The timeline identity: its parts, its windows, and that it always sums."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretrace
from foretrace import analyze
from foretrace.analyze.concepts.device import device_time
from foretrace.errors import MissingDataError, UsageError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

US = 1_000
PARTS = ("computation_ns", "exposed_communication_ns", "exposed_copy_ns", "earlier_ns", "idle_ns")
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
COPY = "Memcpy HtoD (Pinned -> Device)"


def sums(table: pl.DataFrame) -> bool:
    return table.select(pl.sum_horizontal(PARTS)).to_series().equals(table["span_ns"])


def test_exposed_is_what_nothing_better_covers(tmp_path: Path) -> None:
    # Computation [10, 30) and [60, 70); collective [20, 50); copy [40, 65); so copy alone in [50, 60); idle [70, 80).
    recording = Recording().launch(0, "gemm", 10, 30).launch(1, "gemm", 60, 70)
    recording.launch(2, NCCL, 20, 50, stream=8).launch(3, COPY, 40, 65, stream=9, category="gpu_memcpy")
    recording.launch(4, "Memset (Device)", 80, 81, category="gpu_memset")
    row = analyze.run(recording.open(tmp_path), "timeline").table.row(0, named=True)
    assert [row[part] for part in PARTS] == [31 * US, 20 * US, 10 * US, 0, 10 * US]
    assert row["span_ns"] == 71 * US
    assert (row["communication_ns"], row["copy_ns"]) == (30 * US, 25 * US)
    assert row["hidden_communication_pct"] == pytest.approx(100 * 10 / 30)
    assert row["hidden_copy_pct"] == pytest.approx(100 * 15 / 25)
    assert row["idle_pct"] == pytest.approx(100 * 10 / 71)


def test_a_step_reaches_from_completion_to_completion(tmp_path: Path) -> None:
    recording = Recording()
    for number, host in enumerate((0, 100)):
        recording.step(number, host, host + 90).launch(host + 10, "relu", host + 20, host + 50)
    table = analyze.run(recording.open(tmp_path), "timeline", by="step").table
    # The first waits from its start on the host; the second from the end of the first's kernel.
    assert table["step"].to_list() == [0, 1]
    assert table["span_ns"].to_list() == [50 * US, 100 * US]
    assert table["idle_ns"].to_list() == [20 * US, 70 * US]
    whole = analyze.run(recording.open(tmp_path), "timeline").table.row(0, named=True)
    assert whole["span_ns"] == 150 * US
    launched = analyze.run(recording.open(tmp_path), "timeline", over="launched").table.row(0, named=True)
    assert (launched["span_ns"], launched["idle_ns"]) == (130 * US, 70 * US)


def test_work_from_before_the_recording_is_neither_idle_nor_computation(tmp_path: Path) -> None:
    recording = Recording().launch(0, "gemm", 10, 20).launch(15, "gemm", 50, 60)
    recording.kernel("old", 15, 45, stream=8, correlation=999)
    result = analyze.run(recording.open(tmp_path), "timeline")
    row = result.table.row(0, named=True)
    assert [row[part] for part in PARTS] == [20 * US, 0, 0, 25 * US, 5 * US]
    assert any("before the recording" in note for note in result.notes)


def test_gaps_by_length(tmp_path: Path) -> None:
    recording = Recording().launch(0, "a", 0, 10).launch(1, "b", 12, 20).launch(2, "c", 25, 30)
    row = analyze.run(recording.open(tmp_path), "timeline", macro_ns=5 * US).table.row(0, named=True)
    assert (row["gaps_count"], row["micro_idle_ns"], row["macro_idle_ns"]) == (2, 2 * US, 5 * US)


def test_devices_have_rows_of_their_own(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 30).launch(0, "a", 0, 10, device=0).launch(1, "b", 5, 20, device=1)
    table = analyze.run(recording.open(tmp_path), "timeline").table
    assert table["device"].to_list() == [0, 1]
    assert table["idle_ns"].to_list() == [10 * US, 5 * US]
    assert sums(table)


def test_without_gpu_work_it_says_what_to_record(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"ProfilerActivity\.CUDA"):
        analyze.run(
            Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
            .op("aten::mm", 0, 1)
            .open(tmp_path),
            "timeline",
        )
    recording = Recording().launch(0, "a", 1, 2)
    with pytest.raises(MissingDataError, match="step"):
        analyze.run(recording.open(tmp_path), "timeline", by="step")
    with pytest.raises(UsageError):
        analyze.run(recording.open(tmp_path), "timeline", macro_ns=-1)


piece = st.tuples(
    st.integers(0, 60), st.integers(0, 15), st.sampled_from(("k", "n", "c")), st.integers(0, 2), st.booleans()
)


@settings(max_examples=60)
@given(st.lists(piece, min_size=1, max_size=20))
def test_against_counting_every_microsecond(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[Any, ...]]
) -> None:
    recording = Recording().launch(0, "first", 0, 1)
    launched: dict[str, set[int]] = {"k": {0}, "n": set(), "c": set()}
    earlier: set[int] = set()
    names = {"k": ("kernel", "gemm"), "n": ("kernel", NCCL), "c": ("gpu_memcpy", COPY)}
    last = 1
    for start, length, kind, stream, linked in pieces:
        category, name = names[kind]
        if linked:
            recording.launch(0, name, start, start + length, category=category, stream=stream, call=0)
            launched[kind] |= set(range(start, start + length))
            last = max(last, start + length)
        else:
            recording.device(category, name, start, start + length, stream=stream, correlation=5000 + start)
            earlier |= set(range(start, start + length))
    row = analyze.run(recording.open(tmp_path_factory.mktemp("t")), "timeline").table.row(0, named=True)
    moments = set(range(last))
    busy = launched["k"] | launched["n"] | launched["c"]
    expected = (
        launched["k"], launched["n"] - launched["k"], launched["c"] - launched["n"] - launched["k"],
        (earlier & moments) - busy, moments - busy - earlier,
    )  # fmt: skip
    assert [row[part] for part in PARTS] == [US * len(each) for each in expected]


def recordings() -> list[Path]:
    return sorted(
        (
            *(CORPUS / "h200").glob("*.gz"),
            *(CORPUS / "peers").glob("*/*.json.gz"),
            *(CORPUS / "other").glob("*/rank*.gz"),
        )
    )


@needs_corpus
def test_sums_in_every_recording() -> None:
    seen = 0
    for path in recordings():
        try:
            trace = foretrace.open(path)
            whole = analyze.run(trace, "timeline")
        except foretrace.errors.ForetraceError:
            continue
        seen += 1
        tables = [whole.table, analyze.run(trace, "timeline", over="launched").table]
        if trace.steps:
            tables.append(analyze.run(trace, "timeline", by="step").table)
            assert tables[2]["span_ns"].sum() == whole.values["span_ns"], path.name
            assert tables[2]["idle_ns"].sum() == whole.values["idle_ns"], path.name
        for table in tables:
            assert sums(table), path.name
            assert table.select((pl.col("^.*_ns$") >= 0).all()).row(0) == (True,) * len(
                table.select("^.*_ns$").columns
            )
            assert (table.select(pl.max_horizontal("^.*_pct$")).to_series() <= 100).all(), path.name
        _same_as_the_overview(trace, tables[1])
    assert seen > 60


def _same_as_the_overview(trace: foretrace.Trace, table: pl.DataFrame) -> None:
    """`device_time.timeline`, which the overview uses, takes the parts another way and must find the same."""
    for device, rows in device_time.by_device(device_time.device_work(trace)):
        if rows["orphan"].all():
            continue
        one = device_time.timeline(rows)
        row = table.filter(pl.col("device").eq_missing(device)).row(0, named=True)
        assert [row[part] for part in PARTS] == [getattr(one, part) for part in PARTS]


@needs_corpus
@pytest.mark.parametrize("name", ["h100_qwen", "mi300_qwen"])
def test_agrees_with_tracelens(name: str) -> None:
    golden = CORPUS / "peers" / "tracelens" / f"{name}_golden" / "gpu_timeline.csv"
    with golden.open() as file:
        expected = {row["type"]: float(row["time ms"]) for row in csv.DictReader(file)}
    trace = foretrace.open(CORPUS / "peers" / "tracelens" / f"{name}.json.gz")
    values = analyze.run(trace, "timeline", over="launched").values
    for theirs, ours in (
        ("computation_time", "computation_ns"), ("exposed_comm_time", "exposed_communication_ns"),
        ("exposed_memcpy_time", "exposed_copy_ns"), ("idle_time", "idle_ns"), ("total_time", "span_ns"),
        ("total_memcpy_time", "copy_ns"),
    ):  # fmt: skip
        assert int(values[ours] or 0) / 1e6 == pytest.approx(expected[theirs], abs=1e-4), theirs
