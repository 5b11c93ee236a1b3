"""A comparison as text: lines for a terminal, and frames that become Markdown or CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from foretrace.compare.benches import BenchComparison
from foretrace.compare.compared import Compared, FolderComparison, TrendRow
from foretrace.compare.gates import Checked
from foretrace.compare.memory import MemoryComparison
from foretrace.compare.sides import Side
from foretrace.compare.steps import StepComparison
from foretrace.compare.traces import Comparison
from foretrace.compare.waterfall import Cause
from foretrace.present.text import memory_words, summary_page, tables
from foretrace.present.text.markup import code, paragraph
from foretrace.present.text.summary_page import Line
from foretrace.sourced import JUDGEMENT, Count, Share
from foretrace.units import cells, counted, format_value, shorten, visible

SMALL = Share(0.002, "the longer step, below which causes are shown as one", JUDGEMENT)
_TOP = Count(6, "rows of a table beside the causes", JUDGEMENT)
_BAR, _LEAST_BAR = 30, 10
_TITLES = ("before", "after", "difference")
_Row = tuple[str, float | None, float | None, float | None]
_KINDS = {"GPU": "GPU works", "wait": "GPU waits", "host": "on the host", "recording": "profiler", "": ""}
_COLUMNS = {
    "modules": ("module", "before_ns", "after_ns", "difference_ns"),
    "operators": (
        "change",
        "op",
        "shapes",
        "before_count",
        "after_count",
        "before_ns",
        "after_ns",
        "difference_ns",
    ),
    "kernels": (
        "name",
        "op",
        "before_kernel",
        "after_kernel",
        "before_count",
        "after_count",
        "before_ns",
        "after_ns",
        "difference_ns",
    ),
}


def shown_causes(found: StepComparison) -> list[Cause]:
    """The causes, the largest first; those that are too small to see as one at the end."""
    least = SMALL * max(found.before_ns, found.after_ns)
    large = [cause for cause in found.causes if abs(cause.delta_ns) >= least]
    small = [cause for cause in found.causes if abs(cause.delta_ns) < least]
    if len(small) < 2:
        return [*found.causes]
    rest = Cause(
        f"{counted(len(small), 'other')}, hardly changed",
        "",
        sum(cause.before_ns for cause in small),
        sum(cause.after_ns for cause in small),
    )
    return [*large, rest]


def causes_frame(found: StepComparison, *, whole: bool = True) -> pl.DataFrame:
    """What explains the difference, and the step itself in the last row, which the others sum to."""
    rows = [
        (cause.what, _KINDS[cause.kind], cause.before_ns, cause.after_ns, cause.delta_ns)
        for cause in found.causes
    ]
    if not whole:
        rows = [(c.what, _KINDS[c.kind], c.before_ns, c.after_ns, c.delta_ns) for c in shown_causes(found)]
    total = ("the step", "", found.before_ns, found.after_ns, found.after_ns - found.before_ns)
    schema = {"what": pl.String, "kind": pl.String, "before_ns": pl.Float64, "after_ns": pl.Float64}
    return pl.DataFrame([*rows, total], schema={**schema, "difference_ns": pl.Float64}, orient="row")


def frame(found: Compared) -> pl.DataFrame:
    """The main table of a comparison."""
    if isinstance(found, Comparison):
        return causes_frame(found.steps)
    if isinstance(found, BenchComparison):
        return _bench_frame(found)
    return _folder_frame(found)


def _bench_frame(found: BenchComparison) -> pl.DataFrame:
    rows = [
        {
            "what": row.what,
            "verdict": row.judged.verdict if row.judged else " → ".join(dict.fromkeys(row.status)),
            "speedup": row.judged.speedup.point if row.judged else None,
            "before_ns": None if row.before_ms is None else 1e6 * row.before_ms,
            "after_ns": None if row.after_ms is None else 1e6 * row.after_ms,
        }
        for row in found.rows
    ]
    schema = {"what": pl.String, "verdict": pl.String, "speedup": pl.Float64}
    made = pl.DataFrame(rows, schema={**schema, "before_ns": pl.Float64, "after_ns": pl.Float64})
    return made.with_columns(difference_ns=pl.col("after_ns") - pl.col("before_ns"))


def _folder_frame(found: FolderComparison) -> pl.DataFrame:
    rows = []
    for name, pair in found.pairs:
        told = pair.steps if isinstance(pair, Comparison) else pair
        times = (told.before_ns, told.after_ns) if isinstance(told, StepComparison) else (
            1e6 * told.before_ms, 1e6 * told.after_ms
        )  # fmt: skip
        top = told.top.what if isinstance(told, StepComparison) and told.top else None
        rows.append((name, told.verdict, told.speedup.point, *times, times[1] - times[0], top))
    schema = {"name": pl.String, "verdict": pl.String, "speedup": pl.Float64, "before_ns": pl.Float64}
    return pl.DataFrame(
        rows,
        schema={**schema, "after_ns": pl.Float64, "difference_ns": pl.Float64, "most_by": pl.String},
        orient="row",
    )


def trend_frame(rows: Sequence[TrendRow]) -> pl.DataFrame:
    """Several recordings in a row, each against the first and the one before it."""
    told = []
    for row in rows:
        first, previous = row.against_first, row.against_previous
        told.append(
            {
                "name": row.side.name,
                "step_ns": row.side.step_ns or row.side.recorded_ns,
                "against_first": first.verdict if first else None,
                "speedup": first.speedup.point if first else None,
                "against_previous": previous.verdict if previous else None,
                "speedup_of_previous": previous.speedup.point if previous else None,
                "most_by": previous.top.what if previous and previous.top else None,
                "compared_for": first.per.removeprefix("for ") if first else None,
            }
        )
    made = pl.DataFrame(told, infer_schema_length=None)
    by_step = {"a step"} >= set(made["compared_for"].drop_nulls())
    return made.drop("compared_for") if by_step else made


def trend_notes(rows: Sequence[TrendRow]) -> list[str]:
    """Why there is no verdict on some, and what the times of some are for."""
    notes = []
    for number, row in enumerate(rows):
        previous = row.against_previous if number > 1 else None  # of the second, the one before is the first
        for beside, found in (("the first", row.against_first), ("the one before", previous)):
            if found is not None and found.judged.why:
                notes.append(f"{row.side.name} and {beside}: inconclusive, because {found.judged.why}")
            if found is not None and found.basis.unit != "step":
                notes.append(f"{row.side.name} and {beside}: {found.basis.notes[0]}")
    return notes


def gate_lines(results: Sequence[Checked], width: int) -> Iterator[Line]:
    """The gates, each with what was found."""
    styles = {"failed": "verdict no", "inconclusive": "verdict with care", "passed": "verdict yes"}
    room = width - summary_page.GUTTER - 2
    for number, result in enumerate(results):
        head: Line = [(f"{result.state}  ", styles[result.state]), (result.gate.text, "strong")]
        found = [[("  ", ""), (text, "quiet")] for text in tables.wrap(visible(result.says), room)]
        yield from _section("gates" if not number else "", iter([head, *found]))


def lines(found: Comparison, width: int, results: Sequence[Checked] = ()) -> Iterator[Line]:
    """The page of two recordings."""
    yield from step_lines(found.steps, width, results)
    for name in ("operators", "kernels"):
        table = drill(found, name) if name == "kernels" else _over_modules(drill(found, name))
        changed = table.filter(
            pl.col("difference_ns").abs() >= SMALL * max(found.steps.before_ns, found.steps.after_ns)
        )
        if changed.height:
            yield []
            yield from _section(name, _table_lines(changed.head(_TOP), name, width))
    if found.memory is not None:
        yield []
        yield from _section("memory", _memory_lines(found.memory, width))
    if found.unread:
        yield []
        yield from _section("notes", note_lines(found.unread, width - summary_page.GUTTER))


def _memory_lines(found: MemoryComparison, width: int) -> Iterator[Line]:
    """The two peaks, and the lines that differ most between them."""
    room = width - summary_page.GUTTER
    for text in tables.wrap(visible(memory_words.compared_says(found.before, found.after)), room):
        yield [(text, "")]
    changed = found.lines.filter(pl.col("change_bytes") != 0)
    if changed.height:
        layout = tables.lay_out(changed.head(_TOP), room)
        yield from summary_page.layout_lines(layout, changed.head(_TOP), bar=None)
    if changed.height > _TOP:
        yield [(f"{changed.height - _TOP:,} more lines: --by memory", "quiet")]


def _over_modules(operators: pl.DataFrame) -> pl.DataFrame:
    """Operators summed over the modules that call them with the same shapes."""
    sums = ("before_count", "after_count", "before_ns", "after_ns", "difference_ns")
    known = [pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name) for name in sums]
    keys = ("change", "op", "before_shapes", "after_shapes")
    summed = operators.group_by(*keys, maintain_order=True).agg(*known, modules=pl.col("module").n_unique())
    return summed.sort(pl.col("difference_ns").abs(), descending=True, maintain_order=True)


def drill(found: Comparison, name: str) -> pl.DataFrame:
    """One of the tables to look into, with columns that say before and after."""
    if name == "memory":
        assert found.memory is not None  # the caller has seen to it
        return found.memory.lines
    made: pl.DataFrame = getattr(found, name)
    renamed = {
        column: column.replace("a_", "before_", 1)
        if column.startswith("a_")
        else column.replace("b_", "after_", 1)
        for column in made.columns
        if column.startswith(("a_", "b_"))
    }
    return made.rename(renamed)


def step_lines(found: StepComparison, width: int, results: Sequence[Checked] = ()) -> Iterator[Line]:
    """The verdict on two sides, and the causes as a waterfall."""
    room = width - summary_page.GUTTER
    names = [shorten(visible(side.name), max((room - 3) // 2, 8)) for side in (found.before, found.after)]
    yield from _section("compare", iter([[(names[0], "accent"), (" → ", "quiet"), (names[1], "accent")]]))
    yield from _section("", ([(text, "quiet")] for text in tables.wrap(about(found), room)))
    yield []
    yield from _section("", _verdict_lines(found, room))
    yield []
    yield from _section("causes", _waterfall(found, room))
    if results:
        yield []
        yield from gate_lines(results, width)
    counts = counts_line(found.before, found.after)
    if counts:
        yield []
        yield from _section("counts", ([(text, "")] for text in tables.wrap(counts, room)))
    if found.notes:
        yield []
        yield from _section("notes", note_lines(found.notes, room))


def note_lines(notes: Sequence[str], width: int) -> Iterator[Line]:
    """Each note behind a dot."""
    for note in notes:
        for number, text in enumerate(tables.wrap(visible(note), width - 2)):
            yield [("  " if number else "· ", "quiet"), (text, "quiet")]


def about(found: StepComparison) -> str:
    """Devices, and how the times are known."""
    devices = " and ".join(dict.fromkeys(side.device or "no GPU" for side in (found.before, found.after)))
    if found.known_by == "unprofiled":
        counts = [len(side.blocks_ns) for side in (found.before, found.after)]
        how = f"step times measured without the profiler, {counts[0]} and {counts[1]} blocks"
    elif found.before.marked and found.after.marked:
        how = f"step times as recorded, {found.before.steps_count} and {found.after.steps_count} steps"
    else:
        how = "no steps marked: the whole recordings"
    return f"{visible(devices)} · {how}"


def headline(found: StepComparison) -> str:
    """The times and the speed-up, after the verdict."""
    known = found.speedup
    if known.point < 1:
        return f"{found.times}: takes {1 / known.point:.2f} times as long ({1 / known.high:.2f} to {1 / known.low:.2f})"
    return f"{found.times}: {known.point:.2f} times as fast ({known.low:.2f} to {known.high:.2f})"


def _verdict_lines(found: StepComparison, room: int) -> Iterator[Line]:
    style = {"faster": "verdict yes", "slower": "verdict no"}.get(found.verdict, "verdict with care")
    text = headline(found) if found.verdict != "same" else found.times
    word = f"{found.verdict}  "
    for number, part in enumerate(tables.wrap(text, room - len(word))):
        yield [(word if not number else " " * len(word), style), (part, "strong")]
    if found.judged.why:
        for part in tables.wrap(f"because {found.judged.why}", room - len(word)):
            yield [(" " * len(word), ""), (part, "")]


def _waterfall(found: StepComparison, room: int) -> Iterator[Line]:
    """Each cause as a row, with a bar from where the sum stands before it to where it stands after."""
    causes = shown_causes(found)
    rows: list[_Row] = [("before", found.before_ns, None, None)]
    rows += [(cause.what, cause.before_ns, cause.after_ns, cause.delta_ns) for cause in causes]
    rows.append(("after", None, found.after_ns, found.after_ns - found.before_ns))
    texts = [
        tables.align_units([_time(row[1]) for row in rows]),
        tables.align_units([_time(row[2]) for row in rows]),
    ]
    texts.append(tables.align_units([_signed(row[3]) for row in rows]))
    label = max(cells(row[0]) for row in rows)
    widths = [max(max(map(cells, column)), len(title)) for column, title in zip(texts, _TITLES, strict=True)]
    length = min(room - label - sum(widths) - 8, _BAR)
    heading = "  ".join(f"{title:>{size}}" for title, size in zip(_TITLES, widths, strict=True))
    yield [(f"{'':<{label}}  {heading}", "quiet")]
    bars = _bars(found, causes, length) if length >= _LEAST_BAR else [[] for _ in rows]
    for row, (name, *_rest) in enumerate(rows):
        ends = row in (0, len(rows) - 1)
        numbers = "  ".join(f"{column[row]:>{size}}" for column, size in zip(texts, widths, strict=True))
        yield [
            (f"{name:<{label}}", "strong" if ends else ""),
            (f"  {numbers}  ", "strong" if ends else ""),
            *bars[row],
        ]


def _bars(found: StepComparison, causes: Sequence[Cause], length: int) -> list[Line]:
    stands, edges = found.before_ns, [found.before_ns]
    for cause in causes:
        stands += cause.delta_ns
        edges.append(stands)
    most = max(*edges, found.after_ns, 1.0)
    at = [round(length * max(edge, 0.0) / most) for edge in edges]
    bars: list[Line] = [[("█" * at[0], "bar")]]
    for before, after, cause in zip(at, at[1:], causes, strict=False):
        low, high = min(before, after), max(before, after)
        mark, style = ("░", "verdict ok") if cause.delta_ns <= 0 else ("▓", "verdict broken")
        bars.append([(" " * low, ""), (mark * (high - low), style)])
    return [*bars, [("█" * round(length * found.after_ns / most), "bar")]]


def _time(ns: float | None) -> str:
    return "" if ns is None else format_value("_ns", ns)


def _signed(ns: float | None) -> str:
    if ns is None:
        return ""
    return ("+" if ns > 0 else "−" if ns < 0 else "") + format_value("_ns", abs(ns))


def counts_line(before: Side, after: Side) -> str:
    """Kernels, launches and memory, where both sides know them."""
    parts = []
    for name, suffix, words in (
        ("kernels", "_count", "kernels"),
        ("launches", "_count", "launches"),
        ("peak_bytes", "_bytes", "peak memory"),
    ):
        if name in before.counts and name in after.counts:
            first, second = (format_value(suffix, side.counts[name]) for side in (before, after))
            parts.append(f"{words} {first}" + ("" if first == second else f" → {second}"))
    return " · ".join(parts)


def _section(name: str, inside: Iterator[Line]) -> Iterator[Line]:
    return summary_page.indented(inside, name, summary_page.GUTTER)


def _table_lines(rows: pl.DataFrame, name: str, width: int) -> Iterator[Line]:
    if "before_shapes" in rows.columns:
        rows = rows.with_columns(shapes=pl.coalesce("before_shapes", "after_shapes"))
    columns = [
        column
        for column in _COLUMNS[name]
        if column in rows.columns and rows[column].n_unique() > (column == "change")
    ]
    chosen = rows.select(columns)
    keep = (
        "op",
        "name",
        "difference_ns",
        "change",
        "before_ns",
        "after_ns",
        "shapes",
        "before_kernel",
        "after_kernel",
    )
    layout = tables.lay_out(chosen, width - summary_page.GUTTER, keep=keep, leave_out_empty=False)
    return summary_page.layout_lines(layout, chosen, bar=None)


def markdown(found: Compared) -> str:
    """The comparison for a file, or as a comment on a change."""
    if not isinstance(found, Comparison):
        return "\n".join(
            (f"**{found.verdict}**: {paragraph(found.says)}", "", tables.to_markdown(frame(found)))
        )
    text = steps_markdown(found.steps)
    if found.memory is not None:
        says = memory_words.compared_says(found.memory.before, found.memory.after)
        changed = found.memory.lines.filter(pl.col("change_bytes") != 0).head(_TOP)
        text += f"\n{paragraph(says)}\n\n{tables.to_markdown(changed)}"
    return text + "".join(f"- {paragraph(why)}\n" for why in found.unread)


def steps_markdown(found: StepComparison) -> str:
    """Two sides: the verdict, the causes, and the notes."""
    names = f"{code(found.before.name)} → {code(found.after.name)}"
    why = f" Because {paragraph(found.judged.why)}." if found.judged.why else ""
    parts = [
        f"**{found.verdict}**: {paragraph(headline(found))}.{why}",
        "",
        f"{names}: {paragraph(about(found))}",
        "",
    ]
    parts += [tables.to_markdown(causes_frame(found, whole=False)).rstrip("\n"), ""]
    if counts := counts_line(found.before, found.after):
        parts += [paragraph(counts), ""]
    parts += [f"- {paragraph(note)}" for note in found.notes]
    return "\n".join(parts).rstrip("\n") + "\n"
