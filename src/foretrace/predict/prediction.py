"""The Prediction: what a step would take with changes made, as a range, and what that rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from foretrace.errors import UsageError
from foretrace.predict.calibrate import Calibration, scaled_host
from foretrace.predict.changes import Change, apply, with_durations_scaled
from foretrace.predict.program import Program
from foretrace.predict.steady import step_ns

# How far the host may be from the calibrated one: its own scatter between runs of one program, where the
# step time was measured and follows the host; more where it was not, or where the device or a stall hides it.
_HOST_KNOWN, _HOST_UNKNOWN = 0.15, 0.35
_MODEL = 0.2  # how far a modelled duration may be off
# What is not modelled at all: 8 %, and more the more of the step a change takes away. So much speaks against a promise; of
# programs that the rules had not seen it covered too few (docs/accuracy.md), so the range is wider.
_SLACK, _SLACK_OF_SAVED = 1.08, 0.12
_WIDER, _WIDER_OF_SAVED = 1.02, 0.08
_PROMISE_POINT, _PROMISE_LOW, _NO_GAIN = 1.10, 1.04, 1.05
_PERHAPS = 1.25  # a range that reaches this far does not say that there is nothing to gain


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


def predict(calibration: Calibration, changes: tuple[Change, ...]) -> Prediction:
    """What the changes, made together, would make of the step."""
    items = prod(change.items for change in changes)
    before = items * step_ns(calibration.program)
    point = before / _after_ns(calibration.program, changes)
    told = calibration.known and calibration.host_bound and calibration.dense_told
    spread = _HOST_KNOWN if told else _HOST_UNKNOWN
    ratios = [point]
    for host in (1 - spread, 1 + spread):
        program = scaled_host(calibration.program, host)
        for model in (1 - _MODEL, 1 + _MODEL):
            tried = tuple(with_durations_scaled(change, model) for change in changes)
            ratios.append(items * step_ns(program) / _after_ns(program, tried))
    ratios += [before / _after_ns(calibration.program, tried) for tried in _at_ends(changes)]
    low, high = min(ratios), max(ratios)
    sure = low  # what a promise goes by
    if not all(change.exact for change in changes):
        saved = max(1 - 1 / point, 0.0)
        wide = (_SLACK + _SLACK_OF_SAVED * saved) * (_WIDER + _WIDER_OF_SAVED * saved)
        sure = low / (_SLACK + _SLACK_OF_SAVED * saved)
        low, high = low / wide, high * wide * max(change.upside for change in changes)
    if items > 1 and all(change.items > 1 for change in changes):
        high = max(min(high, items), point)  # more items alone make no step shorter
    if any(change.doubt for change in changes):
        low, sure = min(low, 1.0), min(sure, 1.0)
    speedup = Span(point, low, high)
    all_ns = items * calibration.step_ns
    after = Span(all_ns / point, all_ns / speedup.high, all_ns / speedup.low)
    return Prediction(
        _verdict(calibration, speedup, sure),
        calibration.step_ns,
        after,
        speedup,
        _basis(calibration, changes),
        items,
    )


def _after_ns(program: Program, changes: tuple[Change, ...]) -> float:
    """The step with the changes made; an error if they leave nothing of it."""
    after = step_ns(apply(program, changes))
    if after <= 0:
        raise UsageError(f"nothing is left of the step with: {'; '.join(change.says for change in changes)}")
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
    }


def _verdict(calibration: Calibration, speedup: Span, sure: float) -> str:
    if not calibration.representative:
        return "uncertain"
    if speedup.point >= _PROMISE_POINT and sure >= _PROMISE_LOW:
        return "gain"
    return "no gain" if speedup.point < _NO_GAIN and speedup.high < _PERHAPS else "uncertain"


def _basis(calibration: Calibration, changes: tuple[Change, ...]) -> str:
    made = "; ".join(change.says for change in changes) or "nothing changed"
    doubts = "".join(f" Not promised: {change.doubt}." for change in changes if change.doubt)
    items = prod(change.items for change in changes)
    larger = (
        f" The step after holds {items:g} times the items: the speed-up and the verdict are per item."
        if items != 1
        else ""
    )
    return f"replayed with: {made}. The step follows {_follows(calibration)}; {calibration.basis}.{larger}{doubts}"


def _follows(calibration: Calibration) -> str:
    program = calibration.program
    if calibration.host_bound:
        return "the host"
    work_ns = float(program.task_dur_ns.sum()) / max(len(np.unique(program.step)), 1)
    half = work_ns >= 0.5 * calibration.step_ns
    return "the device" if half else "what the host does or waits for beside torch's operators"
