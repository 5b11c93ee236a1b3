"""The program waits for its input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.analyze.concepts.names.named_spans import ids_like
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import SHOWN_SPANS
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.operators import calling_threads, on_calling_threads
from foretrace.diagnose.patterns import host_work, loader_pace
from foretrace.diagnose.patterns.loader_pace import WORKS_SHARE, Pace  # noqa: F401  # named on the page
from foretrace.diagnose.rule import CPU, GPU, headline, healthy, on, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict import edits
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import ProgramTime
from foretrace.predict.steady import step_ns
from foretrace.sourced import JUDGEMENT, Count, Factor, Share
from foretrace.units import format_value

LEAST_SHARE = Share(0.05, "the step", JUDGEMENT)
_SOME = "Load in worker processes, ahead of the step."
_MORE = "Use more workers, or prepare less."
_LESS = "Prepare less for each item: every core has a worker, and more would slow them all down."
_CHEAP = "Make the batch cheaper, or leave it as it is: workers would make the program slower."
_WHAT_IS_SLOW = (
    'cProfile.run("for i in range(100): loader.dataset[i]", sort="cumtime")  # what takes long in an item'
)
_WHY = "The step computes nothing until the batch is there."
_MANY = Count(8, "workers to write where nobody knows how many fit", JUDGEMENT)
_UNKNOWN_CORES = "how many cores are idle is not recorded"
_NO_CORE = "Prepare less for each item: no core is idle, and a worker would take one from the step."
_LOADER = (
    "loader = DataLoader(dataset, num_workers={workers}, persistent_workers=True, {pinned}prefetch_factor=4)"
)


def _no_issue(values: Mapping[str, Any]) -> str | None:
    wait = values.get("wait_per_step_ns")
    if not values.get("calls_count"):
        return "no DataLoader was waited for"
    return None if wait is None else f"{format_value('_ns', wait)} of waiting a step"


@on(GPU, CPU)
@headline("{wait_pct:.0f} % of every step is spent waiting for data")
@healthy("input", _no_issue)
@rule("The program waits for its input", "Input", see="input")
def input_bound(case: Case) -> Iterator[Finding]:
    """Steps wait for their input, from a DataLoader or made in line, and compute nothing meanwhile.

    Finds waits for a DataLoader or DataPipe of at least {LEAST_SHARE} of the step. Beside a loader or without one, it looks
    for stretches of Python or operators on the host, as host-stall does, right before a copy to the device, unless they
    begin with results of the same step.

    Slow
        loader = DataLoader(dataset)

    Fast
        loader = DataLoader(dataset, num_workers=8, persistent_workers=True)

    Why
    The step computes nothing until the batch is there. Worker processes prepare the next batches while a step computes;
    cheaper preparation helps as well.

    How the worth is predicted
    Loading in the main process is replayed in workers: a step then takes the longer of the rest and load · t / W, for
    W = {WORKERS} workers (the range is from {FEWEST_WORKERS} to {MOST_WORKERS}, for the recording does not say how many
    there could be), where t is 1 for Python and {ONE_THREAD} (1 to {ONE_THREAD_MOST}) for the time in torch's own
    operators, which have all cores in the main process and one in a worker.

    Where workers load already, twice as many are tried: a step then takes the longer of the rest and half of what it takes
    now. The range includes that they do not help, and that nothing is waited for any more.

    A Run knows more. `foretrace run` measures the wait of every unprofiled step, and what making a batch takes in the main
    process or in a worker: recorded steps are replayed with these waits, bursts included, in place of their own. Where a Run
    is older than that, and its unprofiled blocks differ widely, the quickest are taken to be without waits. Workers are then
    as many as keep up with the rest of the step, where each further one brings only half of a core, and one core stays with
    the program: a step takes the longer of the rest and load / W, at worst with half of the further ones. Where several
    threads made a batch in the main process, a worker's one needs longer: at most what all of them were busy, but they are
    busy waiting for one another too, so the geometric middle of both is taken. Where the command
    names them (`--num-workers 4`, `-j 4`) and nothing else does, that is how many there are. Nothing is promised where
    all cores have a worker, or where a processor works in less than {WORKS_SHARE} of the time that a batch takes.

    Workers need idle cores. Those that other programs used while steps were timed are not counted, and where none is left
    besides the program's own, workers are not advised. Where a program computes on the CPU and its threads use the cores that
    workers would take, the range includes a step that is longer by as much as its threads have fewer cores, and batches that
    take longer by as much as threads and workers together exceed the cores, for threads spin while they wait.

    Input made in line is replayed in workers as above. Where most of that time is Python, the range includes a thread,
    which runs only while the main thread waits for the device. Where steps bring results to the host, nothing is promised:
    the next input may depend on them.

    When not
    The machine has fewer cores than workers, the disk limits loading, what is prepared depends on what the step before
    computed, or a batch is made in less time than sending it from a worker takes.
    """
    if not case.on_cpu:
        yield from _made_in_line(case)
    yield from _loaded(case)


def _loaded(case: Case) -> Iterator[Finding]:
    """Input that a DataLoader or DataPipe brings too late."""
    waits = _waits(case)
    by_workers = bool(waits["name"].cast(pl.String).str.contains("MultiProcessing").any())
    found = loader_pace.pace(case)
    if found is not None:
        yield from _timed(case, waits, found)
        return
    host = intervals.clip(case.during(waits), 0, case.program.measured_host_ns)
    share = host.total_ns / max(case.program.measured_host_ns, 1)
    if too_little(case, "the host waits for the DataLoader", share, LEAST_SHARE):
        return
    most = loader_pace.most_workers(case)
    change = _more_workers(case, host) if by_workers else _in_workers(case, host, most)
    loader = "its workers are too slow" if by_workers else "the main process loads it"
    yield Finding(
        says=f"{100 * share:.0f} % of the host's time, {host.total_ns / case.step_count / 1e6:.3g} ms a step, is spent "
        f"waiting for the DataLoader: {loader}.",
        why=_WHY,
        fix=_fix(case, most, _MORE if by_workers else _SOME),
        evidence={
            "wait_ns": host.total_ns // case.step_count,
            "wait_pct": 100 * share,
            "loader": "by workers" if by_workers else "in the main process",
            **_assumed(most),
            "spans": waits["id"].head(SHOWN_SPANS).to_list(),
        },
        where=_callers(case, waits),
        change=None if most == 0 else change,
        at_best=share if most == 0 else 0.0,
        unless="the machine has fewer cores than workers, or what limits loading is the disk.",
    )


def _timed(case: Case, waits: pl.DataFrame, found: Pace) -> Iterator[Finding]:
    """The same, with the waits of all unprofiled steps."""
    share = found.wait_ns / case.step_ns
    if too_little(case, "the host waits for the DataLoader", share, LEAST_SHARE):
        return
    by_workers = found.workers != 0
    some = f"its {found.workers} workers are" if found.workers else "its workers are"
    change, wanted, fix = _with_more(case, found) if by_workers else _with_some(case, waits, found)
    yield Finding(
        says=f"{loader_pace.sentence(case, found)}: "
        + (f"{some} too slow." if by_workers else "the main process loads it."),
        why=_WHY,
        fix=fix,
        evidence={
            "wait_ns": round(found.wait_ns),
            "wait_pct": 100 * share,
            "loader": "by workers" if by_workers else "in the main process",
            "spans": waits["id"].head(SHOWN_SPANS).to_list(),
            **loader_pace.evidence(case, found, wanted),
        },
        where=_callers(case, waits) if waits.height else (),
        change=change,
        at_best=0.0 if change else share,
        unless=_unless(found),
    )


def _with_more(case: Case, found: Pace) -> tuple[Change, int | None, Fix]:
    """More workers, as many as are wanted, where some load already."""
    change, wanted = loader_pace.more_workers(case, found), found.wanted
    if found.workers and found.most is not None and found.workers >= found.most:
        return change, None, Fix(_LESS, _WHAT_IS_SLOW)
    return (
        change,
        wanted,
        Fix(_MORE, _loader(wanted or 2 * (found.workers or WORKERS), pinned=not case.on_cpu)),
    )


def _with_some(case: Case, waits: pl.DataFrame, found: Pace) -> tuple[Change | None, int, Fix]:
    """Workers where the main process loads, and an idle core for each."""
    if found.most == 0:
        return None, 0, Fix(_NO_CORE, _WHAT_IS_SLOW)
    operators = _operators_share(case, case.during(waits))
    slower = (1 + (ONE_THREAD - 1) * operators, 1 + (ONE_THREAD_MOST - 1) * operators)
    first = loader_pace.first_workers(case, found, slower, (WORKERS, FEWEST_WORKERS, MOST_WORKERS))
    made = found.made_ns or found.wait_ns
    if first.sent_ns > made:
        sent, there = (format_value("_ns", time) for time in (first.sent_ns, made))
        fix = Fix(f"{_CHEAP} Sending it from a worker takes about {sent}, making it {there}.", _WHAT_IS_SLOW)
        return first.change, first.workers, fix
    return first.change, first.workers, Fix(_SOME, _loader(first.workers, pinned=not case.on_cpu))


def _fix(case: Case, most: int | None, says: str) -> Fix:
    """Workers, as many as there are idle cores for."""
    if most == 0:
        return Fix(_NO_CORE, _WHAT_IS_SLOW)
    return Fix(says, _loader(int(_MANY if most is None else min(most, _MANY)), pinned=not case.on_cpu))


def _assumed(most: int | None) -> dict[str, Any]:
    """As evidence: how many workers there could be."""
    return (
        {"workers_assumed": f"{FEWEST_WORKERS} to {MOST_WORKERS}"}
        if most is None
        else {"workers_wanted_count": int(min(most, _MANY))}
    )


def _loader(workers: int, *, pinned: bool) -> str:
    """The line to write; pinned memory is for copies to a GPU."""
    return _LOADER.format(workers=workers, pinned="pin_memory=True, " if pinned else "")


def _unless(found: Pace) -> str:
    if found.most == 0:
        return "a core is idle later: then load in worker processes."
    if found.most is None:
        return "the machine has fewer cores than workers, or what limits loading is the disk."
    return (
        f"what limits loading is the disk; more than {found.most} workers would take the cores of the program itself and "
        "make it slower."
    )


def _made_in_line(case: Case) -> Iterator[Finding]:
    """Input that the program makes on the host right before it is copied."""
    work = [piece for piece in host_work.host_work(case) if piece.feeds and not piece.answers]
    host = host_work.spent(work)
    share = host.total_ns / case.step_count / case.step_ns
    if not host_work.recurs(case, work) or too_little(case, "input is made in the step", share, LEAST_SHARE):
        return
    operators = sum(piece.operators_ns for piece in work) / host.total_ns
    yield Finding(
        says=f"The host spends {host.total_ns / case.step_count / 1e6:.3g} ms of a step on input, right before it copies "
        "that to the device.",
        why=_WHY,
        fix=_fix(
            case,
            loader_pace.most_workers(case),
            "Prepare the next batch in worker processes while the GPU computes; a thread shares Python with the step.",
        ),
        evidence={
            "wait_ns": host.total_ns // case.step_count,
            "wait_pct": 100 * share,
            "loader": "in the step",
            "operators_pct": 100 * operators,
            "spans": _copied_by(case, host),
        },
        change=_prepared_ahead(case, host, operators),
        unless="what is prepared depends on what the step before computed.",
    )


def _copied_by(case: Case, host: ProgramTime) -> list[int]:
    """The first calls after some work of the host."""
    calls = np.searchsorted(case.program.call_start_ns, host.end[:SHOWN_SPANS]) % len(case.program.call_span)
    spans: list[int] = case.program.call_span[calls].tolist()
    return spans


def _waits(case: Case) -> pl.DataFrame:
    """The spans in which the program waits for a DataLoader or DataPipe."""
    host = case.host
    if not (host.kind("op", "annotation") & (host.end_ns > host.start_ns)).any():
        case.trace.require("ops", "no operators recorded; record with ProfilerActivity.CPU")
    ids = ids_like(case.trace, ("op", "annotation"), runtime_calls.DATA_LOADING)
    ids = ids[on_calling_threads(case)[ids] & (host.end_ns[ids] > host.start_ns[ids])]
    return case.trace.spans[ids]


# How many workers a program would be given is not recorded: what is common, and a middle that does not promise much.
FEWEST_WORKERS = Count(4, "worker processes, at worst", JUDGEMENT)
WORKERS = Count(6, "worker processes", JUDGEMENT)
MOST_WORKERS = Count(12, "worker processes, at best", JUDGEMENT)
# In the main process operators of the loader use all cores; a worker has one thread. How much longer they take
# there is not recorded: at best not at all.
ONE_THREAD = Factor(2.0, "the time of torch's operators, in a worker", JUDGEMENT)
ONE_THREAD_MOST = Factor(3.0, "the time of torch's operators, in a worker at worst", JUDGEMENT)


def _in_workers(case: Case, host: ProgramTime, most: int | None) -> Change:
    """The wait gone, and what the workers cannot deliver in time added to every step."""
    operators = _operators_share(case, host)
    fewest, likely, many = (
        min(int(count), most) if most else int(count) for count in (FEWEST_WORKERS, WORKERS, MOST_WORKERS)
    )
    return Change(
        doubt=_UNKNOWN_CORES if case.on_cpu and most is None else "",
        says=f"data loaded by {likely} workers ({fewest} to {many})",
        edit=_by_workers(case, host, operators, likely, ONE_THREAD),
        others=_ends(case, host, operators, fewest, many),
    )


def _by_workers(case: Case, host: ProgramTime, operators: float, workers: int, slower: float) -> Edit:
    """The work done by so many workers, in which torch's operators take this much longer."""
    return host_work.beside(case, host, (1 + (slower - 1) * operators) / workers)


def _ends(case: Case, host: ProgramTime, operators: float, fewest: int, most: int) -> tuple[Edit, Edit]:
    return (
        _by_workers(case, host, operators, fewest, ONE_THREAD_MOST),
        _by_workers(case, host, operators, most, 1.0),
    )


def _prepared_ahead(case: Case, host: ProgramTime, operators: float) -> Change:
    """Processes prepare beside the step; where it is Python that works, a thread at worst has to wait its turn."""
    back = case.trace.copies.filter(
        (pl.col("direction") == "DtoH") & (pl.col("size_bytes") > host_work.NUMBER_BYTES)
    )
    ends = _ends(case, host, operators, FEWEST_WORKERS, MOST_WORKERS)
    return Change(
        f"input prepared by {WORKERS} workers ({FEWEST_WORKERS} to {MOST_WORKERS})",
        _by_workers(case, host, operators, WORKERS, ONE_THREAD),
        others=ends if 2 * operators >= 1 else (*ends, host_work.in_thread(case, host)),
        doubt="the next input may depend on the results that come to the host" if back.height else "",
    )


def _more_workers(case: Case, host: ProgramTime) -> Change:
    """Workers who are waited for set the pace: twice as many halve the step, down to the rest, if there are cores."""
    without = step_ns(edits.apply(case.program, Edit(removed_host=host)))
    late = max(step_ns(case.program) / 2 - without, 0)
    calls = [int(call) for call in case.program.step_calls if call < len(case.program.kind)]
    twice = Edit(removed_host=host, added_host_ns=dict.fromkeys(calls, round(late)))
    return Change(
        "twice the workers",
        twice,
        others=(Edit(), Edit(removed_host=host)),
        doubt=_UNKNOWN_CORES if case.on_cpu else "",
    )


def _operators_share(case: Case, host: ProgramTime) -> float:
    """Of the time of loading, the part in torch's operators."""
    ops = case.trace.spans.filter((pl.col("kind") == "op") & (pl.col("dur_ns") > 0))
    ops = ops.filter(~pl.col("name").cast(pl.String).str.contains(runtime_calls.DATA_LOADING))
    ops = ops.filter(pl.col("track_id").is_in(calling_threads(case)))
    return intervals.intersect(host, case.during(ops)).total_ns / max(host.total_ns, 1)


def _callers(case: Case, waits: pl.DataFrame) -> tuple[Place, ...]:
    """The user's frame around the first wait; the loader's name where no stack was recorded."""
    return (case.frame_at(int(waits["start_ns"][0])) or Place(None, None, str(waits["name"][0])),)
