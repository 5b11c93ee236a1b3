"""A rank's recording becomes its Summary: one pass, kilobytes out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import collective_calls
from foretrace.errors import ForetraceError, MissingDataError
from foretrace.ingest import open_trace
from foretrace.ingest.run import read_facts
from foretrace.intervals import Intervals
from foretrace.ranks import leads
from foretrace.ranks.summary import KIND_CODE, NOBODY, STEPS, Group, Summary, runs_of
from foretrace.trace import Step, Trace
from foretrace.urls import located

_HOST_IN_NAME = re.compile(r"(?P<host>[\w.-]+?)_\d+\.\d+\.pt\.trace\.json(?:\.gz)?")
_SUFFIXES = re.compile(r"(?:\.pt)?(?:\.trace)?\.json(?:\.gz|\.zst)?$", re.IGNORECASE)
# worker3, trace.3 or 3-trace; longer numbers are of processes and times.
_NUMBERS = (
    re.compile(r"(?:worker|process|proc|gpu|device)[-_.]?(\d{1,4})(?!\d)", re.IGNORECASE),
    re.compile(r"(?<!\d)(\d{1,4})$"),
    re.compile(r"^\D*(\d{1,4})\D*$"),
)
_CUT = re.compile(r",\s*\.\.\.\s*\]$")


def summarise(path: str | os.PathLike[str], *, rank: int | None = None) -> Summary:
    """The Summary of the rank that a recording is of; `rank` says which, where the recording does not."""
    place = located(path)
    return of_trace(open_trace(place, cache=False), rank=rank, facts=_beside(place))


def _beside(path: Path) -> Mapping[str, Any]:
    """What `foretrace run` wrote down of the rank beside its recording; nothing where that is not one of a Run."""
    try:
        return read_facts(path.parent / "rank.json")
    except ForetraceError:
        return {}


def of_trace(trace: Trace, *, rank: int | None = None, facts: Mapping[str, Any] | None = None) -> Summary:
    """The Summary of a recording that was read already; `facts` are those of its rank in a Run."""
    facts = _beside(trace.path) if facts is None else facts
    own = trace.meta.get("rank") if rank is None else rank
    own = rank_in_name(trace.path.name) if own is None else own
    if not isinstance(own, int):
        raise MissingDataError(f"{trace.path.name}: no rank in it, nor in its name")
    steps = trace.steps or (Step(NOBODY, 0, trace.duration_ns),)
    calls = _calls(trace, own)
    groups, codes = _groups(trace, calls, own, facts)
    calls = _paired(calls, groups, codes, own)
    activity = leads.Activity.of(trace)
    rows, under_way = leads.rows(calls.with_columns(group=pl.Series(codes, dtype=pl.Int32)), activity, steps)
    devices = trace.meta.get("devices") or [{}]
    return Summary(
        rank=own,
        world=trace.meta.get("world_size"),
        source=trace.path.name,
        host=_host(trace, facts),
        device=_device(calls),
        device_name=devices[0].get("name") if isinstance(devices[0].get("name"), str) else None,
        epoch_ns=int(trace.meta["epoch_ns"]),
        begin_ns=steps[0].start_ns,
        **_host_clock(trace, facts),
        marks=(trace.meta.get("step_marks") or {}).get("source"),
        groups=groups,
        repairs=tuple((repair.code, repair.count) for repair in trace.repairs),
        rows=rows,
        steps=_steps(steps, activity, under_way),
    )


def rank_in_name(name: str) -> int | None:
    """The rank by the number in a file's name; None where it has none that may be one."""
    stem = _SUFFIXES.sub("", name)
    found = next((match for match in (each.search(stem) for each in _NUMBERS) if match), None)
    return int(found[1]) if found else None


def _calls(trace: Trace, own: int) -> pl.DataFrame:
    """Communications that were seen to run, in order of start, with the stream and when they were launched."""
    calls = collective_calls.find(trace).filter((pl.col("on") != "call") & pl.col("dur_ns").is_not_null())
    if trace.steps:
        calls = calls.with_columns(leads.step_of(trace, calls))
        calls = calls.filter(pl.col("step").is_not_null())
    spans = trace.spans.select("track_id", "launch_id")[calls["id"]]
    launched = trace.spans["start_ns"].gather(spans["launch_id"])
    source, destination = pl.col("source"), pl.col("destination")
    # Where both ends are told, the rank's own number says which it is; else the name does; else what is told.
    direction = (
        pl.when((source == own) & (destination != own))
        .then(pl.lit("send"))
        .when((destination == own) & (source != own))
        .then(pl.lit("recv"))
        .when(source.is_null() & destination.is_not_null())
        .then(pl.lit("send"))
        .when(destination.is_null() & source.is_not_null())
        .then(pl.lit("recv"))
        .otherwise("direction")
    )
    paired = pl.col("collective") == "send_recv"
    directed = pl.when(paired).then(pl.coalesce(direction, "collective")).otherwise("collective")
    return calls.with_columns(
        spans["track_id"],
        launched.alias("launched_ns"),
        pl.col("step").fill_null(NOBODY),
        kind=directed.replace_strict(KIND_CODE, default=KIND_CODE["unknown"], return_dtype=pl.UInt8),
        peer=pl.when(directed == "recv")
        .then(pl.coalesce("source", "destination"))
        .otherwise(pl.coalesce("destination", "source"))
        .fill_null(NOBODY)
        .cast(pl.Int32),
    )


def _paired(calls: pl.DataFrame, groups: tuple[Group, ...], codes: list[int], own: int) -> pl.DataFrame:
    """Sends and receives of groups of two, whose other end is not told: it is the other member."""
    others = [
        group.members[group.members[0] == own] if len(group.members) == 2 and own in group.members else NOBODY
        for group in groups
    ]
    other = pl.Series([others[code] for code in codes], dtype=pl.Int32)
    unknown = pl.col("kind").is_in((KIND_CODE["send"], KIND_CODE["recv"])) & (pl.col("peer") < 0)
    return calls.with_columns(peer=pl.when(unknown).then(other).otherwise("peer"))


def _host(trace: Trace, facts: Mapping[str, Any]) -> str | None:
    told = facts.get("host")
    if isinstance(told, str) and told:
        return told
    match = _HOST_IN_NAME.fullmatch(trace.path.name)
    return match["host"] if match else None


def _host_clock(trace: Trace, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The host's own clock, which no date is set on: ranks of one host share it, whatever their recordings say of the date."""
    clock = facts.get("clock")
    told = clock if isinstance(clock, Mapping) else {}
    boot, at, date = told.get("boot"), told.get("monotonic_ns"), told.get("epoch_ns")
    if not isinstance(boot, str) or not isinstance(at, int) or not isinstance(date, int):
        return {"boot": None, "host_zero_ns": None}
    return {"boot": boot, "host_zero_ns": int(trace.meta["epoch_ns"]) - date + at}


def _groups(
    trace: Trace, calls: pl.DataFrame, own: int, facts: Mapping[str, Any]
) -> tuple[tuple[Group, ...], list[int]]:
    """The groups of the calls, and for each call which one it is of."""
    configured = {**_by_name(facts.get("groups")), **_configured(trace)}
    world = trace.meta.get("world_size")
    known: dict[tuple[Any, ...], int] = {}
    groups: list[Group] = []
    codes = []
    for name, told, size in calls.select("group", "ranks", "ranks_count").iter_rows():
        key = (name, told, size)
        if key not in known:
            known[key] = len(groups)
            groups.append(_group(name, told, size, configured, world, own))
        codes.append(known[key])
    return tuple(groups), codes


def _group(
    name: str | None,
    told: str | None,
    size: int | None,
    configured: Mapping[str, Mapping[str, Any]],
    world: int | None,
    own: int,
) -> Group:
    """Members as recorded; torch cuts a long list, so that those of more are taken from the header."""
    about = configured.get(name or "", {})
    description = str(about.get("pg_desc") or "")
    listed = _listed(told)
    if listed is None:
        from_header = about.get("ranks")
        if isinstance(from_header, list) and all(isinstance(each, int) for each in from_header):
            listed = tuple(from_header)
        count = about.get("pg_size", about.get("group_size", size))
        if not listed and isinstance(count, int) and count == world:
            listed = tuple(range(count))
        if listed is not None and ((size is not None and len(listed) != size) or own not in listed):
            listed = None
    count = size if size is not None else len(listed or ())
    return Group(name or "", description, count, runs_of(listed or ()))


def _configured(trace: Trace) -> dict[str, Mapping[str, Any]]:
    about = trace.meta.get("distributed")
    return _by_name(about.get("pg_config") if isinstance(about, Mapping) else None)


def _by_name(groups: object) -> dict[str, Mapping[str, Any]]:
    return {
        str(group.get("pg_name")): group
        for group in (groups if isinstance(groups, list) else ())
        if isinstance(group, Mapping)
    }


def _listed(told: str | None) -> tuple[int, ...] | None:
    """The members that the text lists; None where it is cut or is no list."""
    if not told or _CUT.search(told):
        return None
    try:
        members = json.loads(told)
    except ValueError:
        return None
    whole = isinstance(members, list) and members and all(type(each) is int for each in members)
    return tuple(members) if whole else None


def _device(calls: pl.DataFrame) -> int | None:
    devices = calls["device"].drop_nulls().unique()
    return int(devices[0]) if len(devices) == 1 else None


def _steps(steps: tuple[Step, ...], activity: leads.Activity, under_way: Intervals) -> pl.DataFrame:
    """One row per step."""
    numbers = np.array([step.number for step in steps])
    return pl.DataFrame(
        {
            "step": numbers,
            "start_ns": [step.start_ns for step in steps],
            "end_ns": [step.end_ns for step in steps],
            **activity.per_step(numbers, steps[0].start_ns, under_way),
        },
        schema=STEPS,
    )
