"""Query the tables of a recording with SQL."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from foretrace.commands import _input, _output
from foretrace.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from foretrace.trace import Trace


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, the query and how to print."""
    _input.add_path(parser)
    parser.add_argument(
        "query", metavar="QUERY", nargs="?", help='such as "select kind, count(*) from spans group by kind"'
    )
    _output.add_format(parser)
    _output.add_rows(parser)
    parser.epilog = "Without a query, lists every table and column."


def run(args: argparse.Namespace) -> None:
    """Prints what the query yields; without one, the tables and columns there are."""
    if args.query is None:
        frame = _columns()
    else:
        frame = query(
            _input.open_path(args.path, no_cache=args.no_cache, reading=_input.reading(args)), args.query
        )
    _output.print_frame(frame, _output.Printing.chosen(args))


def query(trace: Trace, text: str) -> pl.DataFrame:
    """What an SQL query over the tables of a trace yields."""
    import polars as pl
    import polars.selectors as cs

    from foretrace import schema

    words = set(re.findall(r"\w+", text.lower()))
    context = pl.SQLContext()
    for name in schema.TABLES:
        if name in words:
            # SQL's text functions do not take polars' categories.
            named = cs.categorical() | cs.enum()
            context.register(name, trace.table(name).lazy().with_columns(named.cast(pl.String)))
    try:
        return context.execute(text).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = str(error).strip().partition("\n")[0]
        raise UsageError(f"sql: {why} (tables: {', '.join(schema.TABLES)})") from error


def _columns() -> pl.DataFrame:
    import polars as pl

    from foretrace import schema

    return pl.DataFrame(
        [
            {
                "table": table,
                "column": name,
                "type": _type(column.dtype),
                "null": column.nullable,
                "says": column.says,
            }
            for table, columns in schema.TABLES.items()
            for name, column in columns.items()
        ]
    )


def _type(dtype: pl.DataType | type[pl.DataType]) -> str:
    name = str(dtype).partition("(")[0]
    return "String" if name in ("Categorical", "Enum") else name
