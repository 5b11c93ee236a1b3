"""A Decision as Markdown: a comment on a pull request, or the summary of a build.

The first line is a comment that no page shows. Who posts it looks for that line in the comments there are, and edits that one.
"""

from __future__ import annotations

import re

from foretrace._version import __version__
from foretrace.compare.decision import Decision
from foretrace.compare.gates import Checked
from foretrace.compare.steps import StepComparison
from foretrace.present.text import comparison, tables
from foretrace.present.text.markup import code, escaped, paragraph

# GitHub refuses a comment of more than 65,536 characters; GitLab takes a million.
MOST_CHARACTERS = 60_000
_HEADINGS = {"passed": "✅ Passed", "failed": "❌ Failed", "inconclusive": "⚠️ Inconclusive"}
_STATES = {"passed": "✅ passed", "failed": "❌ **failed**", "inconclusive": "⚠️ inconclusive"}


def marker(key: str) -> str:
    """The hidden first line; a build with several gates gives each a key of its own."""
    return f"<!-- foretrace-gate: {re.sub(r'[^A-Za-z0-9._]+', '-', key).strip('-') or 'gate'} -->"


def markdown(decision: Decision, *, key: str) -> str:
    """The whole text; where it would be too long, without what explains the difference."""
    top, more = _top(decision, key), _explained(decision)
    text = "\n".join([*top, *more, _foot(decision), ""])
    if len(text) <= MOST_CHARACTERS:
        return text
    left_out = ["What explains the difference is too long for a comment: `foretrace compare` prints it.", ""]
    text = "\n".join([*top, *left_out, _foot(decision), ""])
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "\n\n(cut)\n"


def _top(decision: Decision, key: str) -> list[str]:
    lines = [marker(key), f"### {_HEADINGS[decision.outcome]}: {escaped(_headline(decision))}", ""]
    if decision.found is None:
        return lines
    if decision.differences:
        lines += _warning(decision)
    rows = [_row(checked) for checked in decision.gates]
    return [*lines, "| result | limit | found |", "|---|---|---|", *rows, ""]


def _headline(decision: Decision) -> str:
    found = decision.found
    if found is None:
        return decision.says
    change = 100 * (found.after_ns / found.before_ns - 1) if found.before_ns else 0.0
    sign = "+" if change >= 0 else "−"
    return f"{found.times}, {sign}{abs(change):.1f} %: {decision.says}"


def _warning(decision: Decision) -> list[str]:
    """What differs between the two environments, as GitHub and GitLab show a warning."""
    last = (
        "Part of the change may come from that."
        if decision.comparable
        else "Limits on changes are not judged: record both under the same conditions."
    )
    listed = ", ".join(escaped(each.says) for each in decision.differences)
    return ["> [!WARNING]", f"> **Environments differ:** {listed}. {last}", ""]


def _row(checked: Checked) -> str:
    return f"| {_STATES[checked.state]} | {code(checked.gate.text)} | {escaped(checked.says)} |"


def _explained(decision: Decision) -> list[str]:
    """The causes, which sum to the difference, folded."""
    found = decision.found
    if found is None:
        return []
    lines = ["<details><summary>What explains the difference</summary>", ""]
    lines += [tables.to_markdown(comparison.causes_frame(found, whole=False)).rstrip("\n"), ""]
    if counts := comparison.counts_line(found.before, found.after):
        lines += [paragraph(counts), ""]
    verdict = [_verdict(found)] if decision.comparable else []
    lines += [f"- {paragraph(note)}" for note in (*verdict, *found.notes)]
    return [*lines, "", "</details>", ""]


def _verdict(found: StepComparison) -> str:
    verdict = f"verdict on the step: {found.verdict}"
    return f"{verdict}, because {found.judged.why}" if found.judged.why else verdict


def _foot(decision: Decision) -> str:
    made = f"Foretrace {__version__}"
    found = decision.found
    if found is None:
        return f"<sub>{made}</sub>"
    names = f"{code(found.before.name)} → {code(found.after.name)}"
    return f"<sub>{names} · {escaped(comparison.about(found))} · {made}</sub>"
