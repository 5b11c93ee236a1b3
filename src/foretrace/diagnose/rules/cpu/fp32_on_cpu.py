"""Matrix products run in fp32 on a processor that multiplies bf16 faster."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.concepts.work.work_models import MATRIX_FAMILIES
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import SHOWN_SPANS
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.cpu_operators import (
    CpuOperators,
    cpu_operators,
    innermost,
    processor,
    replaced,
    rows_and_size,
)
from foretrace.diagnose.patterns.mixed_types import refusing_bf16
from foretrace.diagnose.rule import CPU, SHAPES, headline, needs, on, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs import cpu_products as costs
from foretrace.predict.costs.cpu_products import AMX, AVX512, HALF  # noqa: F401  # named on the page
from foretrace.predict.edits import Edit, merge
from foretrace.sourced import JUDGEMENT, Factor, Share

_LEAST = Factor(0.75, "what bf16 adds to the rate of products, at least", JUDGEMENT)
_MOST = Factor(1.4, "what bf16 adds to the rate of products, at most: convolutions gain more", JUDGEMENT)
LEAST_SHARE = Share(0.1, "the step", JUDGEMENT)
# Their arithmetic takes the time, not memory: as long in bf16 as in fp32.
_COMPUTE = ("aten::gelu", "aten::gelu_backward", "aten::erf", "aten::exp", "aten::sigmoid", "aten::silu")
_TRAINS = (
    'with torch.autocast("cpu", torch.bfloat16):  # the forward pass and the loss\n    loss = model(batch)'
)
_SERVES = "model = model.to(torch.bfloat16)  # and its floating-point inputs"


@on(CPU)
@needs(SHAPES)
@headline("{products_pct:.0f} % of every step multiplies in fp32 on a processor that has bf16")
@rule("Matrix products run in fp32 on a processor that has bf16", "Precision", see="operators")
def fp32_on_cpu(case: Case) -> Iterator[Finding]:
    """Matrix products and convolutions in fp32, where the processor has instructions for bf16.

    Finds them where they take at least {LEAST_SHARE} of the step and the processor's flags name AMX (amx_bf16) or
    AVX512_BF16 (avx512_bf16). Products of a few rows only read their weights, and are left out.

    Slow
        loss = model(batch)

    Fast
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch)

    Why
    An instruction for bf16 multiplies twice as many pairs as one for fp32, and with AMX many times as many. Weights and
    activations also take half of the memory.

    How the worth is predicted
    Each product is replayed in bf16: {AVX512} times as fast with AVX512_BF16 and {AMX} times with AMX, and a little longer
    to set up. Element-wise operators on what products give, where memory holds them up, take {HALF} of their time, for their
    tensors take half of the memory. Where the program trains, casts of the products' inputs are added, for autocast makes them in every step;
    where it does not, the weights are taken to be in bf16. torch's fused attention is no faster in bf16 on a CPU, and its
    backward pass on short sequences is much slower: that is replayed too. With AMX nothing is promised, for its rate
    was not measured. Nothing is promised either where the forward pass calls an operator that raises an error when autocast
    gives it tensors of two types, such as index_add_, scatter_add_, index_put_ and lerp.

    When not
    The results need more than the 8 bits of precision that bf16 has: compare them. Training in bf16 without autocast needs
    weights in fp32 beside it.
    """
    cpu = processor(case)
    if cpu.bf16 is None:
        return
    products = _products(case)
    wide = products.where(pl.col("family") != "attention", pl.col("rows") >= costs.LEAST_ROWS)
    if too_little(case, "matrix products in fp32", wide.share, LEAST_SHARE):
        return
    refusing = refusing_bf16(case)
    rate = costs.AMX if cpu.bf16 == "amx_bf16" else costs.AVX512
    change = Change(
        f"products in bf16, {rate:.3g} times as fast",
        _in_bf16(case, products, rate),
        others=(
            _in_bf16(case, products, 1 + (rate - 1) * _LEAST),
            _in_bf16(case, products, 1 + (rate - 1) * _MOST),
        ),
        doubt=_doubt(cpu.bf16, refusing),
    )
    yield Finding(
        says=f"{wide.per_step_count:.0f} matrix products and convolutions a step run in fp32: {100 * wide.share:.0f} % of "
        f"the step. This processor ({cpu.model}) has {cpu.bf16}."
        + (f" But {_refuse(refusing)}." if refusing else ""),
        why="An instruction for bf16 multiplies at least twice as many pairs as one for fp32.",
        fix=_fix(case.trains, refusing),
        evidence={
            "products_pct": 100 * wide.share,
            "products_per_step_count": wide.per_step_count,
            "products_ns": round(wide.self_step_ns),
            "instructions": cpu.bf16,
            "spans": wide.ids[:SHOWN_SPANS],
        },
        where=case.places(wide.ids),
        change=change,
        unless="the results need more than the 8 bits of precision that bf16 has: compare them."
        + (f" {_refuse(refusing)}: convert what it is given with .float() first." if refusing else ""),
    )


def _fix(trains: bool, refusing: tuple[str, ...]) -> Fix:
    """What to write, as it runs: operators that refuse two types get one."""
    code = _TRAINS if trains else _SERVES
    if not refusing:
        return Fix("Multiply in bf16.", code)
    return Fix(
        f"Multiply in bf16, and convert what {_called(refusing)} {'are' if len(refusing) > 1 else 'is'} given, or an error is raised.",
        f"{code}\n# before {_called(refusing)}, in the model: x = x.float()",
    )


def _called(operators: tuple[str, ...]) -> str:
    return ", ".join(operators).replace("aten::", "")


def _doubt(instructions: str, refusing: tuple[str, ...]) -> str:
    """Why bf16 is not promised here."""
    if refusing:
        return _refuse(refusing)
    return "the rate of AMX was not measured" if instructions == "amx_bf16" else ""


def _refuse(operators: tuple[str, ...]) -> str:
    return f"{', '.join(operators)} raise{'s' * (len(operators) == 1)} an error where a tensor is in bf16 and another in fp32"


def _products(case: Case) -> CpuOperators:
    """The innermost products of fp32, with the `rows` of their first matrix and the elements of their largest tensor."""
    found = _sized(innermost(cpu_operators(case).where(pl.col("family").is_in(MATRIX_FAMILIES))))
    # A convolution's tensors hold no rows of a matrix: it is never a product of a few.
    rows = pl.when(pl.col("family") == "convolution").then(2 * costs.LEAST_ROWS).otherwise("rows")
    return CpuOperators(case, found.table.with_columns(rows=rows))


def _sized(operators: CpuOperators) -> CpuOperators:
    """Those of fp32, with `rows` and `elements` by their shapes."""
    arguments = operators.case.arguments.filter(pl.col("dtypes").str.contains(r'"float"'))
    table = operators.table.join(
        arguments.with_columns(pl.col("op_id").cast(pl.Int64)), on="op_id", how="inner", maintain_order="left"
    )
    shapes = table["shapes"].fill_null("")
    sizes = {text: rows_and_size(text) for text in shapes.unique()}
    rows, elements = (pl.Series([sizes[text][side] for text in shapes], dtype=pl.Int64) for side in (0, 1))
    return CpuOperators(operators.case, table.with_columns(rows=rows, elements=elements))


def _narrowed(case: Case) -> CpuOperators:
    """Element-wise operators that memory holds up, on tensors as large as those that products take or give."""
    found = _sized(cpu_operators(case).where(pl.col("family") == "elementwise", ~pl.col("calls_others")))
    waits = [
        costs.waits_for_memory(own, elements) and name not in _COMPUTE
        for name, own, elements in found.table.select("name", "dur_ns", "elements").iter_rows()
    ]
    flowing = found.where(pl.Series(waits, dtype=pl.Boolean))
    return flowing.where(pl.col("elements").is_in(_products(case).table["elements"].unique().implode()))


def _in_bf16(case: Case, products: CpuOperators, rate: float) -> Edit:
    """All products in bf16, with the casts that autocast makes where the program trains, and what reads their results."""
    table = products.table
    new = []
    for name, family, own, rows, elements in table.select(
        "name", "family", "dur_ns", "rows", "elements"
    ).iter_rows():
        forward = "backward" not in name
        if family == "attention":
            short = not forward and rows < costs.SHORT
            new.append(own * (costs.SHORT_BACKWARD if short else costs.ATTENTION))
            continue
        casts = costs.cast_ns(elements) if case.trains and forward else 0.0
        new.append(min(costs.in_bf16_ns(own, rate), own) + casts if rows >= costs.LEAST_ROWS else own)
    narrowed = case.keep("narrowed by bf16", lambda: _narrowed(case))
    rest = replaced(case, narrowed, (narrowed.table["dur_ns"] * costs.HALF).to_list())
    return merge((replaced(case, products, new), rest))
