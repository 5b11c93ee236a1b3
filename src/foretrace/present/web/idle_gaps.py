"""The idle gaps of a recording: when each GPU had nothing to run, why, and the host's span that it waited for.

A gap is shown on the timeline as a span is, and has an id behind those of the spans, by which it can be linked to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.device.device_time import MeasuredPeriod
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.analyze.concepts.host.runtime_calls import NOBODY, HostSpans
from foretrace.analyze.concepts.trees.source_places import Places
from foretrace.analyze.idle import blocking_at, explain_gaps, main_causes
from foretrace.analyze.syncs import blocking_calls
from foretrace.analyze.timeline import DeviceWindow, device_windows
from foretrace.errors import MissingDataError
from foretrace.present.web.recording_view import RecordingView
from foretrace.trace import Trace

# Shorter ones are the pause between two kernels, by the definition of `idle`, and a pixel of a microsecond is rare.
LEAST_NS = 1_000
# Of one device: more cannot be told apart on a screen, and each costs time before the first picture.
MOST = 50_000
WHY = {
    "input": "The program was waiting for its next batch of data",
    "sync": "The host waited for the GPU and launched nothing new",
    "copy": "The host was preparing a copy, or waiting for one",
    "allocator": "The host was in a call that reserves or frees memory",
    "communication": "A collective was running on the host",
    "profiler": "The profiler was at work; without it, no such gap",
    "code loading": "GPU code was loaded or compiled for its first use",
    "host: operator": "The host was inside an operator, before its next launch",
    "host: runtime call": "The host was in another call to the GPU's runtime",
    "host: Python": "The host was running Python code outside operators",
    "host: not recorded": "Not recorded: Python code without stacks, or waiting",
    "launch call": "The host was in the call that launched the next work",
    "launch latency": "The next work was launched and on its way to the GPU",
    "kernel-to-kernel": "The next work was queued: a pause between two kernels",
    "queued": "Queued, but waiting for a stream, event, rank or process",
    "unexplained": "The launch of the next work was not recorded",
}
# The colour of a gap is that of what was waited for.
KINDS = {
    "input": "wait", "sync": "sync", "copy": "transfer", "allocator": "rt", "communication": "comm",
    "host: operator": "op", "host: runtime call": "rt", "host: Python": "py", "launch call": "rt",
}  # fmt: skip


@dataclass(frozen=True)
class IdleGaps:
    """All gaps that are shown, by device and start; the row is the number of the gap."""

    gaps: (
        pl.DataFrame
    )  # device, start_ns, idle_ns, before_id, after_id, launch_id, cause, cause_ns, span_id, sync_id
    parts: pl.DataFrame  # gap, part_at_ns, part_ns, cause, span_id; in order of time
    places: Places


def idle_gaps(view: RecordingView) -> IdleGaps | None:
    """The gaps of a recording, worked out once; None where no GPU work was launched in it."""

    def make() -> IdleGaps | None:
        try:
            return _found(view.trace)
        except MissingDataError:
            return None

    return view.keep("idle gaps", make)


def _found(trace: Trace) -> IdleGaps:
    host = HostSpans(trace)
    explained = explain_gaps(trace, host, _whole(trace), min_gap_ns=LEAST_NS, least_ns=LEAST_NS, most=MOST)
    gaps = explained.gaps.join(main_causes(explained.parts), on="gap", how="left", maintain_order="left")
    gaps = gaps.with_columns(pl.Series("span_id", _whole_load(host, gaps), dtype=pl.Int64))
    sync = blocking_at(blocking_calls(trace, host), gaps["start_ns"].to_numpy())
    parts = explained.parts.sort("gap", "part_at_ns")
    return IdleGaps(
        gaps.with_columns(pl.col("cause").cast(pl.String), sync.alias("sync_id")), parts, Places(trace, host)
    )


def _whole_load(host: HostSpans, gaps: pl.DataFrame) -> list[int | None]:
    """What each gap waited for; where that was data, the whole wait for it, not the operator that was at work then."""
    ids = gaps["span_id"].fill_null(NOBODY).to_numpy()
    loads = host.nearest(ids, host.named(runtime_calls.DATA_LOADING, "op", "annotation"))
    whole = np.where((gaps["cause"] == "input").to_numpy() & (loads != NOBODY), loads, ids)
    return [None if number == NOBODY else number for number in whole.tolist()]


def _whole(trace: Trace) -> list[DeviceWindow]:
    """For each device the steps, and all work that was launched in the recording."""
    work = device_time.device_work(trace)
    pairs = zip(
        device_windows(trace, work, over="steps"), device_windows(trace, work, over="launched"), strict=True
    )
    return [
        DeviceWindow(
            steps.device,
            None,
            MeasuredPeriod(
                min(steps.period.start_ns, launched.period.start_ns),
                max(steps.period.end_ns, launched.period.end_ns),
                "the recording",
            ),
        )
        for steps, launched in pairs
    ]


def first_id(trace: Trace) -> int:
    """The id of the first gap: they follow those of the spans."""
    return trace.spans.height


def where(found: IdleGaps, span_ids: pl.Series) -> pl.Series:
    """The program's lines for spans of the host; null where none is known."""
    return found.places.lines(span_ids.cast(pl.Int64).fill_null(NOBODY).to_numpy().astype(np.int64))
