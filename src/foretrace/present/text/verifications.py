"""A Verification as lines of styled text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.present.text import tables
from foretrace.present.text.markup import escaped
from foretrace.present.text.summary_page import Line
from foretrace.trial.verification import Verification
from foretrace.units import format_value, visible

_STYLES = {"inside": "verdict yes", "outside": "verdict no"}


def lines(told: Verification, width: int) -> Iterator[Line]:
    """The step before and after, both ranges, and the verdict."""
    for name, text, style in _rows(told):
        first = f"{name:<11}"
        for number, line in enumerate(tables.wrap(visible(text), width - len(first))):
            yield [(first if not number else " " * len(first), "title"), (line, style)]


def _rows(told: Verification) -> list[tuple[str, str, str]]:
    predicted, speedup = told.predicted.speedup, told.speedup
    return [
        ("finding", told.rule + (f":{told.change}" if told.change else "") + f" on {told.device}", "strong"),
        ("step", f"{format_value('_ns', told.before_ns)} → {format_value('_ns', told.after_ns)}", ""),
        ("predicted", f"× {predicted.point:.2f} ({predicted.low:.2f} to {predicted.high:.2f})", ""),
        ("measured", f"× {speedup.point:.2f} ({speedup.low:.2f} to {speedup.high:.2f})", ""),
        ("verdict", _verdict(told), _STYLES.get(told.verdict, "verdict with care")),
    ]


def _verdict(told: Verification) -> str:
    if told.inside is None:
        return f"not comparable: {told.differs}"
    return "inside the predicted range" if told.inside else "outside of the predicted range"


def to_markdown(told: Verification) -> str:
    """The same as a table."""
    rows = "".join(f"| {name} | {escaped(text)} |\n" for name, text, _ in _rows(told))
    return f"| | |\n|---|---|\n{rows}"
