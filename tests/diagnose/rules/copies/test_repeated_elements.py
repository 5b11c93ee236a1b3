"""Elements repeated in memory that what follows could repeat as it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.copies.repeated_elements import repeated_elements
from tests.diagnose.copies import CONTIGUOUS, SDPA, laid, ordered, reads
from tests.diagnose.kernels import Op, device_bound
from tests.diagnose.loops import findings

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
    (found,) = findings(repeated_elements, device_bound(tmp_path, ops), step_us=1000)
    assert "enable_gqa" in found.fix.code
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(600, rel=0.02)


def test_one_query_then_reads_a_quarter(tmp_path: Path) -> None:
    ops = grouped("aten::reshape", "aten::_scaled_dot_product_cudnn_attention", 1)
    (found,) = findings(repeated_elements, device_bound(tmp_path, ops), step_us=1000)
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
    assert findings(repeated_elements, device_bound(tmp_path, ops)) == []


def test_a_product_repeats_one_matrix_for_its_batch(tmp_path: Path) -> None:
    repeated, copy = ([256, 512, 512], [0, 512, 1]), ordered(256, 512, 512)
    ops = [laid(copy, repeated, *CONTIGUOUS), reads("aten::bmm", copy, copy)]
    (found,) = findings(repeated_elements, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


def test_pointwise_operators_repeat_as_they_read(tmp_path: Path) -> None:
    repeated = ([1, 1, 512, 1, 32, 512, 1, 256], [0, 0, 0, 0, 131072, 256, 256, 1])
    copy = ([1, 1, 512, 1, 32, 512, 1, 256], [0, 0, 256, 0, 67108864, 131072, 256, 1])
    pairs = ordered(32, 512, 512, 256)
    ops = [laid(copy, repeated, "aten::repeat"), reads("aten::add", pairs, pairs)]
    (found,) = findings(repeated_elements, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)
