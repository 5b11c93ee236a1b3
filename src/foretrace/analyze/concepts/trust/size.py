"""How large a recording is, and how to record less, as a note of the trust report."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.analyze.concepts.trust.evidence import Evidence, Note, some
from foretrace.sourced import JUDGEMENT, Bytes, Count, Share
from foretrace.units import format_value

EVENT_BYTES = Bytes(300, "text of one event: 224 to 535 in four recordings", "recordings of the corpus")
LARGE_BYTES = Bytes(
    50_000_000, "text, from which on viewers that draw all of it struggle", "GPU Profiling, day 11"
)
ENOUGH_STEPS = Count(3, "complete steps, from which on their spread shows", JUDGEMENT)
_WORTH_NAMING = Share(0.1, "the events", JUDGEMENT)


def large(evidence: Evidence) -> Iterator[Note]:
    """Whether the recording is large, and what would make it smaller, the cheapest loss first."""
    events = int(evidence.trace.meta.get("events") or 0)
    text_bytes = events * EVENT_BYTES
    if text_bytes < LARGE_BYTES:
        return
    yield Note(
        "large", "info",
        f"The recording has {events:,} events, about {format_value('_bytes', text_bytes)} of text. To record less, in this "
        f"order: {'; '.join(_ways(evidence, events))}. `foretrace run` chooses steps and switches by the size of its files.",
        {"affected_count": events, "text_bytes": text_bytes},
    )  # fmt: skip


def _ways(evidence: Evidence, events: int) -> Iterator[str]:
    trace = evidence.trace
    steps = len(trace.steps)
    if steps > ENOUGH_STEPS:
        yield f"fewer steps ({some(steps, 'step')} recorded, {ENOUGH_STEPS} show their spread)"
    elif not steps:
        yield "fewer iterations, with a schedule that records a few"
    yield "a smaller batch, where the host launches work in a loop over its items"
    blocks = trace.allocations.select("start_ns", "end_ns")
    changes = 2 * blocks.height - sum(blocks.null_count().row(0))
    for switch, count, lost in (
        ("with_stack=False", trace.python.height, "source lines and modules"),
        ("profile_memory=False", changes, "memory"),
    ):
        if count >= _WORTH_NAMING * events:
            yield f"{switch}, {100 * count / events:.0f} % of the events here, without which there are no {lost}"
    yield "fewer layers of the model, where they are alike"
