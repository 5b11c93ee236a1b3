"""Stacks: time by source line on a trace with known answers, and what no line owns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace.analyze import run
from foretrace.analyze.result import Result
from foretrace.errors import MissingDataError
from tests.analyze.training import lost_return, training_step
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus


def rows(result: Result) -> dict[str, dict[str, Any]]:
    return {row["function"]: row for row in result.table.to_dicts()}


def us(row: dict[str, Any], *columns: str) -> list[float]:
    return [row[f"{column}_ns"] / 1000 for column in columns]


def test_lines_of_the_user(tmp_path: Path) -> None:
    result = run(training_step().open(tmp_path), "stacks")
    found = rows(result)
    assert list(found) == ["forward", "main", "(no source line)"]
    device = ("device_self", "device_total", "device_backward")
    assert us(found["forward"], *device) == [47, 47, 20]
    assert us(found["main"], *device) == [5, 52, 20]
    assert us(found["(no source line)"], "device_self", "device_total") == [1, 1]
    # 38 us in forward and 16 us of its operators' backward; main has the rest of its 100 us.
    assert us(found["forward"], "host_self", "host_total") == [54, 54]
    assert us(found["main"], "host_self", "host_total") == [62, 116]
    assert found["forward"]["file"] == "train.py"
    assert found["forward"]["line"] == 10
    assert found["forward"]["calls_count"] == 1
    assert float(result.table["device_self_pct"].sum()) == pytest.approx(100)


def test_all_frames(tmp_path: Path) -> None:
    found = rows(run(training_step().open(tmp_path), "stacks", frames="all"))
    assert us(found["nn.Module: Linear_0"], "device_self", "device_total", "host_self") == [32, 32, 28]
    assert us(found["forward"], "device_self", "device_total") == [2, 47]
    assert us(found["main"], "host_self") == [60]


def test_recursion_counts_once(tmp_path: Path) -> None:
    recording = Recording().python("a.py(1): walk", 0, 100).python("a.py(1): walk", 10, 90)
    recording.python("a.py(9): leaf", 20, 50).op("aten::mm", 25, 45).launch(26, "gemm", 30, 70)
    found = rows(run(recording.open(tmp_path), "stacks"))
    assert us(found["walk"], "host_self", "host_total", "device_self", "device_total") == [70, 100, 0, 40]
    assert found["walk"]["calls_count"] == 2


def test_objects_of_one_built_in_are_one_row(tmp_path: Path) -> None:
    recording = Recording().python("a.py(1): run", 0, 100)
    for start, address in ((10, "0x7f01"), (40, "0x7f02")):
        recording.python(f"<built-in method view of Tensor object at {address}>", start, start + 20)
    found = rows(run(recording.open(tmp_path), "stacks", frames="all"))
    assert us(found["<built-in method view of Tensor>"], "host_self") == [40]


def test_a_lost_return_does_not_swallow_what_follows(tmp_path: Path) -> None:
    found = rows(run(lost_return().open(tmp_path), "stacks", frames="all"))
    assert us(found["nn.Module: Net_0"], "host_total", "device_self", "device_total") == [40, 15, 25]
    assert us(found["<built-in method apply of FunctionMeta>"], "host_total", "device_self") == [18, 10]
    assert us(found["main"], "host_self", "device_self", "device_total") == [60, 3, 28]


def test_stacks_of_operators_alone(tmp_path: Path) -> None:
    """Old recordings have a text per operator, innermost frame first, and no Python calls."""
    stack = "model.py(12): forward;train.py(3): main"
    recording = Recording().op("aten::mm", 0, 10, **{"Call stack": stack}).launch(1, "gemm", 5, 25)
    result = run(recording.open(tmp_path), "stacks")
    found = rows(result)
    assert us(found["forward"], "host_self", "device_self") == [10, 20]
    assert us(found["main"], "host_self", "host_total", "device_total") == [0, 10, 20]
    assert found["main"]["calls_count"] is None
    assert any("host time covers operators only" in note for note in result.notes)


def test_without_stacks_it_says_what_to_record(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="with_stack=True"):
        run(Recording().op("aten::mm", 0, 10).open(tmp_path), "stacks")


@needs_corpus
@pytest.mark.parametrize(
    "name", ["h200/item_sync.slow.rich", "h200/resnet50.slow.rich", "tracelens/h100_qwen"]
)
@pytest.mark.parametrize("frames", ["user", "all"])
def test_parts_sum_to_the_whole(name: str, frames: str) -> None:
    path = next(CORPUS.glob(f"**/{name}.json.gz"))
    trace = foretrace.open(path)
    table = run(trace, "stacks", frames=frames).table
    launched = trace.device_spans.filter(pl.col("launch_id").is_not_null() | pl.col("op_id").is_not_null())
    assert int(table["device_self_ns"].sum()) == int(launched["dur_ns"].sum())
    for share in ("device_self_pct", "host_self_pct"):
        assert float(table[share].sum()) == pytest.approx(100)
    assert (table["device_total_ns"] >= table["device_self_ns"]).all()
    assert (table["host_total_ns"] >= table["host_self_ns"]).all()
    assert table["device_total_pct"].max() <= 100 + 1e-9  # type: ignore[operator]
