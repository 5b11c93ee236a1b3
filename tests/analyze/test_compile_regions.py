"""torch.compile: hand-made regions with known times, and recordings with one recompilation each."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace.analyze.compile_regions import compile as compiled
from foretrace.errors import MissingDataError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

# Recorded with torch 2.11 on one H200, and with torch 2.13 on a CPU: a compiled function whose input changes its
# shape in step 3, so that the frame 0 is compiled again there and nowhere else.
TRACES = Path(__file__).parents[1] / "traces" / "compile"
GRAPH = "## Call CompiledFxGraph fabc ##"


def test_times_of_a_region_on_host_and_device(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 200)
    recording.op("TorchDynamo Cache Lookup", 0, 3).op("Torch-Compiled Region: 0/0", 5, 45)
    recording.op("AOTDispatcher Runtime Wrapper Prologue", 6, 8)
    recording.annotation(GRAPH, 10, 40).launch(12, "triton_poi_fused_add_mul_0", 20, 50).launch(
        20, "gemm", 50, 70
    )
    recording.launch(100, "eager", 110, 160)
    result = compiled(recording.open(tmp_path))
    row = result.table.row(0, named=True)
    assert row["region"] == "0/0"
    assert row["calls_count"] == 1
    assert row["graphs_count"] == 1
    assert (row["host_ns"], row["lookup_ns"], row["prologue_ns"]) == (40_000, 3_000, 2_000)
    assert (row["device_ns"], row["kernels_count"]) == (50_000, 2)
    assert row["total_pct"] == pytest.approx(50)
    assert result.values["compiled_pct"] == pytest.approx(50)
    assert result.values["compilations_count"] == 0


def test_the_backward_belongs_to_the_region_of_its_forward(tmp_path: Path) -> None:
    recording = Recording()
    keys = {"Sequence number": 7, "Fwd thread id": 0}
    recording.op("Torch-Compiled Region: 1/2", 0, 40).op("CompiledFunction", 5, 35, **keys)
    recording.launch(10, "f", 12, 22)
    recording.op("CompiledFunctionBackward", 50, 90, thread=7, **{"Sequence number": 7, "Fwd thread id": 1})
    recording.launch(60, "b", 62, 92, thread=7)
    row = compiled(recording.open(tmp_path)).table.row(0, named=True)
    assert row["region"] == "1/2"
    assert (row["device_ns"], row["backward_device_ns"], row["backward_host_ns"]) == (10_000, 30_000, 40_000)


def test_a_frame_that_outlives_its_region_does_not_hide_it(tmp_path: Path) -> None:
    recording = Recording().op("Torch-Compiled Region: 0/0", 0, 40)
    recording.python("a.py(1): f", 5, 41).launch(10, "k", 12, 22)
    assert compiled(recording.open(tmp_path)).table.row(0, named=True)["device_ns"] == 10_000


def test_a_graph_outside_any_region_is_listed_by_its_hash(tmp_path: Path) -> None:
    recording = Recording().annotation(GRAPH, 0, 40).launch(10, "k", 12, 22)
    row = compiled(recording.open(tmp_path)).table.row(0, named=True)
    assert (row["region"], row["calls_count"], row["device_ns"]) == ("fabc", 1, 10_000)


def test_nested_compile_spans_are_one_compilation(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 100).op("Torch-Compiled Region: 3/1", 90, 95)
    recording.op("dynamo", 10, 60).op("entire_frame_compile", 11, 59)
    recording.op("_compile.compile_inner (dynamo_timed)", 12, 58).op("build_guards (dynamo_timed)", 30, 40)
    recording.annotation("dynamo_data: compile_id=3/1", 59, 60)
    recording.op("async_compile.wait", 70, 80).op("async_compile.wait (dynamo_timed)", 71, 79)
    result = compiled(recording.open(tmp_path), by="compilation")
    rows = [(row["name"], row["dur_ns"], row["recompile"]) for row in result.table.iter_rows(named=True)]
    assert rows == [("dynamo", 50_000, True), ("async_compile.wait", 10_000, None)]
    assert result.values["compiling_ns"] == 60_000
    assert result.values["compiling_pct"] == pytest.approx(60)


def test_a_version_above_zero_says_that_the_frame_was_recompiled_before(tmp_path: Path) -> None:
    result = compiled(Recording().op("Torch-Compiled Region: 0/1", 0, 10).open(tmp_path))
    assert result.notes == ("a region has version 1: its frame was recompiled before the recording",)
    assert result.table["device_ns"].to_list() == [None]


def test_without_compiled_code_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"no torch\.compile region"):
        compiled(Recording().op("aten::mm", 0, 1).open(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recompile", "recompile_cpu"])
def test_a_changed_shape_recompiles_the_frame_in_that_step(name: str) -> None:
    trace = foretrace.open(TRACES / f"{name}.json.gz", cache=False)
    table = compiled(trace, by="compilation").table
    assert table.select("step", "compile_id", "recompile").rows() == [(3, "0/1", True)]
    values = compiled(trace).values
    assert values["frames_recompiled_count"] == 1
    assert values["recompilations_count"] == 1
    steps = dict(compiled(trace).table.select("region", "steps").iter_rows())
    assert steps["0/0"] == [1, 2]
    assert steps["0/1"] == [3, 4]


def test_inductors_kernels_have_their_operators_and_files() -> None:
    trace = foretrace.open(TRACES / "recompile.json.gz", cache=False)
    table = compiled(trace, by="kernel").table
    row = next(row for row in table.iter_rows(named=True) if "softmax_backward_data" in row["name"])
    assert row["calls_count"] == 4
    assert row["region"] == "0/0, 0/1"
    assert {"add", "cos", "mul", "relu", "threshold_backward"} <= set(row["fused_ops"].split(", "))
    assert row["kernel_file"].endswith(f"{row['kernel_hash']}.py")
    assert row["kernel_backend"] == "triton"
    assert int(row["num_warps"]) > 0


@needs_corpus
@pytest.mark.parametrize("kind", ["lite", "rich"])
def test_the_compiled_part_of_a_training_step(kind: str) -> None:
    # model(x) is compiled; loss and optimizer are not: with and without stacks the same work belongs to it.
    trace = foretrace.open(CORPUS / "h200" / f"gpt_healthy.fixed.{kind}.json.gz")
    result = compiled(trace)
    row = result.table.row(0, named=True)
    assert result.table.height == 1
    assert row["calls_count"] == 3
    assert row["graphs_count"] == 2
    assert row["kernels_count"] == 1518
    assert 0 < row["device_ns"] < row["backward_device_ns"]
    assert 0 < row["total_pct"] < 100
