"""The work of a step on two sides: whether it is the same, and what to compare by where it is not."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.compare.sides import Side
from foretrace.sourced import JUDGEMENT, Factor, Share
from foretrace.units import format_value

OTHER_WORK = Factor(
    1.5,
    "the smaller of two steps' FLOPs in products, from which they are taken for different work",
    JUDGEMENT,
)
_SAME = Share(0.001, "items or tokens, by which two steps of the same work may differ", JUDGEMENT)


@dataclass(frozen=True)
class Basis:
    """What times are compared for."""

    unit: str = "step"  # or "tokens", "items"
    count: float = 1.0  # so many of them: those of a step of the first
    scale: float = 1.0  # makes the second's step as much work as the first's
    why_not: str = ""  # why the two cannot be compared
    notes: tuple[str, ...] = ()

    @property
    def says(self) -> str:
        """What a time is for: `a step`, `4,096 tokens`."""
        return "a step" if self.unit == "step" else f"{self.count:,.0f} {self.unit}"


def basis(before: Side, after: Side) -> Basis:
    """By the step where its work is the same, or nothing says otherwise; else by tokens or items; else not at all."""
    notes = _notes(before, after)
    for unit in ("tokens", "items"):
        first, second = before.taken_in.get(unit), after.taken_in.get(unit)
        if not first or not second:
            continue
        if abs(first / second - 1) <= _SAME:
            return Basis(notes=(*notes, *_other_products(before, after)))
        says = f"a step takes in {first:,.0f} and {second:,.0f} {unit}: compared for {first:,.0f} {unit}, the first's"
        return Basis(unit, first, first / second, notes=(says, *notes))
    if other := _other_products(before, after):
        return Basis(why_not=f"{other[0]}, and how many items a step takes in is not known", notes=notes)
    return Basis(notes=notes)


def _other_products(before: Side, after: Side) -> tuple[str, ...]:
    first, second = before.product_flops, after.product_flops
    if not first or not second or max(first, second) < OTHER_WORK * min(first, second):
        return ()
    texts = [format_value("_flops", value) for value in (first, second)]
    return (f"the work of a step differs: {texts[0]} and {texts[1]} in matrix products",)


def _notes(before: Side, after: Side) -> tuple[str, ...]:
    notes = []
    if before.device != after.device:
        notes.append(f"recorded on different devices: {before.device or 'none'} and {after.device or 'none'}")
    if before.dtype and after.dtype and before.dtype != after.dtype:
        notes.append(f"most products are computed in {before.dtype}, then in {after.dtype}")
    for side in (before, after):
        if not side.marked:
            notes.append(f"{side.name} has no steps: its times are of the whole recording")
        elif side.steps_count == 1:
            notes.append(f"{side.name} has one whole step: how much steps differ is not known")
    if (before.clock == "GPU") != (after.clock == "GPU"):
        notes.append("only one of the two holds GPU work")
    if before.has_stacks != after.has_stacks:
        notes.append(
            "one was recorded with Python calls and the other without: host times are not comparable"
        )
    return tuple(notes)
