"""Launches: latency, delay in the queue, short work, and the queue's depth."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace import analyze
from foretrace.analyze.concepts.host.launch_queue import queue_depth
from foretrace.errors import ForetraceError, MissingDataError, UsageError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

US = 1_000


def one(recording: Recording, folder: Path, **options: Any) -> dict[str, Any]:
    table = analyze.run(recording.open(folder), "launches", **options).table
    assert table.height == 1
    return table.row(0, named=True)


def test_latency_is_measured_where_the_stream_was_idle(tmp_path: Path) -> None:
    # Idle: 8 from the call's start, 5 from its end. Queued behind the first: 20 from the end of its call.
    recording = Recording().launch(0, "k", 8, 30, call=3).launch(5, "k", 30, 32, call=5)
    row = one(recording, tmp_path)
    assert (row["launches_count"], row["queued_count"]) == (2, 1)
    assert row["latency_ns"] == row["latency_min_ns"] == 8 * US
    assert row["queue_delay_ns"] == 20 * US
    assert row["delay_ns"] == (5 + 20) / 2 * US
    assert row["call_ns"] == 4 * US
    # The second ran for 2, its call for 5.
    assert (row["short_count"], row["short_pct"]) == (1, 50)


def test_another_stream_does_not_keep_a_launch_waiting(tmp_path: Path) -> None:
    recording = Recording().launch(0, "long", 1, 100, stream=7).launch(10, "short", 20, 21, stream=8, call=2)
    table = analyze.run(recording.open(tmp_path), "launches").table
    row = table.filter(pl.col("name") == "short").row(0, named=True)
    assert (row["latency_ns"], row["queued_count"]) == (10 * US, 0)


def test_work_that_starts_within_the_call_has_no_delay(tmp_path: Path) -> None:
    row = one(Recording().launch(0, "k", 3, 9, call=5), tmp_path)
    assert (row["delay_ns"], row["latency_ns"]) == (0, 3 * US)


def test_a_graph_is_one_launch_with_many_kernels(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 100).runtime("cudaGraphLaunch", 0, 10, correlation=9)
    for index in range(4):
        recording.kernel(f"k{index}", 20 + 5 * index, 23 + 5 * index, correlation=9)
    result = analyze.run(recording.open(tmp_path), "launches")
    row = result.table.row(0, named=True)
    assert (row["name"], row["launches_count"], row["started_count"]) == ("cudaGraphLaunch", 1, 4)
    # 12 of work against a call of 10: no kernel is that long, the launch is not short.
    assert (row["work_ns"], row["short_count"], row["latency_ns"]) == (12 * US, 0, 20 * US)
    assert result.values["launches_per_step_count"] == 1
    assert result.values["launch_pct"] == 10
    assert queue_depth(recording.open(tmp_path))["depth_count"].to_list() == [1, 0]


def test_launch_cost_is_a_share_of_the_steps_host_time(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 50).step(2, 50, 100)
    for at in (5, 25, 55, 75):
        recording.launch(at, "k", at + 6, at + 9, call=5)
    # A call of another thread at the same time takes no more of it.
    recording.launch(5, "k", 40, 45, call=5, thread=8).launch(55, "k", 90, 95, call=5, thread=8)
    values = analyze.run(recording.open(tmp_path), "launches").values
    assert values["launch_pct"] == 20
    assert values["launches_per_step_count"] == 3


def test_by_call(tmp_path: Path) -> None:
    recording = Recording().launch(0, "a", 5, 6).launch(10, "b", 15, 16)
    assert one(recording, tmp_path, by="api")["name"] == "cudaLaunchKernel"


def with_outliers() -> Recording:
    """Calls of 50 and 51 µs; delays of 100 and 101 µs on an idle stream, and one of 140 behind the work before."""
    recording = Recording().step(1, 0, 3000)
    recording.launch(0, "just", 55, 60, call=50).launch(100, "long", 160, 165, call=51)
    recording.launch(200, "just", 301, 310, call=1).launch(400, "late", 502, 510, call=1)
    recording.launch(600, "before", 610, 750, call=1).launch(609, "behind", 750, 760, call=1)
    return recording


def test_outliers_are_what_hta_counts(tmp_path: Path) -> None:
    result = analyze.run(with_outliers().open(tmp_path), "launches")
    rows = {row["name"]: row for row in result.table.to_dicts()}
    columns = ("long_calls_count", "late_count", "late_idle_count")
    counts = {name: tuple(row[column] for column in columns) for name, row in rows.items()}
    assert counts == {
        "just": (0, 0, 0), "long": (1, 0, 0), "late": (0, 1, 1), "before": (0, 0, 0), "behind": (0, 1, 0),
    }  # fmt: skip
    assert tuple(result.values[column] for column in columns) == (1, 2, 1)
    assert result.says.endswith("outliers: 1 long call, 1 late start on an idle stream")


def test_each_outlier_can_be_listed(tmp_path: Path) -> None:
    table = analyze.run(with_outliers().open(tmp_path), "launches", by="outlier").table
    shown = [(row["name"], row["outlier"], row["at_ns"], row["delay_ns"]) for row in table.to_dicts()]
    assert shown == [
        ("behind", "late behind other work", 609 * US, 140 * US),
        ("late", "late on an idle stream", 400 * US, 101 * US),
        ("long", "long call", 100 * US, 9 * US),
    ]


def test_what_counts_as_an_outlier_can_be_said(tmp_path: Path) -> None:
    trace = with_outliers().open(tmp_path)
    values = analyze.run(trace, "launches", long_call_ns=49_000, late_ns=139_000).values
    assert (values["long_calls_count"], values["late_count"], values["late_idle_count"]) == (2, 1, 0)
    assert analyze.run(trace, "launches", by="outlier", long_call_ns=10**9, late_ns=10**9).table.is_empty()
    with pytest.raises(UsageError):
        analyze.run(trace, "launches", late_ns=-1)


def test_depth_rises_with_calls_and_falls_with_starts(tmp_path: Path) -> None:
    recording = Recording()
    for at, start in ((0, 10), (2, 20), (4, 30), (6, 40)):
        recording.launch(at, "k", start, start + 5)
    trace = recording.open(tmp_path)
    depth = queue_depth(trace)
    assert depth["at_ns"].to_list() == [at * US for at in (0, 2, 4, 6, 10, 20, 30, 40)]
    assert depth["depth_count"].to_list() == [1, 2, 3, 4, 3, 2, 1, 0]
    values = analyze.run(trace, "launches", queue_limit=3).values
    assert values["queue_max_count"] == 4
    # 1x2 + 2x2 + 3x2 + 4x4 + 3x10 + 2x10 + 1x10 over 40.
    assert values["queue_mean_count"] == pytest.approx(88 / 40)
    assert values["queue_full_ns"] == 16 * US


def test_clocks_that_disagree_make_nothing_negative(tmp_path: Path) -> None:
    result = analyze.run(Recording().launch(10, "k", 8, 9, call=1).open(tmp_path), "launches")
    row = result.table.row(0, named=True)
    assert (row["latency_ns"], row["delay_ns"]) == (0, 0)
    assert result.values["queue_max_count"] == 0
    assert any("clocks" in note for note in result.notes)


def test_work_without_a_launch_is_left_out_aloud(tmp_path: Path) -> None:
    recording = Recording().kernel("old", 0, 5, correlation=99).launch(1, "k", 6, 9)
    result = analyze.run(recording.open(tmp_path), "launches")
    assert result.values["started_count"] == 1
    assert any("1 GPU task without a recorded launch" in note for note in result.notes)
    # But it kept the stream busy.
    assert result.table["queued_count"].to_list() == [1]
    with pytest.raises(MissingDataError, match="linked"):
        analyze.run(Recording().kernel("k", 0, 1).open(tmp_path), "launches")
    with pytest.raises(MissingDataError, match="no GPU work"):
        analyze.run(Recording().op("aten::mm", 0, 1).open(tmp_path), "launches")
    with pytest.raises(UsageError):
        analyze.run(recording.open(tmp_path), "launches", queue_limit=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_depth_against_counting(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    recording, launches = Recording().op("first", 0, 1), []
    for _ in range(30):
        at, wait, stream = chance.randint(0, 99), chance.randint(0, 50), chance.choice((7, 8))
        recording.launch(at, "k", at + wait, at + wait + chance.randint(0, 5), stream=stream)
        launches.append((at, at + wait, stream))
    depth = queue_depth(recording.open(tmp_path))
    for stream in (7, 8):
        rows = depth.filter(pl.col("stream") == stream)
        for at, count in zip(rows["at_ns"], rows["depth_count"], strict=True):
            waiting = [
                1 for call, start, where in launches if where == stream and call * US <= at < start * US
            ]
            assert count == len(waiting)


@needs_corpus
def test_sound_in_every_recording() -> None:
    seen = 0
    for path in sorted((*(CORPUS / "h200").glob("*.lite.json.gz"), *(CORPUS / "peers").glob("*/*.json.gz"))):
        try:
            trace = foretrace.open(path)
            result = analyze.run(trace, "launches")
        except ForetraceError:
            continue
        seen += 1
        assert (queue_depth(trace)["depth_count"] >= 0).all(), path.name
        assert queue_depth(trace).group_by("device", "stream").last()["depth_count"].to_list().count(0) > 0
        numbers = result.table.select(pl.col("^.*_(ns|count|pct)$"))
        assert all((numbers[name].drop_nulls() >= 0).all() for name in numbers.columns), path.name
        assert all(
            (numbers[name].drop_nulls() <= 100).all() for name in numbers.columns if name.endswith("_pct")
        )
        overview = analyze.run(trace, "overview").values["launches_per_step_count"]
        if overview is not None:
            assert result.values["launches_per_step_count"] == pytest.approx(overview), path.name
    assert seen > 35


@needs_corpus
def test_a_full_queue_is_seen() -> None:
    # elementwise_chain runs far ahead of the GPU: the driver itself recorded that its buffer was full.
    trace = foretrace.open(CORPUS / "h200" / "elementwise_chain.slow.lite.json.gz")
    values = analyze.run(trace, "launches").values
    assert int(values["buffer_full_ns"] or 0) > 0
    assert values["queued_pct"] == 100


@needs_corpus
def test_agrees_with_hta_on_its_fixtures() -> None:
    """HTA 0.6.1: get_cuda_kernel_launch_stats (98 launches, 32 short) and get_queue_length_summary (the maxima)."""
    folder = CORPUS / "peers" / "hta"
    trace = foretrace.open(
        folder / "critical_path_alexnet__benchmark_result_2869224_1695835535_trace.json.gz"
    )
    values = analyze.run(trace, "launches").values
    assert (values["launches_count"], values["short_count"]) == (98, 32)
    deepest = queue_depth(trace).group_by("stream").agg(pl.col("depth_count").max(), pl.len())
    assert sorted(deepest.rows()) == [(7, 18, 182), (20, 2, 14)]
    trace = foretrace.open(folder / "ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz")
    assert analyze.run(trace, "launches").values["queue_max_count"] == 1022
