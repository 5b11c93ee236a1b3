"""The role of GPU work: what kind of work it is, from its kernel's name and its operator.

The name decides (kernel_names.py), with these exceptions, since one library's kernel serves several operators:
- a matrix multiply under a convolution is the convolution;
- helpers without a role of their own (elementwise, reduction, sorting) under an operator that has one, such as
  embedding_dense_backward or native_layer_norm_backward, have that operator's;
- everything that a fused attention operator launches itself is fused attention;
- work on a matrix of attention scores is a piece of attention (attention_pieces.py), and so is all that SDPA's
  unfused fallback (`_scaled_dot_product_attention_math`) launches.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import attention_pieces, device_time
from foretrace.analyze.concepts.device.device_time import names_like
from foretrace.analyze.concepts.device.phases import PHASES, surroundings
from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.concepts.names.per_name import by_name
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.trace import Trace

FUSED_ATTENTION, ATTENTION_PIECES = "fused attention", "attention pieces"
ROLES = (
    "gemm", FUSED_ATTENTION, ATTENTION_PIECES, "convolution", "elementwise", "reduction", "norm", "softmax",
    "optimizer", "embedding", "copy", "communication", "other", "unknown",
)  # fmt: skip
_NAMED = {"attention": FUSED_ATTENTION}
# What an operator makes of helpers that have no role of their own, and of matrix multiplies.
_OPERATORS = (
    (r"^aten::(?:cudnn_|miopen_|slow_|thnn_|mkldnn_|_|)conv(?:olution|_|\d|t)", "convolution"),
    (r"attention_(?:forward|backward)|_scaled_dot_product_(?:flash|efficient|cudnn|fused)", FUSED_ATTENTION),
    (r"embedding|^aten::(?:_?index|gather|scatter|take|nonzero|masked_select)", "embedding"),
    (r"(?:layer|batch|group|instance|rms)_norm", "norm"),
    (r"softmax", "softmax"),
    (r"^aten::(?:mm|bmm|addmm|baddbmm|addmv|mv|linear|matmul|_scaled_mm|_grouped_mm)$", "gemm"),
)
_HELPERS = ("elementwise", "reduction", "other", "unknown")
_YES, _NO, _UNTOLD = 1, 2, 0
_MULTIPLIES, _MOVES = 1, 2
TENSOR_CORES = ("unknown", "yes", "no")  # by these numbers


def classified(trace: Trace) -> pl.DataFrame:
    """All device work launched in the recording, with what it is for.

    `role`, `part`, `phase` and `tensor_cores` are places in ROLES, attention_pieces.PARTS, PHASES and
    TENSOR_CORES; `eligible`: under an operator that tensor cores can run; `multiplies`: a matrix multiply or
    convolution by its kernel's name; `moves`: only casts, copies or rearranges data within the device.
    """
    work = device_time.device_work(trace).filter(~pl.col("orphan"))
    role, cores, kind = _by_kernel_name(work)
    op = work["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    linked = np.flatnonzero(op != NOBODY)
    role[linked] = _by_operator(trace, role[linked], op[linked])
    updates = role == ROLES.index("optimizer")
    around = surroundings(trace, work, updates=updates)
    part = np.full(work.height, attention_pieces.NO_PART, np.uint8)
    part[linked] = attention_pieces.pieces(trace, op[linked])
    part[around.fallback & (part == attention_pieces.NO_PART)] = attention_pieces.PARTS.index(
        attention_pieces.BETWEEN
    )
    role[(part != attention_pieces.NO_PART) & (role != ROLES.index(FUSED_ATTENTION))] = ROLES.index(
        ATTENTION_PIECES
    )
    return work.with_columns(
        role=pl.Series(role),
        part=pl.Series(part),
        phase=pl.Series(around.phase),
        eligible=pl.Series(around.eligible),
        tensor_cores=pl.Series(cores),
        multiplies=pl.Series((kind & _MULTIPLIES) > 0),
        moves=pl.Series((kind & _MOVES) > 0),
    )


def _by_kernel_name(work: pl.DataFrame) -> tuple[Array, Array, Array]:
    """Role, use of tensor cores, and whether it multiplies matrices or only moves data, by name."""

    def facts(names: pl.Series) -> Array:
        codes = np.zeros(len(names), np.uint32)
        for place, name in enumerate(names.to_list()):
            kernel = decode(name)
            role = ROLES.index(_NAMED.get(kernel.role, kernel.role))
            cores = {True: _YES, False: _NO, None: _UNTOLD}[kernel.tensor_cores]
            kind = _MULTIPLIES * kernel.multiplies | _MOVES * kernel.moves
            codes[place] = role | cores << 8 | kind << 16
        return codes

    codes_of_work = by_name(work["name"], facts)
    role, cores, kind = codes_of_work & 255, (codes_of_work >> 8) & 255, codes_of_work >> 16
    device_copy = names_like(work, r"DtoD|Device -> Device|DeviceToDevice")
    copies = (work["kind"] != "kernel").to_numpy()
    role[copies], cores[copies] = ROLES.index("copy"), _NO
    kind[copies] = np.where(work["name"].is_in(device_copy).to_numpy()[copies], _MOVES, 0)
    communicates = work["communication"].to_numpy()
    role[communicates], kind[communicates] = ROLES.index("communication"), 0
    return role.astype(np.uint8), cores.astype(np.uint8), kind.astype(np.uint8)


def _by_operator(trace: Trace, role: Array, op: Array) -> Array:
    """The roles, corrected by the operator that launched the work."""

    def made(names: pl.Series) -> Array:
        roles = np.full(len(names), 255, np.uint8)
        for pattern, role in reversed(_OPERATORS):
            roles[names.str.contains(pattern).to_numpy()] = ROLES.index(role)
        return roles

    of_op = by_name(trace.spans["name"].gather(op), made)
    known = of_op != 255
    helper = np.isin(role, [ROLES.index(name) for name in _HELPERS])
    multiply = role == ROLES.index("gemm")
    convolves = of_op == ROLES.index("convolution")
    fused = of_op == ROLES.index(FUSED_ATTENTION)
    changed = (known & helper) | (multiply & convolves) | (fused & known)
    # A bias copied or scaled inside addmm stays what it is: only what has no name becomes a multiply.
    changed &= (of_op != ROLES.index("gemm")) | (role == ROLES.index("unknown"))
    return np.where(changed, of_op, role).astype(np.uint8)


def role_names(column: str = "role") -> pl.Expr:
    """The role of each row as text."""
    return pl.col(column).replace_strict(dict(enumerate(ROLES)), return_dtype=pl.String)


def phase_names(column: str = "phase") -> pl.Expr:
    """The phase of each row as text."""
    return pl.col(column).replace_strict(dict(enumerate(PHASES)), return_dtype=pl.String)
