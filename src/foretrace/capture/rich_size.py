"""How large a rich pass may be: it always comes, with fewer steps and switches where its file would be too large.

Stacks and modules stay in any case: source lines are what the pass is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from foretrace.capture.options import LIGHT, RICH, CaptureOptions, Switches
from foretrace.capture.plan import PlannedPass

# Bytes of a step in a rich file for each in a light one. Measured: 1.6 (an RNN) and 1.7 (a plain encoder) to about 14
# (transformers, diffusers), by how many Python calls a step makes. 12 lets what is 75 to 240 MB through, by default.
_RICH_TO_LIGHT = 12.0
_MEMORY, _SHAPES = 0.4, 0.35  # of that, on the encoder: 0.98 and 0.90 of 2.59 MB a step


@dataclass(frozen=True)
class RichSize:
    """What a rich pass records, and what was left out for the size of its file."""

    steps: int
    switches: Switches
    lead: bool = True  # whether the step before the first one is in the file too
    left_out: str = ""


def size_of(planned: PlannedPass, options: CaptureOptions, passes: Iterable[Mapping[str, Any]]) -> RichSize:
    """What to record in a pass: all that was asked for, but for a rich pass whose file would be too large."""
    switches = options.switches(planned.kind)
    if planned.kind != RICH:
        return RichSize(planned.active, switches)
    return fitting(steps=planned.active, switches=switches, passes=passes, limit_bytes=options.file_bytes)


def too_large(facts: Mapping[str, Any], limit_bytes: int) -> str:
    """What to say of a pass whose file is larger than a rich one should be."""
    if facts["kind"] != RICH or facts["file_bytes"] <= limit_bytes:
        return ""
    return (
        f"the rich pass's file of {facts['file_bytes'] / 2**20:.3g} MiB stays: the limit of "
        f"{limit_bytes / 2**20:.3g} MiB did not hold"
    )


def fitting(
    *, steps: int, switches: Switches, passes: Iterable[Mapping[str, Any]], limit_bytes: int
) -> RichSize:
    """The first that fits of: all that was asked for, one step of it, that without memory, without shapes too."""
    whole = RichSize(steps, switches)
    lights = [each for each in passes if each["kind"] == LIGHT]
    if not lights:
        return whole
    # The last step of the warm-up is in a file too.
    light_step = lights[-1]["file_bytes"] / (lights[-1]["steps"] + 1)
    expected = _expected_bytes(whole, light_step)
    if expected <= limit_bytes:
        return whole
    tried = _smaller(whole)
    chosen = next((size for size in tried if _expected_bytes(size, light_step) <= limit_bytes), tried[-1])
    recorded = "one step" + (f", without {chosen.left_out}" if chosen.left_out else "")
    says = f"{recorded}: all of it would be about {expected / 2**20:.3g} MiB, the limit is {limit_bytes / 2**20:.3g} MiB"
    return replace(chosen, left_out=says)


def _smaller(whole: RichSize) -> list[RichSize]:
    one_step = replace(whole, steps=1, lead=False)
    no_memory = replace(whole.switches, profile_memory=False, with_flops=False)
    return [
        one_step,
        replace(one_step, switches=no_memory, left_out="memory and FLOPs"),
        replace(
            one_step, switches=replace(no_memory, record_shapes=False), left_out="memory, FLOPs and shapes"
        ),
    ]


def _expected_bytes(size: RichSize, light_step_bytes: float) -> float:
    ratio = _RICH_TO_LIGHT
    ratio -= 0 if size.switches.profile_memory else _MEMORY
    ratio -= 0 if size.switches.record_shapes else _SHAPES
    return light_step_bytes * ratio * (size.steps + size.lead)
