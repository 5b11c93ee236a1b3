"""foretrace explain: kernels, operators, calls and rows in plain words."""

from __future__ import annotations

import json

import polars as pl
import pytest

import foretrace
from foretrace.analyze.concepts.names.explanations import explain
from foretrace.commands import main
from tests.corpus import CORPUS, needs_corpus


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


def test_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn")
    assert "bf16 matrix multiply on tensor cores" in text
    assert "128x256x64" in text
    assert "3 tiles in flight" in text
    assert "tn: A transposed" in text


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(told(capsys, "volta_sgemm_128x64_nn", "--format", "json"))
    assert document["kind"] == "kernel"
    assert document["known"] is True
    assert document["facts"]["tensor_cores"] == "no"
    assert "TF32" in document["watch"]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("aten::item", "operator", "waits"),
        ("aten::view", "operator", "no kernel"),
        ("aten::addmm", "operator", "bias"),
        ("aten::add_", "operator", "element by element"),
        ("cudaLaunchKernel", "runtime call", "queue"),
        ("hipLaunchKernel", "runtime call", "queue"),
        ("cudaGraphLaunch", "runtime call", "CUDA graph"),
        ("cudaStreamSynchronize", "runtime call", "waits"),
        ("cudaDeviceSynchronize", "runtime call", "whole device"),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "runtime call", "fit on an SM"),
        ("Torch-Compiled Region: 0/1", "torch.compile row", "region"),
        ("TorchDynamo Cache Lookup", "torch.compile row", "guards"),
        ("AOTDispatcher Runtime Wrapper Prologue", "torch.compile row", "inputs"),
        ("## Call CompiledFxGraph f7cu65 ##", "torch.compile row", "hash"),
        ("Activity Buffer Request", "profiler row", "profiler overhead"),
        ("Memcpy DtoD (Device -> Device)", "copy", "within the GPU"),
        ("Memcpy HtoD (Pageable -> Device)", "copy", "pageable"),
        ("ProfilerStep#7", "annotation", "step"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "autograd node", "backward"),
        ("nn.Module: Linear_3", "Python call", "nn.Module"),
        ("nccl:all_reduce", "collective", "collective"),
        ("triton_poi_fused_add_gelu_3", "kernel", "torch.compile"),
        ("foo", "unknown", "not known"),
    ],
)
def test_names_of_all_kinds(name: str, kind: str, words: str) -> None:
    found = explain(name)
    assert (found.kind, found.known) == (kind, kind != "unknown")
    assert words in f"{found.says} {found.watch}"


def test_unknown_tensor_cores_are_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown: the name does not tell" in told(capsys, "attn_fwd")


def test_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", " "]) == 2
    assert main(["explain"]) == 2


def test_a_name_cannot_act_on_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b" not in told(capsys, "evil\x1b[2Jname")


@needs_corpus
@pytest.mark.parametrize(
    ("kind", "means"), [("kernel", "kernel"), ("copy", "copy"), ("python", "Python call")]
)
def test_kinds_agree_with_the_recordings(kind: str, means: str) -> None:
    for name in ("h200/naive_attention.slow.rich", "h200/gpt_healthy.fixed.rich", "h200/resnet50.slow.lite"):
        spans = foretrace.open(CORPUS / f"{name}.json.gz").spans.filter(pl.col("kind") == kind)
        assert {explain(each).kind for each in spans["name"].unique().cast(pl.String)} <= {means}


@pytest.mark.parametrize("name", ["host-sync", "host-snyc"])
def test_the_name_of_a_rule_leads_to_its_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    assert "did you mean a rule? foretrace diagnose --explain host-sync\n" in capsys.readouterr().out
