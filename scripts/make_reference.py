"""Writes docs/reference/ and docs/rules/ from the code: tables from schema.py, analyses, rules and Python from docstrings.

And the table of formats in the README, from what the readers declare.

python scripts/make_reference.py           writes the pages
python scripts/make_reference.py --check   exits with 1 if a page is not what the code says
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
import typing
from dataclasses import replace
from functools import cache
from pathlib import Path

import polars as pl

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from foretrace import analyze, ingest, line_samples, schema  # noqa: E402
from foretrace.analyze.result import Analysis, Result  # noqa: E402
from foretrace.commands._sql_tables import JOINED  # noqa: E402
from foretrace.diagnose import RULES  # noqa: E402
from foretrace.diagnose.rule import SECTIONS, Rule  # noqa: E402
from foretrace.errors import ForetraceError  # noqa: E402
from foretrace.ingest.formats import READ  # noqa: E402
from foretrace.present.text import tables  # noqa: E402
from foretrace.trace import Trace  # noqa: E402
from foretrace.units import shorten  # noqa: E402
from scripts.python_reference import python_page  # noqa: E402

SAMPLE = min((ROOT / "src" / "foretrace" / "samples").glob("*.json.gz"))
# For what the sample does not hold; beside some of them lies the table that torch printed.
TESTED = (ROOT / "tests" / "traces").rglob("*.json.gz")
RECORDINGS = (SAMPLE, *sorted(path for path in TESTED if not path.name.endswith(".torch.json.gz")))
REFERENCE = ROOT / "docs" / "reference"
RULE_PAGES = ROOT / "docs" / "rules"
README = ROOT / "README.md"
FORMATS_BEGIN, FORMATS_END = "<!-- formats: made by scripts/make_reference.py -->", "<!-- end of formats -->"
CODE = ("Slow", "Fast")  # sections of a rule's page that hold code
ROWS, WIDTH = 8, 60  # of an example
MADE_BY = "<!-- Made by scripts/make_reference.py. Do not edit: change the code and run it again. -->"
TITLE = re.compile(r"[A-Z][^.;]{0,60}")
# What an item of a list defines: one name or several; then a colon, or blanks that align what follows.
DEFINED = re.compile(
    r"([a-z][\w:-]*(?: [\w:-]+)*(?= {2})|`?[a-z]\w*`?(?:, `?[a-z]\w*`?)*(?=:| {2}))(:| {2,}) *"
)


def type_name(column: schema.Column) -> str:
    """The type as a reader of the page knows it."""
    if column.dtype == schema.KIND or column.dtype == schema.DIRECTION:
        return "enum"
    name = column.dtype.__name__ if isinstance(column.dtype, type) else type(column.dtype).__name__
    return {"String": "text", "Categorical": "text"}.get(name, name.lower())


def tables_page() -> str:
    """docs/reference/tables.md."""
    lines = [
        "# Tables of a Trace", "", MADE_BY, "",
        f"Schema version {schema.SCHEMA_VERSION}. Each table is a polars frame: `trace.spans`, or "
        '`trace.table("spans")`; `foretrace sql PATH "select ..."` queries them by these names.', "",
        "Null means \"not recorded\"; never 0, -1 or \"\". Columns that may be null are marked with `?`. "
        "Times are nanoseconds since the trace began. Ids are row numbers.", "",
    ]  # fmt: skip
    lines += [
        "In SQL, `kernels` and `copies` also have " + ", ".join(f"`{column}`" for column in JOINED)
        + ": those of their span, its track and the operator that launched it. `show tables` and `describe TABLE` are answered "
        "too; `foretrace sql --help` has examples.", "",
    ]  # fmt: skip
    for name, columns in schema.TABLES.items():
        about = inspect.getdoc(getattr(Trace, name)) or ""
        lines += [f"## {name}", "", about, "", "| column | type | what it holds |", "|---|---|---|"]
        for column_name, column in columns.items():
            mark = "?" if column.nullable else ""
            lines.append(f"| `{column_name}` | {type_name(column)}{mark} | {escape(column.says)} |")
        lines.append("")
    lines += [
        "## Lines of a Run", "",
        "What the sampler of `foretrace run` saw: `foretrace.ingest.line_samples.lines_of(trace)` has these frames. They are no "
        "tables of SQL. Their times are nanoseconds since 1970.", "",
    ]  # fmt: skip
    for name, columns in line_samples.TABLES.items():
        lines += [f"### {name}", "", "| column | type | what it holds |", "|---|---|---|"]
        for column_name, column in columns.items():
            mark = "?" if column.nullable else ""
            lines.append(f"| `{column_name}` | {type_name(column)}{mark} | {escape(column.says)} |")
        lines.append("")
    lines += ["Kinds of spans: " + ", ".join(f"`{kind}`" for kind in schema.KINDS) + "."]
    lines += ["Directions of copies: " + ", ".join(f"`{each}`" for each in schema.DIRECTIONS) + "."]
    return "\n".join(lines) + "\n"


def analyses_page() -> str:
    """docs/reference/analyses.md: every analysis in a line, each with a page of its own."""
    lines = [
        "# Analyses", "", MADE_BY, "",
        "`foretrace show NAME PATH` prints one; `foretrace.analyze.run(trace, NAME)` returns it as a Result. "
        "The suffix of a column is its unit: `_ns`, `_bytes`, `_flops`, `_pct`, `_count`, `_per_s`.",
    ]  # fmt: skip
    for subject, analyses in itertools.groupby(analyze.ANALYSES, key=lambda analysis: analysis.subject):
        lines += ["", f"## {subject.value}", "", "| name | what it says |", "|---|---|"]
        lines += [
            f"| [{analysis.name}](analyses/{analysis.name}.md) | {escape(analysis.help)} |"
            for analysis in analyses
        ]
    return "\n".join(lines) + "\n"


def analysis_page(chosen: Analysis) -> str:
    """docs/reference/analyses/NAME.md: the docstring, the options, and what it says of the shipped sample."""
    lines = [
        f"# {chosen.name}", "", MADE_BY, "", escape_html(chosen.help), "",
        "```", f"foretrace show {chosen.name} PATH", f'foretrace.analyze.run(trace, "{chosen.name}")', "```", "",
        *definitions(chosen), *options(chosen), *example(chosen),
        "[All analyses](../analyses.md)",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def definitions(chosen: Analysis) -> list[str]:
    """What stands in the docstring after its first line, as Markdown."""
    _, _, body = (inspect.getdoc(chosen.function) or "").partition("\n")
    return [*as_markdown(body.strip("\n")), ""] if body.strip() else []


def as_markdown(text: str) -> list[str]:
    """Plain text as Markdown: what defines a name becomes an item of a list, a line above indented ones a title."""
    given = text.splitlines()
    lines: list[str] = []
    within: int | None = None  # the indentation of the item that the last line belongs to
    for line, after in zip(given, [*given[1:], ""], strict=True):
        bare = escape_html(line.strip()).replace("*", "\\*")
        indent = len(line) - len(line.lstrip())
        if not bare:
            within = None
            lines.append("")
        elif begins_item(bare, indent):
            if within is None and lines and lines[-1]:
                lines.append("")
            within = indent
            lines.append(f"- {item(bare)}")
        elif not indent and after.startswith(" ") and TITLE.fullmatch(bare):
            within = None
            lines += [f"**{bare.rstrip(':')}**", ""]
        elif within is not None and (indent > within or not ends_sentence(lines[-1], bare)):
            lines[-1] += f" {bare}"
        else:
            if within is not None:
                lines.append("")
            within = None
            lines.append(bare)
    return lines


def begins_item(bare: str, indent: int) -> bool:
    """Whether a line begins an item: a dash, or a name and what it means."""
    match = DEFINED.match(bare)
    return bare.startswith("- ") or bool(match and (indent or "_" in match[1] or match[2] != ":"))


def ends_sentence(line: str, after: str) -> bool:
    """Whether what comes after a line is a new sentence, so that it need not belong to it."""
    return line.endswith((".", ":")) and not after[:1].islower()


def item(text: str) -> str:
    """An item of a list; names that it begins with are set as code."""
    match = DEFINED.match(text := text.removeprefix("- "))
    if not match:
        return text
    names = (
        [match[1]] if re.search(r"[ :-](?!`)", match[1].replace(", ", ",")) else re.findall(r"\w+", match[1])
    )
    defined = ", ".join(f"`{name}`" for name in names)
    return f"{defined}: {text[match.end() :]}"


def options(chosen: Analysis) -> list[str]:
    """The table of an analysis's options, if it has any."""
    if not chosen.options:
        return []
    lines = ["## Options", "", "| option | in Python | default |", "|---|---|---|"]
    hints = typing.get_type_hints(chosen.function)
    for name, parameter in chosen.options.items():
        default = "none" if parameter.default in (None, parameter.empty) else f"`{parameter.default}`"
        kind = escape(inspect.formatannotation(hints[name]).replace("typing.", ""))
        lines.append(f"| `--{name.replace('_', '-')}` | `{name}: {kind}` | {default} |")
    return [*lines, ""]


def example(chosen: Analysis) -> list[str]:
    """What it says of the shipped sample, as `--format md` prints it, and what its shares are shares of."""
    found = example_result(chosen)
    if isinstance(found, str):
        return [
            "## Example",
            "",
            f"No recording of the project holds what it needs: {escape_html(found)}",
            "",
        ]
    path, result = found
    lines = [
        "## Shares and means",
        "",
        *(f"- `{name}`: {share}" for name, share in result.denominators.items()),
        "",
    ]
    where = path.relative_to(ROOT).as_posix()
    command = f"foretrace show {chosen.name} {where} --limit {ROWS} --format md"
    shown = tables.result_to_markdown(replace(result, table=short(result.table))).rstrip("\n")
    left = result.table.height - ROWS
    more = [f"... and {left:,} more rows.", ""] if left > 0 else []
    return [*(lines if result.denominators else []), "## Example", "", f"`{command}`", "", shown, "", *more]


def example_result(chosen: Analysis) -> tuple[Path, Result] | str:
    """A recording that the analysis has rows for, the shipped sample first, and the result; or why there is none."""
    without_rows: tuple[Path, Result] | str = "nothing was tried"
    for path in RECORDINGS:
        try:
            result = chosen(opened(path))
        except ForetraceError as error:
            without_rows = str(error) if isinstance(without_rows, str) else without_rows
            continue
        if result.table.height:
            return path, result
        if isinstance(without_rows, str):
            without_rows = path, result
    return without_rows


@cache
def opened(path: Path) -> Trace:
    """A recording, read once."""
    return ingest.open_trace(path, cache=False)


def short(table: pl.DataFrame) -> pl.DataFrame:
    """The first rows, without empty columns and with long names cut."""
    rows = table.head(ROWS)
    rows = rows.select(name for name in rows.columns if rows[name].null_count() < rows.height)
    texts = [name for name, dtype in rows.schema.items() if dtype in (pl.String, pl.Categorical)]
    return rows.with_columns(
        pl.col(name).cast(pl.String).map_elements(lambda text: shorten(text, WIDTH), return_dtype=pl.String)
        for name in texts
    )


def escape(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return text.replace("|", "\\|")


def escape_html(text: str) -> str:
    """Text in which a Markdown reader sees no tags."""
    return text.replace("<", "&lt;")


def rule_page(rule: Rule) -> str:
    """docs/rules/NAME.md: the rule's manual page and its limits."""
    lines = [f"# {rule.name}", "", MADE_BY, ""]
    section = ""
    for line in rule.manual.splitlines():
        if line in SECTIONS:
            while not lines[-1]:
                lines.pop()
            lines += close_code(section) + ["", f"## {line}", ""] + (["```python"] if line in CODE else [])
            section = line
        else:
            lines.append(line.removeprefix("    ") if section in CODE else escape_html(line))
    lines += close_code(section)
    if rule.limits:
        lines += ["", "## Limits", "", "| limit | value | of what | source |", "|---|---|---|---|"]
        lines += [
            f"| {name.replace('_', ' ')} | {limit} | {escape(limit.of)} | {escape(limit.source)} |"
            for name, limit in rule.limits.items()
        ]
    return "\n".join(lines).rstrip() + "\n"


def close_code(section: str) -> list[str]:
    """The end of a section's code, if it holds code."""
    return ["```"] if section in CODE else []


def rules_page() -> str:
    """docs/rules/README.md."""
    lines = [
        "# Rules", "", MADE_BY, "",
        "`foretrace diagnose PATH` looks for these; `foretrace diagnose --explain NAME` prints a page. A finding carries "
        "the change that would put it right, and what that would be worth by replaying the step. A rule whose input was "
        "not recorded is listed as not looked for.", "",
        "| rule | what it looks for |", "|---|---|",
        *(f"| [{each.name}]({each.name}.md) | {escape(each.help)} |" for each in RULES), "",
    ]  # fmt: skip
    return "\n".join(lines)


def formats_page() -> str:
    """docs/reference/formats.md: every format, how well it is read and what it cannot tell."""
    lines = [
        "# Formats", "", MADE_BY, "",
        "Files are told by their content, never by their name. `foretrace formats` prints this list.", "",
        *formats_table(), "", "What is read:", "",
        *(f"- **{name}**: {says}" for name, says in READ.items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def formats_table() -> list[str]:
    """The formats as rows of Markdown; those that are not read come last."""
    lines = ["| format | files | made by | read | cannot tell |", "|---|---|---|---|---|"]
    for each in ingest.formats():
        cells = (each.name, each.files, each.made_by, each.read, each.lacks)
        lines.append("| " + " | ".join(escape(escape_html(cell)) for cell in cells) + " |")
    return lines


def readme() -> str:
    """The README with the formats of today between its two marks."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(FORMATS_BEGIN)
    _, _, after = rest.partition(FORMATS_END)
    return "\n".join([before + FORMATS_BEGIN, *formats_table(), FORMATS_END + after])


def pages() -> dict[Path, str]:
    """Every page of the reference and its text."""
    each_analysis = {
        REFERENCE / "analyses" / f"{each.name}.md": analysis_page(each) for each in analyze.ANALYSES
    }
    return {
        REFERENCE / "tables.md": tables_page(),
        REFERENCE / "analyses.md": analyses_page(),
        REFERENCE / "python.md": python_page(MADE_BY),
        REFERENCE / "formats.md": formats_page(),
        README: readme(),
        **each_analysis,
        RULE_PAGES / "README.md": rules_page(),
        **{RULE_PAGES / f"{each.name}.md": rule_page(each) for each in RULES},
    }


def main() -> int:
    """Writes or compares the pages; the number is the exit code."""
    wanted = pages()
    stale = [
        path for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]  # fmt: skip
    written = (*REFERENCE.rglob("*.md"), *RULE_PAGES.glob("*.md"))
    left_over = [path for path in sorted(written) if path not in wanted]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what the code says: run scripts/make_reference.py")
        for path in left_over:
            print(f"{path.relative_to(ROOT)} describes nothing that exists: run scripts/make_reference.py")
        return 1 if stale or left_over else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    for path in left_over:
        path.unlink()
        print(f"removed {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
