"""The Report of `foretrace try` as lines of styled text, as a table for CSV, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.present.text import tables
from foretrace.present.text.markup import code_block, escaped
from foretrace.present.text.summary_page import Line
from foretrace.trial.process import MEASURED
from foretrace.trial.report import NOT_TRIED, Report, Row
from foretrace.units import format_value, visible

_STYLES = {"faster": "verdict yes", "slower": "verdict no"}
_KEEP = {"faster": "keep", "slower": "set aside"}


def lines(report: Report, width: int) -> Iterator[Line]:
    """The table, what stands behind each row, the lines to write, and the notes."""
    for line in tables.wrap(_headline(report), width):
        yield [(line, "strong")]
    yield []
    yield from _table(report)
    for row in report.rows:
        yield from _behind(row, width)
    kept = [row for row in report.rows if row.verdict == "faster" and not _spoilt(row)]
    if kept:
        yield []
        yield [("to keep what is faster", "title")]
        best = next((row for row in kept if row.change == "together"), None)
        for row in [best] if best else kept:
            for line in row.line.splitlines():
                yield [("  ", ""), (line, "code")]
    for note in report.notes:
        yield []
        for line in tables.wrap(f"· {visible(note)}", width):
            yield [(line, "quiet")]


def _headline(report: Report) -> str:
    base = report.base
    return (
        f"{visible(report.program)} on {visible(report.device)}: {format_value('_ns', base.step_ns)} a step as it is "
        f"({base.runs} runs, which differ by {100 * base.floor:.1f} %; {report.steps} steps timed in each; "
        f"a step ends at {visible(report.step_source)})"
    )


def _table(report: Report) -> Iterator[Line]:
    head = ("change", "predicted", "measured", "step", "results", "memory")
    body = [(row.change, _predicted(row), _measured(row), *_rest(row)) for row in report.rows]
    rooms = [max(len(cells[place]) for cells in (head, *body)) for place in range(len(head))]
    yield [("  ".join(text.ljust(room) for text, room in zip(head, rooms, strict=True)).rstrip(), "quiet")]
    for row, cells in zip(report.rows, body, strict=True):
        line: Line = []
        for place, (text, room) in enumerate(zip(cells, rooms, strict=True)):
            style = "title" if place == 0 else _STYLES.get(row.verdict, "") if place == 2 else ""
            line.append((text.ljust(room) + "  ", style))
        yield line


def _predicted(row: Row) -> str:
    if row.predicted is None:
        return "–"
    return f"× {row.predicted.speedup.low:.2f} to {row.predicted.speedup.high:.2f}"


def _measured(row: Row) -> str:
    if row.speedup is None:
        return row.status
    spread = max(row.speedup.high - row.speedup.point, row.speedup.point - row.speedup.low)
    return f"× {row.speedup.point:.2f} ± {spread:.2f}"


def _rest(row: Row) -> tuple[str, str, str]:
    kept = "–"
    if row.results:
        kept = (
            row.results.says.partition(" does")[0]
            if row.results.verdict == "as precision"
            else row.results.verdict
        )
    step = format_value("_ns", row.step_ns) if row.step_ns else "–"
    return step, kept, format_value("_bytes", row.peak_bytes) if row.peak_bytes else "–"


def _behind(row: Row, width: int) -> Iterator[Line]:
    if row.status == NOT_TRIED:
        return
    for line in tables.wrap(f"{row.change}: {visible(behind(row))}", width - 2):
        yield [("  ", ""), (line, "quiet")]


def behind(row: Row) -> str:
    """What stands behind a row, in words."""
    if row.status != MEASURED:
        return f"{row.status}: {row.error}"
    assert row.results is not None
    word = {"same": "no difference", "inconclusive": f"inconclusive: {row.unsure}"}
    parts = [word.get(row.verdict, row.verdict), row.proof, row.results.says]
    if row.runs > 1:
        parts.insert(1, f"from {row.runs} processes")
    if row.start_extra_s is not None:
        start = f"the start takes {row.start_extra_s:.1f} s longer"
        pays = (
            f", which pays back after {row.pays_back_steps:,} steps"
            if row.pays_back_steps is not None
            else ""
        )
        parts.append(start + pays)
    if row.inside is False:
        parts.append("outside of the predicted range")
    return "; ".join(parts)


def _spoilt(row: Row) -> bool:
    return row.results is not None and row.results.verdict == "diverges"


def frame(report: Report) -> pl.DataFrame:
    """One row for each change, for CSV."""
    return pl.DataFrame(
        [
            {
                "change": row.change,
                "status": row.status,
                "verdict": row.verdict or None,
                "predicted_low": row.predicted.speedup.low if row.predicted else None,
                "predicted": row.predicted.speedup.point if row.predicted else None,
                "predicted_high": row.predicted.speedup.high if row.predicted else None,
                "speedup_low": row.speedup.low if row.speedup else None,
                "speedup": row.speedup.point if row.speedup else None,
                "speedup_high": row.speedup.high if row.speedup else None,
                "runs": row.runs,
                "step_ns": row.step_ns,
                "base_step_ns": report.base.step_ns,
                "results": row.results.verdict if row.results else None,
                "peak_bytes": row.peak_bytes,
                "pays_back_steps": row.pays_back_steps,
                "line": row.line,
                "says": behind(row) if row.status != NOT_TRIED else "",
            }
            for row in report.rows
        ],
        infer_schema_length=None,
    )


def to_markdown(report: Report) -> str:
    """The report to paste into an issue."""
    head = "| change | predicted | measured | step | results | memory |\n|---|---|---|---|---|---|\n"
    rows = [
        "| "
        + " | ".join(escaped(text) for text in (row.change, _predicted(row), _measured(row), *_rest(row)))
        + " |\n"
        for row in report.rows
    ]
    told = [f"- **{row.change}**: {escaped(behind(row))}\n" for row in report.rows if row.status != NOT_TRIED]
    kept = [row for row in report.rows if row.verdict == "faster" and not _spoilt(row)]
    code = (
        "\n".join(code_block("\n".join(row.line for row in kept if row.change != "together"))) if kept else ""
    )
    notes = "".join(f"- {escaped(note)}\n" for note in report.notes)
    return (
        f"{escaped(_headline(report))}\n\n{head}{''.join(rows)}\n{''.join(told)}\n{code}\n\n{notes}".rstrip()
        + "\n"
    )
