"""The Ledger of a project: what was predicted of a change beside what was measured, one JSON object a line.

A record holds no path and no name of a machine: it may be kept in version control.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, to_builtins

from foretrace import own_files
from foretrace.errors import InputError
from foretrace.own_files import Positive
from foretrace.sourced import JUDGEMENT, Count, Factor
from foretrace.units import counted

if TYPE_CHECKING:  # every diagnosis asks for the ledger, and few for a report
    from foretrace.trial.report import Report

DEFAULT = Path(".foretrace") / "ledger.jsonl"
WORTH_IT = Factor(1.03, "the measured speed-up, from which a promise of more is held all the same", JUDGEMENT)
QUOTED_FROM = Count(5, "records of a rule, from which a diagnosis quotes them", JUDGEMENT)


class Record(Struct, frozen=True):
    """One change that was predicted and measured."""

    rule: str
    change: str
    device: str
    by: Literal["try", "verify"]
    predicted_low: Positive
    predicted: Positive
    predicted_high: Positive
    measured_low: Positive
    measured: Positive
    measured_high: Positive
    inside: bool
    promised: bool  # whether a gain was promised
    at: str = ""

    @property
    def as_predicted(self) -> bool:
        """Whether what was measured lies in the predicted range; `inside` asks only whether the ranges meet, as noisy ones do."""
        return self.predicted_low <= self.measured <= self.predicted_high

    @property
    def came_of(self) -> str:
        """What came of a promised gain: held, broken, or unclear where the measurement cannot tell."""
        if self.measured_low > 1 and (self.as_predicted or self.measured >= WORTH_IT):
            return "held"
        lost = self.measured_high <= 1 or self.measured_low > 1
        return "broken" if lost or self.measured_high < self.predicted_low else "unclear"


@dataclass(frozen=True)
class Kept:
    """How far predictions came true, of one rule on one device."""

    rule: str
    device: str
    records: int
    inside: int  # measured within the predicted range
    off: float  # the median of how far the predicted speed-up was from the measured one
    promised: int
    held: int  # of those promised, how many were a gain
    broken: int  # of those promised, how many were none; the others are unclear


def from_report(report: Report) -> list[Record]:
    """Of a report, the changes with a prediction that were measured."""
    return [
        Record(
            row.rule, row.change, report.device, "try",
            row.predicted.speedup.low, row.predicted.speedup.point, row.predicted.speedup.high,
            row.speedup.low, row.speedup.point, row.speedup.high,
            bool(row.inside), row.predicted.verdict == "gain", _now(),
        )
        for row in report.rows
        if row.predicted is not None and row.speedup is not None and row.rule and not report.recorded_on
    ]  # fmt: skip


def add(file: Path, records: Iterable[Record]) -> None:
    """Appends the records; the file and its folder are made where they are not there."""
    lines = [json.dumps(to_builtins(record)) for record in records]
    if lines:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as out:
            out.write("\n".join(lines) + "\n")


@dataclass(frozen=True)
class Ledger:
    """The records of a file, and a sentence for each line that holds none."""

    records: tuple[Record, ...] = ()
    problems: tuple[str, ...] = ()


def read(file: Path) -> Ledger:
    """All records of a file; an absent file has none. A damaged line, as a merge leaves them, costs that line alone."""
    if not file.exists():
        return Ledger()
    records, problems = [], []
    try:
        lines = own_files.read_bytes(file).splitlines()
    except InputError as error:
        return Ledger(problems=(str(error),))
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                records.append(own_files.decoded(line, Record, f"{file}: line {number}"))
            except InputError as error:
                problems.append(str(error))
    return Ledger(tuple(records), tuple(problems))


def summary(records: Sequence[Record]) -> list[Kept]:
    """By rule and device, those with most records first."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.rule, record.device), []).append(record)
    kept = [_kept(rule, device, group) for (rule, device), group in groups.items()]
    return sorted(kept, key=lambda one: (-one.records, one.rule, one.device))


def _kept(rule: str, device: str, records: Sequence[Record]) -> Kept:
    promised = [record for record in records if record.promised]
    return Kept(
        rule,
        device,
        len(records),
        sum(record.as_predicted for record in records),
        median(abs(record.predicted / record.measured - 1) for record in records),
        len(promised),
        *(sum(record.came_of == outcome for record in promised) for outcome in ("held", "broken")),
    )


def quotes(records: Sequence[Record], rules: Iterable[str], device: str | None) -> dict[str, Kept]:
    """What to quote beside the findings of these rules: where there are enough records of the rule on this device."""
    asked = set(rules)
    return {
        one.rule: one
        for one in summary(records)
        if one.rule in asked and one.records >= QUOTED_FROM and (device is None or one.device == device)
    }


def sentence(kept: Kept) -> str:
    """How far a rule's predictions came true, in a sentence."""
    gains = (
        f"; of {counted(kept.promised, 'promised gain')}, {kept.held} came true and {kept.broken} did not"
        if kept.promised
        else ""
    )
    return (
        f"{kept.rule}: {kept.inside} of {kept.records} predictions measured here on {kept.device} came true within their range"
        f" (typically {100 * kept.off:.0f} % off){gains}"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
