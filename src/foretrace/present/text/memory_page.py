"""What a memory snapshot tells, as lines for a terminal, and the frames that become Markdown or CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from foretrace.analyze.snapshots import composition, steps
from foretrace.analyze.snapshots.difference import difference
from foretrace.analyze.snapshots.findings import DeviceFindings, SnapshotFindings
from foretrace.analyze.snapshots.shortage import OutOfMemory
from foretrace.present.text import level_curve, memory_words, summary_page, tables
from foretrace.present.text.markup import paragraph
from foretrace.present.text.summary_page import GUTTER, Line
from foretrace.units import counted, format_value, shorten, visible

TABLES = ("category", "line", "phase", "module", "block", "step", "layer")
COMPARED = ("category", "line", "phase", "module")
TOP = 10
_HEIGHT, _LABEL, _FEWEST_COLUMNS = 6, 9, 20


def frame(found: DeviceFindings, by: str, top: int) -> pl.DataFrame:
    """One table of a device; of a composition, what is not among the first `top` rows is the last one. 0 is all."""
    origins = found.origins
    if by == "block":
        return composition.largest(origins, origins.memory.peak, top or len(origins.memory.lives))
    if by == "step":
        empty = pl.DataFrame(schema={"step": pl.Int64, "peak_bytes": pl.Int64, "end_bytes": pl.Int64})
        return steps.levels(origins, found.steps) if found.steps else empty
    if by == "layer":
        saved = found.layers.saved_bytes if found.layers else ()
        where = found.layers.where if found.layers else ""
        rows = {
            "where": [where] * len(saved),
            "call": [str(number + 1) for number in range(len(saved))],
            "saved_bytes": list(saved),
        }
        return pl.DataFrame(rows, schema={"where": pl.String, "call": pl.String, "saved_bytes": pl.Int64})
    whole = composition.composition(origins, origins.memory.peak, by)  # type: ignore[arg-type]
    return _with_rest(whole, by, top)


def _with_rest(whole: pl.DataFrame, key: str, top: int) -> pl.DataFrame:
    if not top or whole.height <= top + 1:
        return whole
    rest = whole[top:]
    last = rest.select(
        pl.lit(f"({rest.height:,} more)").alias(key),
        *(pl.col(name).sum() for name in whole.columns if name != key),
    )
    return pl.concat((whole[:top], last), how="vertical_relaxed")


def page_lines(found: SnapshotFindings, by: str, top: int, width: int) -> Iterator[Line]:
    """The page of a snapshot."""
    room = max(width - GUTTER, _FEWEST_COLUMNS)
    yield [("memory    ", "title"), (shorten(visible(found.snapshot.path.name), room), "accent")]
    for device in found.devices:
        yield []
        parts = {
            device.name: _wrapped(device.says, room),
            "time": _curve(device, room),
            _title(by): _table(frame(device, by, top), room),
            "layers": _layers(device, room),
            "optimizer": _optimizer(device, room),
            "leaks": _leaks(device, top, room),
            "unused": _unused(device, room),
            "short": _short(device, room),
        }
        for name, lines in parts.items():
            part = list(lines)
            if part:
                yield from summary_page.indented(iter(part), name, GUTTER)
                yield []
    if found.notes:
        yield from summary_page.indented(_notes(found.notes, room), "notes", GUTTER)


def _title(by: str) -> str:
    return {"step": "steps", "layer": "saved"}.get(by, "at peak")


def _wrapped(text: str, width: int, style: str = "") -> Iterator[Line]:
    for line in tables.wrap(visible(text), width):
        yield [(line, style)]


def _notes(notes: Sequence[str], width: int) -> Iterator[Line]:
    for note in notes:
        for number, line in enumerate(tables.wrap(visible(note), width - 2)):
            yield [("· " if number == 0 else "  ", "quiet"), (line, "quiet")]


def _table(table: pl.DataFrame, width: int) -> Iterator[Line]:
    layout = tables.lay_out(table, width)
    yield from summary_page.layout_lines(layout, table, bar=None)
    if layout.hidden:
        yield from _wrapped(f"not shown: {', '.join(layout.hidden)} (--format csv has them)", width, "quiet")


def _curve(found: DeviceFindings, room: int) -> Iterator[Line]:
    """Allocated memory from the first event to the last, the peak's height at the left."""
    memory = found.origins.memory
    if not memory.events.height:
        return
    width = max(min(room - _LABEL, 90), _FEWEST_COLUMNS)
    highest = level_curve.columns(memory.time_ns, memory.allocated, memory.baseline_bytes, width)
    for number, line in enumerate(level_curve.picture(highest, _HEIGHT)):
        label = (
            format_value("_bytes", memory.peak_bytes) if number == 0 else "0" if number == _HEIGHT - 1 else ""
        )
        yield [(f"{label:>{_LABEL - 1}} ", "quiet"), (line, "bar")]
    at = int(memory.time_ns[max(memory.peak, 0)] - memory.time_ns[0])
    if memory.timed:
        duration = format_value("_ns", int(memory.time_ns[-1] - memory.time_ns[0]))
        said = f"{duration}; the peak is at {format_value('_ns', at)}"
    else:
        said = f"{counted(memory.events.height, 'event')}; the peak is at event {at:,}"
    yield [(" " * _LABEL, ""), (said, "quiet")]


def _layers(found: DeviceFindings, room: int) -> Iterator[Line]:
    says = memory_words.layers_says(found)
    if says is not None:
        yield from _wrapped(says, room)


def _optimizer(found: DeviceFindings, room: int) -> Iterator[Line]:
    says = memory_words.optimizer_says(found)
    if says is not None:
        yield from _wrapped(says, room, "strong")


def _leaks(found: DeviceFindings, top: int, room: int) -> Iterator[Line]:
    style = "quiet" if memory_words.leaks_unchecked(found) else "strong" if found.leaks else ""
    yield from _wrapped(memory_words.leaks_says(found), room, style)
    if not found.leaks:
        return
    table = leaks_frame(found)
    yield from _table(table.head(top) if top else table, room)
    if 0 < top < table.height:
        yield [(f"{table.height - top:,} more; --top 0 prints all", "quiet")]
    yield []
    repetitions = repetitions_frame(found)
    yield from _table(repetitions.tail(top) if top else repetitions, room)
    if 0 < top < repetitions.height:
        earlier = counted(repetitions.height - top, "earlier step")
        yield [(f"{earlier}; --top 0 prints all", "quiet")]
    yield from _wrapped(memory_words.KEEPS, room, "quiet")


def leaks_frame(found: DeviceFindings) -> pl.DataFrame:
    """The lines whose memory grows with every step."""
    rows = [
        (leak.where, leak.bytes_per_step, leak.kept_bytes, len(leak.repetitions), leak.category)
        for leak in found.leaks
    ]
    schema = {"where": pl.String, "per_step_bytes": pl.Int64, "kept_bytes": pl.Int64, "steps_count": pl.Int64}
    return pl.DataFrame(rows, schema={**schema, "category": pl.String}, orient="row")


def repetitions_frame(found: DeviceFindings) -> pl.DataFrame:
    """The steps that show the leaks, in order: when they were, and what the leaking lines allocated there for good."""
    rows = [
        (
            repetition.step,
            repetition.start_ns,
            repetition.first_event,
            repetition.last_event,
            repetition.kept_bytes,
        )
        for leak in found.leaks
        for repetition in leak.repetitions
    ]
    schema = {
        "step": pl.Int64,
        "start_ns": pl.Int64,
        "first": pl.Int64,
        "last": pl.Int64,
        "kept_bytes": pl.Int64,
    }
    steps_of_leaks = (
        pl.DataFrame(rows, schema=schema, orient="row")
        .group_by("first")
        .agg(pl.col("step", "start_ns", "last").first(), pl.col("kept_bytes").sum())
    )
    return steps_of_leaks.sort("first").select(
        pl.col("step").cast(pl.String),
        "start_ns",
        pl.format("{} to {}", "first", "last").alias("events"),
        "kept_bytes",
    )


def _unused(found: DeviceFindings, room: int) -> Iterator[Line]:
    yield from _wrapped(memory_words.unused_says(found), room)
    flushed = memory_words.flushes_says(found)
    if flushed is not None:
        yield from _wrapped(flushed, room)
    beside = memory_words.beside_says(found)
    if beside is not None:
        yield from _wrapped(beside, room)
    for advice in found.fragmentation.advice:
        yield from _wrapped(f"`PYTORCH_CUDA_ALLOC_CONF={advice.setting}`: {advice.reason}", room)


def _short(found: DeviceFindings, room: int) -> Iterator[Line]:
    requests = found.out_of_memory
    if not requests:
        return
    first = requests[0]
    yield from _wrapped(f"out of memory at {first.where}: {first.why}", room, "strong")
    yield from _wrapped(f"would fit with {first.would_fit}", room)
    yield from _table(holders_frame(first), room)
    if len(requests) > 1:
        yield [(f"{counted(len(requests) - 1, 'more request')} did not fit after that", "quiet")]


def holders_frame(request: OutOfMemory) -> pl.DataFrame:
    """Who held most when a request did not fit."""
    schema = {"held_then_by": pl.String, "held_bytes": pl.Int64}
    return pl.DataFrame(list(request.holders), schema=schema, orient="row")


def markdown(found: SnapshotFindings, by: str, top: int) -> str:
    """The same in Markdown: what is said, and the table of each device."""
    parts = [f"**memory**: {paragraph(found.says)}\n"]
    for device in found.devices:
        parts.append(f"{paragraph(device.name)}\n\n{tables.to_markdown(frame(device, by, top))}")
        parts += [
            f"- leak: {paragraph(leak.where)}, {format_value('_bytes', leak.bytes_per_step)} per step, "
            f"steps {leak.repetitions[0].step} to {leak.repetitions[-1].step}\n"
            for leak in device.leaks
        ]
        if (says := memory_words.optimizer_says(device)) is not None:
            parts.append(f"- optimizer: {paragraph(says)}\n")
        parts += [f"- out of memory: {paragraph(request.why)}\n" for request in device.out_of_memory[:1]]
    parts += [f"- {paragraph(note)}\n" for note in found.notes]
    return "\n".join(parts)


def compared_frame(before: DeviceFindings, after: DeviceFindings, by: str, top: int) -> pl.DataFrame:
    """What two snapshots differ in at their peaks, with the whole in the last row."""
    whole = difference(before.origins, after.origins, by)  # type: ignore[arg-type]
    total = whole.select(
        pl.lit("the peak").alias(by), *(pl.col(name).sum() for name in whole.columns if name != by)
    )
    return pl.concat((_with_rest(whole, by, top), total), how="vertical_relaxed")


def compared_lines(
    before: DeviceFindings, after: DeviceFindings, by: str, top: int, width: int
) -> Iterator[Line]:
    """The page of two snapshots."""
    room = max(width - GUTTER, _FEWEST_COLUMNS)
    yield from summary_page.indented(
        _wrapped(memory_words.compared_says(before, after), room), "memory", GUTTER
    )
    yield []
    yield from summary_page.indented(_table(compared_frame(before, after, by, top), room), "at peak", GUTTER)
