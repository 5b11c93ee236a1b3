"""Threads and streams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import foretrace
from foretrace import analyze, intervals
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

US = 1_000


def test_busy_is_the_union_without_what_also_covers_waiting(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 100).python("train.py(1): loop", 0, 100)
    recording.op("aten::linear", 10, 30).op("aten::mm", 15, 25).runtime("cudaStreamSynchronize", 50, 60)
    recording.kernel("gemm", 20, 50).kernel("relu", 40, 70).copy(
        "Memcpy HtoD (Pinned -> Device)", 0, 5, stream=8
    )
    result = analyze.run(recording.open(tmp_path), "tracks")
    rows = {row["stream"]: row for row in result.table.to_dicts()}
    assert rows[None]["type"] == "thread"
    assert rows[None]["busy_ns"] == 30 * US
    assert rows[None]["spans_count"] == 5
    assert rows[None]["work"] == "op, python, annotation, runtime"
    assert (rows[7]["busy_ns"], rows[7]["busy_pct"]) == (50 * US, pytest.approx(50))
    assert (rows[7]["first_start_ns"], rows[7]["last_end_ns"]) == (20 * US, 70 * US)
    assert rows[7]["work"] == "kernel"
    assert rows[8]["work"] == "copy"
    assert (result.values["thread_count"], result.values["stream_count"]) == (1, 2)
    assert result.table["busy_ns"].to_list() == [50 * US, 30 * US, 5 * US]


def test_a_thread_of_annotations_only_has_no_known_busy_time(tmp_path: Path) -> None:
    recording = Recording().annotation("epoch", 0, 100, thread=5).op("aten::mm", 0, 10)
    table = analyze.run(recording.open(tmp_path), "tracks").table
    assert table.filter(pl.col("thread") == 5)["busy_ns"].to_list() == [None]


def test_an_empty_recording_has_no_tracks(tmp_path: Path) -> None:
    result = analyze.run(Recording().open(tmp_path), "tracks")
    assert result.table.is_empty()
    assert "no activity" in result.says


@needs_corpus
def test_busy_agrees_with_the_interval_union() -> None:
    trace = foretrace.open(CORPUS / "peers" / "hta" / "nccl_parser_config__nccl_data.json.gz")
    table = analyze.run(trace, "tracks").table
    spans = trace.spans.filter(~pl.col("kind").is_in(["annotation", "python"])).drop_nulls("dur_ns")
    assert table["spans_count"].sum() == trace.spans.height
    for track, busy in table.select("track_id", "busy_ns").rows():
        mine = spans.filter(pl.col("track_id") == track)
        start = mine["start_ns"].to_numpy()
        assert intervals.union(start, start + mine["dur_ns"].to_numpy().astype(np.int64)).total_ns == busy
