"""What kind each step of a server is: prefill, decode or both, by its recorded name, else by its attention.

Where names do not tell: kernels that are called prefill or decode, else the queries of attention operators. One query for each sequence
against more keys is a decode; steps with more queries are prefills only where the recording has decodes, too: training has them as well.
"""

from __future__ import annotations

import json

import polars as pl

from foretrace.ingest.server_marks import DECODE, MIXED, PREFILL
from foretrace.trace import Trace

_DECODES = r"(?i)decode|split_?kv|masked_multihead|mmha|paged_attention_(?:v1|v2|ll4mi|2d|3d)"
_PREFILLS = r"(?i)prefill|context_attention"
_SDPA = r"scaled_dot_product"


def step_kinds(trace: Trace, work: pl.DataFrame) -> dict[int, str | None]:
    """The kind of each step; None where nothing tells."""
    named = {step.number: step.kind for step in trace.steps}
    if any(named.values()) or not named:
        return named
    return _by_kernels(work) or _by_shapes(trace) or named


def _by_kernels(work: pl.DataFrame) -> dict[int, str | None]:
    """By words in the names of kernels; none where no step has both words told apart."""
    name = pl.col("name").cast(pl.String)
    found = (
        work.drop_nulls("step")
        .group_by("step")
        .agg(decodes=name.str.contains(_DECODES).any(), prefills=name.str.contains(_PREFILLS).any())
    )
    if not found["prefills"].any():
        return {}  # a decode alone may be any attention that splits its keys
    return {step: _kind(decodes, prefills) for step, decodes, prefills in found.iter_rows()}


def _kind(decodes: bool, prefills: bool) -> str | None:
    return MIXED if decodes and prefills else DECODE if decodes else PREFILL if prefills else None


def _by_shapes(trace: Trace) -> dict[int, str | None]:
    """By the queries and keys of scaled_dot_product_attention, [batch, heads, length, width]."""
    names = trace.spans["name"].gather(trace.ops["span_id"]).cast(pl.String)
    ops = (
        trace.ops.select("span_id", pl.col("shapes").cast(pl.String))
        .filter(names.str.contains(_SDPA))
        .drop_nulls()
    )
    steps = trace.spans["step"].gather(ops["span_id"]).to_list()
    seen: dict[int, set[str]] = {}
    for step, shapes in zip(steps, ops["shapes"].to_list(), strict=True):
        lengths = _lengths(shapes)
        if step is not None and lengths is not None:
            one_query = lengths[0] == 1 and lengths[1] > 1
            seen.setdefault(step, set()).add(DECODE if one_query else PREFILL)
    if not any(kinds == {DECODE} for kinds in seen.values()):
        return {}
    return {step: _kind(DECODE in kinds, PREFILL in kinds) for step, kinds in seen.items()}


def _lengths(shapes: str) -> tuple[int, int] | None:
    """Queries and keys."""
    try:
        query, key, *_ = json.loads(shapes)
        return int(query[2]), int(key[2])
    except (ValueError, TypeError, IndexError):
        return None  # not as torch writes it
