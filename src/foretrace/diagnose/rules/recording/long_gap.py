"""The GPU stands still for far longer than a step takes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.sourced import JUDGEMENT, Factor, Share

LEAST_STEPS = Factor(10.0, "the median step, the length of a gap", JUDGEMENT)
LEAST_SHARE = Share(0.05, "the recording", JUDGEMENT)


@needs(KERNELS)
@rule("The GPU stands still between steps", "Long gaps", see="idle")
def long_gap(case: Case) -> Iterator[Finding]:
    """Gaps without GPU work that last as long as many steps.

    Finds gaps in which no stream of a GPU has work, of at least {LEAST_STEPS} times the median step, after the first step, that
    together take at least {LEAST_SHARE} of the recording. What happens in every step is reported by other rules, such as host-stall
    and input-bound: a median step does not show what happens once.

    Slow
        for step, batch in enumerate(loader):
            train(batch)
            if step % 100 == 0:
                save_checkpoint(model)  # the GPU waits for the disk
                evaluate(model)  # on the host

    Fast
        for step, batch in enumerate(loader):
            train(batch)
            if step % 100 == 0:
                state = copy_to_host(model.state_dict())
                writer.submit(torch.save, state, path)  # a thread writes it

    Why
    While the host saves, evaluates, collects garbage or waits for data, nothing is launched.

    How the worth is predicted
    It is not: a recording of some steps does not tell how often this happens.

    When not
    The recording holds it by chance: it happens once in a whole run.
    """
    steps = case.whole.steps
    if len(steps) < 2:
        return
    step_ns = float(np.median([step.end_ns - step.start_ns for step in steps]))
    begin_ns, whole_ns = steps[0].end_ns, case.whole.duration_ns
    launched = device_time.device_work(case.whole).select("device", "orphan", "start_ns", "end_ns")
    for device, work in device_time.by_device(launched.filter(~pl.col("orphan"))):
        busy = device_time.covered(work)
        if not len(busy.start):  # kernels without length
            continue
        gaps = intervals.gaps(busy, int(busy.start[0]), int(busy.end[-1]))
        length = gaps.end - gaps.start
        long = (length >= LEAST_STEPS * step_ns) & (gaps.start >= min(begin_ns, whole_ns))
        lost_ns = int(length[long].sum())
        if not long.any() or too_little(
            case, "the GPU stands still for many steps", lost_ns / whole_ns, LEAST_SHARE
        ):
            continue
        longest = int(np.argmax(np.where(long, length, 0)))
        count = int(long.sum())
        yield Finding(
            says=f"GPU {device} stands still {count} time{'s' if count > 1 else ''} for longer than {LEAST_STEPS:.0f} steps, "
            f"{lost_ns / 1e6:.3g} ms in all: {100 * lost_ns / whole_ns:.0f} % of the recording.",
            why="Nothing is launched in that time: the host does something else, or waits.",
            fix=Fix(
                "Look what the host does there, and move it to another thread or do it less often.",
                f"foretrace show idle PATH   # the longest gap begins at {gaps.start[longest] / 1e6:.3f} ms",
            ),
            evidence={
                "gaps_count": count,
                "lost_ns": lost_ns,
                "lost_pct": 100 * lost_ns / whole_ns,
                "longest_ns": int(length[longest]),
                "longest_start_ns": int(gaps.start[longest]),
                "step_ns": step_ns,
            },
            unless="it happens once in a whole run.",
        )
