"""Whether other programs took the processor's cores while steps were timed, as a note of the trust report."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.analyze.concepts.trust.evidence import Evidence, Note
from foretrace.ingest.core_use import CoreUse


def contention(evidence: Evidence) -> Iterator[Note]:
    """Times on cores that others use are those of this program beside them; a GPU that is kept busy hides that."""
    use = evidence.trace.meta.get("core_use")
    if not isinstance(use, CoreUse) or not use.contended:
        return
    yield Note(
        "contended-cores", "info" if evidence.gpu_bound else "care",
        f"{use.says()}: times are too long, and what more threads, workers or another type would bring cannot be told. "
        "Stop the other programs and record again.",
        {
            "others_cores_count": use.others,
            "cores_count": use.usable,
            "share_pct": None if use.waited is None else 100 * use.waited,
            "affected_ns": None if use.waited_ns is None else round(use.waited_ns),
            "affected_count": None if use.switches is None else round(use.switches),
            "load_average_count": use.load_average,
        },
    )  # fmt: skip
