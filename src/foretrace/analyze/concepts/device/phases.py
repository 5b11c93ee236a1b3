"""The phase of device work: which part of a training step launched it.

It follows from the calls around the operator (or, without one, the launch):
- backward: an autograd node is nearest. Autograd gives its operators the forward operator's sequence number.
- recompute: a forward operator is nearest, one that autograd gave a new sequence number, and an autograd node
  is around it: activation checkpointing runs the forward again inside the backward. So does a backward that
  is itself differentiated (create_graph=True); the recording does not tell the two apart.
- optimizer: inside an `Optimizer.step#` or `Optimizer.zero_grad#` annotation or torch/optim's Python code, or
  a multi-tensor kernel outside of the backward. A step that is given a closure, as Lightning does, holds the forward
  and the backward too: only what begins after the last autograd node in it is the optimizer's.
- forward: anything else that has an operator.
- unknown: no operator is linked, as for the kernels of a CUDA graph whose capture is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.names.per_name import by_name
from foretrace.analyze.concepts.trees.attribution import parents
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.trace import Trace, once_per_trace

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, UNKNOWN = "forward", "backward", "recompute", "optimizer", "unknown"
PHASES = (FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, UNKNOWN)

_NODE = r"^autograd::engine::evaluate_function|^torch::autograd::AccumulateGrad$|Backward\d*$"
_OPTIMIZER = r"^Optimizer\.(?:step|zero_grad)#|torch/optim/[a-km-z_]\w*\.py\(\d+\): "
_MATH_ATTENTION = r"^aten::_scaled_dot_product_attention_math"
# The TensorBoard plugin's list of operators that tensor cores can run, with the newer names of the same.
_ELIGIBLE = (
    r"^aten::(?:cudnn_|miopen_|_|)conv(?:\d|_t|olution)|^aten::(?:prelu|addr|chain_matmul|linalg_multi_dot)$"
    r"|^aten::(?:_?addmm|addmv|addbmm|baddbmm|bmm|matmul|mm|mv|linear|_scaled_mm|_grouped_mm|_addmm_activation)$"
    r"|^aten::(?:_cudnn_rnn|lstm|gru|rnn_tanh|rnn_relu)|^aten::(?:lstm|gru|rnn_tanh|rnn_relu)_cell$"
)
_IS_NODE, _IS_FORWARD, _IS_OPTIMIZER, _IS_MATH, _IS_OP, _IS_ELIGIBLE = 1, 2, 4, 8, 16, 32


_PATTERNS = (
    (_NODE, _IS_NODE),
    (_OPTIMIZER, _IS_OPTIMIZER),
    (_MATH_ATTENTION, _IS_MATH),
    (_ELIGIBLE, _IS_ELIGIBLE),
)


@dataclass(frozen=True)
class Surroundings:
    """What is around the launch of each row of device work."""

    phase: Array  # its place in PHASES
    fallback: Array  # whether SDPA's unfused fallback launched it
    eligible: Array  # whether an operator that tensor cores can run launched it


def surroundings(trace: Trace, work: pl.DataFrame, *, updates: Array) -> Surroundings:
    """What is around each row of device work; `updates` says which rows are multi-tensor kernels."""
    causes = cause_of(work)
    around, nearest = _marks_around(trace, causes)
    node, forward = (around & _IS_NODE) > 0, nearest == _IS_FORWARD
    phase = np.full(work.height, PHASES.index(FORWARD), np.uint8)
    phase[(around & _IS_OP) == 0] = PHASES.index(UNKNOWN)
    phase[node] = PHASES.index(BACKWARD)
    phase[node & forward] = PHASES.index(RECOMPUTE)
    phase[((around & _IS_OPTIMIZER) > 0) | (updates & ~node)] = PHASES.index(OPTIMIZER)
    return Surroundings(phase, (around & _IS_MATH) > 0, (around & _IS_ELIGIBLE) > 0)


def cause_of(work: pl.DataFrame) -> Array:
    """For each row of GPU work its operator, else its launch, else NOBODY."""
    cause = work.select(pl.coalesce("op_id", "launch_id").cast(pl.Int64).fill_null(NOBODY)).to_series()
    return cause.to_numpy()


def distinct(spans: Array, count: int) -> Array:
    """The span ids among these, each once and in order; NOBODY is left out."""
    there = np.zeros(count + 1, bool)
    there[spans] = True  # NOBODY is the last place
    return np.flatnonzero(there[:count])


def _marks_around(trace: Trace, causes: Array) -> tuple[Array, Array]:
    """For each cause, the marks of it and all around it together, and the nearest of node and forward."""
    marks = _marks(trace)
    parent = parents(trace)
    start, updates_from = trace.spans["start_ns"].to_numpy(), np.zeros(len(marks), np.int64)
    updating, ended = _updates_from(trace)
    updates_from[updating] = ended
    rows = distinct(causes, len(marks))
    around, nearest = np.zeros(len(marks) + 1, np.uint8), np.zeros(len(marks) + 1, np.uint8)
    open_rows, at = rows, rows
    while len(open_rows):
        closure = ((marks[at] & _IS_OPTIMIZER) > 0) & (start[open_rows] < updates_from[at])
        here = np.where(closure, marks[at] & ~np.uint8(_IS_OPTIMIZER), marks[at])
        either = here & (_IS_NODE | _IS_FORWARD)
        around[open_rows] |= here
        first = (nearest[open_rows] == 0) & (either > 0)
        nearest[open_rows[first]] = either[first]
        at = parent[at]
        going = at != NOBODY
        open_rows, at = open_rows[going], at[going]
    # NOBODY is the last row of both, which has no marks.
    return around[causes], nearest[causes]


@once_per_trace
def _updates_from(trace: Trace) -> tuple[Array, Array]:
    """The spans of optimizers that hold a backward pass, in order, and when the last one within each has ended."""
    marks = _marks(trace)
    start, dur = trace.spans["start_ns"].to_numpy(), trace.spans["dur_ns"]
    nodes = np.flatnonzero(marks & _IS_NODE)  # in order of start
    updating = np.flatnonzero(marks & _IS_OPTIMIZER)
    if not len(nodes) or not len(updating):
        return updating[:0], start[:0]
    began = start[nodes]
    ended = np.maximum.accumulate(began + dur.gather(nodes).fill_null(0).to_numpy())
    last = np.searchsorted(began, start[updating] + dur.gather(updating).fill_null(0).to_numpy()) - 1
    within = (last >= 0) & (began[last] >= start[updating])
    return updating[within], ended[last[within]]


def last_backward_ns(trace: Trace, spans: pl.DataFrame) -> Array:
    """For spans around optimizer steps, when the optimizer's own work begins: behind the closure's backward, if there is one."""
    updating, ended = _updates_from(trace)
    ids, start = spans["id"].to_numpy(), spans["start_ns"].to_numpy()
    place = np.searchsorted(updating, ids)
    holds = np.append(updating, NOBODY)[place] == ids
    begins: Array = np.where(holds, np.maximum(np.append(ended, 0)[place], start), start)
    return begins


@once_per_trace
def _marks(trace: Trace) -> Array:
    """For each span, what it says of the phase of the work inside it; not to be changed."""
    spans = trace.spans
    marks = by_name(spans["name"], _name_marks)
    marks[(spans["kind"] == "op").to_numpy()] |= _IS_OP
    ops = trace.ops.select("span_id", "sequence", "forward_thread", "forward_id")
    back = ops.filter((pl.col("forward_thread") > 0) | pl.col("forward_id").is_not_null())
    ahead = ops.filter(
        (pl.col("forward_thread") == 0) & pl.col("sequence").is_not_null() & pl.col("forward_id").is_null()
    )["span_id"].to_numpy()
    marks[back["span_id"].to_numpy()] |= _IS_NODE
    marks[ahead[(marks[ahead] & _IS_NODE) == 0]] |= _IS_FORWARD
    return marks


def tensor_core_eligible(name: str = "name") -> pl.Expr:
    """Whether an operator, by name, is one that tensor cores can run."""
    return pl.col(name).str.contains(_ELIGIBLE)


def _name_marks(names: pl.Series) -> Array:
    marks = np.zeros(len(names), np.uint8)
    for pattern, mark in _PATTERNS:
        marks[names.str.contains(pattern).to_numpy()] |= mark
    return marks
