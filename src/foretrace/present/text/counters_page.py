"""What the allocator's counters tell, as lines for a terminal, and the frame that becomes Markdown or CSV."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.snapshots.counters import CountedMemory, CounterFindings
from foretrace.present.text import summary_page, tables
from foretrace.present.text.markup import paragraph
from foretrace.present.text.summary_page import GUTTER, Line
from foretrace.units import format_value, shorten, visible

_FEWEST_COLUMNS = 20


def frame(found: CounterFindings) -> pl.DataFrame:
    """One row for each device."""
    names = (
        "peak_allocated_bytes", "peak_reserved_bytes", "allocated_bytes", "reserved_bytes", "unused_bytes",
        "inactive_split_bytes", "retries_count", "ooms_count",
    )  # fmt: skip
    rows = [(each.name, *(getattr(each, name) for name in names)) for each in found.devices]
    schema = {"device_name": pl.String, **dict.fromkeys(names, pl.Int64)}
    return pl.DataFrame(rows, schema=schema, orient="row")


def page_lines(found: CounterFindings, width: int) -> Iterator[Line]:
    """The page of counters."""
    room = max(width - GUTTER, _FEWEST_COLUMNS)
    yield [("memory    ", "title"), (shorten(visible(found.path.name), room), "accent")]
    for device in found.devices:
        yield []
        parts = {
            device.name: [device.says],
            "now": _now(device),
            "unused": _unused(device),
            "short": device.failures,
        }
        for name, sentences in parts.items():
            lines = [line for says in sentences for line in _wrapped(says, room)]
            yield from summary_page.indented(iter(lines), name, GUTTER) if lines else ()
    yield []
    notes = [line for note in found.notes for line in _wrapped(f"· {note}", room, "quiet")]
    yield from summary_page.indented(iter(notes), "notes", GUTTER)


def _wrapped(text: str, width: int, style: str = "") -> Iterator[Line]:
    for line in tables.wrap(visible(text), width):
        yield [(line, style)]


def _now(found: CountedMemory) -> list[str]:
    if found.allocated_bytes is None or found.reserved_bytes is None:
        return []
    allocated, reserved = (
        format_value("_bytes", size) for size in (found.allocated_bytes, found.reserved_bytes)
    )
    return [f"when they were counted, {allocated} were allocated and torch held {reserved}"]


def _unused(found: CountedMemory) -> list[str]:
    says = []
    if found.excess_pct is not None:
        beyond = format_value("_bytes", found.excess_bytes)
        says.append(
            f"{found.excess_pct:.1f} % of the most that torch held was in no block then, at least ({beyond})"
        )
    if found.unused_bytes:
        split = found.inactive_split_bytes
        beside = f", {format_value('_bytes', split)} of it beside blocks in use" if split else ""
        says.append(f"now {format_value('_bytes', found.unused_bytes)} are in none{beside}")
    return [
        "; ".join(says),
        *(f"`PYTORCH_CUDA_ALLOC_CONF={each.setting}`: {each.reason}" for each in found.advice),
    ]


def markdown(found: CounterFindings) -> str:
    """The same in Markdown."""
    parts = [f"**memory**: {paragraph(found.says)}\n", tables.to_markdown(frame(found))]
    for device in found.devices:
        parts += [f"- {paragraph(f'{device.name}: {says}')}\n" for says in device.failures]
    parts += [f"- {paragraph(note)}\n" for note in found.notes]
    return "\n".join(parts)
