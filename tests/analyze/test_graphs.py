"""CUDA graphs: hand-made launches with known gaps, and recordings of a capture, of eager runs and of Inductor."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace.analyze.graphs import graphs
from foretrace.errors import MissingDataError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

# Recorded on one H200 with torch 2.11: Linear, GELU, Linear, LayerNorm captured and replayed four times; the same
# run twice eagerly and replayed three times; the same through torch.compile(mode="reduce-overhead").
TRACES = Path(__file__).parents[1] / "traces" / "graphs"
LAYER = ["aten::addmm", "aten::addmm", "aten::gelu", "aten::addmm", "aten::addmm", "aten::native_layer_norm"]


def replay(recording: Recording, number: int, at: float, start: float, names: str = "abc") -> None:
    """A launch of a graph of kernels of 10 us each, 2 us apart."""
    recording.runtime("cudaGraphLaunch", at, at + 4, correlation=number)
    for place, name in enumerate(names):
        begin = start + 12 * place
        recording.kernel(name, begin, begin + 10, correlation=number)


def test_launches_of_one_graph_are_measured_together(tmp_path: Path) -> None:
    recording = Recording()
    replay(recording, 1, 0, 20)
    replay(recording, 2, 10, 60)
    replay(recording, 3, 20, 100, names="xy")
    result = graphs(recording.open(tmp_path))
    first, second = result.table.iter_rows(named=True)
    assert (first["graph_id"], first["launches_count"], first["nodes_count"]) == (0, 2, 3)
    assert first["busy_ns"] == 30_000
    assert first["gap_ns"] == 4_000
    assert first["span_ns"] == 34_000
    assert first["gap_pct"] == pytest.approx(100 * 4 / 34)
    assert first["wait_ns"] == (20_000 + 50_000) / 2
    assert first["total_pct"] == pytest.approx(100 * 60 / 80)
    assert (second["graph_id"], second["nodes_count"]) == (1, 2)
    assert result.values["attributed_pct"] == 0


def test_nodes_that_overlap_are_busy_once(tmp_path: Path) -> None:
    recording = Recording().runtime("cudaGraphLaunch", 0, 4, correlation=1)
    recording.kernel("a", 10, 30, correlation=1).kernel("b", 20, 25, correlation=1, stream=9)
    recording.kernel("c", 28, 40, correlation=1, stream=9)
    row = graphs(recording.open(tmp_path)).table.row(0, named=True)
    assert (row["busy_ns"], row["gap_ns"], row["total_ns"]) == (30_000, 0, 37_000)


def test_a_capture_in_the_recording_gives_the_operators(tmp_path: Path) -> None:
    recording = Recording().runtime("cudaStreamBeginCapture", 0, 1)
    for place, op in enumerate(("aten::mm", "aten::add", "aten::zero_")):
        begin = 2 + 10 * place
        call = "cudaMemsetAsync" if op == "aten::zero_" else "cudaLaunchKernel"
        recording.op(op, begin, begin + 8, **{"External id": place + 1})
        recording.runtime(call, begin + 2, begin + 4, **{"External id": place + 1})
    recording.runtime("cudaStreamEndCapture", 40, 41).runtime("cudaGraphLaunch", 50, 54, correlation=9)
    recording.kernel("gemm", 60, 70, correlation=9).kernel("plus", 71, 75, correlation=9)
    recording.memset(76, 77, correlation=9)
    trace = recording.open(tmp_path)
    rows = graphs(trace, by="kernel").table.sort("total_ns", descending=True).iter_rows(named=True)
    assert [(row["op"], row["by"]) for row in rows] == [
        ("aten::mm", "capture"), ("aten::add", "capture"), ("aten::zero_", "capture")
    ]  # fmt: skip
    assert graphs(trace).values["attributed_pct"] == 100


def test_a_capture_of_another_size_is_not_used(tmp_path: Path) -> None:
    recording = Recording().runtime("cudaStreamBeginCapture", 0, 1).op("aten::mm", 2, 8, **{"External id": 1})
    recording.runtime("cudaLaunchKernel", 3, 4, **{"External id": 1}).runtime("cudaStreamEndCapture", 10, 11)
    replay(recording, 1, 20, 30)
    assert graphs(recording.open(tmp_path)).values["attributed_pct"] == 0


def eager(recording: Recording, at: float, names: str, ops: str) -> None:
    for place, (name, op) in enumerate(zip(names, ops, strict=True)):
        begin = at + 20 * place
        recording.op(op, begin, begin + 9)
        recording.launch(begin + 1, name, begin + 5, begin + 8)


def test_a_run_of_kernels_is_matched_with_the_same_run_in_eager(tmp_path: Path) -> None:
    recording = Recording()
    eager(recording, 0, "abcdz", "ABCDZ")
    replay(recording, 500, 200, 300, names="xabcdy")
    result = graphs(recording.open(tmp_path), by="kernel")
    assert {row["name"]: row["op"] for row in result.table.iter_rows(named=True)} == {
        "x": None, "a": "A", "b": "B", "c": "C", "d": "D", "y": None
    }  # fmt: skip
    assert result.values["attributed_pct"] == pytest.approx(100 * 4 / 6)


def test_a_run_that_eager_launched_in_two_ways_is_not_attributed(tmp_path: Path) -> None:
    recording = Recording()
    eager(recording, 0, "abcd", "ABCD")
    eager(recording, 100, "abcd", "ABXD")
    replay(recording, 500, 200, 300, names="abcd")
    assert graphs(recording.open(tmp_path)).values["attributed_pct"] == 0


def test_launches_without_recorded_work_say_so(tmp_path: Path) -> None:
    result = graphs(Recording().runtime("cudaGraphLaunch", 0, 4).open(tmp_path))
    assert result.values["empty_launches_count"] == 1
    assert "without recorded GPU work" in result.notes[0]
    with pytest.raises(MissingDataError, match="no CUDA-graph launch"):
        graphs(Recording().op("a", 0, 1).open(tmp_path, "b.json"))


@pytest.mark.parametrize(("name", "source", "replays"), [("capture", "capture", 4), ("eager", "order", 3)])
def test_a_recorded_layer_gets_its_operators_back(name: str, source: str, replays: int) -> None:
    trace = foretrace.open(TRACES / f"{name}.json.gz", cache=False)
    result = graphs(trace)
    row = result.table.row(0, named=True)
    assert (row["launches_count"], row["nodes_count"], row["by"]) == (replays, 6, source)
    assert result.values["attributed_pct"] == 100
    kernels = graphs(trace, by="kernel").table
    found = dict(kernels.group_by("op").agg(pl.col("calls_count").sum()).iter_rows())
    assert found == {op: LAYER.count(op) * replays for op in set(LAYER)}


def test_inductor_names_its_operators_in_a_graph() -> None:
    trace = foretrace.open(TRACES / "reduce_overhead.json.gz", cache=False)
    table = graphs(trace, by="kernel").table
    named = {row["name"]: row["op"] for row in table.iter_rows(named=True) if row["by"] == "name"}
    assert named["triton_per_fused_native_layer_norm_1"] == "native_layer_norm"


@needs_corpus
def test_every_node_of_the_corpus_is_counted_once() -> None:
    # The decode step is one graph of 150 nodes; what ran before the recording belongs to no launch.
    trace = foretrace.open(CORPUS / "h200" / "decode_launch_bound.fixed.lite.json.gz")
    values = graphs(trace).values
    assert (values["launches_count"], values["graphs_count"], values["nodes_count"]) == (3, 1, 450)
    vllm = foretrace.open(CORPUS / "peers" / "tracelens" / "vllm_decode_graph_execution.json.gz")
    assert graphs(vllm).values["nodes_count"] == 421
