"""The Prediction: what a step would take with changes made, as a range, and what that rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, hypot, log, prod
from typing import Any

import numpy as np

from foretrace.errors import NothingLeftError
from foretrace.predict.calibrate import Calibration
from foretrace.predict.changes import Change, apply, with_times_scaled
from foretrace.predict.costs.measured_on import Model
from foretrace.predict.program import Program
from foretrace.predict.steady import step_ns
from foretrace.sourced import JUDGEMENT, Factor, Share

_UNSEEN = "coverage on programs that the rules had not seen: docs/accuracy.md"
# How far the host may be from the calibrated one.
HOST_KNOWN = Share(
    0.15,
    "the host's time, where the measured step follows it or it was measured itself: its own scatter between runs",
    _UNSEEN,
)
HOST_UNKNOWN = Share(
    0.35, "the host's time, where the step was not measured, or the device or a stall hides the host", _UNSEEN
)
STEP_KNOWN = Share(
    0.05,
    "the measured step, by which another run of the same program may differ",
    "25 programs timed twice, in the real programs of docs/accuracy.md: half of them differ by no more",
)


_TRIED = Share(0.05, "the host's time, by which one is tried that is faster than the last", JUDGEMENT)


@dataclass(frozen=True)
class Span:
    """A value and the range that it lies in."""

    point: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """A step before and after; times in nanoseconds."""

    verdict: str  # gain, no gain, uncertain
    step_ns: float
    after_ns: Span
    speedup: Span
    basis: str
    items: float = 1.0  # how many times the items the step after holds; the speed-up is per item
    not_promised: str = ""  # why the recording cannot carry the promise of this gain


MEASURED = Model()


def predict(
    calibration: Calibration,
    changes: tuple[Change, ...],
    model: Model = MEASURED,
    after_ns: float | None = None,
) -> Prediction:
    """What the changes, made together, would make of the step; `after_ns` is the step with them, if replayed already."""
    items = prod(change.items for change in changes)
    before = items * calibration.replayed()[1]
    if after_ns is None or after_ns <= 0:
        after_ns = _after_ns(calibration.program, changes)
    point = before / after_ns
    unknown = [
        [_ratio(calibration, changes, items, host=host) for host in host_ends(calibration)],
        [_ratio(calibration, changes, items, durations=1 + way * model.off) for way in (-1, 1)]
        if model.off and _modelled(changes)
        else [],
        [before / _after_ns(calibration.program, tried) for tried in _at_ends(changes)],
        [point * exp(way * calibration.scatter) for way in (-1, 1)],
    ]
    lowest, highest = ([end([point, *ratios]) for ratios in unknown] for end in (min, max))
    less, more = 1.0, 1.0  # by what is not modelled
    if not all(change.exact for change in changes):
        saved = max(1 - 1 / point, 0.0)
        less, more = SLACK + LESS_OF_SAVED * saved, SLACK + MORE_OF_SAVED * saved
    low, high = point / _off(point, lowest, less), point * _off(point, highest, more)
    if more > 1:
        high *= max(change.upside for change in changes)
    if items > 1 and all(change.items > 1 for change in changes):
        high = max(min(high, items), point)  # more items alone make no step shorter
    doubted = any(change.doubt for change in changes)
    if doubted:
        low = min(low, 1.0)
    speedup = Span(point, low, high)
    all_ns = items * calibration.step_ns
    after = Span(all_ns / point, all_ns / speedup.high, all_ns / speedup.low)
    return Prediction(
        _verdict(calibration, speedup, doubted=doubted),
        calibration.step_ns,
        after,
        speedup,
        _basis(calibration, changes, model),
        items,
    )


def _modelled(changes: tuple[Change, ...]) -> bool:
    """Whether any new duration is a model's: with none, nothing changes where models are off."""
    return any(not change.edit.modelled.isdisjoint(change.edit.durations_ns) for change in changes)


def host_ends(calibration: Calibration) -> tuple[float, float]:
    """How much faster and slower the host may be than the calibrated one.

    Where the step follows the host only in part, because the device works through most of it, a step that is a little
    shorter may mean a host that is much faster.
    """
    followed = calibration.known and calibration.host_bound and calibration.dense_told
    if calibration.host_told:
        return 1 - HOST_KNOWN, 1 + HOST_KNOWN
    if not followed:
        return 1 - HOST_UNKNOWN, 1 + HOST_UNKNOWN
    fastest, shorter = 1 - HOST_KNOWN, (1 - STEP_KNOWN) * calibration.replayed()[1]
    while fastest > 1 - HOST_UNKNOWN and calibration.replayed(fastest)[1] > shorter:
        fastest -= _TRIED
    return fastest, 1 + HOST_KNOWN


def withheld(prediction: Prediction, why: str) -> Prediction:
    """The prediction without its promise, because the recording cannot carry one."""
    basis = f"{prediction.basis} Not promised: {why}."
    return replace(prediction, verdict="uncertain", basis=basis, not_promised=why)


def at_most(prediction: Prediction, most: float, why: str) -> Prediction:
    """The prediction with no larger a speed-up than can be told, and without its promise; itself where it is smaller."""
    now = prediction.speedup
    if now.point <= most and now.high <= most:
        return prediction
    all_ns = prediction.items * prediction.step_ns
    speedup = Span(min(now.point, most), min(now.low, most), min(now.high, most))
    after = Span(all_ns / speedup.point, all_ns / speedup.high, all_ns / speedup.low)
    capped = replace(prediction, speedup=speedup, after_ns=after)
    return capped if now.point <= most else withheld(capped, why)


def _ratio(
    calibration: Calibration,
    changes: tuple[Change, ...],
    items: float,
    *,
    host: float = 1.0,
    durations: float = 1.0,
) -> float:
    """The speed-up, if the host or what is modelled took this much longer."""
    slower, slower_ns = calibration.replayed(host)
    tried = tuple(with_times_scaled(change, durations=durations, host=host) for change in changes)
    return items * slower_ns / _after_ns(slower, tried)


def _off(point: float, ratios: list[float], slack: float) -> float:
    """By what factor a speed-up may be off: errors that know nothing of each other seldom meet, so their squares are added."""
    return exp(hypot(log(slack), *(log(ratio / point) for ratio in ratios)))


def no_shorter_than(prediction: Prediction, floor_ns: float, why: str) -> Prediction:
    """The prediction of a change that something else keeps from making the step shorter than this."""
    most = max(prediction.step_ns * prediction.items / floor_ns, 1.0)
    if prediction.speedup.point <= most:
        return prediction
    now = prediction.speedup
    speedup = Span(most, min(now.low, most), min(now.high, most * SLACK))
    all_ns = prediction.items * prediction.step_ns
    after = Span(all_ns / speedup.point, all_ns / speedup.high, all_ns / speedup.low)
    none = prediction.verdict != "uncertain" or speedup.high < PERHAPS
    verdict = (
        prediction.verdict if most >= PROMISED_GAIN else "no gain" if none and most < NO_GAIN else "uncertain"
    )
    return replace(
        prediction, verdict=verdict, after_ns=after, speedup=speedup, basis=f"{prediction.basis} {why}"
    )


SLACK = Factor(1.08, "the speed-up, for what is not modelled", _UNSEEN)
LESS_OF_SAVED = Share(0.12, "the saved share of the step, added to the slack of the lower end", _UNSEEN)
MORE_OF_SAVED = Share(
    0.4, "the saved share of the step, added to the slack of the upper end, which promises nothing", _UNSEEN
)


def _after_ns(program: Program, changes: tuple[Change, ...]) -> float:
    """The step with the changes made; an error if they leave nothing of it."""
    after = step_ns(apply(program, changes))
    if after <= 0:
        raise NothingLeftError(
            f"nothing is left of the step with: {'; '.join(change.says for change in changes)}"
        )
    return after


def _at_ends(changes: tuple[Change, ...]) -> Iterator[tuple[Change, ...]]:
    """The changes with one of them as it would be if what is not known about it lay at an end of its range."""
    for place, change in enumerate(changes):
        for edit in change.others:
            yield (*changes[:place], replace(change, edit=edit), *changes[place + 1 :])


def to_dict(prediction: Prediction) -> dict[str, Any]:
    """Plain data, in milliseconds, as the `predicted` part of a finding has it."""

    def span(each: Span, unit: float) -> dict[str, float]:
        return {"point": each.point / unit, "low": each.low / unit, "high": each.high / unit}

    return {
        "verdict": prediction.verdict,
        "step_ms": prediction.step_ns / 1e6,
        "after_ms": span(prediction.after_ns, 1e6),
        "speedup": span(prediction.speedup, 1.0),
        "basis": prediction.basis,
        "not_promised": prediction.not_promised,
    }


PROMISED_GAIN = Factor(1.10, "the predicted speed-up, from which a gain is promised", JUDGEMENT)
NO_GAIN = Factor(1.05, "the predicted speed-up, below which there is none to speak of", JUDGEMENT)
PERHAPS = Factor(1.25, "the upper end, from which a gain is not ruled out", JUDGEMENT)


def _verdict(calibration: Calibration, speedup: Span, *, doubted: bool) -> str:
    """A gain is promised where the lower end is no loss, and nothing else speaks against it."""
    if not calibration.representative:
        return "uncertain"
    if speedup.point >= PROMISED_GAIN and speedup.low >= 1.0 and not doubted:
        return "gain"
    return "no gain" if speedup.point < NO_GAIN and speedup.high < PERHAPS else "uncertain"


def _basis(calibration: Calibration, changes: tuple[Change, ...], model: Model) -> str:
    made = "; ".join(change.says for change in changes) or "nothing changed"
    doubts = "".join(f" Not promised: {change.doubt}." for change in changes if change.doubt)
    items = prod(change.items for change in changes)
    larger = (
        f" The step after holds {items:g} times the items: the speed-up and the verdict are per item."
        if items != 1
        else ""
    )
    modelled = any(change.edit.modelled for change in changes)
    wider = f" The range is wider: {model.why}." if modelled and model.why else ""
    follows = _follows(calibration)
    return f"replayed with: {made}. The step follows {follows}; {calibration.basis}.{larger}{wider}{doubts}"


def _follows(calibration: Calibration) -> str:
    program = calibration.program
    if calibration.host_bound:
        return "the host"
    work_ns = float(program.task_dur_ns.sum()) / max(len(np.unique(program.step)), 1)
    most = 2 * work_ns >= calibration.step_ns
    return "the device" if most else "what the host does or waits for beside torch's operators"
