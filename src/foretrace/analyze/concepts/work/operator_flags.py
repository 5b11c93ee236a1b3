"""What is odd about a row of the operators table: a total far above its self time, many calls, negative self time."""

from __future__ import annotations

import polars as pl

from foretrace.sourced import JUDGEMENT, Count, Factor, Share
from foretrace.trace import Trace

INSIDE, MANY, NEGATIVE = "total far above self", "many calls", "negative self time"
TIMES_SELF = Factor(10, "the operator's own time on the host", JUDGEMENT)
LEAST_SHARE = Share(0.05, "the host time of the recording", JUDGEMENT)
CALLS_PER_STEP = Count(1_000, "calls of one name in a step", JUDGEMENT)
CALLS = Count(10_000, "calls of one name in a recording without steps", JUDGEMENT)
_SAYS = {
    INSIDE: "their time is in the calls inside them: look at those, and at who calls them (--group-by stack)",
    MANY: "each costs the host a few µs, however little it does; fuse or batch them",
    NEGATIVE: "an operator inside outlasts its caller, so torch's subtraction goes below 0: use the total",
}
_NAMES_COUNT = 3


def with_flags(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    """The rows of the operators table with `flags`, null where nothing is odd."""
    own, total, calls = (pl.col(name) for name in ("host_self_ns", "host_total_ns", "calls_count"))
    many = CALLS_PER_STEP * len(trace.steps) if trace.steps else CALLS
    is_op = pl.col("kind") == "op"
    far = is_op & (total >= TIMES_SELF * own.clip(lower_bound=0)) & (total >= LEAST_SHARE * own.sum())
    conditions = {
        INSIDE: far & (total > 0),
        MANY: pl.col("kind").is_in(("op", "runtime")) & (calls >= int(many)),
        NEGATIVE: own < 0,
    }
    words = [pl.when(holds).then(pl.lit(flag)) for flag, holds in conditions.items()]
    joined = pl.concat_str(words, separator=", ", ignore_nulls=True)
    return table.with_columns(flags=pl.when(joined != "").then(joined))


def flag_notes(table: pl.DataFrame) -> list[str]:
    """For each flag that stands in the table, the rows that have it and what it means."""
    notes = []
    for flag, says in _SAYS.items():
        names = table.filter(pl.col("flags").str.contains(flag, literal=True))["name"].unique(
            maintain_order=True
        )
        if len(names):
            more = f" and {len(names) - _NAMES_COUNT} more" if len(names) > _NAMES_COUNT else ""
            notes.append(f"{flag}: {', '.join(names.head(_NAMES_COUNT))}{more}; {says}")
    return notes
