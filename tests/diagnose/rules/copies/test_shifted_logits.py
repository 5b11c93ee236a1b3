"""Logits copied without the rows that have no label."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.copies.shifted_logits import shifted_logits
from tests.diagnose.copies import Layout, laid, ordered, reads, work
from tests.diagnose.kernels import ADD, CAST, Op, device_bound
from tests.diagnose.loops import findings

TEXTS, LINES, WORDS = 4, 512, 32_000
ALL_BUT_LAST = ([TEXTS, LINES - 1, WORDS], [LINES * WORDS, WORDS, 1])
FLAT = [TEXTS * (LINES - 1), WORDS]


def loss_of_a_copy(reader: str = "aten::cross_entropy_loss", original: Layout = ALL_BUT_LAST) -> list[Op]:
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
    (found,) = findings(shifted_logits, device_bound(tmp_path, loss_of_a_copy()), step_us=1_851)
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
def test_rows_that_something_else_needs_are_copied(tmp_path: Path, reader: str, original: Layout) -> None:
    trace = device_bound(tmp_path, loss_of_a_copy(reader, original))
    assert findings(shifted_logits, trace, step_us=1_851) == []
