"""Operators that raise where autocast gives them bf16: they neither convert nor accept tensors of two types.

Under autocast a matrix product gives bf16, and most operators promote what they are given. These do not: `out.index_add_(0, i, x)`
with `out` in fp32 and `x` from a product raises. tests/diagnose/patterns/test_mixed_types.py runs each with torch.
"""

from __future__ import annotations

import polars as pl

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns.cpu_operators import cpu_operators, named_times

# With one floating-point tensor in bf16 and another in fp32, under torch.autocast("cpu", torch.bfloat16); torch 2.13.
REFUSES_MIXED = (
    "aten::index_add", "aten::index_add_", "aten::index_copy_", "aten::index_reduce", "aten::index_reduce_",
    "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::put", "aten::put_",
    "aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce",
    "aten::scatter_reduce_", "aten::masked_scatter", "aten::masked_scatter_", "aten::lerp", "aten::lerp_",
    "aten::dot", "aten::vdot", "aten::inner", "aten::mv", "aten::addmv", "aten::tensordot", "aten::linalg_multi_dot",
    "aten::linalg_cross", "aten::cross", "aten::bilinear", "aten::embedding_bag", "aten::isclose", "aten::allclose",
)  # fmt: skip
# With tensors that are all in bf16.
REFUSES_BF16 = ("aten::_pdist_forward", "aten::complex", "aten::linalg_det", "aten::linalg_slogdet")
_BACKWARD = r"^autograd::engine::evaluate_function"
_OPTIMIZER = r"^Optimizer\."


def refusing_bf16(case: Case) -> tuple[str, ...]:
    """Such operators of the forward pass, by name, each once; in the backward pass and the optimizer types agree anyway."""
    names = pl.col("name").is_in(REFUSES_MIXED + REFUSES_BF16)
    chosen = cpu_operators(case).table.filter(names)
    if chosen.is_empty():
        return ()
    known = case.trace.ops.select(
        pl.col("span_id").cast(pl.Int64).alias("op_id"), pl.col("dtypes").cast(pl.String), "sequence"
    )
    chosen = chosen.join(known, on="op_id", how="inner", maintain_order="left")
    floats = pl.col("dtypes").fill_null("").str.count_matches('"float"')
    chosen = chosen.filter(floats >= pl.when(pl.col("name").is_in(REFUSES_BF16)).then(1).otherwise(2))
    if case.trains:  # what runs without gradients then, as of moving averages, is on parameters: autocast leaves them alone
        chosen = chosen.filter(pl.col("sequence").is_not_null())
    start = chosen["start_ns"].to_numpy()
    outside = intervals.covered_ns(named_times(case, f"{_BACKWARD}|{_OPTIMIZER}"), start, start + 1) > 0
    return tuple(chosen.filter(pl.Series(~outside))["name"].unique(maintain_order=True))
