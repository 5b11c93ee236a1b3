"""Every kind of `foretrace bench` on the CPU, with tiny sizes; and what is known of each beforehand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from foretrace.bench.attention_math import attention_by, naive_bytes
from foretrace.bench.benchmark import SCHEMA
from foretrace.bench.kinds import attention
from foretrace.commands import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
QUICK = ("--device", "cpu", "--warmup-s", "0", "--least-s", "0", "--most-s", "0.05", "-q")
TINY = "16x32x2x2"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON document that the command prints."""
    assert main(["bench", *words, *QUICK, "--format", "json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["schema"] == SCHEMA
    assert document["device"] == "CPU, 1 thread"
    for row in document["rows"]:
        assert set(document["case"]) & set(row)
        if row.get("samples_ms"):
            assert row["low_ms"] <= row["median_ms"] <= row["high_ms"]
            assert min(row["samples_ms"]) * 0.99999 <= row["median_ms"] <= max(row["samples_ms"]) * 1.00001
    return document


def test_transformer(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(
        capsys,
        "transformer",
        "--size",
        TINY,
        "--ctx",
        "8",
        "--batch",
        "2",
        "--precision",
        "fp32,bf16,tf32",
        "--mode",
        "fwd,train",
    )
    rows = found["rows"]
    assert [(row["mode"], row["precision"]) for row in rows] == [
        (mode, precision) for mode in ("fwd", "train") for precision in ("fp32", "bf16", "tf32")
    ]
    for row in rows:
        if row["precision"] == "tf32":
            assert row["status"] == "ERROR"
            assert "8.0" in row["reason"]
            continue
        assert row["status"] == "OK"
        assert row["tokens_per_s"] == pytest.approx(16 / (row["median_ms"] / 1e3))
        assert (
            row["peak_alloc_MiB"] is row["mfu_pct"] is None
        )  # a CPU's memory is not counted, its peak not known


def test_the_work_of_a_transformer_is_what_torch_counts() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from foretrace.bench import training

    case = {
        "size": "16x32x2x2",
        "ctx": 8,
        "batch": 2,
        "attention": "naive",
        "mode": "fwd_bwd",
        "compile": False,
    }
    case["precision"] = "fp32"
    model, ids = training.build(case, torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        model(ids[:, :-1])
    assert training.flops({**case, "mode": "fwd"}) == counter.get_total_flops()
    step = training.step_of(case, model, ids, torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        step()
    assert training.flops(case) == counter.get_total_flops()


def test_the_products_of_a_layer_are_nine(capsys: pytest.CaptureFixture[str]) -> None:
    """As the profile of the medium model says: 3 · (24 · 9 + 1) = 651 products a step."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from foretrace.bench import training

    case = {"size": TINY, "ctx": 8, "batch": 2, "attention": "naive"}
    model, ids = training.build(case, torch.device("cpu"))
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        model(ids[:, :-1])
    counts = {event.key: event.count for event in recorded.key_averages()}
    assert counts["aten::mm"] + counts["aten::bmm"] == 2 * 9 + 1


def test_attention_in_another_precision_is_told_against_the_first() -> None:
    shape = {"impl": "naive", "batch": 1, "d_model": 8}
    first, other = ({**shape, "seq_len": 16, "fwd_ms": 2.0, "bwd_ms": 4.0} for _ in range(2))
    rows = [
        {**first, "precision": "fp32"},
        {**first, "precision": "fp32", "seq_len": 32, "fwd_ms": 8.0, "bwd_ms": None},
        {**other, "precision": "tf32", "fwd_ms": 1.0, "bwd_ms": 5.0},
        {**other, "precision": "tf32", "seq_len": 32, "fwd_ms": 6.0, "bwd_ms": 7.0},
    ]
    assert attention.finish(rows) == ["fwd_delta_pct, bwd_delta_pct: against fp32, of the same shape."]
    assert [(row["fwd_delta_pct"], row["bwd_delta_pct"]) for row in rows[2:]] == [
        (-50.0, 25.0),
        (-25.0, None),
    ]
    assert attention.finish(rows[:2]) == []


def test_attention(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(
        capsys, "attention", "--d-model", "16", "--seq-len", "8,16", "--batch", "2", "--impl", "naive,math"
    )
    naive, longer, fused, _ = found["rows"]
    assert [row["status"] for row in found["rows"]] == ["OK"] * 4
    assert naive["fwd_ms"] == naive["median_ms"]
    assert naive["bwd_low_ms"] <= naive["bwd_ms"] <= naive["bwd_high_ms"]
    assert naive["mem_before_bwd_MiB"] is None
    assert naive["formula_MiB"] == (4 * 2 * 8**2 + 32 * 2 * 8 * 16) / 2**20
    assert longer["formula_MiB"] == (4 * 2 * 16**2 + 32 * 2 * 16 * 16) / 2**20
    assert "formula_MiB" not in fused


@pytest.mark.parametrize("causal", [False, True])
def test_the_formula_is_what_autograd_keeps(causal: bool) -> None:
    """Every tensor that is alive before the backward pass, counted by its storage."""
    import torch

    batch, length, width = 2, 24, 16
    q, k, v = (torch.randn(batch, length, width, requires_grad=True) for _ in range(3))
    attend = attention_by("naive", causal=causal, length=length, device=torch.device("cpu"))
    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = attend(q, k, v)
    upstream = torch.randn_like(out)
    out.backward(upstream)
    held = [q, k, v, q.grad, k.grad, v.grad, out, upstream, *saved]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
    expected = naive_bytes(batch=batch, length=length, width=width, element_bytes=4, causal=causal)
    assert sum(storages.values()) == expected
    if not causal:
        assert expected == 4 * batch * length**2 + 32 * batch * length * width


def test_the_formula_gives_the_rows_that_were_measured_elsewhere() -> None:
    """From the table of an RTX 5090, B = 8: what is left is 16.25 MiB, two workspaces of cuBLAS of 8 MiB + 128 KiB."""
    measured = {
        (32, 128): 17.8,
        (32, 16384): 8336.2,
        (128, 1024): 80.2,
        (512, 64): 24.4,
        (512, 16384): 10256.2,
    }
    workspaces = 2 * (2 * 4096 + 8 * 16) / 1024
    assert workspaces == 16.25
    for (width, length), mib in measured.items():
        held = naive_bytes(batch=8, length=length, width=width, element_bytes=4) / 2**20
        assert held + workspaces == pytest.approx(mib, abs=0.051)


def test_matmul(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, "matmul", "--shape", "32,32x31x32")
    assert {row["precision"] for row in found["rows"]} == {"fp32", "bf16", "fp16"}  # a CPU has no TF32
    first, odd = found["rows"][:2]
    assert (first["m"], first["n"], first["k"], first["align_bytes"]) == (32, 32, 32, 128)
    assert odd["align_bytes"] == 4
    assert first["tflops"] == pytest.approx(2 * 32**3 / (first["median_ms"] / 1e3) / 1e12)


def test_precision(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, "precision", "--size", TINY, "--ctx", "8", "--batch", "2")
    sums = [row["value"] for row in found["rows"] if row["part"] == "accumulation"]
    assert [f"{value:.4f}" for value in sums] == ["10.0001", "9.9531", "10.0021", "10.0021", "4.0000"]
    casts = {row["precision"]: row for row in found["rows"] if row["part"] == "autocast"}
    assert casts["bf16"]["param"] == casts["bf16"]["grad"] == "float32"
    assert casts["bf16"]["fc1"] == "bfloat16"
    assert casts["fp16"]["fc1"] == "float16"
    steps = {row["precision"]: row for row in found["rows"] if row["part"] == "step"}
    assert list(steps) == ["fp32", "bf16", "fp16"]
    # bf16 keeps 8 bits, fp16 11, fp32 24: each step is farther from fp64 by about as much.
    assert (
        steps["fp32"]["grad_error"] < 1e-5 < steps["fp16"]["grad_error"] < steps["bf16"]["grad_error"] < 0.1
    )
    assert "speedup" not in steps["fp32"]
    assert steps["bf16"]["speedup_low"] <= steps["bf16"]["speedup"] <= steps["bf16"]["speedup_high"]
    assert steps["bf16"]["verdict"] in ("faster", "slower", "same", "inconclusive")


def test_latency(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, "latency", "--size", TINY, "--ctx", "8", "--batch", "2,1")
    assert found["timing"]["how"] == "single"
    assert found["timing"]["least_samples"] == 100
    first, second = found["rows"]
    assert (first["batch"], second["batch"]) == (1, 2)
    assert first["p50_ms"] <= first["p90_ms"] <= first["p99_ms"] <= max(first["samples_ms"]) * 1.00001
    assert first["calls"] == 1
    assert second["growth"] == second["p50_ms"] / first["p50_ms"]
    assert second["batch_growth"] == 2


def test_collectives(capsys: pytest.CaptureFixture[str]) -> None:
    """Two ranks, each a process. All-gather and reduce-scatter carry half of the tensor over the link, all-reduce all of it."""
    found = bench(capsys, "collectives", "--op", "all_reduce,all_gather", "--mib", "0.01", "--ranks", "2")
    reduced, gathered = found["rows"]
    assert (reduced["status"], reduced["backend"]) == ("OK", "gloo"), reduced
    assert reduced["algbw_GBps"] == pytest.approx(0.01 * 2**20 / (reduced["median_ms"] / 1e3) / 1e9)
    assert reduced["busbw_GBps"] == pytest.approx(reduced["algbw_GBps"])
    assert gathered["busbw_GBps"] == pytest.approx(gathered["algbw_GBps"] / 2)


def test_nccl_without_gpus_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "collectives", "--backend", "nccl", "--mib", "1", *QUICK]) == 1
    captured = capsys.readouterr()
    assert "nccl needs a GPU for each of 2 ranks" in captured.out + captured.err


def test_functions_are_compared_with_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def setup():\n"
        "    yield torch.ones(64, 64)\n"
        f"    open({str(tmp_path / 'closed')!r}, 'w').close()\n"
        "def once(x): return x @ x\n"
        "def often(x):\n"
        "    for _ in range(50): x @ x\n"
        "def free(): return 1\n"
    )
    found = bench(capsys, f"{file}::once", f"{file}::often", f"{file}::free")
    once, often, free = found["rows"]
    assert found["kind"] == "functions"
    assert often["verdict"] == "slower"
    assert often["speedup"] < 0.2
    assert often["effect"] < -0.9
    assert free["calls"] > 1
    assert "speedup" not in once
    assert (tmp_path / "closed").exists()


def test_the_chosen_gpu_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from foretrace.bench.sweep import torch_device
    from foretrace.errors import UsageError

    current = [0]

    def set_device(device: Any) -> None:
        assert device.index is not None, "torch refuses a device without a number"
        current[0] = device.index

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    assert torch_device("auto") == torch_device("cuda") == torch.device("cuda", 0)
    assert torch_device("cuda:1") == torch.device("cuda", 1)
    assert torch_device("cuda") == torch.device("cuda", 1)
    with pytest.raises(UsageError, match="there are 2"):
        torch_device("cuda:2")
