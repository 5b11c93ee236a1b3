"""The trust report: what a recording contains, what it lost, and which conclusions it therefore supports.

A note is one fact with its numbers; `docs/guide/trust.md` says for each code what it means and what to do. The verdict is
that of the most serious note: "no" where conclusions about time would be wrong, "with care" where something limits them,
otherwise "yes".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from foretrace.analyze.concepts.trust import completeness, consistency, coverage, disturbance
from foretrace.analyze.concepts.trust.contention import contention
from foretrace.analyze.concepts.trust.evidence import Evidence, Note, Severity, some
from foretrace.analyze.concepts.trust.graph_losses import graph_losses
from foretrace.analyze.concepts.trust.how_to_record import as_recorded
from foretrace.analyze.concepts.trust.marks import marks, processes
from foretrace.analyze.concepts.trust.replays import replays
from foretrace.analyze.concepts.trust.settling import settling
from foretrace.analyze.concepts.trust.size import large
from foretrace.analyze.result import Result, Subject, analysis
from foretrace.trace import Trace

VERDICTS: Mapping[Severity, str] = {"no": "no", "care": "with care", "info": "yes"}
_ORDER: tuple[Severity, ...] = ("no", "care", "info")
_CONSISTENT = (
    consistency.unlaunched,
    consistency.uncopied,
    consistency.outside,
    consistency.overlapping,
    consistency.returned_early,
    consistency.idle_while_queued,
    consistency.out_of_order,
    consistency.apart,
    consistency.lengths,
)
# Notes of the same weight are listed in this order.
_CHECKS = (
    contention,
    completeness.content,
    completeness.whole_graphs,
    completeness.repairs,
    processes,
    completeness.launches,
    graph_losses,
    replays,
    completeness.orphans,
    completeness.steps,
    coverage.sampled,
    coverage.stated,
    marks,
    settling,
    completeness.damaged_files,
    disturbance.first_step,
    disturbance.overhead,
    *_CONSISTENT,
    disturbance.durations,
    disturbance.clock,
    disturbance.cost,
    disturbance.ranks,
    disturbance.spread,
    completeness.recorded,
    large,
)


@dataclass(frozen=True)
class Trust:
    """Whether conclusions about time can be drawn, and the notes that decide it, the most serious first."""

    verdict: str
    notes: tuple[Note, ...]

    def to_dict(self) -> dict[str, Any]:
        """The `trust` part of `diagnose --format json`."""
        notes = [{"code": note.code, "says": note.says, "values": dict(note.values)} for note in self.notes]
        return {"verdict": self.verdict, "notes": notes}


@analysis(Subject.TRUST, denominators={"share_pct": "of what the note's sentence names"})
def trust(trace: Trace) -> Result:
    """Whether the recording can be trusted: what is missing, cut off, repaired or disturbed.

    Each row is a note: one fact with its numbers. docs/guide/trust.md says for each code what it means and
    what to do about it.

    Columns:
        code: the name of the check.
        weight: "no" where conclusions about time would be wrong, "care" where something limits them, "info"
            where it is only good to know.
        affected_count, affected_ns: the spans, kernels or calls that the note is about, and their time.
        share_pct: of what the note's sentence names; it differs from note to note.

    The verdict is that of the most serious note: "no", "with care", otherwise "yes".

    What it cannot tell: how much slower the profiler made the program, unless the time of a step without a
    profiler was recorded with it.
    """
    judged = judge(trace)
    counts = {severity: sum(note.severity == severity for note in judged.notes) for severity in _ORDER}
    limits = counts["no"] + counts["care"]
    table = pl.DataFrame(
        {
            "code": [note.code for note in judged.notes],
            "weight": [note.severity for note in judged.notes],
            "says": [note.says for note in judged.notes],
            "affected_count": [note.values.get("affected_count") for note in judged.notes],
            "affected_ns": [note.values.get("affected_ns") for note in judged.notes],
            "share_pct": [note.values.get("share_pct") for note in judged.notes],
        },
        schema={"code": pl.String, "weight": pl.String, "says": pl.String, "affected_count": pl.Int64,
                "affected_ns": pl.Int64, "share_pct": pl.Float64},
    )  # fmt: skip
    return Result(
        says=f"Can this recording be trusted? {judged.verdict.capitalize()}"
        + (f": {some(limits, 'thing')} to know before drawing conclusions." if limits else "."),
        table=table,
        values={
            "verdict": judged.verdict,
            "no_count": counts["no"],
            "care_count": counts["care"],
            "info_count": counts["info"],
        },
    )


def judge(trace: Trace) -> Trust:
    """The verdict on a recording and its notes, the most serious first."""
    evidence = Evidence(trace)
    checks = _CHECKS if trace.spans.height else (completeness.content, completeness.repairs)
    found = (note for check in checks for note in check(evidence))
    notes = sorted((replace(note, says=as_recorded(trace, note.says)) for note in found), key=_weight)
    worst: Severity = notes[0].severity if notes else "info"
    return Trust(VERDICTS[worst], tuple(notes))


def _weight(note: Note) -> int:
    return _ORDER.index(note.severity)
