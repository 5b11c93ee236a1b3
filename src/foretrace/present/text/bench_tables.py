"""A Benchmark as text: a Result for the terminal, Markdown and CSV with the columns' own names, and bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from foretrace.analyze.result import Result
from foretrace.bench.benchmark import OK, Benchmark, short_columns
from foretrace.errors import unknown
from foretrace.present.text.markup import escaped
from foretrace.present.text.tables import to_csv
from foretrace.units import ABSENT, cells, counted, shorten, visible

Rows = Sequence[Mapping[str, Any]]

_LAST = ("status", "reason")
_DECIMALS = {"value": 4}  # where three digits would hide what is shown
_FIRST_TO_GO = (
    "avg_ms", "std_ms", "low_ms", "high_ms", "bwd_low_ms", "bwd_high_ms", "speedup_low", "speedup_high", "peak_reserved_MiB",
    "fixed_MiB", "clock_mhz", "slowed_by",
)  # fmt: skip
_DENOMINATORS = {
    "roof_pct": "of the device's peak in this precision",
    "mfu_pct": "of the device's peak in this precision",
    "fwd_delta_pct": "of the first precision's time",
    "bwd_delta_pct": "of the first precision's time",
}
_LABEL_SHARE = 2 / 5  # of the width, for what a bar is of


def parts(benchmark: Benchmark) -> list[tuple[str, Rows]]:
    """The rows that make one table, by the name of the part; most kinds have one part without a name."""
    names = dict.fromkeys(row.get("part", "") for row in benchmark.rows)
    return [(name, [row for row in benchmark.rows if row.get("part", "") == name]) for name in names]


def results(benchmark: Benchmark, wanted: Sequence[str] | None = None) -> list[Result]:
    """One Result per part: columns that are the same in every row are said once, above; `wanted` are the only ones to show."""
    made = []
    known = [column for _, rows in parts(benchmark) for column in columns_of(rows)]
    for column in wanted or ():
        if column not in known:
            raise unknown(f"no column {column!r}", column, known)
    for name, rows in parts(benchmark):
        same = constants(benchmark, rows)
        columns = [column for column in columns_of(rows) if column not in (*same, "part", "reason")]
        if all(row["status"] == OK for row in rows):
            columns = [column for column in columns if column != "status"]
        if wanted:
            columns = [column for column in wanted if column in columns_of(rows)]
        if not columns:
            continue
        keep = [column for column in columns if column not in _FIRST_TO_GO]
        made.append(
            Result(
                name=name or benchmark.kind,
                says=_above(benchmark, same),
                table=frame(rows, columns),
                denominators={column: text for column, text in _DENOMINATORS.items() if column in columns},
                keep=tuple(keep),
                notes=tuple(_reasons(rows)),
            )
        )
    return made


def _reasons(rows: Rows) -> Iterator[str]:
    """What went wrong, each reason once."""
    failed = [row for row in rows if row["status"] != OK]
    for status, reason in dict.fromkeys((row["status"], row.get("reason")) for row in failed):
        count = sum((row["status"], row.get("reason")) == (status, reason) for row in failed)
        yield f"{status}, {counted(count, 'row')}: {reason}"


def columns_of(rows: Rows) -> list[str]:
    """The columns for people: those with a value somewhere, the status last."""
    names = [name for name in short_columns(rows) if any(row.get(name) is not None for row in rows)]
    return [*(name for name in names if name not in _LAST), *(name for name in _LAST if name in names)]


def frame(rows: Rows, columns: Sequence[str]) -> pl.DataFrame:
    """The rows as a frame; a column with values of several types becomes text."""
    made = {}
    for name in columns:
        values = [row.get(name) for row in rows]
        numbers = all(value is None or type(value) in (int, float) for value in values)
        plain = all(value is None or isinstance(value, bool) for value in values)
        as_it_is = (numbers or plain) and name not in _DECIMALS
        texts = [None if value is None else cell(name, value) for value in values]
        made[name] = pl.Series(name, values if as_it_is else texts, strict=False)
    return pl.DataFrame(made)


def markdown(benchmark: Benchmark) -> str:
    """Every part as a table whose headings are the columns' names, below what its rows share; then the notes."""
    blocks = []
    for name, rows in parts(benchmark):
        same = constants(benchmark, rows)
        columns = [column for column in columns_of(rows) if column not in (*same, "part")]
        lines = [columns, ["---:" if _is_measure(rows, column) else "---" for column in columns]]
        lines += [[escaped(cell(column, row.get(column))) for column in columns] for row in rows]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        blocks.append(f"**{escaped(name or benchmark.kind)}**: {escaped(_above(benchmark, same))}\n\n{table}")
    if benchmark.notes:
        blocks.append("".join(f"- {escaped(note)}\n" for note in benchmark.notes))
    return "\n".join(blocks)


def _above(benchmark: Benchmark, same: Mapping[str, Any]) -> str:
    """Where it was timed, and what all rows share."""
    said = ", ".join(f"{column} {cell(column, value)}" for column, value in same.items())
    return f"{benchmark.device}, torch {benchmark.torch}" + (f"; {said}" if said else "")


def csv(benchmark: Benchmark) -> str:
    """All rows in one table, without the samples."""
    return to_csv(frame(benchmark.rows, short_columns(benchmark.rows)))


def bars(benchmark: Benchmark, width: int) -> Iterator[str]:
    """One line per row that was timed: what it is, a bar as long as its median, the median."""
    timed = [row for row in benchmark.rows if row.get("median_ms") is not None]
    if not timed:
        return
    labels = labels_of(benchmark, timed)
    room = min(max(map(cells, labels)), int(width * _LABEL_SHARE))
    values = [f"{cell('median_ms', row['median_ms'])} ms" for row in timed]
    most = max(row["median_ms"] for row in timed)
    space = max(width - room - max(map(len, values)) - 4, 8)
    for label, row, value in zip(labels, timed, values, strict=True):
        shown = shorten(label, room)
        length = space * row["median_ms"] / most if most else 0
        yield f"{shown}{' ' * (room - cells(shown))}  {bar(length)} {value}"


def bar(length: float) -> str:
    """A bar of so many columns, to an eighth of one; never nothing."""
    eighths = max(round(length * 8), 1)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def labels_of(benchmark: Benchmark, rows: Rows) -> list[str]:
    """What each row timed, without what all rows share."""
    same = constants(benchmark, rows) if len(rows) > 1 else {}
    names = [name for name in benchmark.case if name not in same and name != "part"]
    return [
        visible(" ".join(cell(name, row[name]) for name in names if row.get(name) is not None))
        or benchmark.kind
        for row in rows
    ]


def cell(name: str, value: object) -> str:
    """A value for people: four digits, and counts with separators."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return visible(str(value))
    if value != value:
        return ABSENT
    if name in _DECIMALS:
        return f"{value:.{_DECIMALS[name]}f}"
    if name.endswith("_MiB"):
        return f"{value:,.2f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    return f"{text} %" if name.endswith("_pct") else text


def constants(benchmark: Benchmark, rows: Rows) -> dict[str, Any]:
    """Fields of the case that have the same value in every row of several."""
    if len(rows) < 2:
        return {}
    names = [name for name in benchmark.case if name != "part" and any(name in row for row in rows)]
    return {
        name: rows[0].get(name)
        for name in names
        if len({repr(row.get(name)) for row in rows}) == 1 and rows[0].get(name) is not None
    }


def _is_measure(rows: Rows, column: str) -> bool:
    return any(
        isinstance(row.get(column), int | float) and not isinstance(row.get(column), bool) for row in rows
    )
