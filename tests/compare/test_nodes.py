"""Parts of a step in two recordings, aligned by type and name."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.compare.nodes import nodes
from foretrace.compare.traces import compare
from foretrace.ingest import open_trace
from foretrace.trace import Trace
from tests.builders import Recording

NODE = "autograd::engine::evaluate_function: "


def recorded(
    path: Path, *, steps: int = 3, linear: float = 100, waits: float = 50, relu: bool = True
) -> Trace:
    """Steps of 2 ms: waiting for data, a module with one or two inside it, a node of autograd, and the optimizer."""
    made = Recording()
    for number in range(steps):
        at = 2_000.0 * number
        made.step(number, at, at + 1_900)
        made.annotation(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 10, at + 10 + waits
        )
        made.python("nn.Module: Net_0", at + 200, at + 600).python("nn.Module: Linear_0", at + 210, at + 300)
        made.op("aten::linear", at + 220, at + 290).launch(at + 230, "gemm", at + 240, at + 240 + linear)
        if relu:
            made.python("nn.Module: ReLU_0", at + 400, at + 500)
            made.op("aten::relu", at + 410, at + 490).launch(at + 420, "relu", at + 500, at + 520)
        made.op(f"{NODE}AddmmBackward0", at + 700, at + 800).launch(at + 710, "dgrad", at + 800, at + 860)
        made.annotation("Optimizer.step#SGD.step", at + 1_000, at + 1_100)
        made.op("aten::_foreach_add_", at + 1_010, at + 1_090).launch(
            at + 1_020, "foreach", at + 1_100, at + 1_130
        )
    return open_trace(made.write(path.parent, path.name), cache=False)


def test_the_parts_of_a_step_in_order(tmp_path: Path) -> None:
    found = nodes(recorded(tmp_path / "a.json"))
    rows = [
        (row["type"], row["name"], row["count"], row["host_ns"], row["gpu_ns"]) for row in found.to_dicts()
    ]
    assert rows == [
        ("step", "step", 1, 1_900_000, 210_000),
        ("DataLoader", "_SingleProcessDataLoaderIter.__next__", 1, 50_000, 0),
        ("module", "Net_0", 1, 400_000, 120_000),
        ("module", "Linear_0", 1, 90_000, 100_000),
        ("module", "ReLU_0", 1, 100_000, 20_000),
        ("backward", "AddmmBackward0", 1, 100_000, 60_000),
        ("optimizer", "step#SGD.step", 1, 100_000, 30_000),
    ]


@pytest.mark.slow
def test_aligned_by_type_and_name(tmp_path: Path) -> None:
    """The second is 60 µs longer in one layer, and lacks the other."""
    a = recorded(tmp_path / "a.json")
    b = recorded(tmp_path / "b.json", steps=5, linear=160, relu=False)
    rows = {(row["type"], row["name"]): row for row in compare(a, b).nodes.to_dicts()}
    linear, relu = rows["module", "Linear_0"], rows["module", "ReLU_0"]
    assert (linear["a_ns"], linear["b_ns"], linear["difference_ns"]) == pytest.approx(
        (100_000, 160_000, 60_000)
    )
    assert (relu["a_count"], relu["b_count"], relu["difference_ns"]) == pytest.approx((1, 0, -20_000))
    assert rows["module", "Net_0"]["difference_ns"] == pytest.approx(40_000)
    assert rows["backward", "AddmmBackward0"]["difference_ns"] == pytest.approx(0)
    differences = compare(a, b).nodes["difference_ns"].abs().to_list()
    assert differences == sorted(differences, reverse=True)


def test_a_module_inside_one_of_its_name_counts_once(tmp_path: Path) -> None:
    made = (
        Recording().step(0, 0, 1_000).python("nn.Module: Net_0", 0, 800).python("nn.Module: Other_0", 50, 700)
    )
    made.python("nn.Module: Net_0", 100, 500).op("aten::mm", 200, 300).launch(210, "gemm", 220, 320)
    trace = open_trace(made.write(tmp_path, "nested.json"), cache=False)
    (net,) = (row for row in nodes(trace).to_dicts() if row["name"] == "Net_0")
    assert (net["count"], net["host_ns"], net["gpu_ns"]) == (2, 800_000, 100_000)


def test_without_gpu_work_the_host_decides(tmp_path: Path) -> None:
    def on_host(name: str, waits: float) -> Trace:
        made = Recording()
        for number in range(2):
            at = 1_000 * number
            made.step(number, at, at + 900).annotation("enumerate(DataLoader)#Iter.__next__", at, at + waits)
            made.op("aten::mm", at + 500, at + 600)
        return open_trace(made.write(tmp_path, name), cache=False)

    found = compare(on_host("a.json", 100), on_host("b.json", 300)).nodes
    assert found.row(0, named=True)["type"] == "DataLoader"
    assert found["difference_ns"][0] == pytest.approx(200_000)
