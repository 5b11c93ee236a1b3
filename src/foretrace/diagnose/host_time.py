"""The host time that operators take, with those around them that do nothing else.

Not a rule itself; rules whose fix puts one call in the place of many share it.
"""

from __future__ import annotations

from collections.abc import Iterable

from foretrace.diagnose.case import Case
from foretrace.intervals import Intervals


def host_time(case: Case, ops: Iterable[int]) -> Intervals:
    """When the host was busy with these operators: each with the outermost one around it that launches no other's work."""
    mine = set(ops)
    elsewhere = {caller for op in set(case.tasks["op_id"].drop_nulls()) - mine for caller in case.callers(op)}
    spans = set()
    for op in mine:
        spans.update([each for each in case.callers(op) if each not in elsewhere][-1:])
    taken = case.trace.spans.select("start_ns", "dur_ns")[sorted(spans)]
    return case.during(taken)
