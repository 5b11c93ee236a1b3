"""Gates: limits that a comparison must keep, such as `step_ms > +3%`, and whether it does.

A limit with a sign is on the change: `+3%` of the value before, `+2` in its unit. One without is on the value after. The name is
step_ms, peak_bytes, kernels, launches, exposed_communication_pct, or ANALYSIS.VALUE. A step time is known within an interval: the
gate fails only if all of it is beyond the limit.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from foretrace import analyze, measured
from foretrace.analyze.result import Value
from foretrace.compare.benches import BenchRow
from foretrace.compare.sides import Side
from foretrace.compare.steps import StepComparison
from foretrace.errors import MissingDataError, UsageError, unknown
from foretrace.measured import CHANCE, Interval
from foretrace.trace import Trace
from foretrace.units import format_value, suffix

State = Literal["passed", "failed", "inconclusive"]
STEP = "step_ms"
PEAK = "peak_bytes"
_COUNTS = {PEAK: PEAK, "kernels": "kernels", "launches": "launches"}
_SHORT = {"exposed_communication_pct": "overview.gpu_exposed_communication_pct"}
NAMES = (STEP, *_COUNTS, *_SHORT)
_FORM = re.compile(
    r"\s*(?P<name>[A-Za-z][\w.-]*)\s*(?P<sign>>=|<=|>|<)\s*"
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))\s*(?P<unit>%|ns|us|µs|ms|s|B|KiB|MiB|GiB)?\s*"
)
_BEYOND: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le
}  # fmt: skip
_UNITS = {
    "ns": 1.0,
    "us": 1e3,
    "µs": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "B": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}
_TIMES = ("ns", "us", "µs", "ms", "s")


@dataclass(frozen=True)
class Gate:
    """What must not come true."""

    text: str  # as given
    name: str
    sign: str
    limit: float  # in per cent, or in the value's own unit
    relative: bool  # the change in per cent
    change: bool  # the change in the value's unit


@dataclass(frozen=True)
class Checked:
    """A gate, and whether the comparison keeps it."""

    gate: Gate
    state: State
    says: str


def parse(text: str) -> Gate:
    """The gate that a text describes."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--fail-on {text!r}: not a limit; write a name, > or <, and a number, such as 'step_ms > +3%'"
        )
    name, number, unit = found["name"], found["number"], found["unit"]
    _known(name)
    signed = number[0] in "+-"
    share = name.endswith("_pct")
    if unit == "%" and not signed and not share:
        raise UsageError(f"--fail-on {text!r}: write the sign of a change: +{number}% or -{number}%")
    relative = unit == "%" and signed
    return Gate(
        text.strip(),
        name,
        found["sign"],
        _limit(text, name, float(number), unit),
        relative,
        signed and not relative,
    )


def _limit(text: str, name: str, number: float, unit: str | None) -> float:
    """The number in the unit of the name."""
    if unit in (None, "%"):
        return number
    own = (
        {"_ns": 1.0, "_ms": 1e6}.get(name[-3:])
        if unit in _TIMES
        else 1.0
        if name.endswith("_bytes")
        else None
    )
    if own is None:
        raise UsageError(f"--fail-on {text!r}: {name} is not measured in {unit}")
    return number * _UNITS[str(unit)] / own


def _known(name: str) -> None:
    """Raises UsageError for a name that cannot be one; whether an analysis has such a value, only its result tells."""
    if name in NAMES:
        return
    analysis, dot, _ = name.partition(".")
    listed = [*NAMES, *(f"{known.name}.VALUE" for known in analyze.ANALYSES)]
    if not dot:
        raise unknown(f"no value named {name!r}", name, listed)
    analyze.find(analysis)


def value_of(trace: Trace, name: str) -> float:
    """The value of an analysis, by ANALYSIS.VALUE or its short name."""
    analysis, _, wanted = _SHORT.get(name, name).partition(".")
    values = analyze.run(trace, analysis).values
    numbers = {key: value for key, value in values.items() if _is_number(value) or value is None}
    if wanted not in numbers:
        raise unknown(f"{analysis} has no value {wanted!r}", wanted, numbers)
    value = numbers[wanted]
    if value is None:
        raise MissingDataError(f"{trace.path.name}: {name} was not recorded")
    return float(value)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def side_value(side: Side, trace: Trace | None, name: str) -> float:
    """What one side has for a name; a baseline only what was saved in it."""
    if name in _COUNTS:
        if name not in side.counts:
            missing = "; record with profile_memory=True" if name == PEAK else ""
            raise MissingDataError(f"{side.name}: {name} was not recorded{missing}")
        return side.counts[name]
    if trace is not None:
        return value_of(trace, name)
    if name not in side.values:
        raise MissingDataError(f"{side.name} does not hold {name}: save it anew with the same --fail-on")
    return side.values[name]


def saved_values(gates: Sequence[Gate], trace: Trace) -> dict[str, float]:
    """What a baseline keeps beside times and counts: the values that gates ask for, and those with short names, where known."""
    values = {gate.name: value_of(trace, gate.name) for gate in gates if gate.name not in (STEP, *_COUNTS)}
    for name in _SHORT:
        try:
            values[name] = value_of(trace, name)
        except (MissingDataError, UsageError):  # no GPU, no communication: there is nothing to keep
            continue
    return values


def check(gate: Gate, found: StepComparison, before: Trace | None, after: Trace | None) -> Checked:
    """Whether the comparison keeps the gate; traces are None for baselines."""
    if gate.name == STEP:
        return _check_step(gate, found)
    second = side_value(found.after, after, gate.name)
    first = side_value(found.before, before, gate.name) if gate.relative or gate.change else None
    return _check_values(gate, first, second)


def check_peaks(gate: Gate, before_bytes: int, after_bytes: int) -> Checked:
    """Whether two memory snapshots keep a limit on the peak."""
    if gate.name != PEAK:
        raise UsageError(f"--fail-on {gate.text!r}: of memory snapshots only {PEAK} can be limited")
    return _check_values(gate, before_bytes if gate.relative or gate.change else None, after_bytes)


def _check_values(gate: Gate, first: float | None, second: float) -> Checked:
    """Whether two values, of which the first counts only for a change, keep a limit."""
    shown = _shown(gate.name, second)
    if first is None:
        measured_value, says = second, shown
    elif gate.change:
        measured_value, says = second - first, f"{_shown(gate.name, first)} → {shown}"
    elif first:
        measured_value = 100 * (second / first - 1)
        says = f"{_shown(gate.name, first)} → {shown}, {measured_value:+.1f} %"
    else:
        # From nothing to something is more than any share.
        measured_value, says = (float("inf") if second else 0.0), f"0 → {shown}"
    state: State = "failed" if _BEYOND[gate.sign](measured_value, gate.limit) else "passed"
    return Checked(gate, state, f"{gate.name} {says}")


def _check_step(gate: Gate, found: StepComparison) -> Checked:
    known, says = _step_interval(gate, found)
    beyond = _BEYOND[gate.sign]
    if not beyond(known.point, gate.limit):
        return Checked(gate, "passed", says)
    judged = found.judged
    compared = gate.relative or gate.change
    enough = not compared or (judged.chance < CHANCE and not found.why_not)
    nearest = known.low if gate.sign.startswith(">") else known.high
    if enough and beyond(nearest, gate.limit):
        return Checked(gate, "failed", says)
    why = judged.why or "the limit lies within what the times are known to"
    return Checked(gate, "inconclusive", f"{says}; {why}")


def check_case(gate: Gate, row: BenchRow) -> Checked | None:
    """Whether one case of a benchmark keeps a limit on its time; None where it was not timed on both sides."""
    if gate.name != STEP or not gate.relative:
        raise UsageError(
            f"--fail-on {gate.text!r}: of benchmarks only changes of {STEP} can be limited, such as +3%"
        )
    if row.judged is None or row.before_ms is None or row.after_ms is None:
        return None
    speedup = row.judged.speedup
    low, point, high = (100 * (1 / end - 1) for end in (speedup.high, speedup.point, speedup.low))
    says = f"{row.what}: {row.before_ms:.4g} → {row.after_ms:.4g} ms: {point:+.1f} % ({low:+.1f} to {high:+.1f} %)"
    beyond = _BEYOND[gate.sign]
    if not beyond(point, gate.limit):
        return Checked(gate, "passed", says)
    sure = row.judged.chance < CHANCE and beyond(low if gate.sign.startswith(">") else high, gate.limit)
    return Checked(gate, "failed" if sure else "inconclusive", says)


def _step_interval(gate: Gate, found: StepComparison) -> tuple[Interval, str]:
    """What the gate limits, with its interval, and the same in words."""
    speedup = found.speedup
    ratio = Interval(1 / speedup.point, 1 / speedup.high, 1 / speedup.low)
    if gate.relative or gate.change:
        share = Interval(*(100 * (end - 1) for end in (ratio.point, ratio.low, ratio.high)))
        says = f"{STEP} {found.before_ns / 1e6:.4g} → {found.after_ns / 1e6:.4g}: "
        says += f"{share.point:+.1f} % ({share.low:+.1f} to {share.high:+.1f} %)"
        if gate.relative:
            return share, says
        return Interval(
            *(found.before_ns / 1e6 * (end - 1) for end in (ratio.point, ratio.low, ratio.high))
        ), says
    times = found.after.blocks_ns if found.known_by == "unprofiled" else found.after.times_ns
    own = measured.median(times)
    step_ms = found.after_ns / found.basis.scale / 1e6
    scale, widened = step_ms / own.point, 1 + found.judged.repeats
    known = Interval(step_ms, own.low * scale / widened, own.high * scale * widened)
    return known, f"{STEP} {known.point:.4g} ({known.low:.4g} to {known.high:.4g})"


def _shown(name: str, value: float) -> str:
    wanted = _SHORT.get(name, name)
    return format_value(wanted, value) if suffix(wanted) else f"{value:,.6g}"
