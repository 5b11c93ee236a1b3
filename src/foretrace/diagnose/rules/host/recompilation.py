"""torch.compile compiles again while the program runs."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.removal import without_time
from foretrace.diagnose.rule import healthy, rule
from foretrace.diagnose.seen import too_little
from foretrace.errors import MissingDataError
from foretrace.predict.changes import Change
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.03, "host time", JUDGEMENT)


@healthy("compile", lambda _: None, options={"by": "compilation"}, absent="no compiled region")
@rule("Code is compiled again and again", "Recompilation", see="compile")
def recompilation(case: Case) -> Iterator[Finding]:
    """Compilations within recorded steps of code that had been compiled before.

    Finds spans in which Dynamo or Inductor compiles that take at least {LEAST_SHARE} of the host's time, where one is the
    second or a later version of a frame, or where they lie in two steps or more. Programs that are not compiled have none.

    Slow
        model = torch.compile(model)
        for tokens in sentences:  # each of another length
            loss = model(tokens)

    Fast
        model = torch.compile(model, dynamic=True)
        for tokens in sentences:
            loss = model(tokens)

    Why
    Every new shape or value that a guard checks compiles the frame again. That takes seconds, in which nothing is
    launched. TORCH_LOGS=recompiles says which guard failed; torch._dynamo.mark_dynamic(x, 0) or padded inputs help where
    dynamic=True does not.

    How the worth is predicted
    The replay leaves the compilations out.

    When not
    The recorded steps are the program's first: then it will stop by itself.
    """
    try:
        compilations = case.result("compile", by="compilation").table.drop_nulls("step")
    except MissingDataError:
        return  # nothing is compiled
    again = bool(compilations["recompile"].fill_null(value=False).any())
    compiling = case.during(compilations)
    share = compiling.total_ns / max(case.program.measured_host_ns, 1)
    if not (again or compilations["step"].n_unique() > 1):
        return
    if too_little(case, f"{compilations.height} compilations within the recorded steps", share, LEAST_SHARE):
        return
    frames = compilations["compile_id"].drop_nulls().unique().sort().to_list()
    yield Finding(
        says=f"{compilations.height} compilations within the recorded steps take {100 * share:.0f} % of the host's time.",
        why="While a frame is compiled nothing is launched; it happens again with every new shape or value.",
        fix=Fix(
            "Tell the compiler what changes.",
            "model = torch.compile(model, dynamic=True)\n# why: TORCH_LOGS=recompiles python train.py",
        ),
        evidence={
            "compilations_count": compilations.height,
            "compiling_ns": compiling.total_ns // case.step_count,
            "compiling_pct": 100 * share,
            "compile_ids": frames,
        },
        where=tuple(Place(None, None, f"frame {frame}") for frame in frames[:3]),
        change=Change("nothing compiled again", without_time(case, compiling)),
        unless="these are the program's first steps: then it will stop by itself.",
    )
