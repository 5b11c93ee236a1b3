"""Sequences: hand-made orders of kernels with known repeats, a brute-force count, and the corpus."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import foretrace
from foretrace.analyze.sequences import sequences
from foretrace.errors import MissingDataError, UsageError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<MulFunctor<float> > >(int)"
GEMM = "ampere_sgemm_128x64_nn"


def played(names: list[str], **where: int) -> Recording:
    """Kernels of 10 us, one every 12 us."""
    recording = Recording()
    for place, name in enumerate(names):
        recording.launch(place, name, 100 + 12 * place, 110 + 12 * place, call=0.5, **where)
    return recording


def test_the_longest_repeat_holds_the_most_time(tmp_path: Path) -> None:
    table = sequences(played([*"abcd" * 4, *"xyz"]).open(tmp_path)).table
    row = table.row(0, named=True)
    assert (row["sequence"], row["length_count"], row["repeats_count"]) == ("a > b > c > d", 4, 4)
    assert row["total_ns"] == 160_000
    assert row["gap_ns"] == 4 * 3 * 2_000
    assert row["total_pct"] == pytest.approx(100 * 16 / 19)
    assert table.height == 1


def test_what_is_in_one_row_is_not_in_the_next(tmp_path: Path) -> None:
    order = [*"abcde" * 3, *"pqpqpq", *"bc", "z", *"bc", "y", *"bc"]
    table = sequences(played(order).open(tmp_path)).table
    rows = {row["sequence"]: row["repeats_count"] for row in table.iter_rows(named=True)}
    assert rows["a > b > c > d > e"] == 3
    assert rows["p > q"] == 3
    assert sum(table["total_ns"]) <= 10_000 * len(order)
    assert rows["b > c"] == 3  # of six, three are in the first row


def test_a_kernel_again_and_again_is_no_sequence(tmp_path: Path) -> None:
    assert sequences(played(list("aaaaaaaa")).open(tmp_path)).table.is_empty()


def test_sequences_stay_on_their_stream(tmp_path: Path) -> None:
    recording = Recording()
    for place in range(4):
        recording.launch(4 * place, "a", 100 + 20 * place, 110 + 20 * place, stream=7)
        recording.launch(4 * place + 2, "b", 105 + 20 * place, 115 + 20 * place, stream=9)
    assert sequences(recording.open(tmp_path)).table.is_empty()


@pytest.mark.slow
def test_counts_agree_with_a_search_by_hand(tmp_path: Path) -> None:
    for seed in range(5):
        letters = random.Random(seed).choices("abc", k=60)
        text = "".join(letters)
        table = sequences(played(letters).open(tmp_path, f"{seed}.json")).table
        best = max(
            (text.count(text[at : at + length]) * length
             for length in range(2, 13) for at in range(len(text) - length)
             if text.count(text[at : at + length]) >= 3 and (text[at : at + length] * 2).find(text[at : at + length], 1) == length),
            default=0,
        )  # fmt: skip
        row = table.row(0, named=True)
        assert row["total_ns"] == 10_000 * best
        assert (
            text.count(row["sequence"].replace(" > ", "")) == row["repeats_count"] or " x" in row["sequence"]
        )


def test_chains_of_small_kernels_end_at_a_gemm(tmp_path: Path) -> None:
    result = sequences(played([GEMM, ADD, MUL, GEMM, ADD, MUL, GEMM, ADD]).open(tmp_path), by="fusion")
    row = result.table.row(0, named=True)
    assert result.table.height == 1
    assert (row["length_count"], row["repeats_count"], row["total_ns"]) == (2, 2, 40_000)
    assert row["saved_launches_count"] == 2
    assert row["saved_bytes"] is None
    assert result.values["candidate_pct"] == pytest.approx(50)


def sized(recording: Recording, at: float, name: str, shape: list[int]) -> None:
    keys = {"Input Dims": [shape, shape], "Input type": ["float", "float"]}
    recording.op("aten::add", at, at + 9, **keys).launch(at + 1, name, at + 5, at + 8)


def test_a_chain_has_one_size_and_saves_its_intermediate_tensors(tmp_path: Path) -> None:
    recording = Recording()
    for place, shape in enumerate(([4, 8], [4, 8], [4, 8], [5, 5], [5, 5])):
        sized(recording, 20 * place, (ADD, MUL)[place % 2], shape)
    table = sequences(recording.open(tmp_path), by="fusion").table.sort("length_count", descending=True)
    assert table["length_count"].to_list() == [3, 2]
    assert table["elements_count"].to_list() == [32, 25]
    # Two tensors of 32 floats, and one of 25, that are neither written nor read again.
    assert table["saved_bytes"].to_list() == [2 * 2 * 32 * 4, 2 * 25 * 4]


def test_no_more_is_saved_than_the_device_can_move(tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
    for place in range(2):
        sized(recording, 20 * place, ADD, [1 << 30])
    saved = sequences(recording.open(tmp_path), by="fusion").table["saved_bytes"][0]
    assert saved == pytest.approx(4.8e12 * 6e-6, rel=0.01)  # two kernels of 3 us at 4.8 TB/s


def test_what_a_compiler_made_is_no_candidate(tmp_path: Path) -> None:
    names = ["triton_poi_fused_add_0", "triton_poi_fused_mul_1"] * 3
    assert sequences(played(names).open(tmp_path), by="fusion").table.is_empty()


def test_empty_and_wrong_calls(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no kernels recorded"):
        sequences(Recording().op("a", 0, 1).open(tmp_path))
    with pytest.raises(UsageError, match="min_repeats"):
        sequences(played(["a"]).open(tmp_path, "b.json"), min_repeats=1)


@needs_corpus
def test_the_layers_of_a_decoder_are_found() -> None:
    # Twelve layers in each of three steps; what follows them in a step repeats less often.
    trace = foretrace.open(CORPUS / "h200" / "decode_launch_bound.slow.lite.json.gz")
    row = sequences(trace).table.row(0, named=True)
    assert row["repeats_count"] == 36
    assert row["length_count"] == 12


@needs_corpus
def test_a_chain_of_elementwise_kernels_is_one_candidate() -> None:
    # 18 pointwise operators on 64 Mi floats per step; after torch.compile one kernel is left.
    slow = sequences(foretrace.open(CORPUS / "h200" / "elementwise_chain.slow.lite.json.gz"), by="fusion")
    row = slow.table.row(0, named=True)
    assert (row["length_count"], row["repeats_count"], row["elements_count"]) == (18, 3, 1 << 26)
    assert row["saved_bytes"] == 3 * 17 * 2 * (1 << 26) * 4
    fixed = sequences(foretrace.open(CORPUS / "h200" / "elementwise_chain.fixed.lite.json.gz"), by="fusion")
    assert fixed.table.is_empty()
