"""Whether a recording holds all that one program did in the steps that are spoken of, as notes of the trust report."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analyze.concepts.trust.evidence import MOST_PCT, Evidence, Note
from foretrace.units import format_value

# Whole recordings of the corpus lack no number; this leaves room for what a profiler numbers without recording it.
_MISSING_PCT = 10.0
# Recording lengthens a step, up to 4 times in the pairs of docs/accuracy.md, and shortens none by more than its scatter: a stated step
# that is several times as long as the recorded ones is another one, and so is one that is shorter by far more than that.
_LONGER, _SHORTER = 3.0, 8.0


def sampled(evidence: Evidence) -> Iterator[Note]:
    """Operators that the profiler numbered and that are not in the file: it was sampled or filtered."""
    meta, spans = evidence.trace.meta, evidence.trace.spans
    there, numbers = int(meta.get("op_ids") or 0), int(meta.get("op_id_range") or 0)
    there += int((spans["kind"] == "annotation").sum())  # they are numbered too
    share = 100 * (1 - there / numbers) if numbers > there else 0.0
    if share < _MISSING_PCT:
        return
    yield Note(
        "events-missing", "no" if share > MOST_PCT else "care",
        f"{format_value('_pct', share)} of the operators that the profiler numbered are not in the recording: it was "
        "sampled or filtered, so what is not in it is not idle time.",
        {"affected_count": numbers - there, "share_pct": share},
    )  # fmt: skip


def stated(evidence: Evidence) -> Iterator[Note]:
    """A step time that was given with the recording, far from the recorded one."""
    step_ns = evidence.trace.meta.get("stated_step_ns")
    recorded_ns = max((float(np.median(times)) for _, times in evidence.clocks), default=0.0)
    if not isinstance(step_ns, int | float) or step_ns <= 0 or recorded_ns <= 0:
        return
    if recorded_ns / _SHORTER <= step_ns <= recorded_ns * _LONGER:
        return
    ratio = max(step_ns / recorded_ns, recorded_ns / step_ns)
    yield Note(
        "stated-step-far", "no",
        f"The step is stated to take {format_value('_ns', round(step_ns))}, the recorded ones take "
        f"{format_value('_ns', round(recorded_ns))}, {ratio:,.0f} times {'less' if step_ns > recorded_ns else 'more'}: these "
        "are not the same steps.",
        {"stated_ns": round(step_ns), "recorded_ns": round(recorded_ns), "share_pct": 100 * step_ns / recorded_ns},
    )  # fmt: skip
