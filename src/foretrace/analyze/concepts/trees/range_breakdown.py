"""A run in one table: its steps, its ranges with and without those inside, attention in its parts, its kernels by kind.

From a recording the ranges are known with what is around them. Totals alone (`nsys stats`) do not tell that: then a range named
`X.y` is inside `X`, parts of attention are inside the range named after it, and that is inside `forward`, if the times allow it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.units import visible

SCHEMA = {
    "part": pl.String, "metric": pl.String, "total_ns": pl.Int64, "per_step_ns": pl.Float64, "share_pct": pl.Float64,
    "share_of": pl.String, "calls_count": pl.Int64,
}  # fmt: skip
Row = tuple[str, str, int | None, float | None, float | None, str | None, int | None]

_CATEGORIES = {"gemm": "matmul", "optimizer": "optimizer/multi_tensor", "unknown": "other"}
_DIRECTIONS = {"forward": "softmax (fwd)", "backward": "softmax (bwd)"}
_ATTENTION = re.compile(
    r"(?i)(?:^|[^a-z])(?:mha|gqa|mla|(?:self[ _-]?|multi[ _-]?head[ _-]?)?attention|attn)(?:\s*\(?total\)?)?\s*$"
)
_PIECE = re.compile(
    r"(?i)qkv|\b[qkv](?:uery|ey|alue)?[ _-]?proj|rope|rotary|softmax|logits|qk\^?t|attn\s*[*@x]\s*v|context|out(?:put)?[ _-]?proj"
)
_PROJECTION = re.compile(r"(?i)proj")
_FORWARD = re.compile(r"(?i)^(?:.*[^a-z])?forward(?:[^a-z].*)?$")
_STEP = re.compile(r"(?i)(?:^|[^a-z])(?:train_?)?(?:step|iter|iteration)(?:[^a-z]|$)")


@dataclass(frozen=True)
class Range:
    """All ranges of one name at one place: what is around it (a place in the list, or None), and its times on the host."""

    name: str
    above: int | None
    calls_count: int
    host_ns: int
    exclusive_ns: int


def from_totals(rows: Sequence[tuple[str, int, int]]) -> list[Range]:
    """Ranges of which only name, calls and time are known, with what is around them told from their names."""
    above = _guessed([name for name, _, _ in rows], [total for _, _, total in rows])
    inside = [0] * len(rows)
    for place, holder in enumerate(above):
        if holder is not None:
            inside[holder] += rows[place][2]
    return [
        Range(name, holder, calls, total, max(total - inner, 0))
        for (name, calls, total), holder, inner in zip(rows, above, inside, strict=True)
    ]


def steps_of_totals(rows: Sequence[tuple[str, int, int]]) -> int | None:
    """How many steps ran: as often as a range that is named a step, or else forward, did."""
    for pattern in (_STEP, _FORWARD):
        found = [
            (total, calls)
            for name, calls, total in rows
            if calls > 1 and pattern.search(name) and "." not in name
        ]
        if found:
            return max(found)[1]
    return None


def breakdown(
    ranges: Sequence[Range], kernels: pl.DataFrame, *, steps_count: int | None, wrapper: str | None
) -> pl.DataFrame:
    """The table; `kernels` has name, calls_count and total_ns, and `wrapper` is the range that the steps themselves are."""
    inner: dict[int | None, list[int]] = {}
    for place, each in enumerate(ranges):
        inner.setdefault(each.above, []).append(place)
    outermost = [
        place for top in inner.get(None, []) for place in _unwrapped(ranges, inner, top, steps_count, wrapper)
    ]
    per_step = 1 / steps_count if steps_count else None
    rows: list[Row] = [("run", "steps", None, None, None, None, steps_count)]
    for place in outermost:
        each = ranges[place]
        rows.append(_row("ranges", visible(each.name), each.host_ns, per_step, calls=each.calls_count))
        if inner.get(place):
            rows.append(
                _row("ranges", f"{visible(each.name)} (exclusive)", each.exclusive_ns, per_step, each)
            )
    for place in outermost:
        rows += _inside(ranges, inner, place, per_step, top=True)
    rows += _kernel_rows(kernels, per_step)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _row(
    part: str, metric: str, total: int, per_step: float | None, whole: Range | None = None, calls: int | None = None
) -> Row:  # fmt: skip
    share = 100 * total / whole.host_ns if whole and whole.host_ns else None
    of = visible(whole.name) if share is not None and whole else None
    return (part, metric, total, None if per_step is None else total * per_step, share, of, calls)


def _unwrapped(
    ranges: Sequence[Range], inner: dict[int | None, list[int]], place: int, steps_count: int | None, wrapper: str | None
) -> list[int]:  # fmt: skip
    """The ranges to begin with: inside those that are the steps, or one that is around all steps."""
    each, within = ranges[place], inner.get(place, [])
    around_all = each.calls_count == 1 and any(
        ranges[other].calls_count >= (steps_count or 2) > 1 for other in within
    )
    is_step = wrapper is not None and re.sub(r"[0-9]+", "#", each.name) == wrapper
    if not within or not (around_all or is_step):
        return [place]
    return [found for other in within for found in _unwrapped(ranges, inner, other, steps_count, wrapper)]


def _inside(
    ranges: Sequence[Range],
    inner: dict[int | None, list[int]],
    place: int,
    per_step: float | None,
    *,
    top: bool = False,
) -> Iterator[Row]:
    """What is inside a range: each part with its share, what the parts leave, and the same for the parts themselves."""
    for holder in sorted(inner.get(place, []), key=lambda each: -ranges[each].host_ns):
        within = inner.get(holder)
        whole, part = ranges[holder], visible(ranges[holder].name)
        if not within:
            if top:  # of others it is listed with them
                yield _row(
                    visible(ranges[place].name),
                    part,
                    whole.host_ns,
                    per_step,
                    ranges[place],
                    whole.calls_count,
                )
            continue
        yield _row(part, part, whole.host_ns, per_step, ranges[place], whole.calls_count)
        listed = sorted((ranges[each] for each in within), key=lambda each: -each.host_ns)
        for each in listed:
            yield _row(part, visible(each.name), each.host_ns, per_step, whole, each.calls_count)
        linear = [each for each in listed if _PROJECTION.search(each.name)]
        if len(linear) > 1:
            yield _row(
                part, f"{part}: projections together", sum(each.host_ns for each in linear), per_step, whole
            )
        yield _row(part, f"{part}: residual", whole.exclusive_ns, per_step, whole)
        without = ranges[place].host_ns - whole.host_ns
        yield _row(
            part, f"{visible(ranges[place].name)} without {part}", max(without, 0), per_step, ranges[place]
        )
        yield from _inside(ranges, inner, holder, per_step)


def _kernel_rows(kernels: pl.DataFrame, per_step: float | None) -> Iterator[Row]:
    """Kernel time in all, by kind, and the kernel with most of it."""
    if kernels.is_empty():
        return
    total = int(kernels["total_ns"].sum())
    whole = Range("kernel time", None, 0, total, total)
    yield _row("kernels", "all kernels", total, per_step, calls=int(kernels["calls_count"].sum()))
    categories = {name: _category(name) for name in kernels["name"].unique().to_list()}
    by_kind = (
        kernels.with_columns(kind=pl.col("name").replace_strict(categories, return_dtype=pl.String))
        .group_by("kind")
        .agg(pl.col("total_ns", "calls_count").sum())
        .sort("total_ns", "kind", descending=[True, False])
    )
    for kind, time, calls in by_kind.iter_rows():
        yield _row("kernels", kind, time, per_step, whole, calls)
    top = kernels.sort("total_ns", "name", descending=[True, False]).row(0, named=True)
    yield _row("top kernel", visible(top["name"]), top["total_ns"], per_step, whole, top["calls_count"])


def _category(name: str) -> str:
    decoded = decode(name)
    if decoded.role == "softmax" and decoded.direction:
        return _DIRECTIONS[decoded.direction]
    return _CATEGORIES.get(decoded.role, decoded.role)


def _guessed(names: Sequence[str], totals: Sequence[int]) -> list[int | None]:
    """For each name the place of what is around it, as far as names tell and times allow."""
    place = {name: number for number, name in enumerate(names)}
    forward = next((number for number, name in enumerate(names) if _FORWARD.search(name)), None)
    attention = next((number for number, name in enumerate(names) if _ATTENTION.search(name)), None)
    above: list[int | None] = [None] * len(names)
    for number, name in enumerate(names):
        parts = name.split(".")
        dotted = next(
            (
                place[".".join(parts[:end])]
                for end in range(len(parts) - 1, 0, -1)
                if ".".join(parts[:end]) in place
            ),
            None,
        )
        if dotted is not None:
            above[number] = dotted
        elif number == attention:
            above[number] = forward
        elif attention is not None and number != forward and _PIECE.search(name):
            above[number] = attention
    for holder in set(above) - {None}:
        inside = [number for number, each in enumerate(above) if each == holder]
        if holder is not None and sum(totals[number] for number in inside) > totals[holder]:
            for number in inside:  # more than fits: the names mean something else here
                above[number] = None
    return above
