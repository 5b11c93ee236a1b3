"""Products with one-hot tensors are lookups."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.copies.one_hot_matmul import one_hot_matmul
from tests.diagnose.copies import ordered, work
from tests.diagnose.kernels import ADD, CAST, Op, device_bound
from tests.diagnose.loops import findings


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
        one_hot_matmul, device_bound(tmp_path, [*one_hot("aten::mm"), work(dur=1000)]), step_us=4000
    )
    assert "embedding" in found.fix.code
    assert found.predicted
    lookup = 2 + 2 * 4 * 8192 * 1024 / (4.8e12 * 0.8) * 1e6
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1000 + lookup, rel=0.02)


def test_the_gradient_of_the_table_is_a_sum_of_rows(tmp_path: Path) -> None:
    """The table of 32,000 rows written, 8,192 rows read and added: 51 µs."""
    gradient = Op("aten::mm", SGEMM, 1500, [[32000, 8192], [8192, 1024]], ["float", "float"])
    ops = [*one_hot("aten::mm"), gradient, work(dur=1000)]
    (found,) = findings(one_hot_matmul, device_bound(tmp_path, ops), step_us=5500)
    lookups = 2 + 2 + 4 * 1024 * (2 * 8192 + 32000 + 2 * 8192) / (4.8e12 * 0.8) * 1e6
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1000 + lookups, rel=0.02)


def test_a_one_hot_tensor_that_is_not_multiplied_stays(tmp_path: Path) -> None:
    assert findings(one_hot_matmul, device_bound(tmp_path, one_hot("aten::mul"))) == []
