"""What gates found, for a build server: JUnit's XML, GitHub's annotations, and a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape, quoteattr

from foretrace.compare.gates import Checked
from foretrace.present.text.markup import code, escaped
from foretrace.units import visible

_SUITE = "foretrace compare"
LEVELS = {"failed": "error", "inconclusive": "warning", "passed": "notice"}


def junit(checked: Sequence[Checked], verdict: str, says: str, *, suite: str = _SUITE) -> str:
    """One test for each gate: failed, skipped where nothing can be concluded, or passed; and one for the verdict, never failed."""
    failed, skipped = (sum(gate.state == state for gate in checked) for state in ("failed", "inconclusive"))
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<testsuite name="{suite}" tests="{len(checked) + 1}" failures="{failed}" skipped="{skipped}" errors="0">',
        f'  <testcase classname="{suite}" name={_attribute(f"verdict: {verdict}")}>',
        f"    <system-out>{_text(says)}</system-out>",
        "  </testcase>",
    ]
    for gate in checked:
        lines.append(f'  <testcase classname="{suite}" name={_attribute(gate.gate.text)}>')
        if gate.state == "failed":
            lines.append(f"    <failure message={_attribute(gate.says)}/>")
        elif gate.state == "inconclusive":
            lines.append(f"    <skipped message={_attribute(f'inconclusive: {gate.says}')}/>")
        else:
            lines.append(f"    <system-out>{_text(gate.says)}</system-out>")
        lines.append("  </testcase>")
    return "\n".join([*lines, "</testsuite>", ""])


def _attribute(text: str) -> str:
    return quoteattr(visible(text))


def _text(text: str) -> str:
    return escape(visible(text))


def github_lines(
    checked: Iterable[Checked], verdict: str, says: str, *, suite: str = _SUITE, level: str = "notice"
) -> list[str]:
    """GitHub's workflow commands: one line for the verdict, one for each gate."""
    lines = [_command(level, f"{suite}: {verdict}", says)]
    lines += [_command(LEVELS[gate.state], f"{gate.state}: {gate.gate.text}", gate.says) for gate in checked]
    return lines


def _command(level: str, title: str, says: str) -> str:
    return f"::{level} title={_property(title)}::{_data(says)}"


def _data(text: str) -> str:
    """As GitHub's own toolkit escapes it: nothing in a recording can begin another command."""
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(checked: Sequence[Checked]) -> str:
    """The gates as a table; nothing without gates."""
    if not checked:
        return ""
    rows = [f"| {gate.state} | {code(gate.gate.text)} | {escaped(gate.says)} |" for gate in checked]
    return "\n".join(["", "| gate | limit | found |", "|---|---|---|", *rows, ""])
