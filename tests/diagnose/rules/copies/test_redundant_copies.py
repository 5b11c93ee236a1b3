"""Copies by contiguous() and clone() that what follows could do without, and torch.cat that copies all to add a little."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from diagnose.kernels import ADD, CAST, Op, device_bound

from foretrace.diagnose.rules.copies.redundant_copies import redundant_copies
from tests.diagnose.loops import findings


def copied(*outer: str, source: str = "float") -> Op:
    shapes = [[64, 1024, 64], [64, 1024, 64], []]
    return Op("aten::copy_", CAST, 200, shapes, ["float", source, "Scalar"], outer)


def work(name: str = "aten::bmm", dur: float = 800) -> Op:
    return Op(name, ADD, dur, [[1 << 20]], ["float"])


Lying = tuple[list[int], list[int]]  # shape and strides


def ordered(*shape: int) -> Lying:
    return list(shape), [prod(shape[place + 1 :]) for place in range(len(shape))]


def laid(copy: Lying, original: Lying, *outer: str, memory_format: str = "0") -> Op:
    """A copy of 200 µs, with how both sides lie."""
    told = {"Input Strides": [copy[1], original[1], []]}
    around = {"Concrete Inputs": ["", memory_format]}
    return Op(
        "aten::copy_", CAST, 200, [copy[0], original[0], []], ["float", "float", "Scalar"], outer, told=told,
        around=around,
    )  # fmt: skip


def reads(
    name: str, *given: Lying, dur: float = 800, outer: tuple[str, ...] = (), inputs: list[str] | None = None
) -> Op:
    """An operator that is given these tensors."""
    told = {"Input Dims": [each[0] for each in given], "Input Strides": [each[1] for each in given]}
    told["Input type"] = ["float"] * len(given)
    if outer:
        return Op(name, ADD, dur, outer=outer, around=told)
    return Op(name, ADD, dur, told=told, inputs=inputs)


HEADS = ([16, 16, 1024, 64], [3145728, 64, 3072, 1])  # of a product for queries, keys and values
CONTIGUOUS = ("aten::contiguous", "aten::clone")
SDPA = "aten::scaled_dot_product_attention"


def test_what_reads_a_copy_is_known_by_its_strides(tmp_path: Path) -> None:
    """Between the copies of heads lie views of other tensors: they need no order of these."""
    copy = ordered(*HEADS[0])
    other = ([16, 1024, 16, 64], [3145728, 3072, 64, 1])
    view = reads("aten::view", other, dur=0, inputs=["", "[16, 1024, 16, 64]"])
    ops = [
        laid(copy, HEADS, *CONTIGUOUS),
        view,
        laid(copy, HEADS, *CONTIGUOUS),
        view,
        reads(SDPA, copy, copy),
    ]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1200)
    assert found.evidence["copies_per_step_count"] == 2
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


def test_a_view_that_the_original_allows_too_is_seen_through(tmp_path: Path) -> None:
    """Of [16, 1024, 16, 64] in rows of 3,072, the last two dimensions are one; the first two are not."""
    original = ([16, 1024, 16, 64], [3145728, 3072, 64, 1])
    copy, merged = ordered(*original[0]), ordered(16, 1024, 1024)
    view = reads("aten::view", copy, dur=0, inputs=["", "[16, 1024, -1]"])
    ops = [laid(copy, original, *CONTIGUOUS), view, reads("aten::linear", merged)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


TRANSPOSED = ([64, 1024, 512], [524288, 1, 1024])
ROWS = ordered(*TRANSPOSED[0])


@pytest.mark.parametrize(
    "ops",
    [
        [laid(ROWS, TRANSPOSED, *CONTIGUOUS), reads("aten::layer_norm", ROWS)],  # it copies itself
        [laid(ROWS, TRANSPOSED, *CONTIGUOUS), reads("aten::softmax", ROWS)],
        [laid(ROWS, TRANSPOSED, *CONTIGUOUS), reads(SDPA, ROWS)],  # fused attention wants dense rows
        [laid(ROWS, TRANSPOSED, *CONTIGUOUS), reads("aten::view", ROWS, inputs=["", "[64, 524288]"])],
        [laid(ROWS, TRANSPOSED, *CONTIGUOUS), reads("aten::view", ROWS)],  # to what shape was not recorded
        [laid(ROWS, ROWS, "aten::clone"), reads("aten::select", ROWS, dur=0), reads("aten::fill_", ([64, 512], [524288, 1]))],
        [laid(([8, 64, 32, 32], [65536, 1, 2048, 64]), ordered(8, 64, 32, 32), *CONTIGUOUS, memory_format="2"),
         reads("aten::conv2d", ([8, 64, 32, 32], [65536, 1, 2048, 64]))],  # into channels-last order
    ],
)  # fmt: skip
def test_copies_that_are_needed(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(redundant_copies, device_bound(tmp_path, ops)) == []


def test_channels_last_pictures_need_no_planar_copy_for_a_convolution(tmp_path: Path) -> None:
    picture, planar = ([8, 64, 32, 32], [65536, 1, 2048, 64]), ordered(8, 64, 32, 32)
    ops = [laid(planar, picture, *CONTIGUOUS), reads("aten::conv2d", planar)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


@pytest.mark.parametrize(("made_by", "passes"), [("aten::relu", 2), ("aten::linear", None)])
def test_pointwise_operators_read_transposed_rows_slowly(
    tmp_path: Path, made_by: str, passes: int | None
) -> None:
    """One read and one write of 134 MB are saved, 70 µs; all of the copy if a product could write this order."""
    ops = [
        Op(made_by, ADD, 400),
        laid(ROWS, TRANSPOSED, *CONTIGUOUS),
        reads("aten::add", ROWS, ROWS, dur=400),
    ]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    saved = 200 if passes is None else passes * 4 * prod(ROWS[0]) / (4.8e12 * 0.8) * 1e6
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1000 - saved, rel=0.02)


REPEATED = ([8, 8, 4, 4096, 128], [4194304, 524288, 0, 128, 1])
KEYS = ordered(8, 32, 4096, 128)


def grouped(asked: str, backend: str, tokens: int) -> list[Op]:
    """Heads of keys and values repeated four times for attention."""
    repeat = laid(ordered(*REPEATED[0]), REPEATED, asked, "aten::clone")
    attention = reads(backend, ordered(8, 32, tokens, 128), KEYS, KEYS, dur=600, outer=(SDPA,))
    return [repeat, repeat, attention]


@pytest.mark.parametrize("asked", ["aten::repeat_interleave", "aten::reshape"])
def test_heads_are_repeated_by_attention_itself(tmp_path: Path, asked: str) -> None:
    ops = grouped(asked, "aten::_scaled_dot_product_flash_attention", 4096)
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    assert "enable_gqa" in found.fix.code
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(600, rel=0.02)


def test_one_query_then_reads_a_quarter(tmp_path: Path) -> None:
    ops = grouped("aten::reshape", "aten::_scaled_dot_product_cudnn_attention", 1)
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(600 / 4, rel=0.03)


@pytest.mark.parametrize(
    "ops",
    [
        grouped(
            "aten::reshape", "aten::_scaled_dot_product_efficient_attention", 4096
        ),  # takes no fewer heads
        grouped("aten::repeat", "aten::_scaled_dot_product_flash_attention", 4096),  # another order of heads
        [
            laid(ordered(*REPEATED[0]), REPEATED, "aten::reshape", "aten::clone"),
            reads("aten::index_select", KEYS),
        ],
    ],
)
def test_other_repetitions_stay(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(redundant_copies, device_bound(tmp_path, ops)) == []


def test_a_product_repeats_one_matrix_for_its_batch(tmp_path: Path) -> None:
    repeated, copy = ([256, 512, 512], [0, 512, 1]), ordered(256, 512, 512)
    ops = [laid(copy, repeated, *CONTIGUOUS), reads("aten::bmm", copy, copy)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


def test_pointwise_operators_repeat_as_they_read(tmp_path: Path) -> None:
    repeated = ([1, 1, 512, 1, 32, 512, 1, 256], [0, 0, 0, 0, 131072, 256, 256, 1])
    copy = ([1, 1, 512, 1, 32, 512, 1, 256], [0, 0, 256, 0, 67108864, 131072, 256, 1])
    pairs = ordered(32, 512, 512, 256)
    ops = [laid(copy, repeated, "aten::repeat"), reads("aten::add", pairs, pairs)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


def one_hot(then: str) -> list[Op]:
    """8,192 ids of 32,000 words, made float, and the 1,024 columns of a table."""
    ids, hot = ordered(8192), ordered(8192, 32000)
    told = {"Input Dims": [ids[0], []], "Input Strides": [ids[1], []], "Concrete Inputs": ["", "32000"]}
    make = Op("aten::scatter_", ADD, 600, outer=("aten::one_hot",), around=told)
    around = {"Input Dims": [hot[0]], "Input Strides": [hot[1]]}
    cast = Op("aten::copy_", CAST, 900, [hot[0], hot[0]], ["float", "long int"], ("aten::to",), around=around)
    table = ordered(32000, 1024)
    told = {"Input Strides": [hot[1], table[1]]}
    return [make, cast, Op(then, SGEMM, 1500, [hot[0], table[0]], ["float", "float"], told=told)]


SGEMM = "ampere_sgemm_128x64_nn"


def test_a_product_with_a_one_hot_tensor_is_a_lookup(tmp_path: Path) -> None:
    """Rows of 1,024 floats for 8,192 ids, read and written: 17 µs."""
    (found,) = findings(
        redundant_copies, device_bound(tmp_path, [*one_hot("aten::mm"), work(dur=1000)]), step_us=4000
    )
    assert "embedding" in found.fix.code
    assert found.predicted
    lookup = 2 + 2 * 4 * 8192 * 1024 / (4.8e12 * 0.8) * 1e6
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1000 + lookup, rel=0.02)


def test_the_gradient_of_the_table_is_a_sum_of_rows(tmp_path: Path) -> None:
    """The table of 32,000 rows written, 8,192 rows read and added: 51 µs."""
    gradient = Op("aten::mm", SGEMM, 1500, [[32000, 8192], [8192, 1024]], ["float", "float"])
    ops = [*one_hot("aten::mm"), gradient, work(dur=1000)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=5500)
    lookups = 2 + 2 + 4 * 1024 * (2 * 8192 + 32000 + 2 * 8192) / (4.8e12 * 0.8) * 1e6
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1000 + lookups, rel=0.02)


def test_a_one_hot_tensor_that_is_not_multiplied_stays(tmp_path: Path) -> None:
    assert findings(redundant_copies, device_bound(tmp_path, one_hot("aten::mul"))) == []


def test_a_copy_before_a_product_is_worth_its_time(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [copied("aten::contiguous", "aten::clone"), work()])
    (found,) = findings(redundant_copies, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


@pytest.mark.parametrize(
    "ops",
    [
        [copied("aten::contiguous", "aten::clone"), work("aten::view")],  # the view needs the order
        [copied("aten::clone"), work("aten::add_")],  # changed in place
        [copied("aten::reshape", "aten::clone"), work()],  # not asked for by the program
        [copied("aten::to", "aten::_to_copy"), work()],
        [copied("aten::contiguous", source="c10::Half"), work()],  # a cast
        [copied("aten::contiguous"), work(dur=20_000)],  # too little to matter
    ],
)
def test_no_fault(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(redundant_copies, device_bound(tmp_path, ops)) == []


def cat(*parts: list[int], **told: int) -> Op:
    return Op("aten::cat", CAT, 500, [list(parts), []], ["TensorList", "Scalar"], told=told)


CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>>"
NEW = [8, 1, 64]


def test_a_cache_that_grows_by_cat_is_worth_all_but_what_is_new(tmp_path: Path) -> None:
    """Of 1,000 rows one is new: two copies of 500 µs become two of 2 µs, which is the least."""
    ops = [cat([8, 1000, 64], NEW), cat([8, 1001, 64], NEW), work(dur=200)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1200)
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(200 + 2 * 2, rel=0.03)
    assert found.evidence["copies_per_step_count"] == 2


def test_a_part_that_is_new_is_still_copied(tmp_path: Path) -> None:
    """80 of 1,080 rows: 500 µs become 37; 80 of 1,160: 34."""
    ops = [cat([8, 1000, 64], [8, 80, 64]), cat([8, 80, 64], [8, 1080, 64]), work(dur=200)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1200)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(200 + 37 + 34.5, rel=0.03)


def test_a_list_joined_anew_for_every_part_is_worth_all_but_the_last(tmp_path: Path) -> None:
    """Of 20 and 21 parts one is new: 500 µs become 25 and 24."""
    ops = [cat(*[[8, 1, 64]] * 20), cat(*[[8, 1, 64]] * 21), work(dur=200)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1200)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(200 + 500 / 20 + 500 / 21, rel=0.03)


def test_a_window_that_moves_along_is_copied_for_what_is_new(tmp_path: Path) -> None:
    cut = reads("aten::slice", ordered(8, 1000, 64), dur=0)
    ops = [cut, cat([8, 999, 64], NEW), work(dur=500)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(500 + 2, rel=0.03)


def test_without_a_backward_pass_nothing_is_kept(tmp_path: Path) -> None:
    ops = [
        cat([8, 1000, 64], NEW, **{"Sequence number": 7}),
        cat([8, 1001, 64], NEW, **{"Sequence number": 8}),
        work(),
    ]
    assert findings(redundant_copies, device_bound(tmp_path, ops))


@pytest.mark.parametrize(
    "ops",
    [
        [cat([8, 1000, 64], NEW), work()],  # once: nothing copies it again
        [cat([8, 500, 64], [8, 500, 64]), cat([8, 1000, 64], [8, 1000, 64]), work()],  # doubles each time
        [cat([8, 1000, 64], NEW), cat([8, 2000, 64], NEW), work()],  # two tensors that have nothing in common
        [
            cat([8, 1000, 64], NEW, **{"Sequence number": 7}),
            cat([8, 1001, 64], NEW, **{"Sequence number": 8}),
            Op("CatBackward0", ADD, 800, told={"Sequence number": 8, "Fwd thread id": 1}),
        ],  # autograd keeps what it copied
        [
            cat([8, 1000, 64], NEW),
            reads("aten::native_layer_norm", ordered(8, 1001, 64)),
            cat([8, 1001, 64], NEW),
        ],
        [cat([8, 1000, 64], NEW), cat([8, 1001, 64], NEW), work(dur=60_000)],  # too little to matter
    ],
)
def test_other_concatenations_are_no_fault(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(redundant_copies, device_bound(tmp_path, ops)) == []


TEXTS, LINES, WORDS = 4, 512, 32_000
ALL_BUT_LAST = ([TEXTS, LINES - 1, WORDS], [LINES * WORDS, WORDS, 1])
FLAT = [TEXTS * (LINES - 1), WORDS]


def loss_of_a_copy(reader: str = "aten::cross_entropy_loss", original: Lying = ALL_BUT_LAST) -> list[Op]:
    """Logits without the last row of each text copied for a loss of 400 µs, and their gradient's way back of 250."""
    copy = laid(ordered(*original[0]), original, "aten::contiguous", "aten::clone")
    view = reads("aten::view", ordered(*original[0]), dur=1, inputs=["", str([-1, WORDS])])
    loss = Op(
        "aten::_log_softmax", ADD, 400, [FLAT, [], []], ["float", "Scalar", "Scalar"], (reader,),
        around={"Input Dims": [FLAT, FLAT[:1]], "Input type": ["float", "long int"]},
    )  # fmt: skip
    node = ("autograd::engine::evaluate_function: SliceBackward0", "SliceBackward0")
    zeros = Op("aten::fill_", ADD, 50, [[TEXTS, LINES, WORDS], []], ["float", "Scalar"], node)
    back = Op("aten::copy_", CAST, 200, [original[0], original[0], []], ["float", "float", "Scalar"], node)
    return [copy, view, loss, zeros, back, work("aten::mm", 1_000)]


def test_rows_without_a_label_are_left_to_the_loss(tmp_path: Path) -> None:
    """The copy, the zeros and the copy back go; the loss computes one row of 512 more."""
    (found,) = findings(redundant_copies, device_bound(tmp_path, loss_of_a_copy()), step_us=1_851)
    assert "label" in found.fix.says
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_401 + 400 / 511, rel=0.01)


@pytest.mark.parametrize(
    ("reader", "original"),
    [
        ("aten::topk", ALL_BUT_LAST),
        ("aten::cross_entropy_loss", ([TEXTS, LINES - 1, WORDS], [2 * LINES * WORDS, WORDS, 1])),
    ],
    ids=["no loss", "half of the rows are left out"],
)
def test_rows_that_something_else_needs_are_copied(tmp_path: Path, reader: str, original: Lying) -> None:
    found = findings(
        redundant_copies, device_bound(tmp_path, loss_of_a_copy(reader, original)), step_us=1_851
    )
    assert not any("label" in each.fix.says for each in found)
