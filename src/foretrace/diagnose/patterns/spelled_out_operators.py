"""Spelled-out operators: norms and activations computed in pointwise steps, which torch has as one operator each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.diagnose.case import Case
from foretrace.predict.fusion import Link
from foretrace.sourced import JUDGEMENT, Share

MOST_OF_CHAIN = Share(
    0.5, "a chain of the backward pass, at least, that belongs to spelled-out operators", JUDGEMENT
)
# torch's operator, the operators that it takes at least to spell it out, and those that would make it another. What works
# on one number a row, such as a root, is of another size and no part of the chain.
_FORMULAS: tuple[tuple[str, dict[str, int], tuple[str, ...]], ...] = (
    ('F.gelu(x, approximate="tanh")', {"tanh": 1, "mul": 3, "add": 2}, ()),
    ("F.gelu(x)", {"erf": 1, "mul": 2, "add": 1}, ()),
    ("F.layer_norm(x, shape, weight, bias)", {"mean": 2, "sub": 1, "mul": 1}, ()),
    ("F.layer_norm(x, shape, weight, bias)", {"mean": 1, "var": 1, "sub": 1}, ()),
    ("F.rms_norm(x, shape, weight)", {"mean": 1, "pow": 1, "mul": 2}, ("sub",)),
)


@dataclass(frozen=True)
class SpelledOut:
    """Chains that one operator of torch each would replace, by their place, and the calls of these operators."""

    chains: frozenset[int]
    calls: tuple[str, ...]


def find(case: Case, chains: Sequence[Sequence[Link]]) -> SpelledOut:
    """Those of the chains that spell out such an operator, and those of their gradients."""
    calls: Counter[str] = Counter()
    forward_chains: set[int] = set()
    forward_ops: set[int] = set()
    for place, links in enumerate(chains):
        if call := _formula(links):
            calls[call] += 1
            forward_chains.add(place)
            forward_ops.update(op for link in links for op in case.callers(link.op_id))
    gradients = {place for place, links in enumerate(chains) if _differentiates(case, links, forward_ops)}
    return SpelledOut(frozenset(forward_chains | gradients), tuple(call for call, _ in calls.most_common()))


def _formula(links: Sequence[Link]) -> str | None:
    """torch's operator for what the chain computes."""
    ops = Counter(link.op.removeprefix("aten::").removesuffix("_") for link in links)
    for call, needed, others in _FORMULAS:
        if all(ops[op] >= least for op, least in needed.items()) and not any(ops[op] for op in others):
            return call
    return None


def _differentiates(case: Case, links: Sequence[Link], forward_ops: set[int]) -> bool:
    """Whether most of a chain is of the backward pass of these operators."""
    forward_of = case.keep("forward operators", lambda: _forward_of(case))
    nodes = [[op for op in case.callers(link.op_id) if op in forward_of] for link in links]
    backward = sum(bool(ops) for ops in nodes)
    theirs = sum(forward_of[op] in forward_ops for ops in nodes for op in ops)
    return backward > 0 and theirs >= MOST_OF_CHAIN * backward and backward >= MOST_OF_CHAIN * len(links)


def _forward_of(case: Case) -> dict[int, int]:
    """For operators of the backward pass, the forward operator that each belongs to."""
    return dict(case.trace.ops.drop_nulls("forward_id").select("span_id", "forward_id").iter_rows())
