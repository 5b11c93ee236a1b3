"""Python works between the operators, and the processor computes nothing for the model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import DATA_LOADING
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.operators import calling_threads
from foretrace.diagnose.patterns import loader_pace
from foretrace.diagnose.patterns.cpu_operators import clock, together
from foretrace.diagnose.rule import CPU, headline, on, rule
from foretrace.diagnose.seen import too_little
from foretrace.intervals import Intervals
from foretrace.predict.builder import QUIET_NS
from foretrace.predict.changes import Change
from foretrace.predict.numbers import ProgramTime
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.1, "the step", JUDGEMENT)
_RECURS = Share(0.5, "the steps that have such a stretch", JUDGEMENT)
_OPTIMIZER = r"^Optimizer\."


@on(CPU)
@headline("{python_pct:.0f} % of every step is Python that calls no operator")
@rule("Python works between the operators", "Python", see="steps")
def python_stretches(case: Case) -> Iterator[Finding]:
    """Long stretches of a step in which no operator of torch runs: Python, sleep, files, other libraries.

    Finds stretches of at least {QUIET_NS} between operators, outside data loaders, that take at least {LEAST_SHARE} of the
    step and come in most steps.

    Slow
        for text in texts:
            ids = tokenise(text)  # milliseconds of Python
            model(ids)

    Fast
        with ProcessPoolExecutor() as pool:
            for ids in pool.map(tokenise, texts, chunksize=64):  # made ahead, in other processes
                model(ids)

    Why
    The model's thread runs this Python itself: nothing is computed until it is done.

    How the worth is predicted
    The step is replayed without these stretches, as where other processes do the work ahead. Nothing is promised: a
    recording does not show whether the work could be done ahead, and other processes need cores of their own.

    When not
    It works on what the step has just computed, or the machine has no core to spare.
    """
    quiet = _stretches(case)
    spent = float((clock(case, quiet.end) - clock(case, quiet.start)).sum()) / case.step_count
    if too_little(case, "Python or waiting", spent / case.step_ns, LEAST_SHARE) or not _recurs(case, quiet):
        return
    yield Finding(
        says=f"Of a step, {spent / 1e6:.3g} ms ({100 * spent / case.step_ns:.0f} %) are Python or waiting, in which no "
        "operator runs.",
        why="Nothing is computed meanwhile.",
        fix=_fix(case),
        evidence={"python_pct": 100 * spent / case.step_ns, "python_ns": round(spent)},
        where=_frames(case, quiet),
        change=Change(
            "no Python between the operators",
            together(case, ((start, end, 0.0) for start, end in zip(quiet.start.tolist(), quiet.end.tolist(), strict=True))),
            doubt="whether it can be done ahead is not recorded",
        ),
        unless="it works on what the step has just computed.",
    )  # fmt: skip


def _fix(case: Case) -> Fix:
    """Other processes only where a core is idle for them."""
    if loader_pace.most_workers(case) == 0:
        return Fix(
            "Make it cheaper, with tensors or numpy for example, or do it less often: no core is idle for another process.",
            'cProfile.run("step()", sort="tottime")  # what takes long in a step',
        )
    return Fix(
        "Make it cheaper, with tensors or numpy for example, do it less often, or, where it needs no result of the step, do it "
        "ahead in other processes.",
        "with ProcessPoolExecutor() as pool:\n    for item in pool.map(prepare, items, chunksize=64):\n        model(item)",
    )


def _stretches(case: Case) -> ProgramTime:
    """Long stretches without an operator, outside of loaders and optimizers."""
    idle = intervals.gaps(_operators(case), 0, case.program.measured_host_ns)
    kept = idle.end - idle.start >= QUIET_NS
    return ProgramTime(Intervals(idle.start[kept], idle.end[kept]))


def _operators(case: Case) -> Intervals:
    """When operators, loaders or optimizers ran."""
    spans = case.trace.spans.filter(pl.col("kind").is_in(("op", "annotation")) & (pl.col("dur_ns") > 0))
    names = pl.col("name").cast(pl.String)
    wanted = (pl.col("kind") == "op") | names.str.contains(f"{DATA_LOADING}|{_OPTIMIZER}")
    chosen = spans.filter(wanted, pl.col("track_id").is_in(calling_threads(case)))
    start = (chosen["start_ns"] - case.program.start_ns).to_numpy()
    return intervals.union(start, start + chosen["dur_ns"].to_numpy())


def _recurs(case: Case, quiet: ProgramTime) -> bool:
    program = case.program
    begins = program.call_start_ns[np.minimum(program.step_calls, len(program.kind) - 1)]
    return len(np.unique(np.searchsorted(begins, quiet.start, "right"))) >= _RECURS * case.step_count


def _frames(case: Case, quiet: ProgramTime) -> tuple[Place, ...]:
    """The user's innermost Python frame in the middle of the longest stretches."""
    longest = np.argsort(quiet.start - quiet.end)[:6]
    middles = ((quiet.start + quiet.end) // 2 + case.program.start_ns)[longest].tolist()
    return tuple(dict.fromkeys(place for at in middles if (place := case.frame_at(int(at)))))
