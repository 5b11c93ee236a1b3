"""CUDA graphs: what each graph launch ran, the gaps between its nodes, and the operators its kernels come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from foretrace.analyze.concepts.device import device_time, graph_origins
from foretrace.analyze.concepts.device.graph_origins import Eager
from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError
from foretrace.runtime_names import Effect, calls_that
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_CAPTURE, _ORDER, _NAME = "capture", "order", "name"


@dataclass(frozen=True)
class Origins:
    """The operator of each node of a graph, and how it is known; null where it is not."""

    op: list[str | None]
    by: list[str | None]


@analysis(
    Subject.COMPILED,
    denominators={
        "total_pct": "of the summed duration of all GPU work with a recorded launch",
        "gap_pct": "of span_ns, from the start of the first node to the end of the last",
        "attributed_pct": "of the graphs' nodes, counted once per launch",
        "captured_pct": "of the summed duration of the graphs' nodes",
    },
)
def graphs(trace: Trace, *, by: Literal["graph", "launch", "kernel"] = "graph") -> Result:
    """CUDA-graph launches: their kernels, GPU time, gaps between nodes, and the operators they come from.

    Definition
        A graph launch is a call of cudaGraphLaunch, hipGraphLaunch or cuGraphLaunch. Its nodes are the GPU work linked
        to that call, in order of start. Launches belong to the same graph if the recording says so (graph id),
        otherwise if their nodes have the same names in the same order.

    Columns
        launches_count, nodes_count: launches, and nodes per launch (the median over launches).
        call_ns: duration of the launch call on the host.
        wait_ns: from the start of the call to the start of the first node, including the wait for earlier work on the
        stream.
        span_ns: from the start of the first node to the end of the last.
        busy_ns: the part of span_ns with any node running.
        gap_ns, gap_pct: the rest, and its share of span_ns. All of these are means over the graph's launches.
        total_ns, total_pct: summed duration of the nodes of all launches, and its share of all launched GPU work.
        attributed_pct: share of the graph's nodes whose operator is known; `by` says how (see below).
        With --by launch: one row per launch. With --by kernel: one row per graph, kernel name and operator.

    Operators
        capture: from the capture of the graph, in this recording or one given with --capture-trace, with as many kernel
        launches as the graph has kernel nodes; or, with --capture-trace, from the same kernels run without graphs. All analyses
        then know the operators, modules and shapes of these nodes; captured_pct is their share of the graphs' GPU time.
        order: the same sequence of at least 4 kernels also ran eagerly in this recording, always launched by the same
        operators.
        name: the kernel's name lists its operators (Inductor).
        Otherwise the operator is not known. With order and name, only the name of the operator is.

    What it cannot tell
        The operators of a graph that was captured before the recording and never ran eagerly in it: record the
        capture, or an eager step. With parallel branches, nodes may start in a different order than they were captured;
        where node ids are not recorded, some may then get the operator of another.
    """
    launches = _launches(trace)
    if launches.is_empty():
        raise MissingDataError(f"{trace.path.name}: no CUDA-graph launch recorded")
    nodes = _nodes(trace, launches)
    launches = _measured(launches, nodes)
    eager = graph_origins.Eager(trace, launches["id"])
    origins = {graph: _origins(trace, first, eager) for graph, first in _first_nodes(nodes)}
    kernels = _kernels(nodes, origins)
    per_graph = _per_graph(launches, origins, trace)
    tables = {"graph": per_graph, "launch": launches.drop("id", "track_id", "name"), "kernel": kernels}
    values = _values(launches, nodes, origins, trace)
    return Result(
        says=_says(values),
        table=tables[by].rename({"graph": "graph_id"}),
        values=values,
        notes=_notes(values, trace),
    )


def _launches(trace: Trace) -> pl.DataFrame:
    """The graph launches; a driver call inside a runtime call counts only if work is linked to it."""
    every = trace.spans.lazy().filter(pl.col("kind") == "runtime")
    calls = every.select("id", "track_id", "name", "start_ns", "dur_ns", "parent_id", "step").collect()
    launches = calls.filter(pl.Series(calls_that(calls["name"], Effect.GRAPH)))
    linked = pl.col("id").is_in(trace.device_spans["launch_id"].unique().implode())
    outer = ~pl.col("parent_id").is_in(launches["id"].implode()).fill_null(value=False)
    has_inner = pl.col("id").is_in(launches.filter(linked)["parent_id"].drop_nulls().implode())
    return launches.filter(linked | (outer & ~has_inner)).drop("parent_id").rename({"dur_ns": "call_ns"})


def _nodes(trace: Trace, launches: pl.DataFrame) -> pl.DataFrame:
    """The GPU work of the launches, in order, with `graph`: the number of its graph, from 0."""
    work = trace.device_spans.filter(pl.col("launch_id").is_in(launches["id"].implode()))
    ids = trace.kernels.select(pl.col("span_id").alias("id"), "graph_id")
    work = work.join(ids, on="id", how="left", maintain_order="left").sort("launch_id", "start_ns", "id")
    order = work.group_by("launch_id", maintain_order=True).agg(
        recorded=pl.col("graph_id").drop_nulls().first(),
        names=pl.col("name").cast(pl.String).str.join("\n").hash(),
    )
    key = (
        pl.when(pl.col("recorded").is_not_null())
        .then(pl.col("recorded").cast(pl.UInt64, wrap_numerical=True))
        .otherwise("names")
    )
    order = order.with_columns(key=key)
    numbers = order.select("key").unique(maintain_order=True).with_row_index("graph")
    of_launch = order.join(numbers, on="key", how="left").select("launch_id", "graph")
    return work.join(of_launch, on="launch_id", how="left", maintain_order="left")


def _measured(launches: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """The launches with the times of their nodes; null where no work of a launch was recorded."""
    # Busy time of a launch: what each node adds after the latest end so far.
    reach = pl.col("end_ns").cum_max().shift(1).over("launch_id")
    added = (pl.col("end_ns") - pl.max_horizontal("start_ns", reach.fill_null(pl.col("start_ns")))).clip(0)
    sums = (
        nodes.with_columns(added=added)
        .group_by("launch_id")
        .agg(
            pl.col("graph").first(),
            nodes_count=pl.len(),
            kernels_count=(pl.col("kind") == "kernel").sum(),
            first_ns=pl.col("start_ns").min(),
            last_ns=pl.col("end_ns").max(),
            busy_ns=pl.col("added").sum(),
            total_ns=pl.col("dur_ns").sum(),
        )
    )
    joined = launches.join(sums, left_on="id", right_on="launch_id", how="left", maintain_order="left")
    span = pl.col("last_ns") - pl.col("first_ns")
    joined = joined.with_columns(wait_ns=(pl.col("first_ns") - pl.col("start_ns")).clip(0), span_ns=span)
    joined = joined.with_columns(gap_ns=pl.col("span_ns") - pl.col("busy_ns"))
    return joined.with_columns(gap_pct=_share("gap_ns", "span_ns")).drop("first_ns", "last_ns")


def _share(part: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(100 * pl.col(part) / pl.col(whole))


def _first_nodes(nodes: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
    """The nodes of each graph's first launch."""
    first = nodes.filter(pl.col("launch_id") == pl.col("launch_id").first().over("graph"))
    return [(launch["graph"][0], launch) for launch in first.partition_by("graph", maintain_order=True)]


def _origins(trace: Trace, nodes: pl.DataFrame, eager: Eager) -> Origins:
    """The operators of the nodes of a graph, from the best source available."""
    captured = nodes.select(op_id=pl.when(graph_origins.has_capture()).then("op_id"))["op_id"]
    ops = trace.spans["name"].gather(captured).cast(pl.String).to_list()
    by: list[str | None] = [_CAPTURE if op else None for op in ops]
    for place, op in enumerate(graph_origins.ops_by_order(nodes["name"].to_physical().to_numpy(), eager)):
        if ops[place] is None and op is not None:
            ops[place], by[place] = op, _ORDER
    for place, name in enumerate(nodes["name"].cast(pl.String).to_list()):
        fused = decode(name).fused_ops if ops[place] is None else ()
        if fused:
            ops[place], by[place] = " + ".join(dict.fromkeys(fused)), _NAME
    return Origins(ops, by)


def _kernels(nodes: pl.DataFrame, origins: dict[int, Origins]) -> pl.DataFrame:
    """One row per graph, name and operator, the longest total first."""
    place = pl.int_range(pl.len()).over("launch_id")
    frame = pl.concat(
        [_NO_ORIGINS]
        + [
            pl.DataFrame(
                {
                    "graph": [graph] * len(known.op),
                    "place": range(len(known.op)),
                    "op": known.op,
                    "by": known.by,
                },
                schema=_NO_ORIGINS.schema,
            )
            for graph, known in origins.items()
        ]
    )
    joined = nodes.with_columns(place=place).join(
        frame, on=("graph", "place"), how="left", maintain_order="left"
    )
    table = joined.group_by("graph", "name", "op", "by", maintain_order=True).agg(
        calls_count=pl.len(),
        total_ns=pl.col("dur_ns").sum(),
        mean_ns=pl.col("dur_ns").mean(),
    )
    return table.sort("total_ns", descending=True, maintain_order=True)


_NO_ORIGINS = pl.DataFrame(schema={"graph": pl.UInt32, "place": pl.Int64, "op": pl.String, "by": pl.String})


def _per_graph(launches: pl.DataFrame, origins: dict[int, Origins], trace: Trace) -> pl.DataFrame:
    """One row per graph, the longest total first; launches without recorded work are one row of their own."""
    means = ("call_ns", "wait_ns", "span_ns", "busy_ns", "gap_ns")
    table = launches.group_by("graph", maintain_order=True).agg(
        pl.len().alias("launches_count"),
        pl.col("nodes_count", "kernels_count").median(),
        pl.col("total_ns").sum(),
        *(pl.col(name).mean() for name in means),
    )
    sources = {
        graph: ", ".join(sorted({by for by in known.by if by})) or None for graph, known in origins.items()
    }
    share = {
        graph: 100 * len([op for op in known.op if op]) / len(known.op) for graph, known in origins.items()
    }
    of_graph = pl.col("graph")
    table = table.with_columns(
        gap_pct=_share("gap_ns", "span_ns"),
        attributed_pct=of_graph.replace_strict(share, default=None, return_dtype=pl.Float64),
        by=of_graph.replace_strict(sources, default=None, return_dtype=pl.String),
        total_pct=100 * pl.col("total_ns") / max(_launched_ns(trace), 1),
    )
    first = (
        "graph", "launches_count", "nodes_count", "kernels_count", "total_ns", "total_pct", "busy_ns", "gap_ns",
        "gap_pct", "attributed_pct", "by",
    )  # fmt: skip
    return table.select(*first, pl.exclude(first)).sort("total_ns", descending=True, maintain_order=True)


def _launched_ns(trace: Trace) -> int:
    return int(trace.device_spans.drop_nulls("launch_id")["dur_ns"].sum())


def _values(
    launches: pl.DataFrame, nodes: pl.DataFrame, origins: dict[int, Origins], trace: Trace
) -> dict[str, Value]:
    per_launch = launches.drop_nulls("graph").group_by("graph").len()
    weights = dict(per_launch.iter_rows())
    known = sum(weights[graph] * sum(op is not None for op in origin.op) for graph, origin in origins.items())
    total = sum(weights[graph] * len(origin.op) for graph, origin in origins.items())
    span = int(launches["span_ns"].sum())
    loose = trace.kernels.filter(pl.col("graph_node_id").is_not_null())["span_id"]
    orphans = trace.device_spans.filter(device_time.ORPHAN & pl.col("id").is_in(loose.implode()))
    return {
        "launches_count": launches.height,
        "graphs_count": len(origins),
        "nodes_count": nodes.height,
        "busy_ns": int(launches["busy_ns"].sum()) if nodes.height else None,
        "gap_pct": 100 * int(launches["gap_ns"].sum()) / span if span else None,
        "total_pct": 100 * int(nodes["dur_ns"].sum()) / max(_launched_ns(trace), 1) if nodes.height else None,
        "attributed_pct": 100 * known / total if total else None,
        "captured_pct": _captured_pct(nodes),
        "empty_launches_count": int(launches["nodes_count"].null_count()),
        "orphan_count": orphans.height,
    }


def _captured_pct(nodes: pl.DataFrame) -> float | None:
    total = int(nodes["dur_ns"].sum())
    captured = int(nodes.filter(graph_origins.has_capture())["dur_ns"].sum())
    return 100 * captured / total if total else None


def _says(values: dict[str, Value]) -> str:
    count, graphs_count = values["launches_count"], values["graphs_count"]
    if not isinstance(count, int) or not isinstance(graphs_count, int) or not graphs_count:
        return f"{counted(int(count or 0), 'graph launch call')}, but none of their kernels were recorded"
    busy = format_value("busy_ns", values["busy_ns"])
    gap, known = values["gap_pct"], values["attributed_pct"]
    launches = counted(count, "launch call")
    ran = f"{launches} of {counted(graphs_count, 'graph')} ran {counted(int(values['nodes_count'] or 0), 'node')}"
    gaps = f" ({gap:.1f} % of their span is gaps between nodes)" if isinstance(gap, float) else ""
    return f"{ran} in {busy}{gaps}; the operator is known for {float(known or 0):.1f} % of the nodes"


def _notes(values: dict[str, Value], trace: Trace) -> tuple[str, ...]:
    notes = []
    if values["empty_launches_count"]:
        notes.append(
            f"{counted(int(values['empty_launches_count']), 'launch call')} without recorded GPU work: "
            "cut off, or recorded with graph-level tracing"
        )
    if values["orphan_count"]:
        queued = device_time.queued_before(int(values["orphan_count"]), noun="graph node")
        notes.append(f"{queued}: excluded")
    if values["attributed_pct"] is not None and float(values["attributed_pct"]) < 100:
        given = trace.meta.get("capture_traces")
        why = f"{', '.join(given)} does not fit" if given else "the recording does not contain the capture"
        notes.append(
            f"some nodes have no known operator: {why}, and no eager run matches; {graph_origins.HOW_TO_GET_CAPTURES}"
        )
    return tuple(notes)
