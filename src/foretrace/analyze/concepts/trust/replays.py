"""How much of the GPU time of CUDA graphs has its operators, as a note of the trust report."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.concepts.device import graph_origins
from foretrace.analyze.concepts.trust.evidence import SMALL_PCT, Evidence, Note
from foretrace.runtime_names import Effect, calls_that

_WHOLE_PCT = 100 - SMALL_PCT


def replays(evidence: Evidence) -> Iterator[Note]:
    """The share of replayed GPU time whose operators a capture tells, and how to get the rest."""
    calls = evidence.runtime.select("id", "name")
    graphs = calls.filter(pl.Series(calls_that(calls["name"], Effect.GRAPH), dtype=pl.Boolean))["id"]
    nodes = evidence.linked.filter(pl.col("launch_id").is_in(graphs.implode()))
    total_ns = int(nodes["dur_ns"].sum())
    if not total_ns:
        return
    captured = nodes.filter(graph_origins.has_capture())
    captured_pct = 100 * int(captured["dur_ns"].sum()) / total_ns
    all_pct = 100 * total_ns / max(int(evidence.linked["dur_ns"].sum()), 1)
    says = (
        f"{all_pct:.1f} % of GPU time runs in CUDA graphs, and {captured_pct:.1f} % of that has operators, modules and shapes "
        "from the capture"
    )
    given = evidence.trace.meta.get("capture_traces")
    if captured_pct < _WHOLE_PCT:
        unfit = f"{', '.join(given)} does not fit the rest; " if given else ""
        says += f"; for the rest: {unfit}{graph_origins.HOW_TO_GET_CAPTURES}"
    yield Note(
        "graph-operators", "info", f"{says}.",
        {"affected_count": nodes.height, "affected_ns": total_ns, "share_pct": captured_pct},
    )  # fmt: skip
