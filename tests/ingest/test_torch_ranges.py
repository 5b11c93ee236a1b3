"""Ranges that torch writes for Nsight Systems: operators, their numbers and shapes."""

from __future__ import annotations

import polars as pl
import pytest

from foretrace.ingest.torch_ranges import is_operator, shapes, split

pytestmark = pytest.mark.fast


def test_names_numbers_and_sizes() -> None:
    texts = [
        "aten::mm, seq = 12, op_id = 345, sizes = [[4, 8], [8, 2]]",
        "aten::mm, seq = 12, op_id = 345, sizes = [[4, 8], []], input_op_ids = [(1,0)]",
        "aten::add, op_id = 314359",
        "aten::t, sizes = [[4, 8]]",
        "forward",
        "layer 1, attention",
        "first, second, op_id = 7",
        "FSDP::pre_forward (encoder.block.14.layer.1), op_id = 314311",
        "",
    ]
    assert split(pl.Series(texts)).select("name", "numbered", "sequence", "sizes").rows() == [
        ("aten::mm", True, 12, "[[4, 8], [8, 2]]"),
        ("aten::mm", True, 12, "[[4, 8], []]"),
        ("aten::add", True, None, None),
        ("aten::t", True, None, "[[4, 8]]"),
        ("forward", False, None, None),
        ("layer 1, attention", False, None, None),
        ("first, second", True, None, None),
        ("FSDP::pre_forward (encoder.block.14.layer.1)", True, None, None),
        ("", False, None, None),
    ]


@pytest.mark.parametrize(
    ("name", "numbered", "operator"),
    [
        ("aten::mm", True, True),
        ("aten::mm", False, True),
        ("mylib::attention", True, True),
        ("mylib::attention", False, False),
        ("autograd::engine::evaluate_function: MmBackward0", True, True),
        ("MmBackward0", True, True),
        ("torch::autograd::AccumulateGrad", True, True),
        ("detach_", True, True),
        ("forward", True, False),
        ("ProfilerStep#3", True, False),
        ("Optimizer.step#AdamW.step", True, False),
        ("FSDP::pre_forward (encoder.block.14.layer.1)", True, False),
    ],
)
def test_what_is_an_operator(name: str, numbered: bool, operator: bool) -> None:
    assert is_operator(name, numbered=numbered) is operator


def test_sizes_that_are_no_shapes_are_none() -> None:
    assert shapes("[[4,8], []]") == "[[4, 8], []]"
    assert shapes("[[[2, 3], [4]], [1]]") == "[[[2, 3], [4]], [1]]"
    for text in ("[4, 8]", "[[4, 'x']]", "{", "[[4", "null", "[" * 5_000):
        assert shapes(text) is None, text[:20]
