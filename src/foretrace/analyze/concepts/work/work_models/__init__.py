"""Work models: what an operator must compute and move, from the shapes it was called with.

A model is a function from a Call to its Work. FLOPs follow torch's own counters where those have a formula.
Bytes are compulsory traffic: each operand read once and each result written once, as if caches were perfect, so
a real kernel moves at least that much.
"""

from __future__ import annotations

from foretrace.analyze.concepts.work.work_models import (
    attention,
    convolution,
    elementwise,
    experts,
    indexing,
    matmul,
    multi_tensor,
    normalisation,
    quantised,
    served_attention,
)
from foretrace.analyze.concepts.work.work_models.call import Model, Work, parse

_FAMILIES: dict[str, dict[str, Model]] = {
    "gemm": {**matmul.MODELS, **quantised.MODELS},
    "convolution": convolution.MODELS,
    "attention": attention.MODELS,
    "served attention": served_attention.MODELS,
    "experts": experts.MODELS,
    "norm": normalisation.NORMS,
    "softmax": normalisation.SOFTMAXES,
    "elementwise": elementwise.MODELS,
    "copy": elementwise.COPIES,
    "dropout": elementwise.DROPOUTS,
    "reduction": elementwise.REDUCTIONS,
    "indexing": indexing.INDEXING,
    "concatenation": indexing.CONCATENATIONS,
    "loss": indexing.LOSSES,
    "pooling": indexing.POOLS,
    "optimizer": multi_tensor.OPTIMIZERS,
}
_MODELS = {name: (family, model) for family, models in _FAMILIES.items() for name, model in models.items()}
FAMILIES = (*_FAMILIES, "triton")
# Families that a matrix unit runs: where one holds another, only the inner one did the work.
MATRIX_FAMILIES = ("gemm", "convolution", "attention")
# Families of servers' operators, which hold products of their own beside what they compute themselves.
SERVED_FAMILIES = ("served attention", "experts")
# What runs at the rate of the matrix units.
DENSE_FAMILIES = (*MATRIX_FAMILIES, *SERVED_FAMILIES)


def find(name: str) -> tuple[str, Model] | None:
    """The family and the model of an operator, if there is one."""
    if name.startswith(("aten::_foreach_", "aten::_amp_foreach_")):
        return "optimizer", multi_tensor.foreach
    if multi_tensor.is_triton(name):
        return "triton", multi_tensor.triton
    return _MODELS.get(name)


def names() -> frozenset[str]:
    """The operators that have a model by their own name."""
    return frozenset(_MODELS)


def by_step(name: str) -> bool:
    """Whether the work of an operator depends on what its step is called."""
    return name in served_attention.MODELS


def work(
    name: str,
    shapes: str | None,
    dtypes: str | None,
    strides: str | None,
    inputs: str | None,
    kernel: str | None,
    step: str | None = None,
) -> Work | None:
    """What one call had to do, or None where there is no model or its arguments do not tell."""
    model = find(name)
    if model is None or shapes is None:
        return None
    try:
        result = model[1](parse(name, shapes, dtypes, strides, inputs, kernel, step))
    except (StopIteration, ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
        return None  # arguments that do not fit the operator's signature, or were not recorded
    return result if result.bytes >= 0 and (result.flops or 0) >= 0 else None
