"""The tables of Ranks: clocks, collectives, waits, lateness, links, the path and who held each step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from foretrace import hardware
from foretrace.ranks.clocks import Clocks
from foretrace.ranks.findings import RankFinding
from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import RECV, SEND, Matches
from foretrace.ranks.roles import Roles
from foretrace.ranks.summary import KINDS, STEP
from foretrace.ranks.waits import Waits, skew_ns

_NAMES = pl.Series([*KINDS[:-1], "step"])
_MOST_HOPS = 200_000
# Bus bandwidth over algorithm bandwidth for n ranks, as in NCCL's tests; 1 for the rest.
_SHARED_OUT = ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")


def clocks(job: Gathered, aligned: Clocks, roles: Roles) -> pl.DataFrame:
    """One row per rank."""
    return pl.DataFrame(
        {
            "rank": job.ranks,
            "node": roles.node,
            "host": pl.Series(job.hosts, dtype=pl.String),
            "stage": roles.stage,
            "role": roles.role,
            "clock_piece": aligned.pieces,
            "offset_ns": aligned.offset_ns,
            "drift_ppm": aligned.drift * 1e6,
        }
    )


def collectives(job: Gathered, matches: Matches, waits: Waits) -> pl.DataFrame:
    """One row per communication with several members, in order of time."""
    chosen = np.flatnonzero(matches.count > 1)
    row = matches.order[matches.first[chosen]]
    kind = _NAMES.gather(np.where(job.kind[row] == RECV, SEND, job.kind[row]))
    size = _most(job.size_bytes, matches)[chosen]
    transfer = waits.transfer_ns[chosen]
    members = matches.expected[chosen]
    moved = np.where((size > 0) & (transfer > 0), size / np.maximum(transfer, 1) * 1e9, np.nan)
    return pl.DataFrame(
        {
            "communication": chosen,
            "step": job.step[row],
            "kind": kind,
            "ranks_count": members,
            "recorded_count": matches.count[chosen],
            "size_bytes": pl.Series(size).set(pl.Series(size < 0), None),
            "arrived_ns": waits.latest_ns[chosen],
            "skew_ns": skew_ns(waits, matches)[chosen],
            "transfer_ns": transfer,
            "algorithm_bytes_per_s": pl.Series(moved).fill_nan(None),
            "bus_bytes_per_s": pl.Series(moved * _bus_factors(kind, members)).fill_nan(None),
            "last_rank": job.ranks[job.member[waits.last_row[chosen]]],
        }
    ).sort("arrived_ns", maintain_order=True)


def waits(job: Gathered, matches: Matches, measured: Waits) -> pl.DataFrame:
    """One row per rank and step; waits that the rank stood still for, in receives apart: those are the pipeline's bubble."""
    several = (matches.count > 1)[matches.number] & job.still
    waited = np.where(several, np.minimum(measured.wait_ns, _stood(job, measured)), 0.0)
    received = np.where(job.kind == RECV, waited, 0.0)
    tables = {"stall_ns": _per_step(job, waited), "bubble_ns": _per_step(job, received)}
    ranks, steps = len(job.ranks), len(job.steps)
    return pl.DataFrame(
        {
            "rank": np.repeat(job.ranks, steps),
            "step": np.tile(job.steps, ranks),
            **{name: table.ravel() for name, table in tables.items()},
            **{name: job.per_step[name].ravel() for name in ("computation_ns", "input_ns", "other_ns")},
        }
    ).with_columns(pl.selectors.float().fill_nan(None))


def late(job: Gathered, lateness_ns: Array) -> pl.DataFrame:
    """One row per rank and step: the most by which it arrived after the median member of a communication."""
    ranks, steps = lateness_ns.shape
    return pl.DataFrame(
        {
            "rank": np.repeat(job.ranks, steps),
            "step": np.tile(job.steps, ranks),
            "late_ns": pl.Series(lateness_ns.ravel()).fill_nan(None),
        }
    )


def links(job: Gathered, matches: Matches, measured: Waits, roles: Roles) -> pl.DataFrame:
    """One row per kind, size, group size and reach."""
    table = collectives(job, matches, measured).filter(pl.col("ranks_count") == pl.col("recorded_count"))
    nodes = roles.node[job.member].astype(np.int64)
    low = np.minimum.reduceat(nodes[matches.order], matches.first)
    high = np.maximum.reduceat(nodes[matches.order], matches.first)
    crossing = (low != high)[table["communication"].to_numpy()]
    known = hardware.match(job.device_name) if job.device_name else None
    link = (known.nvlink_bytes or known.pcie_bytes) if known else None
    grouped = (
        table.with_columns(reach=pl.Series(np.where(crossing, "between nodes", "in one node")))
        .group_by("kind", "size_bytes", "ranks_count", "reach")
        .agg(
            calls_count=pl.len(),
            transfer_ns=pl.col("transfer_ns").median(),
            skew_ns=pl.col("skew_ns").median(),
            bus_bytes_per_s=pl.col("bus_bytes_per_s").median(),
        )
        .sort("kind", "size_bytes", "ranks_count", "reach", nulls_last=True)
    )
    inside = pl.col("reach") == "in one node"
    share = 100 * pl.col("bus_bytes_per_s") / link if link else pl.lit(None, pl.Float64)
    return grouped.with_columns(link_pct=pl.when(inside).then(share))


def path(job: Gathered, matches: Matches, measured: Waits) -> pl.DataFrame:
    """From the last end back: the transfer, then the last arriver's work before it, and so on, in order of time."""
    marks = np.flatnonzero(job.kind == STEP)
    if not len(marks):
        return pl.DataFrame(schema=_PATH)
    row = int(marks[np.argmax(measured.leave_ns[marks])])
    hops: list[tuple[int, int, str, float, float]] = []
    for _ in range(_MOST_HOPS):
        number = int(matches.number[row])
        last = int(measured.last_row[number])
        rank, step = int(job.ranks[job.member[last]]), int(job.step[row])
        kind = KINDS[int(job.kind[row])]
        if kind != "step":
            hops.append((step, rank, kind, measured.latest_ns[number], measured.left_ns[number]))
        before, queued = int(job.before[last]), int(job.queued[last])
        start = float(measured.arrive_ns[last])
        if job.queue_ns[last] >= 0 and queued >= 0:
            row = queued
            continue
        since = (
            float(measured.leave_ns[before]) if before >= 0 else float(measured.begin_ns[job.member[last]])
        )
        hops += [(step, rank, *part) for part in reversed(_lead_parts(job, last, since, start))]
        if before < 0:
            break
        row = before
    frame = pl.DataFrame(hops, schema=_PATH, orient="row")
    zero = float(measured.begin_ns.min())
    return frame.reverse().with_columns(pl.col("start_ns") - zero, pl.col("end_ns") - zero)


_PATH = {
    "step": pl.Int64,
    "rank": pl.Int64,
    "what": pl.String,
    "start_ns": pl.Float64,
    "end_ns": pl.Float64,
}


def _lead_parts(job: Gathered, row: int, since: float, until: float) -> list[tuple[str, float, float]]:
    """Input, other pauses and computation of a lead, one after the other: a summary does not hold their order."""
    lead, computed, loaded = (
        float(values[row]) for values in (job.lead_ns, job.computation_ns, job.input_ns)
    )
    lead = max(lead, computed + loaded)
    lengths = {"input": loaded, "other": lead - computed - loaded, "computation": computed}
    if lead <= 0 or until <= since:
        return [("computation", since, until)]
    parts = []
    at, scale = since, (until - since) / lead
    for name, length in lengths.items():
        if length > 0:
            parts.append((name, at, at + scale * length))
            at += scale * length
    return parts


def held(job: Gathered, matches: Matches, measured: Waits) -> pl.DataFrame:
    """For each step the rank that the path stays with longest by arriving after the second of its group."""
    hops = path(job, matches, measured).filter(pl.col("what").is_in(("computation", "input", "other")))
    return (
        hops.with_columns(time_ns=pl.col("end_ns") - pl.col("start_ns"))
        .group_by("step", "rank")
        .agg(time_ns=pl.col("time_ns").sum())
        .sort("step", "time_ns", "rank", descending=(False, True, False))
        .group_by("step", maintain_order=True)
        .first()
    )


def what_if(findings: Sequence[RankFinding], step_ns: float) -> pl.DataFrame:
    """One row per finding."""
    return pl.DataFrame(
        [
            {
                "what": finding.what,
                "who": finding.who,
                "worth_ns": finding.worth_ns,
                "worth_pct": 100 * finding.worth_ns / step_ns if step_ns else 0.0,
                "at_least": finding.at_least,
                "says": finding.says,
            }
            for finding in findings
        ],
        schema={
            "what": pl.String, "who": pl.String, "worth_ns": pl.Float64, "worth_pct": pl.Float64, "at_least": pl.Boolean,
            "says": pl.String,
        },
    )  # fmt: skip


def _stood(job: Gathered, measured: Waits) -> Array:
    """How long a rank stood still before it left a communication."""
    before = np.where(
        job.previous >= 0, measured.leave_ns[np.maximum(job.previous, 0)], measured.begin_ns[job.member]
    )
    stood: Array = np.maximum(measured.leave_ns - before - np.maximum(job.work_ns, 0.0), 0.0)
    return stood


def _per_step(job: Gathered, values: Array) -> Array:
    table = np.zeros((len(job.ranks), len(job.steps)))
    np.add.at(table, (job.member, np.searchsorted(job.steps, job.step)), values)
    return table


def _most(values: Array, matches: Matches) -> Array:
    most: Array = np.maximum.reduceat(values[matches.order], matches.first)
    return most


def _bus_factors(kind: pl.Series, members: Array) -> Array:
    shared = kind.is_in(_SHARED_OUT).to_numpy()
    factors: Array = np.where(shared, (members - 1) / members, 1.0)
    return np.where((kind == "all_reduce").to_numpy(), 2 * (members - 1) / members, factors)
