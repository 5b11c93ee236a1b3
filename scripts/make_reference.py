"""Writes docs/reference/ from the code: tables from schema.py, analyses from their docstrings.

python scripts/make_reference.py           writes the pages
python scripts/make_reference.py --check   exits with 1 if a page is not what the code says
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from foretrace import analyze, ingest, schema  # noqa: E402
from foretrace.analyze.result import Analysis, Result  # noqa: E402
from foretrace.trace import Trace  # noqa: E402

SAMPLE = min((ROOT / "src" / "foretrace" / "samples").glob("*.json.gz"))
REFERENCE = ROOT / "docs" / "reference"
MADE_BY = "<!-- Made by scripts/make_reference.py. Do not edit: change the code and run it again. -->"


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
    for name, columns in schema.TABLES.items():
        about = inspect.getdoc(getattr(Trace, name)) or ""
        lines += [f"## {name}", "", about, "", "| column | type | what it holds |", "|---|---|---|"]
        for column_name, column in columns.items():
            mark = "?" if column.nullable else ""
            lines.append(f"| `{column_name}` | {type_name(column)}{mark} | {escape(column.says)} |")
        lines.append("")
    lines += ["Kinds of spans: " + ", ".join(f"`{kind}`" for kind in schema.KINDS) + "."]
    lines += ["Directions of copies: " + ", ".join(f"`{each}`" for each in schema.DIRECTIONS) + "."]
    return "\n".join(lines) + "\n"


def analyses_page() -> str:
    """docs/reference/analyses.md."""
    lines = [
        "# Analyses", "", MADE_BY, "",
        "`foretrace show NAME PATH` prints one; `foretrace.analyze.run(trace, NAME)` returns it as a Result. "
        "The suffix of a column is its unit: `_ns`, `_bytes`, `_flops`, `_pct`, `_count`, `_per_s`.", "",
        "| name | what it says |", "|---|---|",
        *(f"| [{each.name}](#{each.name}) | {escape(each.help)} |" for each in analyze.ANALYSES), "",
    ]  # fmt: skip
    sample = ingest.open_trace(SAMPLE, cache=False)
    for each in analyze.ANALYSES:
        lines += [f"## {each.name}", "", inspect.getdoc(each.function) or each.help, "", *options(each)]
        lines += holds(each(sample))
    return "\n".join(lines).rstrip() + "\n"


def options(chosen: Analysis) -> list[str]:
    """The table of an analysis's options, if it has any."""
    if not chosen.options:
        return []
    lines = ["| option | in Python | default |", "|---|---|---|"]
    for name, parameter in chosen.options.items():
        default = "none" if parameter.default is None else f"`{parameter.default}`"
        kind = escape(inspect.formatannotation(parameter.annotation).strip("'\""))
        lines.append(f"| `--{name.replace('_', '-')}` | `{name}: {kind}` | {default} |")
    return [*lines, ""]


def holds(result: Result) -> list[str]:
    """What a Result has for the shipped sample: columns, values, and what shares are shares of."""
    lines = ["For the shipped sample:", "", "- columns: " + names(result.table.columns)]
    if result.values:
        lines.append("- values: " + names(result.values))
    lines += [f"- `{name}`: {share}" for name, share in result.denominators.items()]
    return [*lines, ""]


def names(each: Iterable[str]) -> str:
    """Names as code, in their order."""
    return ", ".join(f"`{name}`" for name in each)


def escape(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return text.replace("|", "\\|")


def pages() -> dict[Path, str]:
    """Every page of the reference and its text."""
    return {REFERENCE / "tables.md": tables_page(), REFERENCE / "analyses.md": analyses_page()}


def main() -> int:
    """Writes or compares the pages; the number is the exit code."""
    stale = [
        path for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]  # fmt: skip
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what the code says: run scripts/make_reference.py")
        return 1 if stale else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
