"""Query the tables of a recording with SQL."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from foretrace.commands import _input, _output, _query
from foretrace.errors import UsageError

if TYPE_CHECKING:
    from foretrace.trace import Trace

_EXAMPLES = """\
examples:
  foretrace sql PATH "show tables"
  foretrace sql PATH "describe kernels"
  foretrace sql PATH "select name, count(*) as calls_count, sum(dur_ns) as total_ns
                      from kernels group by name order by total_ns desc limit 10"
  foretrace sql PATH "select operator, sum(dur_ns) as total_ns from kernels
                      where step = 2 group by operator order by total_ns desc"
  foretrace sql PATH "select direction, sum(size_bytes) as moved_bytes, sum(dur_ns) as total_ns
                      from copies group by direction"
  foretrace sql PATH "select k.name, o.shapes, k.dur_ns from kernels k
                      join ops o on k.op_id = o.span_id order by k.dur_ns desc limit 10"

A column whose name ends in _ns, _bytes, _count or _pct is printed in that unit.
Without a query, lists every table and column. A query reads these tables only, no files or addresses.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, the query, its limits and how to print."""
    _input.add_path(parser)
    parser.add_argument(
        "query",
        metavar="QUERY",
        nargs="?",
        help='such as "select name, sum(dur_ns) from kernels group by name"; also "show tables" and "describe TABLE"',
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
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES


def run(args: argparse.Namespace) -> None:
    """Prints what the query yields; without one, the tables and columns there are."""
    from foretrace.commands import _sql_tables

    if args.query is None:
        _output.print_frame(_sql_tables.described(), _output.Printing.chosen(args))
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
    """What an SQL query over the tables of a trace yields, within its limits; also `show tables` and `describe TABLE`."""
    from foretrace.commands import _sql_tables

    shown = _sql_tables.answered(trace, text)
    if shown is not None:
        return _query.Answered(shown, cut=False)
    words = set(re.findall(r"\w+", text.lower()))
    tables = {name: _sql_tables.table(trace, name) for name in _sql_tables.TABLES if name in words}
    return _query.ask(tables, text, timeout_s=timeout_s, most_rows=most_rows)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise UsageError(f"--timeout {text}: a time in seconds is 0 or more")
    return value
