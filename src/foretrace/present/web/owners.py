"""Whose device work it is: the nearest span around its launch that carries an owner, such as a module or a stack."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device.phases import cause_of
from foretrace.analyze.concepts.trees.attribution import parents
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.trace import Trace

Numbers = NDArray[np.int64]


def device_owners(trace: Trace, work: pl.DataFrame, carried: Numbers) -> Numbers:
    """The owner of each row of device work, or NOBODY; `carried` says for each span the owner that it carries.

    The same as `attribution.device_owners`, which works out the time of all other spans too.
    """
    parent = parents(trace)
    linked = trace.ops.select("span_id", "forward_id").drop_nulls()
    forward = _climb(parent, carried, linked["forward_id"].cast(pl.Int64).to_numpy())
    backward, known = linked["span_id"].to_numpy(), forward != NOBODY
    carried = carried.copy()
    carried[backward[known]] = carried[forward[known]]
    causes = cause_of(work)
    distinct, place = np.unique(causes, return_inverse=True)
    found = _climb(parent, carried, distinct)
    owner: Numbers = np.where(found == NOBODY, NOBODY, carried[found])[place.reshape(-1)]
    return owner


def _climb(parent: Numbers, carried: Numbers, spans: Numbers) -> Numbers:
    """For each of a few spans the nearest around it that carries an owner, itself included, or NOBODY."""
    found = spans.astype(np.int64)
    while len(up := np.flatnonzero((found != NOBODY) & (carried[found] == NOBODY))):
        found[up] = parent[found[up]]
    return found
