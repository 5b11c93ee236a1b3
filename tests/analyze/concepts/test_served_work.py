"""Work of servers' operators against formulas worked out by hand, and on a real vLLM recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.analyze.concepts.work import flops, work_models
from foretrace.analyze.concepts.work.work_models.experts import experts_read
from foretrace.analyze.roofline import roofline
from foretrace.ingest.server_marks import lengths_of
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

BF16, FP8, I32, I8, U8, F32 = (
    "c10::BFloat16",
    "c10::Float8_e4m3fn",
    "int",
    "signed char",
    "unsigned char",
    "float",
)
# Two requests that go on, with 100 and 50 keys.
DECODE = "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk150sqsq2sqsk150)"


def work(name: str, *arguments: Any, step: str | None = None) -> tuple[int | None, int, str] | None:
    """Work of a call; an argument is (dtype, shape) or a value."""
    shapes = [each[1] if isinstance(each, tuple) else [] for each in arguments]
    dtypes = [each[0] if isinstance(each, tuple) else "Scalar" for each in arguments]
    inputs = ["" if isinstance(each, tuple) or each is None else str(each) for each in arguments]
    found = work_models.work(
        name, json.dumps(shapes), json.dumps(dtypes), "[]", json.dumps(inputs), None, step
    )
    return None if found is None else (found.flops, found.bytes, found.dtype)


def pairs_by_hand(requests: list[tuple[int, int]]) -> int:
    """Pairs that a causal mask leaves: the i-th new token sees all keys before it and itself."""
    return sum(keys - new + at + 1 for new, keys in requests for at in range(new))


@pytest.mark.parametrize("requests", [[(5, 5)], [(5, 9), (3, 3)], [(1, 100), (1, 50)], [(4, 20), (1, 7)]])
def test_lengths_of_a_step_s_name(requests: list[tuple[int, int]]) -> None:
    queries, keys = (sum(part) for part in zip(*requests, strict=True))
    squares, products = sum(q * q for q, _ in requests), sum(q * k for q, k in requests)
    part = f"{len(requests)}(sq{queries}sk{keys}sqsq{squares}sqsk{products})"
    found = lengths_of(f"execute_9_context_{part}_generation_0(sq0sk0sqsq0sqsk0)")
    assert found is not None
    assert (found[0].tokens_count, found[0].keys_count) == (queries, keys)
    assert found[0].pairs_count == pairs_by_hand(requests)
    assert found[1].tokens_count == 0
    # SGLang tells the same with names of its own, for a decode in another part.
    sums = f"sq={queries} c_sk={keys} c_sqsq={squares} c_sqsk={products}"
    assert lengths_of(f"step[EXTEND bs=9 toks={queries} c_{sums}]") == found
    decodes = f"step[TARGET_VERIFY bs=9 g_{sums}]".replace("c_", "g_")
    assert lengths_of(decodes) == (found[1], found[0])


def test_a_short_name_tells_one_request_exactly() -> None:
    found = lengths_of("execute_context_1(888_788544)_generation_0(0)")
    assert found is not None
    assert (found[0].keys_count, found[0].pairs_count) == (888, 888 * 889 // 2)
    assert lengths_of("execute_context_1(888)_generation_0(0)") is None
    assert lengths_of("step[DECODE bs=32]") is None
    assert lengths_of("step[DECODE bs=32 g_sq=32 g_sk=4096]") is None


def test_paged_attention_reads_the_keys_of_every_request() -> None:
    """8 heads of 64, one of keys and values: 150 pairs, 4·64 FLOPs each a head; 2·64 elements a key."""
    query, key = (BF16, [2, 8, 64]), (BF16, [2, 1, 64])
    flops_, moved = 150 * 8 * 4 * 64, 2 * 2 * 8 * 64 * 2 + 150 * 2 * 64 * 2
    given = work("vllm::unified_attention_with_output", query, key, key, query, step=DECODE)
    assert given == (flops_, moved, "bf16")
    pages = (BF16, [7, 1, 64, 16])
    assert work("_C::paged_attention_v1", query, query, pages, pages, 1, 0.1, step=DECODE) == given
    cache = (BF16, [7, 16, 1, 64])
    assert work("_vllm_fa3_C::fwd", query, cache, cache, step=DECODE) == given
    assert work("vllm::unified_attention_with_output", query, key, key, query) is None


def test_latent_attention_decodes_in_the_latent_space_and_prefills_in_heads() -> None:
    """DeepSeek's sizes: 16 heads of 128 + 64, values of 128, one latent vector of 512 + 64 for each key."""
    q, latent, rotary = (BF16, [2, 16, 192]), (BF16, [2, 512]), (BF16, [2, 1, 64])
    output, name = (BF16, [2, 16 * 128]), "vllm::unified_mla_attention_with_output"
    moved = 2 * 16 * (192 + 128) * 2 + 150 * 576 * 2
    assert work(name, q, latent, rotary, output, step=DECODE) == (
        150 * 16 * (2 * 576 + 2 * 512),
        moved,
        "bf16",
    )
    prefill = "execute_1_context_1(sq2sk10sqsq4sqsk20)_generation_0(sq0sk0sqsq0sqsk0)"
    found = work(name, q, latent, rotary, output, step=prefill)
    assert found is not None
    assert found[0] == pairs_by_hand([(2, 10)]) * 16 * (2 * 192 + 2 * 128)
    nope, cache = (BF16, [2, 16, 512]), (BF16, [9, 32, 576])
    decode = work("sgl_kernel::cutlass_mla_decode", nope, nope, rotary, cache, step=DECODE)
    assert decode is not None
    assert decode[0] == 150 * 16 * (2 * 576 + 2 * 512)


def test_scaled_products_move_narrow_operands_and_their_scales() -> None:
    m, n, k = 8, 32, 64
    moved = m * k + k * n + 4 * (m + n) + 2 * m * n
    scales = ((F32, [m, 1]), (F32, [1, n]))
    left, right, out = (FP8, [m, k]), (FP8, [k, n]), (BF16, [m, n])
    assert work("_C::cutlass_scaled_mm", out, left, right, *scales) == (2 * m * n * k, moved, "fp8")
    assert work("sgl_kernel::fp8_scaled_mm", left, right, *scales) == (2 * m * n * k, moved, "fp8")
    integers = ((I8, [m, k]), (I8, [n, k]))  # the weight the other way round
    assert work("sgl_kernel::int8_scaled_mm", *integers, *scales) == (2 * m * n * k, moved, "int8")
    # Two of fp4's elements in a byte.
    four = work("_C::cutlass_scaled_fp4_mm", out, (U8, [m, k // 2]), (U8, [n, k // 2]))
    assert four == (2 * m * n * k, m * k // 2 + n * k // 2 + 2 * m * n, "fp4")


def test_packed_weights_are_read_as_they_are_packed() -> None:
    m, n, k, group = 8, 256, 512, 128
    left, scales = (BF16, [m, k]), (BF16, [k // group, n])
    moved = 2 * m * k + n * k // 2 + 2 * (k // group) * n + 2 * m * n
    tiles = (I32, [k // 16, n * 2])  # Marlin's: 16 x 16 elements of 4 bits
    workspace = (I32, [1000])
    marlin = work(
        "_C::gptq_marlin_gemm", left, None, tiles, scales, None, None, None, None, workspace, 7, m, n, k, True
    )
    assert marlin == (2 * m * n * k, moved, "bf16")
    gptq = work("_C::gptq_gemm", left, (I32, [k // 8, n]), (I32, [k // group, n // 8]), scales, (I32, [k]))
    zeros = 4 * (k // group) * (n // 8)
    assert gptq == (2 * m * n * k, moved + zeros, "bf16")
    awq = work("_C::awq_gemm", left, (I32, [k, n // 8]), scales, (I32, [k // group, n // 8]), 8)
    assert awq == (2 * m * n * k, moved + zeros, "bf16")


def test_experts_without_a_token_are_not_read() -> None:
    assert experts_read(8, 1, 2) == pytest.approx(2)
    assert experts_read(8, 10_000, 2) == pytest.approx(8)
    # Two tokens that take one of two experts each: both with probability 1/2.
    assert experts_read(2, 2, 1) == pytest.approx(1.5)


def test_fused_experts() -> None:
    """One token through 2 of 8 experts: two products each, [1, 64] x [64, 64] and [1, 32] x [32, 64]."""
    hidden, up, down = (BF16, [1, 64]), (BF16, [8, 64, 64]), (BF16, [8, 64, 32])
    top = ((F32, [1, 2]), (I32, [1, 2]))
    flops_ = 2 * 2 * (64 * 64 + 64 * 32)
    moved = 2 * (64 * 64 + 64 * 32) * 2 + 2 * 64 * 2
    assert work("vllm::inplace_fused_experts", hidden, up, down, *top) == (flops_, moved, "bf16")
    narrow = work("vllm::outplace_fused_experts", hidden, (FP8, [8, 64, 64]), (FP8, [8, 64, 32]), *top)
    assert narrow == (flops_, 2 * (64 * 64 + 64 * 32) + 2 * 64 * 2, "fp8")
    # Four bits, two elements a byte.
    packed = work("sglang::inplace_fused_experts", hidden, (U8, [8, 64, 32]), (U8, [8, 64, 16]), *top)
    assert packed == (flops_, 2 * (64 * 64 + 64 * 32) // 2 + 2 * 64 * 2, "bf16")


def test_grouped_products_of_experts() -> None:
    rows, weights, out = (FP8, [6, 64]), (FP8, [1, 64, 32]), (BF16, [6, 32])
    expected = (2 * 6 * 64 * 32, 6 * 64 + 64 * 32 + 2 * 6 * 32, "fp8")
    assert work("_C::cutlass_moe_mm", out, rows, weights) == expected
    tiles, scales = (I32, [4, 2, 64]), (BF16, [4, 1, 32])
    marlin = work(
        "_moe_C::moe_wna16_marlin_gemm", (BF16, [1, 32]), None, tiles, scales, None, None, None, (I32, [9]),
        (I32, [9]), (I32, [9]), (I32, [1]), (F32, [1, 2]), 16, 2, True, False, 7, 1, 32, 32, True,
    )  # fmt: skip
    # One token takes 2 of the 4 experts: half of the weights and scales.
    assert marlin == (2 * 2 * 32 * 32, (4 * 2 * 64 * 4 + 4 * 32 * 2) // 2 + 2 * 32 + 2 * 2 * 32, "bf16")


def test_work_beside_attention() -> None:
    """Four tokens with two heads of 16: turned in place, and written to a cache of bytes."""
    query, key, cache = (BF16, [4, 32]), (BF16, [4, 2, 16]), (U8, [9, 16, 2, 16])
    assert work("_C::rotary_embedding", ("long int", [4]), query, query, 16) == (
        3 * 256,
        32 + 4 * 256,
        "bf16",
    )
    written = work("_C_cache_ops::reshape_and_cache_flash", key, key, cache, cache, ("long int", [4]))
    assert written == (0, 2 * 128 * 2 + 2 * 128, "bf16")


def served_step(recording: Recording, label: str) -> Recording:
    """Attention that launches its kernel beside a product, a write to the cache and the attention that it calls."""
    recording.annotation(label, 0, 100)
    query, key = [2, 8, 64], [2, 1, 64]
    shapes = {"Input Dims": [query, key, key, query], "Input type": [BF16] * 4}
    recording.op("vllm::unified_attention_with_output", 0, 90, **{"External id": 1}, **shapes)
    recording.op(
        "aten::mm", 10, 20, **{"External id": 2, "Input Dims": [[4, 8], [8, 4]], "Input type": [BF16] * 2}
    )
    for number, (name, op, at) in enumerate((("gemm", 2, 12), ("attention", 1, 40)), start=1):
        recording.runtime("cudaLaunchKernel", at, at + 2, **{"External id": op, "correlation": number})
        recording.kernel(name, 100 + at, 110 + at, **{"External id": op, "correlation": number})
    return recording


def test_attention_counts_beside_the_products_in_it(tmp_path: Path) -> None:
    trace = served_step(Recording(record_shapes=1), DECODE).open(tmp_path)
    rows = {row["model"]: row for row in flops.op_work(trace).iter_rows(named=True)}
    assert rows["served attention"]["flops"] == 150 * 8 * 4 * 64
    assert rows["gemm"]["flops"] == 2 * 4 * 8 * 4


def test_attention_of_a_step_that_does_not_tell_has_no_model(tmp_path: Path) -> None:
    trace = served_step(Recording(record_shapes=1), "execute_model").open(tmp_path)
    row = next(row for row in roofline(trace).table.iter_rows(named=True) if "attention" in str(row["op"]))
    assert row["model"] is None
    assert row["note"] == "its recorded arguments do not determine the work"


@needs_corpus
def test_a_real_prefill_of_vllm() -> None:
    """One request of 888 tokens on a B200, 36 layers with 8 heads of 64 for this rank."""
    trace = foretrace.open(CORPUS / "peers" / "tracelens" / "b200_eager.json.gz", cache=False)
    rows = flops.op_work(trace)
    attention = rows.filter(rows["model"] == "served attention")
    assert attention.height == 36
    assert set(attention["flops"]) == {(888 * 889 // 2) * 8 * 4 * 64}
