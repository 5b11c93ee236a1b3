"""Norms and activations written out in pointwise operators, which torch has as one operator each.

Not a rule itself; `unfused-elementwise` asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.diagnose.case import Case
from foretrace.predict.fusion import Link

# torch's operator, the operators that it takes at least to write it out, and those that would make it another. What works
# on one number a row, such as a root, is of another size and no part of the chain.
_FORMULAS: tuple[tuple[str, dict[str, int], tuple[str, ...]], ...] = (
    ('F.gelu(x, approximate="tanh")', {"tanh": 1, "mul": 3, "add": 2}, ()),
    ("F.gelu(x)", {"erf": 1, "mul": 2, "add": 1}, ()),
    ("F.layer_norm(x, shape, weight, bias)", {"mean": 2, "sub": 1, "mul": 1}, ()),
    ("F.layer_norm(x, shape, weight, bias)", {"mean": 1, "var": 1, "sub": 1}, ()),
    ("F.rms_norm(x, shape, weight)", {"mean": 1, "pow": 1, "mul": 2}, ("sub",)),
)
_MOST_OF = 0.5  # of a chain in the backward pass, what belongs to such forward operators at least


@dataclass(frozen=True)
class WrittenOut:
    """Chains that one operator of torch each would replace, by their place, and these operators."""

    chains: frozenset[int]
    calls: tuple[str, ...]


def written_out(case: Case, chains: Sequence[Sequence[Link]]) -> WrittenOut:
    """Those of the chains that write out such an operator, and those of their gradients."""
    forward_of = case.keep("forward operators", lambda: _forward_of(case))
    calls: Counter[str] = Counter()
    found: set[int] = set()
    forward: set[int] = set()
    for place, links in enumerate(chains):
        if call := _formula(links):
            calls[call] += 1
            found.add(place)
            forward.update(each for link in links for each in case.callers(link.op_id))
    for place, links in enumerate(chains):
        mine = sum(
            forward_of.get(each) in forward
            for link in links
            for each in case.callers(link.op_id)
            if each in forward_of
        )
        told = sum(any(each in forward_of for each in case.callers(link.op_id)) for link in links)
        if told and mine >= _MOST_OF * told and told >= _MOST_OF * len(links):
            found.add(place)
    return WrittenOut(frozenset(found), tuple(call for call, _ in calls.most_common()))


def _formula(links: Sequence[Link]) -> str | None:
    """torch's operator for what the chain computes."""
    ops = Counter(link.op.removeprefix("aten::").removesuffix("_") for link in links)
    for call, needed, others in _FORMULAS:
        if all(ops[op] >= least for op, least in needed.items()) and not any(ops[op] for op in others):
            return call
    return None


def _forward_of(case: Case) -> dict[int, int]:
    """For operators of the backward pass, the forward operator that each belongs to."""
    return dict(case.trace.ops.drop_nulls("forward_id").select("span_id", "forward_id").iter_rows())
