"""Findings as SARIF 2.1.0, which code hosts show at their lines.

A finding is a result where its line lies in the repository at hand. GitHub refuses a whole file for one result without a
location: findings without such a line, and what limits the trust in the recording, are notifications of the run instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote

import foretrace.diagnose as diagnose
from foretrace._version import __version__
from foretrace.analyze.trust import Trust
from foretrace.diagnose.diagnosis import Diagnosis
from foretrace.diagnose.finding import Finding, Place
from foretrace.diagnose.rule import SECTIONS, Rule
from foretrace.predict.prediction import to_dict
from foretrace.present.agent.brief import finding_ids
from foretrace.present.agent.patches import confidence, source_of
from foretrace.present.text.findings import worths
from foretrace.units import shorten, visible

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"  # GitHub asks for it; nothing here fetches it
FINGERPRINT = "foretraceFinding/v1"
_ROOT_ID = "%SRCROOT%"
_MOST_PLACES = 20  # of a finding; GitHub takes 100
_MOST_CHARACTERS = 1_000  # of a message
_MOST_FILES = 50_000  # of a repository that are looked at to find one by the end of its path
_SKIPPED = {"node_modules", "__pycache__", "site-packages", "dist-packages"}


@dataclass(frozen=True)
class _Line:
    """A line of a file in the repository."""

    path: str  # from the root, with slashes
    line: int
    place: Place
    moved: bool  # whether the file has no such function around the line any more


class Repository:
    """The files that findings may be about."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._ending: dict[str, list[str]] | None = None

    def find(self, place: Place) -> _Line | None:
        """The place as a line of the repository; None where it names no line, or of no file there."""
        line = place.first_line
        if place.file is None or line is None or line < 1:
            return None
        for path in self._candidates(place.file):
            named = replace(place, file=path)
            source = source_of(named, (self.root,))
            if source is not None and line <= len(source.lines):
                return _Line(path, line, place, confidence(named, source) == "low")
        return None

    def _candidates(self, file: str) -> list[str]:
        """Where in the repository a recorded file may lie.

        torch records files relative to where modules are found, or whole paths of the machine that recorded: the file is that
        which ends like it, if only one does.
        """
        parts = (PureWindowsPath(file) if "\\" in file else PurePosixPath(file)).parts
        path = Path(file)
        if path.is_absolute() and path.is_relative_to(self.root):
            return [path.relative_to(self.root).as_posix()]
        if ".." in parts:
            return []
        whole = path.is_absolute() or PureWindowsPath(file).is_absolute()
        endings = [parts[start:] for start in range(1, len(parts))] if whole else [parts]
        for ending in endings:
            name = "/".join(ending)
            same = [each for each in self._named(ending[-1]) if f"/{each}".endswith(f"/{name}")]
            if name in same:
                return [name]
            if len(same) == 1:
                return same
            if same:
                return []  # two files that it could be: better no line than a wrong one
        return []

    def _named(self, name: str) -> list[str]:
        if self._ending is None:
            self._ending = {}
            for path in _source_files(self.root):
                self._ending.setdefault(path.rpartition("/")[2], []).append(path)
        return self._ending.get(name, [])


def _source_files(root: Path) -> list[str]:
    found: list[str] = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            each
            for each in folders
            if each not in _SKIPPED
            and not each.startswith(".")
            and not os.path.exists(os.path.join(folder, each, "pyvenv.cfg"))
        )
        inside = os.path.relpath(folder, root).replace(os.sep, "/")
        found += [
            file if inside == "." else f"{inside}/{file}" for file in sorted(files) if file.endswith(".py")
        ]
        if len(found) > _MOST_FILES:
            break
    return found[:_MOST_FILES]


def repository_root(folder: Path) -> Path:
    """The nearest folder, upwards, that git keeps its data in; the folder itself where there is none."""
    folder = folder.resolve()
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def to_sarif(diagnosis: Diagnosis, trust: Trust, repository: Repository) -> dict[str, Any]:
    """The log: one run of one tool."""
    names = list(dict.fromkeys(finding.rule for finding in diagnosis.findings))
    rules = [_rule(diagnose.find(name)) for name in names]
    results, notifications = [], []
    for finding, identity in zip(diagnosis.findings, finding_ids(diagnosis.findings), strict=True):
        lines = [line for place in finding.where if (line := repository.find(place)) is not None]
        if lines:
            results.append(_result(finding, identity, lines, names.index(finding.rule)))
        else:
            notifications.append(_notification(finding, names.index(finding.rule)))
    notifications += [
        {"level": "warning", "message": {"text": _plain(f"{note.code}: {note.says}")}}
        for note in trust.notes
        if note.severity != "info"
    ]
    run = {
        "tool": {"driver": {"name": "Foretrace", "version": __version__, "rules": rules}},
        "automationDetails": {"id": "foretrace/"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT_ID: {"description": {"text": "The root of the repository."}}},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
        "results": results,
        "properties": {"trust": trust.verdict},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.name,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": _sentence(rule.title)},
        "fullDescription": {"text": rule.help},
        "help": {"text": rule.manual, "markdown": _page(rule)},
        "defaultConfiguration": {"level": "note"},
        "properties": {"tags": ["performance", "pytorch", rule.topic]},
    }


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _page(rule: Rule) -> str:
    """The manual page as Markdown: headings, and code as it is indented already."""
    lines: list[str] = []
    for line in rule.manual.splitlines():
        if line in SECTIONS:
            lines += ["", f"**{line}**", ""]
            continue
        if line.startswith("    ") and lines and lines[-1] and not lines[-1].startswith("    "):
            lines.append("")
        lines.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _result(finding: Finding, identity: str, lines: Sequence[_Line], rule: int) -> dict[str, Any]:
    first, *others = lines[:_MOST_PLACES]
    moved = " The file was changed since: the line may have moved." if first.moved else ""
    freed = finding.freed_bytes
    known: dict[str, Any] = {
        "severity": finding.severity,
        "predicted": None if finding.predicted is None else to_dict(finding.predicted),
        "freed_bytes": None
        if freed is None
        else {"point": freed.point, "low": freed.low, "high": freed.high},
        "unless": visible(finding.unless),
    }
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": _level(finding),
        "message": {"text": _message(finding) + _plain(_known_lines(first.place)) + moved},
        "locations": [_location(first)],
        "relatedLocations": [
            {"id": number, **_location(line), "message": {"text": _plain(f"also in {line.place.function}")}}
            for number, line in enumerate(others, 1)
        ],
        "partialFingerprints": {FINGERPRINT: identity},
        "properties": {name: value for name, value in known.items() if value not in (None, "")},
    }


def _known_lines(place: Place) -> str:
    """What the location says, where it is no proven line."""
    if place.lines is None:
        return ""
    first, last = place.lines
    if last is None:
        return f" In {place.function}, which begins at line {first}; the recording does not prove which of its lines."
    return f" In {place.function}, on one of the lines {first} to {last}."


def _notification(finding: Finding, rule: int) -> dict[str, Any]:
    where = ", ".join(place.text for place in finding.where[:3])
    at = f" At {where}: no line of this repository." if where else ""
    return {
        "level": _level(finding),
        "message": {"text": _message(finding) + _plain(at)},
        "associatedRule": {"id": finding.rule, "index": rule},
    }


def _level(finding: Finding) -> str:
    """A promised gain is a warning; nothing here is an error, which would fail a pull request."""
    promised = finding.predicted is not None and finding.predicted.verdict == "gain"
    return "warning" if promised or finding.severity == "high" else "note"


def _message(finding: Finding) -> str:
    worth = worths(finding)
    parts = [finding.says, f"Predicted: {worth}." if worth else "Not predicted.", finding.fix.says]
    return _plain(" ".join(part for part in parts if part))


def _plain(text: str) -> str:
    """Text in which nothing of a recording becomes a link or acts on a terminal."""
    return shorten(visible(text), _MOST_CHARACTERS).replace("](", "] (")


def _location(line: _Line) -> Mapping[str, Any]:
    lines = line.place.lines or (line.line, None)
    region = {"startLine": line.line} if lines[1] is None else {"startLine": line.line, "endLine": lines[1]}
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(line.path), "uriBaseId": _ROOT_ID},
            "region": region,
        },
        "logicalLocations": [{"name": visible(line.place.function), "kind": "function"}],
    }
