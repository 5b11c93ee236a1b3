"""Modules: host and device time of each, forward and backward, on traces with known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace.analyze import run
from foretrace.analyze.result import Result
from foretrace.errors import MissingDataError, UsageError
from tests.analyze.training import lost_return, training_step
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

RICH = sorted((CORPUS / "h200").glob("*.rich.json.gz")) if CORPUS.is_dir() else []


def rows(result: Result) -> dict[str, dict[str, Any]]:
    return {row["module"].strip(): row for row in result.table.to_dicts()}


def us(row: dict[str, Any], *columns: str) -> list[float]:
    return [row[f"{column}_ns"] / 1000 for column in columns]


def test_tree_with_forward_and_backward_time(tmp_path: Path) -> None:
    result = run(training_step().open(tmp_path), "modules")
    assert result.table["path"].to_list() == [
        "Net_0",
        "Net_0/Linear_0",
        "Net_0/ReLU_0",
        "(optimizer)",
        "(backward of no module)",
        "(outside modules)",
    ]
    assert result.table["depth"].to_list() == [0, 1, 1, 0, 0, 0]
    found = rows(result)
    device = ("device_self", "device_total", "device_backward")
    host = ("host_self", "host_total", "host_backward")
    assert us(found["Net_0"], *device) == [2, 47, 20]
    assert us(found["Linear_0"], *device) == [32, 32, 12]
    assert us(found["ReLU_0"], *device) == [13, 13, 8]
    assert us(found["(optimizer)"], *device) == [4, 4, 0]
    assert us(found["(backward of no module)"], *device) == [1, 1, 1]
    assert us(found["(outside modules)"], *device) == [1, 1, 0]
    assert us(found["Net_0"], *host) == [14, 56, 16]
    assert us(found["Linear_0"], *host) == [28, 28, 10]
    assert us(found["ReLU_0"], *host) == [14, 14, 6]
    assert us(found["(optimizer)"], *host) == [10, 10, 0]
    assert us(found["(backward of no module)"], *host) == [3, 3, 3]
    assert us(found["(outside modules)"], *host) == [50, 50, 0]
    apart = ("device_forward", "device_backward", "host_forward", "host_backward")
    assert us(found["Net_0"], *apart) == [27, 20, 40, 16]
    assert us(found["Linear_0"], *apart) == [20, 12, 18, 10]
    assert result.table["calls_count"].to_list() == [1, 1, 1, None, None, None]
    assert result.values["device_ns"] == 53_000, "the orphan kernel is left out"
    assert result.values["device_in_modules_pct"] == pytest.approx(100 * 47 / 53)


def test_deeper_modules_are_folded(tmp_path: Path) -> None:
    result = run(training_step().open(tmp_path), "modules", max_depth=0)
    found = rows(result)
    assert "Linear_0" not in found
    assert us(found["Net_0"], "device_self", "device_total", "host_self") == [47, 47, 56]
    with pytest.raises(UsageError):
        run(training_step().open(tmp_path), "modules", max_depth=-1)


def test_a_module_inside_one_of_its_class_counts_once(tmp_path: Path) -> None:
    recording = (
        Recording().python("nn.Module: Sequential_0", 0, 100).python("nn.Module: Sequential_1", 10, 60)
    )
    recording.op("aten::mm", 20, 30).launch(21, "gemm", 30, 70)
    row = rows(run(recording.open(tmp_path), "modules", group_by="class"))["Sequential"]
    assert row["instances_count"] == 2
    assert row["calls_count"] == 2
    assert us(row, "host_self", "host_total", "device_total") == [100, 100, 40]


def test_a_lost_return_does_not_swallow_what_follows(tmp_path: Path) -> None:
    found = rows(run(lost_return().open(tmp_path), "modules"))
    assert us(found["Net_0"], "host_total", "device_total") == [40, 25]
    assert us(found["(outside modules)"], "host_total", "device_total") == [60, 3]


def test_without_modules_the_forward_functions_stand_for_them(tmp_path: Path) -> None:
    recording = Recording().python("/x/site-packages/zoo/net.py(5): forward", 0, 50)
    recording.python("torch/nn/modules/container.py(9): forward", 5, 45).python(
        "layer.py(7): forward", 10, 40
    )
    recording.op("aten::mm", 20, 30).launch(21, "gemm", 30, 70)
    result = run(recording.open(tmp_path), "modules")
    assert result.values["source"] == "stacks"
    assert result.table["path"].to_list()[:2] == ["zoo/net.py", "zoo/net.py/layer.py"]
    assert result.table["device_self_ns"].to_list()[:2] == [0, 40_000]
    assert result.table["host_self_ns"].to_list()[:2] == [20_000, 30_000]


def test_without_stacks_annotations_stand_for_them(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 100)
    for start in (0, 50):
        recording.annotation("layer", start, start + 40).annotation("attention", start + 5, start + 20)
        recording.op("aten::mm", start + 6, start + 10).launch(start + 7, "gemm", start + 10, start + 30)
    result = run(recording.open(tmp_path), "modules")
    assert result.values["source"] == "annotations"
    assert result.table["path"].to_list()[:2] == ["layer", "layer/attention"]
    assert result.table["calls_count"].to_list()[:2] == [2, 2]
    assert result.table["host_self_ns"].to_list()[:2] == [50_000, 30_000]
    assert result.table["device_total_ns"].to_list()[:2] == [40_000, 40_000]


def test_a_cpu_recording_has_no_device_time(tmp_path: Path) -> None:
    recording = Recording().python("nn.Module: Net_0", 0, 100).op("aten::mm", 20, 30)
    result = run(recording.open(tmp_path), "modules")
    assert result.table["device_total_ns"].null_count() == result.table.height
    assert result.values["device_ns"] is None


def test_without_any_source_it_says_what_to_record(tmp_path: Path) -> None:
    trace = Recording().op("aten::mm", 0, 10).open(tmp_path)
    with pytest.raises(MissingDataError, match="with_stack=True"):
        run(trace, "modules")
    with pytest.raises(MissingDataError, match="record_function"):
        run(trace, "modules", source="annotations")


@needs_corpus
@pytest.mark.parametrize("path", RICH[::3], ids=lambda path: path.name)
def test_parts_sum_to_the_whole(path: Path) -> None:
    trace = foretrace.open(path)
    try:
        table = run(trace, "modules").table
    except MissingDataError:
        return
    launched = trace.device_spans.filter(pl.col("launch_id").is_not_null() | pl.col("op_id").is_not_null())
    for self_, total in (("host_self_ns", "host_total_ns"), ("device_self_ns", "device_total_ns")):
        roots = table.filter(pl.col("depth") == 0)
        assert int(roots[total].sum()) == int(table[self_].sum())
        assert (table[total] >= table[self_]).all()
        for row in table.to_dicts():
            inside = table.filter(pl.col("path").str.starts_with(row["path"] + "/"))
            children = inside.filter(pl.col("depth") == row["depth"] + 1)
            assert row[total] == row[self_] + int(children[total].sum())
    assert int(table["device_self_ns"].sum()) == int(launched["dur_ns"].sum())
    for share in ("host_self_pct", "device_self_pct"):
        assert float(table[share].sum()) == pytest.approx(100)
        assert table[share].is_between(0, 100 + 1e-9).all()


@needs_corpus
def test_all_layers_of_a_transformer_take_alike() -> None:
    """Six equal blocks: the same kernels, so nearly the same device time, forward and backward."""
    result = run(foretrace.open(CORPUS / "h200" / "naive_attention.slow.rich.json.gz"), "modules")
    blocks = result.table.filter(pl.col("module").str.contains(r"^\s*Block_\d+$"))
    assert blocks.height == 6
    for column in ("device_total_ns", "device_backward_ns"):
        low, high = blocks.select(pl.col(column).min(), pl.col(column).max().alias("high")).row(0)
        assert high / low < 1.02
    # Of a linear layer's backward there are two products of the forward's size.
    linear = run(foretrace.open(CORPUS / "h200" / "fp32_gemm.slow.rich.json.gz"), "modules", group_by="class")
    row = rows(linear)["Linear"]
    assert row["device_backward_ns"] / row["device_total_ns"] == pytest.approx(2 / 3, abs=0.06)
