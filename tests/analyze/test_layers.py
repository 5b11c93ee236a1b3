"""Layers and kinds of steps in hand-made recordings whose answer is known, and in real ones of vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace.analyze.layers import layers
from foretrace.errors import MissingDataError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.ingest.graph_files import STEP, Program

NORM, GEMM, ADD = (
    "rms_norm_kernel",
    "ampere_bf16_s16816gemm_bf16_64x64",
    "void at::native::vectorized_elementwise_kernel<4>",
)
ATTENTION, EXPERTS, HEAD = "flash_fwd_kernel", "fused_moe_kernel", "cutlass_80_tensorop_bf16_s16816gemm"
LAYER = [NORM, GEMM, ATTENTION, GEMM, NORM, EXPERTS]


def step(recording: Recording, label: str, at: float, names: list[str], *, dur: float = 10) -> float:
    """One step that launches these kernels, one after the other."""
    recording.annotation(label, at, at + 100)
    for place, name in enumerate(names):
        begin = at + 120 + place * dur
        recording.launch(at + 1 + place, name, begin, begin + dur)
    return at + 200 + len(names) * dur


def test_without_modules_attention_tells_the_layers_of_each_kind_of_step(tmp_path: Path) -> None:
    """Two prefills of 20 us a kernel and a decode of 10: an embedding, three layers of six kernels, a norm and a head."""
    recording, at = Recording(), 0.0
    program = [ADD, *LAYER, ADD, *LAYER, *LAYER, NORM, HEAD]
    for label, dur in (("prefill", 20), ("decode", 10), ("prefill", 20)):
        at = step(recording, label, at, program, dur=dur)
    result = layers(recording.open(tmp_path))
    found = {(row["kind"], row["layer"]): row for row in result.table.iter_rows(named=True)}
    assert list(found) == [
        (kind, layer)
        for kind in ("decode", "prefill")
        for layer in ("layer 0", "layer 1", "layer 2", "(outside layers)")
    ]
    assert found["prefill", "layer 1"]["steps_count"] == 2
    assert found["prefill", "layer 1"]["device_ns"] == 120_000
    assert found["decode", "layer 2"]["device_ns"] == 60_000
    assert found["decode", "layer 0"]["device_ns"] == 70_000  # with the addition before the next layer's norm
    assert found["decode", "(outside layers)"]["device_ns"] == 30_000
    row = found["decode", "layer 2"]
    parts = ("attention_ns", "product_ns", "norm_ns", "experts_ns", "communication_ns", "other_ns")
    assert [row[name] for name in parts] == [10_000, 20_000, 20_000, 10_000, 0, 0]
    assert result.values["layers_pct"] == pytest.approx(100 * 19 / 22)
    by_kind = {
        row["kind"]: row for row in layers(recording.open(tmp_path), by="kind").table.iter_rows(named=True)
    }
    assert (by_kind["decode"]["layers_count"], by_kind["decode"]["outside_ns"]) == (3, 30_000)


def test_modules_tell_the_layers_of_a_replayed_graph(tmp_path: Path) -> None:
    """Two replays of two layers with a product and a sum of 8 us each, and one kernel outside."""
    program = Program().capture(STEP)
    for _ in range(2):
        program.replay(STEP, label="execute_context_0(0)_generation_8(8)")
    result = layers(program.recording.open(tmp_path))
    rows = [(row["kind"], row["layer"], row["device_ns"]) for row in result.table.iter_rows(named=True)]
    assert rows == [
        ("decode", "Layer_0", 16_000),
        ("decode", "Layer_1", 16_000),
        ("decode", "(outside layers)", 8_000),
    ]
    assert result.values["source"] == "modules"


@pytest.mark.parametrize(
    ("queries", "kinds"),
    [((16, 1, 1), ["decode", "prefill"]), ((16, 16, 16), [None])],  # the second may be training
)
def test_queries_of_attention_tell_prefill_from_decode(
    tmp_path: Path, queries: tuple[int, ...], kinds: list[str | None]
) -> None:
    recording, at = Recording(record_shapes=1), 0.0
    for number, length in enumerate(queries):
        recording.step(number, at, at + 190)
        shapes = {"Input Dims": [[1, 8, length, 64], [1, 8, 32, 64]], "Input type": ["float", "float"]}
        recording.op("aten::scaled_dot_product_attention", at + 1, at + 90, **shapes)
        at = step(recording, "run", at, [*LAYER, *LAYER])
    assert layers(recording.open(tmp_path)).table["kind"].unique(maintain_order=True).to_list() == kinds


def test_kernels_called_prefill_and_decode_tell_too(tmp_path: Path) -> None:
    recording, at = Recording(), 0.0
    for number, name in enumerate(("BatchPrefillWithPagedKVCache", "BatchDecodeWithPagedKVCache")):
        recording.step(number, at, at + 190)
        at = step(recording, "run", at, [NORM, GEMM, name, GEMM] * 2)
    assert layers(recording.open(tmp_path)).table["kind"].unique().sort().to_list() == ["decode", "prefill"]


def test_a_program_without_layers_says_so(tmp_path: Path) -> None:
    recording = Recording()
    step(recording, "decode", 0, [GEMM, ADD])
    with pytest.raises(MissingDataError, match="no layers found"):
        layers(recording.open(tmp_path))


@needs_corpus
@pytest.mark.parametrize(
    ("name", "kind", "count", "source"),
    [("vllm_decode_graph_execution", "decode", 24, "kernels"), ("b200_eager", "prefill", 36, "modules")],
)
def test_real_steps_of_vllm(name: str, kind: str, count: int, source: str) -> None:
    """gpt-oss-20b, of 24 layers, replayed as one graph without its capture, and gpt-oss-120b, of 36, run eagerly."""
    result = layers(foretrace.open(CORPUS / "peers" / "tracelens" / f"{name}.json.gz", cache=False))
    assert (result.values["layers_count"], result.values["source"]) == (count, source)
    assert result.table["kind"].unique().to_list() == [kind]
    inside = result.table.head(count)
    # Layers are alike, but that every second one reduces what attention split, and that the first of a graph casts nothing.
    assert max(inside["product_ns"]) < 1.3 * min(inside["product_ns"])
    of_graph = [16, 18, *(17, 18) * 11]
    assert inside["kernels_count"].to_list() == (of_graph if source == "kernels" else [25] * count)
