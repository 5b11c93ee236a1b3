"""The guard of promises: whether a recording can carry the gain that is predicted from it.

Every prediction of a Case passes here, whichever rule asks for it, so that no rule can forget. What takes a promise away is
told by the trust report; the finding stays, its verdict becomes uncertain, and one sentence says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from foretrace import analyze, intervals
from foretrace.predict.prediction import PROMISED_GAIN, Prediction, at_most, withheld
from foretrace.schema import DEVICE_KINDS
from foretrace.units import format_value

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case

# Notes of the trust report that take the promise away, the most serious first: a step that is not there, not whole, not
# seen twice, or whose work cannot be traced to what would be changed, has no time after a change that could be vouched for.
WITHOUT_PROMISE: Mapping[str, str] = {
    "stated-step-far": "the stated step is far from those recorded",
    "events-missing": "the recording was sampled or filtered, so what it lacks cannot be told from idle time",
    "several-processes": "other processes were at work too, and what they do to this one's steps is not replayed",
    "graph-work-lost": "kernels of CUDA graphs were lost, so how long the GPU works is not known",
    "graph-work-unclear": "kernels of CUDA graphs may be lost, so how long the GPU works is not known",
    "no-launch-calls": "no launches were recorded, so nothing tells which work goes with a change",
    "no-operators": "no operators were recorded, so nothing tells which work goes with a change",
    "no-steps": "no steps are marked, so what repeats, and how long it takes, is not known",
    "one-step": "only one whole step was recorded, and a disturbed step cannot be told from a normal one",
}
# The same, where they weigh more than "info": what is damaged or missing decides the time of the step.
DAMAGED: Mapping[str, str] = {
    "launches-missing": "calls that launched GPU work are missing from the recording",
    "launches-lost": "GPU work of recorded launches is missing from the recording",
    "copies-lost": "copies between host and GPU are missing from the recording",
    "launch-unknown": "GPU work was recorded without its launches",
    "impossible-durations": "durations of GPU work are missing or impossible",
    "engulfing-kernels": "durations of kernels are impossible",
    "events-outside": "events lie outside of the recording, so times or durations are wrong",
    "calls-overlap": "calls of one thread overlap, so durations of host events are wrong",
    "waits-too-short": "waits for the GPU end before its work, so durations or clocks are wrong",
    "idle-while-queued": "GPU work that was launched did not run on an idle GPU, so its times are wrong",
    "work-out-of-order": "GPU work ran in another order than it was launched in, so its times are wrong",
    "clocks-apart": "the clocks of host and GPU disagree",
    "steps-apart": "steps do not follow one another, so their marks or the clock are wrong",
    "no-stacks": "the Python calls whose recording slowed the host down are missing",
}
CONTENDED = "other programs used the cores, so what a change brings on idle ones is not known"
_NOT_TRUSTED = "this recording is not to be trusted"
_EVENTS = ("op", "runtime", *DEVICE_KINDS)


def why_not(case: Case) -> str:
    """Why no gain is promised from this recording, whatever the change; empty where one can be."""
    if case.contended:
        return CONTENDED
    report = case.result("trust")
    weights = dict(zip(report.table["code"], report.table["weight"], strict=True))
    damage = damaged(case)
    reason = damage or next((why for code, why in WITHOUT_PROMISE.items() if code in weights), "")
    return reason or (_NOT_TRUSTED if report.values["verdict"] == "no" else "")


def damaged(case: Case) -> str:
    """What is missing from the recording or wrong in it, so that its times do not hold; empty where nothing is."""
    return case.keep("damage", lambda: _damaged(case))


def _damaged(case: Case) -> str:
    report = case.result("trust").table
    if case.trace is not case.whole:  # wrong marks may lie between the steps that are looked at
        report = pl.concat((report, analyze.run(case.whole, "trust").table))
    serious = set(report.filter(pl.col("weight") != "info")["code"])
    return next((why for code, why in DAMAGED.items() if code in serious), "")


def guarded(case: Case, predicted: Prediction) -> Prediction:
    """The prediction as far as the recording supports it: no larger a speed-up than it can tell, and maybe no promise."""
    shortest = case.keep("shortest step", lambda: _Shortest(case))
    predicted = at_most(predicted, case.step_ns / shortest.step_ns, shortest.why)
    if predicted.not_promised or predicted.verdict == "no gain" or predicted.speedup.point < PROMISED_GAIN:
        return predicted
    why = why_not(case) or _in_the_noise(case, predicted)
    return withheld(predicted, why) if why else predicted


def _in_the_noise(case: Case, predicted: Prediction) -> str:
    """Why a gain cannot be told from what steps differ by anyway; empty where it can, or where more steps were timed."""
    saved_pct = 100 * (1 - 1 / predicted.speedup.point)
    spread = case.result("trust").table.filter(pl.col("code") == "step-spread", pl.col("weight") != "info")
    if case.calibration.known or spread.is_empty() or saved_pct >= spread["share_pct"][0]:
        return ""
    return f"the recorded steps differ by {spread['share_pct'][0]:.0f} %, more than the {saved_pct:.0f} % that this would save"


class _Shortest:
    """The shortest step after a change that a recording can tell of, whichever is shorter of two.

    - The step without all time in which an event was recorded: taking that away needs nothing that was not seen.
    - The step divided by its number of events, the mean length of the pieces that they divide it into. What is left of a step
      whose unrecorded time went too, and is shorter than one such piece, is nothing that the recording shows.
    """

    def __init__(self, case: Case) -> None:
        spans = case.trace.spans.select("kind", "start_ns", "dur_ns", "step")
        in_steps = pl.col("step").is_not_null() if case.trace.steps else pl.lit(value=True)
        spans = spans.filter(pl.col("kind").is_in(_EVENTS), pl.col("dur_ns").is_not_null(), in_steps)
        start = spans["start_ns"].to_numpy()
        filled_ns = intervals.union(start, start + spans["dur_ns"].to_numpy()).total_ns
        steps_ns = sum(step.end_ns - step.start_ns for step in case.trace.steps) or case.trace.duration_ns
        filled = min(filled_ns / max(steps_ns, 1), 1.0)
        events = max(spans.height / case.step_count, 1.0)
        self.step_ns = max(case.step_ns * min(1 / events, 1 - filled), 1.0)
        self.why = (
            f"{events:,.0f} events fill {100 * filled:.2g} % of a step of {format_value('_ns', round(case.step_ns))}, and do "
            "not tell what would be left of it"
        )
