"""Pairs of real recordings whose change is known: it comes first, the causes sum, and nothing differs from itself.

A few small ones; benchmarks/compare_corpus.py compares all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compare_corpus import CAUSES, itself, pair
from foretrace.compare.traces import compare
from foretrace.ingest import open_trace
from tests.corpus import CORPUS, needs_corpus

pytestmark = needs_corpus
SMALL = (
    "decode_launch_bound",
    "elementwise_chain",
    "matmul_add",
    "naive_attention",
    "nchw_conv",
    "pageable_h2d",
)


def h200(name: str) -> tuple[Path, Path]:
    return tuple(CORPUS / "h200" / f"{name}.{side}.lite.json.gz" for side in ("slow", "fixed"))  # type: ignore[return-value]


@pytest.mark.parametrize("name", SMALL)
def test_the_true_cause_comes_first(name: str) -> None:
    found, fault = pair(*h200(name), CAUSES[name])
    assert not fault
    assert found.steps.verdict == ("inconclusive" if name == "matmul_add" else "faster")


def test_the_loader_of_resnet50() -> None:
    files = [CORPUS / "peers" / "kineto" / f"resnet50_workers{count}.pt.trace.json.gz" for count in (0, 4)]
    found, fault = pair(files[0], files[1], ("waiting for data",))
    assert not fault
    # What the TensorBoard plugin says: 33.37 % of 177,592 us before, 0.84 % after.
    top = found.steps.causes[0]
    assert top.before_ns == pytest.approx(0.3337 * 177_592e3, rel=0.02)
    assert top.after_ns < 0.01 * found.steps.after_ns


@pytest.mark.parametrize(
    "name",
    [
        "h200/item_sync.slow.lite.json.gz",
        "h200/matmul_add.fixed.rich.json.gz",
        "other/cold_start/matmul_cold_wait0.json",
        "other/multirank_gloo/rank2.json.gz",
        "peers/hta/amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz",
        "peers/tracelens/vllm_decode_graph_execution.json.gz",
    ],
)
def test_a_recording_and_itself(name: str) -> None:
    assert not itself(CORPUS / name)


def test_one_model_on_two_makers_devices() -> None:
    """The same Qwen on an H100 and an MI300X: the work is the same, kernels are matched by operator, and all of it sums."""
    files = [CORPUS / "peers" / "tracelens" / f"{name}_qwen.json.gz" for name in ("h100", "mi300")]
    found = compare(*(open_trace(file) for file in files))
    first, second = found.a.product_flops, found.b.product_flops
    assert first is not None
    assert second == pytest.approx(first, rel=0.05)
    assert found.steps.verdict == "inconclusive"  # one step each
    kept = found.operators.filter(found.operators["change"] == "kept")
    assert sum(kept["before_ns"].drop_nulls()) > 0.9 * sum(found.operators["before_ns"].drop_nulls())
    assert {"op", "a_kernel", "b_kernel"} <= set(found.kernels.columns)
    top = found.kernels.row(0, named=True)
    assert top["a_kernel"] is not None
    assert top["b_kernel"] is not None
