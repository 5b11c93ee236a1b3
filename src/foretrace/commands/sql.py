"""Query the tables of a recording with SQL."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from foretrace.commands import _input, _output, _query
from foretrace.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from foretrace.trace import Trace


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, the query, its limits and how to print."""
    _input.add_path(parser)
    parser.add_argument(
        "query", metavar="QUERY", nargs="?", help='such as "select kind, count(*) from spans group by kind"'
    )
    _output.add_format(parser)
    _output.add_rows(parser)
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds,
        default=_query.DEFAULT_TIMEOUT_S,
        help=f"stop the query after S seconds; 0 for never (default: {_query.DEFAULT_TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--max-rows",
        metavar="N",
        type=_output.row_limit,
        default=_query.DEFAULT_MOST_ROWS,
        help=f"take at most N rows of the result; 0 for all (default: {_query.DEFAULT_MOST_ROWS:,})",
    )
    parser.epilog = "Without a query, lists every table and column. A query reads these tables only, no files or addresses."


def run(args: argparse.Namespace) -> None:
    """Prints what the query yields; without one, the tables and columns there are."""
    if args.query is None:
        _output.print_frame(_columns(), _output.Printing.chosen(args))
        return
    _query.check(args.query)
    trace = _input.open_path(args.path, no_cache=args.no_cache, reading=_input.reading(args))
    answered = query(trace, args.query, timeout_s=args.timeout, most_rows=args.max_rows)
    _output.print_frame(answered.frame, _output.Printing.chosen(args))
    if answered.cut:
        rows = f"{args.max_rows:,} {'row' if args.max_rows == 1 else 'rows'}"
        print(f"foretrace: sql: cut at {rows}, there are more; see --max-rows", file=sys.stderr)


def query(
    trace: Trace,
    text: str,
    *,
    timeout_s: float = _query.DEFAULT_TIMEOUT_S,
    most_rows: int = _query.DEFAULT_MOST_ROWS,
) -> _query.Answered:
    """What an SQL query over the tables of a trace yields, within its limits."""
    from foretrace import schema

    words = set(re.findall(r"\w+", text.lower()))
    tables = {name: trace.table(name) for name in schema.TABLES if name in words}
    return _query.ask(tables, text, timeout_s=timeout_s, most_rows=most_rows)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise UsageError(f"--timeout {text}: a time in seconds is 0 or more")
    return value


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
