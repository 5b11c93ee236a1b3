"""List or clear the cache of recordings that were read before."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from foretrace.commands import _output
from foretrace.units import format_value, visible

if TYPE_CHECKING:
    import polars as pl

    from foretrace.cache import Entry


def configure(parser: argparse.ArgumentParser) -> None:
    """--clear, or how to print."""
    parser.add_argument("--clear", action="store_true", help="remove all entries")
    _output.add_format(parser)
    _output.add_rows(parser)


def run(args: argparse.Namespace) -> None:
    """Prints the entries, or what was removed."""
    from foretrace import cache

    if args.clear:
        count, freed = cache.clear()
        entries = "1 entry" if count == 1 else f"{count} entries"
        print(
            f"removed {entries}, {format_value('size_bytes', freed)}, from {visible(str(cache.directory()))}"
        )
        return
    entries_now = cache.entries()
    total = sum(entry.size_bytes for entry in entries_now)
    if args.format == "table":
        used = f"{format_value('size_bytes', total)} of {format_value('limit_bytes', cache.limit_bytes())}"
        print(f"{visible(str(cache.directory()))}: {len(entries_now)} entries, {used}")
    if entries_now or args.format != "table":
        _output.print_frame(_frame(entries_now), _output.Printing.chosen(args))


def _frame(entries: list[Entry]) -> pl.DataFrame:
    import datetime

    import polars as pl

    columns = {"used": pl.String, "size_bytes": pl.Int64, "key": pl.String, "source": pl.String}
    rows = []
    for entry in entries:
        used = datetime.datetime.fromtimestamp(entry.used_at).isoformat(" ", "seconds")
        rows.append((used, entry.size_bytes, entry.key, visible(entry.source)))
    return pl.DataFrame(rows, schema=columns, orient="row")
