"""The host does something long that launches nothing, and the GPU has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.patterns import host_work
from foretrace.diagnose.patterns.host_work import Work
from foretrace.diagnose.rule import Healthy, rule
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit, merge

_LEAST_SHARE = 0.05  # of the step

_CIRCULAR = "it turns results of the device into its next input, and may be needed where it is"
_LEAST_STEPS = 2
_ONCE = "with fewer than two recorded steps it may be what happens once, such as a start or a compilation"


def _no_issue(values: Mapping[str, Any]) -> str | None:
    """The GPU's idle time that Python, operators and calls of the host account for; other causes have their rules."""
    span = values.get("span_ns")
    if not span:
        return None
    names = ("host_operator_ns", "host_runtime_call_ns", "host_python_ns", "host_not_recorded_ns")
    share = 100 * sum(values.get(name) or 0 for name in names) / span
    return f"the GPU waits {share:.1f} % of the time for host work"


@rule(
    title="The host stalls between launches",
    topic="Host stalls",
    see="idle",
    healthy=Healthy("idle", _no_issue),
)
def host_stall(case: Case) -> Iterator[Finding]:
    """A stretch of plain Python, sleep, input and output or operators on the host, in every step.

    What it does
    Looks for stretches of at least 300 µs, outside data loaders and optimizers, in which the host calls no runtime and
    either no operator begins or ends or operators compute on the host; together they take at least 5 % of a step, in
    most steps. Stretches of 100 to 300 µs count where they take 15 % of the recorded time. The replay takes them out.
    Where the work reads several results of the device one after another, the later reads, their waits and shorter work
    between them go as well; the range includes that all of them stay, and that the first goes too.
    Where most of that time makes what is copied to the device next, it may have to be spent all the same: the range
    includes a Python thread that does it while the main thread waits for the device. Where the work also starts from
    results of the same step, as an environment does that answers a policy, or where fewer than two steps were recorded,
    nothing is promised.

    Why it matters
    Nothing is launched meanwhile. Once the GPU has finished what is queued, it waits.

    Use instead
    Do it in another thread or process, less often, on the device, or after the step's launches.
    """
    work = host_work.host_work(case)
    total = sum(each.dur_ns for each in work)
    if not host_work.recurs(case, work) or total / case.step_count < _LEAST_SHARE * case.step_ns:
        return
    operators = sum(each.operators_ns for each in work)
    yield Finding(
        says=f"The host spends {total / case.step_count / 1e6:.3g} ms of a step on "
        + (
            "operators of its own."
            if 2 * operators > total
            else "something that is neither an operator nor a launch."
        ),
        why="No work reaches the GPU meanwhile.",
        fix=Fix(
            "Move it to another thread or process, do it less often, or after the step's launches.",
            "threading.Thread(target=work, daemon=True).start()",
        ),
        evidence={
            "gaps_per_step_count": len(work) / case.step_count,
            "stalled_ns": total // case.step_count,
            "operators_ns": operators // case.step_count,
        },
        where=_frames(case, work),
        change=_change(case, work),
        unless="the time is needed where it is, for instance to wait for another process.",
    )


def _change(case: Case, work: tuple[Work, ...]) -> Change:
    """The work gone; where it makes the next input, at worst moved to a thread, or needed where it is."""
    host, total = host_work.spent(work), sum(each.dur_ns for each in work)
    feeding = [each for each in work if each.feeds]
    needed = 2 * sum(each.dur_ns for each in feeding) > total
    circular = 2 * sum(each.dur_ns for each in feeding if each.answers) > total
    alone, reading = Edit(removed_host=host), host_work.reading(case, work)
    ends = (alone, merge((alone, reading.all))) if len(reading.all.removed_calls) else ()
    return Change(
        "the stall removed",
        merge((alone, reading.between)),
        others=(*ends, host_work.in_thread(case, host)) if needed else ends,
        doubt=_CIRCULAR if circular else _ONCE if len(case.whole.steps) < _LEAST_STEPS else "",
    )


def _frames(case: Case, work: tuple[Work, ...]) -> tuple[Place, ...]:
    """The user's innermost Python frame in the middle of the longest stretches."""
    longest = sorted(work, key=lambda each: -each.dur_ns)[:6]
    middles = ((each.start_ns + each.end_ns) // 2 + case.program.start_ns for each in longest)
    return tuple(dict.fromkeys(place for at in middles if (place := case.frame_at(at))))
