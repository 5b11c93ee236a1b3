"""torch.compile compiles again while the program runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.rule import Healthy, rule
from foretrace.errors import MissingDataError
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_LEAST_SHARE = 0.03  # of the host's time


@rule(
    title="Code is compiled again and again",
    topic="Recompilation",
    see="compile",
    healthy=Healthy("compile", lambda _: None, {"by": "compilation"}, absent="no compiled region"),
)
def recompilation(case: Case) -> Iterator[Finding]:
    """Compilations within recorded steps of code that had been compiled before.

    What it does
    Looks for spans in which Dynamo or Inductor compiles, of at least 3 % of the host's time, that are the second or
    a later version of a frame, or lie in two steps or more. The replay leaves them out. Programs that
    are not compiled have none.

    Why it matters
    Every new shape or value that a guard checks compiles the frame again: seconds, in which nothing is launched.

    Use instead
    torch.compile(model, dynamic=True), torch._dynamo.mark_dynamic(x, 0), padded inputs; see TORCH_LOGS=recompiles.
    """
    try:
        table = case.result("compile", by="compilation").table
    except MissingDataError:
        return  # nothing is compiled
    within = table.drop_nulls("step")
    repeated = within["step"].n_unique() > 1 or bool(within["recompile"].fill_null(value=False).any())
    start = (within["start_ns"] - case.program.start_ns).to_numpy()
    host = intervals.union(start, start + within["dur_ns"].to_numpy())
    share = host.total_ns / max(case.program.measured_host_ns, 1)
    if not repeated or share < _LEAST_SHARE:
        return
    program = case.program
    inside = intervals.covered_ns(host, program.call_start_ns, program.call_end_ns) > 0
    frames = within["compile_id"].drop_nulls().unique().sort().to_list()
    yield Finding(
        says=f"{within.height} compilations within the recorded steps take {100 * share:.0f} % of the host's time.",
        why="While a frame is compiled nothing is launched; it happens again with every new shape or value.",
        fix=Fix(
            "Tell the compiler what changes.",
            "model = torch.compile(model, dynamic=True)\n# why: TORCH_LOGS=recompiles python train.py",
        ),
        evidence={
            "compilations_count": within.height,
            "compiling_ns": host.total_ns // case.step_count,
            "compiling_pct": 100 * share,
            "compile_ids": frames,
        },
        where=tuple(Place(None, None, f"frame {each}") for each in frames[:3]),
        change=Change(
            "nothing compiled again", Edit(removed_host=host, removed_calls=np.flatnonzero(inside))
        ),
        unless="these are the program's first steps: then it will stop by itself.",
    )
