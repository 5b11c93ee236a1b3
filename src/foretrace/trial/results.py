"""Whether a change keeps what the program computes: losses and gradient norms of its first steps, against its own spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, Literal

from foretrace.sourced import JUDGEMENT, Factor, Share
from foretrace.trial.candidates import BF16, DATA, FP32, MODEL, TF32

Kept = Literal["identical", "within noise", "as precision", "diverges", "not comparable", "not checked"]

# Of the first few losses; sums of many terms in another order differ by far more than the last bit.
LOSS_BY = {
    FP32: Share(1e-3, "a loss, by which sums in another order may change it in fp32", JUDGEMENT),
    TF32: Share(1e-2, "a loss, by which TF32's 10 bits of mantissa may change it", JUDGEMENT),
    BF16: Share(3e-2, "a loss, by which bf16's 7 bits of mantissa may change it", JUDGEMENT),
}
GRADIENTS = Factor(3, "times as far as a loss, a gradient norm may be off", JUDGEMENT)
_NAMES = {"losses": "loss", "gradient_norms": "gradient norm", "outputs": "output"}
_WORDS = {FP32: "fp32", TF32: "TF32", BF16: "bf16"}


@dataclass(frozen=True)
class ResultsKept:
    """The verdict, in words too, and by how much values differ."""

    verdict: Kept
    says: str
    off: Mapping[str, float]  # the farthest value of each kind, as a share of the program's own
    own: Mapping[str, float]  # how far the program's own runs lie apart


def judge(
    base: Sequence[Mapping[str, Any]],
    changed: Mapping[str, Any],
    *,
    precision: str,
    redraws: Sequence[str] = (),
) -> ResultsKept:
    """What the values of a variant say, beside those of the program as it is."""
    kinds = [kind for kind in ("losses", "gradient_norms") if base[0][kind] and changed[kind]]
    kinds = kinds or [kind for kind in ("outputs",) if base[0][kind] and changed[kind]]
    if not kinds:
        return ResultsKept("not checked", "no loss, gradient or output was seen", {}, {})
    own = {kind: _spread([run[kind] for run in base]) for kind in kinds}
    off = {kind: _off([run[kind] for run in base], changed[kind]) for kind in kinds}
    if not all(isfinite(value) for value in off.values()):
        return ResultsKept("diverges", "a value is not a finite number", off, own)
    numbers = ", ".join(f"{_NAMES[kind]} off by {_share(off[kind])}" for kind in kinds)
    if not any(off.values()):
        same: Kept = "identical" if not any(own.values()) else "within noise"
        return ResultsKept(same, _says(same, changed, kinds, numbers), off, own)
    if all(off[kind] <= own[kind] for kind in kinds):
        return ResultsKept("within noise", _says("within noise", changed, kinds, numbers), off, own)
    if why := _other_draws(base, changed, redraws):
        return ResultsKept("not comparable", f"not comparable: {why}", off, own)
    if all(off[kind] <= own[kind] + _allowed(kind, precision) for kind in kinds):
        return ResultsKept("as precision", f"differs as {_WORDS[precision]} does: {numbers}", off, own)
    return ResultsKept("diverges", f"diverges: {numbers}", off, own)


def _says(verdict: str, changed: Mapping[str, Any], kinds: Sequence[str], numbers: str) -> str:
    if verdict == "within noise":
        return f"within the program's own noise: {numbers}"
    counts = " and ".join(
        f"{len(changed[kind])} {_NAMES[kind]}{'es' if kind == 'losses' else 's'}" for kind in kinds
    )
    return f"identical: {counts}"


def _other_draws(
    base: Sequence[Mapping[str, Any]], changed: Mapping[str, Any], redraws: Sequence[str]
) -> str:
    """Why the random numbers are others, where they are."""
    runs = [*base, changed]
    if MODEL in redraws and any(run["draws_in_model"] for run in runs):
        return "random numbers are drawn in the model (dropout?), and others with this change"
    if DATA in redraws and any(run["draws_in_data"] for run in runs):
        return "random numbers are drawn for the data, and workers draw others"
    if DATA in redraws and any(run.get("workers") for run in base):
        return "workers draw random numbers of their own, and there are more workers"
    return ""


def _allowed(kind: str, precision: str) -> float:
    return LOSS_BY[precision] * (GRADIENTS if kind == "gradient_norms" else 1.0)


def _spread(runs: Sequence[Sequence[float]]) -> float:
    """How far the program's own runs lie apart at most."""
    return max(
        (_relative(a, b) for one, other in pairwise(runs) for a, b in zip(one, other, strict=False)),
        default=0.0,
    )


def _off(runs: Sequence[Sequence[float]], changed: Sequence[float]) -> float:
    """How far outside of the range of the program's own values the farthest value lies."""
    farthest = 0.0
    for place, value in enumerate(changed):
        own = [run[place] for run in runs if len(run) > place]
        if not own:
            break
        if not isfinite(value) and all(map(isfinite, own)):
            return float("inf")
        if not min(own) <= value <= max(own):
            farthest = max(farthest, min(_relative(value, other) for other in own))
    return farthest


def _relative(a: float, b: float) -> float:
    if a == b or (a != a and b != b):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b))


def _share(value: float) -> str:
    return f"{100 * value:.2g} %"
