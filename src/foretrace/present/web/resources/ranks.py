"""`ranks`: how the ranks of a distributed run spent their device's time, side by side."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns import job_ranks
from foretrace.errors import MissingDataError
from foretrace.ingest.run import pass_of
from foretrace.present.text import ranks as words
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import rank_stack, table
from foretrace.present.web.run_files import identity
from foretrace.ranks import stacked
from foretrace.ranks.cycles import Recording, choose
from foretrace.ranks.reduce import Ranks
from foretrace.ranks.summarise import of_trace
from foretrace.ranks.unused import Unused
from foretrace.units import counted, format_value

_PARTS = {
    "computation": "compute", "exposed_communication": "exposed communication", "exposed_copy": "exposed copies",
    "earlier": "work from before", "idle": "idle",
}  # fmt: skip
_MOST_HOPS = 400  # of the path that are drawn
_SAYS = {
    "step_ns": "median step, on the GPU's clock where there is one",
    "communication_ns": "time in which anything communicated",
    "exposed_communication_ns": "the part of it in which nothing computed",
    "overlap_pct": "of communication_ns, hidden behind computation",
    "computation_ns": "time in which kernels computed",
    "idle_ns": "time in which the device did nothing",
    "idle_pct": "of the device's span: from the first start to the last end of launched work",
}


def ranks(view: RecordingView, peers: Sequence[RecordingView] = ()) -> dict[str, Any]:
    """This run's rank, with those of its peers: runs of the same group with other ranks."""
    members, unused = _members(view, peers)
    ordered = [members[number] for number in sorted(members)]
    shares = [_shares(each) for each in ordered]
    if not any(shares):
        raise MissingDataError(
            f"{view.trace.path.name}: no GPU work recorded; record with ProfilerActivity.CUDA"
        )
    frame = pl.DataFrame([_row(each) for each in ordered], infer_schema_length=None)
    job, runs = _job(view, members, unused)
    says = _says(view, ordered, job)
    return {
        "says": says,
        **together(job, runs, _rank(view)),
        "ranks": sorted(members),
        "parts": list(_PARTS.values()),
        "share_pct": [share or [0.0] * len(_PARTS) for share in shares],
        "table": {"name": "ranks", "says": says, **table.of_frame(frame, _SAYS), "values": [],
                  "notes": [each.says for each in job.unused] if job else []},
    }  # fmt: skip


def stack(view: RecordingView, peers: Sequence[RecordingView], query: Mapping[str, str]) -> dict[str, Any]:
    """One step of several of these ranks on the common clock."""
    job, _ = _job(view, *_members(view, peers))
    if job is None:
        raise MissingDataError(f"{view.trace.path.name}: its ranks could not be put on one clock")
    return rank_stack.of_query(job, query)


def _members(
    view: RecordingView, peers: Sequence[RecordingView]
) -> tuple[dict[int, RecordingView], tuple[Unused, ...]]:
    """The view of each rank, and recordings of the same ranks at other times, which are left out."""
    of_group = [view, *(peer for peer in peers if peer.group == view.group and peer is not view)]
    members = {_rank(each): each for each in reversed(of_group)}
    if len(members) in (1, len(of_group)):
        return members, ()
    of_pass = _pass(view)
    of_group = [each for each in of_group if _pass(each) == of_pass]
    own, *others = [f"{place} {each.name}" for place, each in enumerate(of_group)]
    views = dict(zip([own, *others], of_group, strict=True))
    recordings = [Recording(name, of_trace(each.trace, rank=_rank(each))) for name, each in views.items()]
    chosen = choose(recordings, own=own)
    named = (
        replace(
            each,
            path=views[each.path].name,
            says=f"{views[each.path].name}: another recording of rank {each.rank}, not compared",
        )
        for each in chosen.unused
    )
    return {recording.rank: views[recording.path] for recording in chosen.recordings}, tuple(named)


def _pass(view: RecordingView) -> str | None:
    """Which pass of a Run a recording is; ranks are compared within one."""
    made = pass_of(view.trace.path)
    return made.kind if made else None


def _job(
    view: RecordingView, members: Mapping[int, RecordingView], unused: Sequence[Unused]
) -> tuple[Ranks | None, dict[int, str]]:
    """The job and the id of each rank's run; kept, for every step that is looked at is asked for by itself."""
    kept: list[Any] = view.keep("job of ranks", list)
    of = [members[number] for number in sorted(members)]
    for refs, job, runs in tuple(kept):
        if len(refs) == len(of) and all(ref() is member for ref, member in zip(refs, of, strict=True)):
            return job, runs
    cases = _cases(view, members)
    job = job_ranks.find(cases, view.case, unused) if len(cases) > 1 else None
    runs = {number: identity(case.trace.path) for number, case in cases.items()}
    runs |= {number: member.id for number, member in members.items()}
    kept[:] = [([weakref.ref(member) for member in of], job, runs)]
    return job, runs


def _cases(view: RecordingView, members: Mapping[int, RecordingView]) -> dict[int, Case]:
    """Of all ranks of the job: those that are shown, and those whose recordings lie beside this one."""
    cases = {number: member.case for number, member in members.items()}
    world = view.trace.meta.get("world_size")
    if len(cases) == world:
        return cases
    try:
        for other in view.case.other_ranks():
            number = other.trace.meta.get("rank")
            if isinstance(number, int):
                cases.setdefault(number, other)
    except MissingDataError:
        return cases  # those that are shown are compared all the same
    return dict(sorted(cases.items()))


def together(job: Ranks | None, runs: Mapping[int, str], own: int) -> dict[str, Any]:
    """The ranks on one clock: lateness by step, the arrivals at the collective with most skew, and the path across ranks."""
    if job is None:
        nothing: dict[str, Any] = {"arrivals": None, "stack": None}
        return nothing | {name: [] for name in ("job", "steps", "late_ns", "runs", "path", "findings")}
    hops = job.path.tail(_MOST_HOPS)
    return {
        "job": job.job.ranks.tolist(),
        "steps": job.job.steps.tolist(),
        "late_ns": [
            [None if np.isnan(value) else round(float(value)) for value in row] for row in job.lateness_ns
        ],
        "runs": [runs[number] for number in job.job.ranks.tolist()],
        "arrivals": _arrivals(job),
        "stack": rank_stack.of_step(job, stacked.worst_step(job), [own]) if len(job.job.steps) else None,
        "path": [
            [hop["rank"], hop["what"], round(hop["start_ns"]), round(hop["end_ns"])]
            for hop in hops.to_dicts()
        ],
        "findings": [
            [each.what, each.who, each.says, round(each.worth_ns), each.at_least] for each in job.findings
        ],
    }


def _arrivals(job: Ranks) -> dict[str, Any] | None:
    """Of the collective with the most skew: how long after the first each rank arrived."""
    table = job.collectives
    if table.is_empty():
        return None
    # Of two members one waits for the other: an arrival strip tells more of larger groups.
    many = table.filter(pl.col("recorded_count") > 2)
    worst = (table if many.is_empty() else many).sort("skew_ns", descending=True).row(0, named=True)
    rows = np.flatnonzero(job.matches.number == worst["communication"])
    first = float(job.measured.arrive_ns[rows].min())
    return {
        "kind": worst["kind"],
        "step": worst["step"],
        "ranks": job.job.ranks[job.job.member[rows]].tolist(),
        "after_ns": [round(float(at) - first) for at in job.measured.arrive_ns[rows]],
    }


def _rank(view: RecordingView) -> int:
    return int(view.trace.meta.get("rank") or 0)


def _shares(view: RecordingView) -> list[float]:
    """The parts of the device's span; collectives on the host (gloo) that the device waits for count as communication."""
    values = view.result("overview").values
    times = {part: values.get(f"{part}_ns") for part in _PARTS}
    known = {part: float(time) for part, time in times.items() if isinstance(time, int | float)}
    span = values.get("span_ns")
    if len(known) < len(_PARTS) or not isinstance(span, int) or not span:
        return []
    on_host = min(max(_exposed_ns(view) - known["exposed_communication"], 0.0), known["idle"])
    known["exposed_communication"] += on_host
    known["idle"] -= on_host
    return [100 * known[part] / span for part in _PARTS]


def _exposed_ns(view: RecordingView) -> float:
    """Communication in which nothing computed, on the device or the host."""
    found = view.maybe("communication")
    exposed = found.values.get("exposed_ns") if found is not None else None
    return float(exposed) if isinstance(exposed, int | float) else 0.0


def _row(view: RecordingView) -> dict[str, Any]:
    values = view.result("overview").values
    communication = view.maybe("communication")
    talk = communication.values if communication is not None else {}
    return {
        "rank": _rank(view),
        "name": view.name,
        "step_ns": values.get("step_gpu_ns") or values.get("step_host_ns"),
        "computation_ns": values.get("computation_ns"),
        "communication_ns": talk.get("communication_ns"),
        "exposed_communication_ns": talk.get("exposed_ns"),
        "overlap_pct": talk.get("overlap_pct"),
        "idle_ns": values.get("idle_ns"),
        "idle_pct": values.get("idle_pct"),
    }


def _says(view: RecordingView, ordered: list[RecordingView], job: Ranks | None) -> str:
    size = view.trace.meta.get("world_size")
    if job is None and len(ordered) == 1:
        of = f" of {size}" if size else ""
        return f"rank {_rank(view)}{of}: open the recordings of the other ranks beside it to compare them"
    if job is not None:
        return words.headline(job)
    most, where = max((_exposed_ns(each), _rank(each)) for each in ordered)
    return (
        f"{counted(len(ordered), 'rank')}, whose collectives cannot be compared; rank {where} has the most exposed "
        f"communication, {format_value('_ns', most)}"
    )
