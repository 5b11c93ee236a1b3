"""What a memory snapshot tells, in sentences: the terminal and the page say the same."""

from __future__ import annotations

from foretrace.analyze.snapshots.findings import DeviceFindings
from foretrace.analyze.snapshots.fragmentation import times
from foretrace.analyze.snapshots.layers import peak_checkpointed
from foretrace.analyze.snapshots.steps import LEAST_STEPS
from foretrace.units import counted, format_value

_LITTLE = 0.99  # of the peak: what is not lower than that is not lower
KEEPS = "Something still refers to them: a list, a cache, a closure, or a loss that is kept with its graph."


def _bytes(value: int) -> str:
    return format_value("_bytes", value)


def layers_says(found: DeviceFindings) -> str | None:
    """What the calls of the repeated block save; None where no block repeats."""
    layers = found.layers
    if layers is None:
        return None
    least, most = min(layers.saved_bytes), max(layers.saved_bytes)
    calls = counted(len(layers.saved_bytes), "call")
    if least == most:
        says = f"{calls} at {layers.where} keep {_bytes(most)} each for the backward pass"
    else:
        says = (
            f"{calls} at {layers.where} keep {_bytes(least)} to {_bytes(most)} each for the backward pass, "
            f"call {layers.largest + 1} the most"
        )
    after = peak_checkpointed(found.origins, layers)
    checkpointed = "" if after is None else f"; with them checkpointed the pass would peak at {_bytes(after)}"
    if after is not None and after >= _LITTLE * found.origins.memory.peak_bytes:
        checkpointed = "; to checkpoint them would not lower the peak"
    return f"{says}: {_bytes(sum(layers.saved_bytes))} in all{checkpointed}"


def optimizer_says(found: DeviceFindings) -> str | None:
    """What the optimizer keeps beyond the usual; None where it does not."""
    state = found.optimizer
    if state is None:
        return None
    where = ", ".join(f"{_bytes(size)} at {line}" for line, size in state.lines)
    times_ = f"{state.size_bytes / state.parameters_bytes:.1f} times"
    return f"the optimizer keeps {_bytes(state.size_bytes)}, {times_} the {_bytes(state.parameters_bytes)} of the parameters: {where}"


def leaks_unchecked(found: DeviceFindings) -> str | None:
    """Why nothing can be said of leaks; None where it can."""
    known = found.steps
    if known is not None and len(known) >= LEAST_STEPS:
        return None
    count = counted(len(known), "whole step") if known else "no repeated step"
    return f"not checked: {count} in the history, and {LEAST_STEPS} are needed"


def leaks_says(found: DeviceFindings) -> str:
    """How much each step keeps, or that it keeps nothing."""
    if (why := leaks_unchecked(found)) is not None or found.steps is None:
        return why or ""
    steps = f"{counted(len(found.steps), 'step')}, detected by {found.steps.told_by}"
    if not found.leaks:
        return f"none in {steps}"
    longest = max((leak.repetitions for leak in found.leaks), key=len)
    grows = _bytes(sum(leak.bytes_per_step for leak in found.leaks))
    return f"each step keeps {grows} more, steps {longest[0].step} to {longest[-1].step} ({steps})"


def unused_says(found: DeviceFindings) -> str:
    """What torch held and no block used."""
    if not found.origins.memory.reserved_is_known:
        return "not known: the history holds more than the segments of the snapshot"
    told = found.fragmentation
    end = told.at_end
    parts = [
        f"{told.unused_pct:.1f} % of what torch held at the peak was in no block ({_bytes(told.unused_bytes)})",
        f"rounding took {_bytes(told.rounding_bytes)} of the blocks" if told.rounding_bytes else "",
        f"at the end {_bytes(end.unused_bytes)} are in none, the largest piece {_bytes(end.largest_bytes)}"
        if end.unused_bytes
        else "",
        f"{_bytes(end.split_bytes)} of that lie beside blocks in use" if end.split_bytes else "",
        f"{_bytes(end.private_bytes)} are reserved in pools of their own" if end.private_bytes else "",
    ]
    return "; ".join(part for part in parts if part)


def flushes_says(found: DeviceFindings) -> str | None:
    """How often memory was given back to make a request fit; None where never."""
    if not found.flushes:
        return None
    often, first = times(len(found.flushes)), found.flushes[0].where
    return f"{often} torch gave memory back to the device to make a request fit, first at {first}"


def beside_says(found: DeviceFindings) -> str | None:
    """Whose blocks lay beside what was unused; None where that is little."""
    told = found.fragmentation
    if not (told.advice and told.beside):
        return None
    where, much = told.beside[0]
    return f"when torch held most, {_bytes(much)} lay unused beside blocks of {where}"


def compared_says(before: DeviceFindings, after: DeviceFindings) -> str:
    """The two peaks in one sentence."""
    first, second = before.origins.memory.peak_bytes, after.origins.memory.peak_bytes
    change = second - first
    told = f"{_bytes(abs(change))} {'more' if change > 0 else 'less'}" if change else "no change"
    return f"{after.name} peaked at {_bytes(first)} before and {_bytes(second)} after: {told}"
