"""FLOPs and tensor cores per operator: recordings whose answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.analyze.gpu_efficiency import gpu_efficiency
from foretrace.analyze.operators import operators
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

ON_CORES = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel"
PLAIN = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
UNTOLD = "some_kernel_of_mine"


def rows(trace: foretrace.Trace, **options: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["name"], row["on"]): row for row in operators(trace, **options).table.to_dicts()}


def linear(made: Recording, at: float, *, kernel: str = ON_CORES) -> None:
    """A linear layer of 64 x 32 by 32 x 16 with a bias: 2 * 64 * 32 * 16 FLOPs, 30 of 40 µs in the product."""
    dims = {
        "Input Dims": [[16], [64, 32], [32, 16], [], []],
        "Input type": ["float", "float", "float", "", ""],
    }
    made.op("aten::linear", at, at + 40, **{"Input Dims": [[64, 32], [16, 32], [16]]})
    made.op("aten::addmm", at + 2, at + 38, **dims)
    made.launch(at + 4, PLAIN, at + 10, at + 20)
    made.launch(at + 20, kernel, at + 20, at + 50)


def test_a_product_counts_once_however_many_operators_wrap_it(tmp_path: Path) -> None:
    made = Recording().step(0, 0, 200).annotation("forward", 1, 190)
    linear(made, 10)
    linear(made, 100)
    found = rows(made.open(tmp_path))
    flops = 2 * 2 * 64 * 32 * 16
    for name in ("aten::addmm", "aten::linear", "forward", "ProfilerStep*"):
        assert found[name, "host"]["total_flops"] == pytest.approx(flops, rel=0.05), name
    assert (found["aten::addmm", "host"]["total_flops"], found["forward", "host"]["total_flops"]) == (
        found["aten::linear", "host"]["total_flops"],
    ) * 2
    assert found["cudaLaunchKernel", "host"]["total_flops"] is None


def test_flops_that_the_file_holds_come_first(tmp_path: Path) -> None:
    made = Recording().op("aten::mm", 0, 10, **{"Input Dims": [[4, 4], [4, 4]], "flops": 12345})
    assert rows(made.open(tmp_path))["aten::mm", "host"]["total_flops"] == 12345


def test_tensor_cores_of_an_operator_and_of_those_around_it(tmp_path: Path) -> None:
    made = Recording().step(0, 0, 200)
    linear(made, 10)
    made.op("aten::add", 110, 120).launch(112, PLAIN, 130, 150)
    found = rows(made.open(tmp_path))
    addmm, outer, add = (found[name, "host"] for name in ("aten::addmm", "aten::linear", "aten::add"))
    assert (addmm["tensor_core_eligible"], outer["tensor_core_eligible"], add["tensor_core_eligible"]) == (
        True,
        True,
        False,
    )
    assert addmm["tensor_core_self_pct"] == pytest.approx(75)  # 30 of 40 µs
    assert (outer["tensor_core_self_pct"], outer["tensor_core_total_pct"]) == (None, pytest.approx(75))
    assert add["tensor_core_self_pct"] == 0
    assert found["ProfilerStep*", "host"]["tensor_core_total_pct"] == pytest.approx(50)  # 30 of 60
    assert found["ProfilerStep*", "host"]["tensor_core_eligible"] is None
    assert (
        found[ON_CORES, "device"]["tensor_core_self_pct"],
        found[PLAIN, "device"]["tensor_core_self_pct"],
    ) == (
        100,
        0,
    )


def test_names_that_do_not_tell_are_no_answer(tmp_path: Path) -> None:
    made = Recording().op("aten::mm", 0, 10).launch(2, UNTOLD, 20, 60)
    found = rows(made.open(tmp_path))
    assert found["aten::mm", "host"]["tensor_core_self_pct"] is None
    assert found[UNTOLD, "device"]["tensor_core_self_pct"] is None
    assert found["aten::mm", "host"]["tensor_core_eligible"] is True


def test_a_call_that_repeats_its_caller_gives_it_its_work(tmp_path: Path) -> None:
    """torch's table counts an operator inside one of its own name once: the FLOPs stay."""
    dims = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}
    made = (
        Recording().op("aten::mm", 0, 50, **dims).op("aten::mm", 5, 45, **dims).launch(10, ON_CORES, 20, 60)
    )
    row = rows(made.open(tmp_path))["aten::mm", "host"]
    assert (row["calls_count"], row["total_flops"]) == (1, 2 * 64 * 32 * 16)
    assert row["tensor_core_self_pct"] == 100


@needs_corpus
def test_the_step_agrees_with_gpu_efficiency() -> None:
    """Of all kernels that operators launched, the share on tensor cores is the one that gpu-efficiency gives."""
    trace = foretrace.open(CORPUS / "h200" / "fp32_gemm.fixed.rich.json.gz")
    table = operators(trace).table
    kernels = table.filter(table["on"] == "device", table["kind"] == "kernel")
    used = (kernels["device_self_ns"] * kernels["tensor_core_self_pct"].fill_null(0)).sum()
    share = used / sum(kernels["device_self_ns"])
    assert share == pytest.approx(gpu_efficiency(trace).values["tensor_core_pct"], abs=1.0)
    products = [
        row for row in table.to_dicts() if row["name"] in ("aten::mm", "aten::addmm") and row["on"] == "host"
    ]
    assert products
    assert all(row["total_flops"] > 0 and row["tensor_core_self_pct"] > 90 for row in products)
