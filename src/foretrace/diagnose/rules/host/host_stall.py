"""The host does something long that launches nothing, and the GPU has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.patterns import host_work
from foretrace.diagnose.patterns.host_work import LEAST_NS, SHORT_NS, SHORT_SHARE, Work  # noqa: F401  # named on the page
from foretrace.diagnose.rule import healthy, rule
from foretrace.diagnose.seen import seen, too_little
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit, merge
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.05, "the step", JUDGEMENT)
_CIRCULAR = "it turns results of the device into its next input, and may be needed where it is"
_ONCE = "with fewer than two recorded steps it may be what happens once, such as a start or a compilation"


_FIX = Fix(
    "Move it to another thread or process, do it less often, or after the step's launches.",
    "threading.Thread(target=work, args=(copy_of_values,), daemon=True).start()\n"
    "# check that no step needs its result, and that work reads nothing that the step changes",
)


def _no_issue(values: Mapping[str, Any]) -> str | None:
    """The GPU's idle time that Python, operators and calls of the host account for; other causes have their rules."""
    span = values.get("span_ns")
    if not span:
        return None
    names = ("host_operator_ns", "host_runtime_call_ns", "host_python_ns", "host_not_recorded_ns")
    share = 100 * sum(values.get(name) or 0 for name in names) / span
    return f"the GPU waits {share:.1f} % of the time for host work"


@healthy("idle", _no_issue)
@rule("The host stalls between launches", "Host stalls", see="idle")
def host_stall(case: Case) -> Iterator[Finding]:
    """A stretch of plain Python, sleep, input and output or operators on the host, in every step.

    Finds stretches of at least {LEAST_NS}, outside data loaders and optimizers, in which the host calls no
    runtime and either no operator begins or ends or operators compute on the host, where together they take at least
    {LEAST_SHARE} of a step, in most steps. Stretches of {SHORT_NS} to {LEAST_NS} count where they take
    {SHORT_SHARE} of the recorded time.

    Slow
        for batch in loader:
            loss = train_step(batch)
            write_report(metrics)  # takes milliseconds

    Fast
        for batch in loader:
            loss = train_step(batch)
            if step % 100 == 0:
                threading.Thread(target=write_report, args=(metrics,), daemon=True).start()

    Why
    Nothing is launched meanwhile. Once the GPU has finished what is queued, it waits. What cannot be done less often can
    be done in another thread or process, on the device, or after the step's launches.

    How the worth is predicted
    The replay takes the stretches out. Where the work reads several results of the device one after another, the later
    reads, their waits and shorter work between them go as well; the range includes that all of them stay, and that the
    first goes too.

    Where most of that time makes what is copied to the device next, it may have to be spent all the same: the range
    includes a Python thread that does it while the main thread waits for the device. Where the work also starts from
    results of the same step, as an environment does that answers a policy, or where fewer than two steps were recorded,
    nothing is promised.

    When not
    The time is needed where it is, for instance to wait for another process.
    """
    work = host_work.host_work(case)
    total_ns = sum(piece.dur_ns for piece in work)
    share = total_ns / case.step_count / case.step_ns
    if too_little(case, "the host does work of its own", share, LEAST_SHARE):
        return
    if not host_work.recurs(case, work):
        seen(
            case,
            f"the host does work of its own, {100 * share:.3g} % of the step on average, but not in most steps",
        )
        return
    operators_ns = sum(piece.operators_ns for piece in work)
    what = (
        "operators of its own"
        if 2 * operators_ns > total_ns
        else "something that is neither an operator nor a launch"
    )
    yield Finding(
        says=f"The host spends {total_ns / case.step_count / 1e6:.3g} ms of a step on {what}.",
        why="No work reaches the GPU meanwhile.",
        fix=_FIX,
        evidence={
            "gaps_per_step_count": len(work) / case.step_count,
            "stalled_ns": total_ns // case.step_count,
            "operators_ns": operators_ns // case.step_count,
        },
        where=_frames(case, work),
        change=_change(case, work),
        unless="the time is needed where it is, for instance to wait for another process.",
    )


def _change(case: Case, work: tuple[Work, ...]) -> Change:
    """The work gone; where it makes the next input, at worst moved to a thread, or needed where it is."""
    host, total_ns = host_work.spent(work), sum(piece.dur_ns for piece in work)
    feeding = [piece for piece in work if piece.feeds]
    needed = 2 * sum(piece.dur_ns for piece in feeding) > total_ns
    circular = 2 * sum(piece.dur_ns for piece in feeding if piece.answers) > total_ns
    alone, reading = Edit(removed_host=host), host_work.reading(case, work)
    ends = (alone, merge((alone, reading.all))) if len(reading.all.removed_calls) else ()
    return Change(
        "the stall removed",
        merge((alone, reading.between)),
        others=(*ends, host_work.in_thread(case, host)) if needed else ends,
        doubt=_CIRCULAR if circular else _ONCE if len(case.whole.steps) < 2 else "",
    )


def _frames(case: Case, work: tuple[Work, ...]) -> tuple[Place, ...]:
    """The user's innermost Python frame in the middle of the longest stretches."""
    longest = sorted(work, key=lambda piece: -piece.dur_ns)[:6]
    middles = ((piece.start_ns + piece.end_ns) // 2 + case.program.start_ns for piece in longest)
    return tuple(dict.fromkeys(place for at in middles if (place := case.frame_at(at))))
