"""When steps of a variant are timed, by a clock that is made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from foretrace.capture.trial_options import TrialOptions
from foretrace.capture.trial_timer import TrialTimer

SETTLED = TrialOptions(output="", settle_s=0.5, settle_steps=4, block_s=0.2, blocks=3)


def timed(
    steps_ms: Sequence[float], options: TrialOptions = SETTLED, ahead: int = 0
) -> tuple[TrialTimer, list[int]]:
    """A timer that was told of these steps until it was done, and at which of them it waited for the device."""
    now, place = [0], [0]
    waits: list[int] = []
    timer = TrialTimer(
        options, ahead=lambda: ahead, synchronize=lambda: waits.append(place[0]), now=lambda: now[0]
    )
    timer.step()
    for step_ms in steps_ms:
        place[0] += 1
        now[0] += round(step_ms * 1e6)
        if timer.step():
            break
    return timer, waits


def test_the_start_is_let_by_and_blocks_are_of_the_same_number_of_steps() -> None:
    """Compiling takes 5 s, then a step takes 50 ms: blocks of 0.2 s have four."""
    timer, waits = timed([5_000, 400, *[50] * 100])
    assert timer.block_steps == 4
    assert timer.blocks_ns == [50e6] * 3
    assert [after - before for before, after in pairwise(waits)] == [4, 4, 4]
    assert waits[0] >= 6


def test_the_number_of_steps_can_be_given() -> None:
    timer, _ = timed([50] * 100, TrialOptions(output="", settle_s=0.2, block_steps=7, blocks=2))
    assert timer.block_steps == 7
    assert len(timer.blocks_ns) == 2


def test_every_variant_lets_the_same_steps_by() -> None:
    """Ten steps of 50 ms were let by in the first run: one of 20 ms steps, or with a long start, begins at the same step."""
    first, waits = timed([50] * 100)
    assert waits[0] == first.to_dict()["let_by"] == 10
    same = replace(SETTLED, let_by=10, block_steps=4)
    assert timed([20] * 100, same)[1] == timed([5_000, 400, *[50] * 100], same)[1] == waits
    again = [*[50] * 8, 3_000, *[50] * 100]  # compiles again shortly before: that is let by too
    assert timed(again, same)[1][0] > 10


def test_batches_that_lie_ready_are_used_up_first() -> None:
    """Sixty batches were made while the model was compiled: those steps are not the workers' pace."""
    quick, slow = [20.0] * 60, [100.0] * 100
    ready, _ = timed([*quick, *slow], ahead=60)
    assert ready.blocks_ns == pytest.approx([100e6] * 3)
    unaware, _ = timed([*quick, *slow], ahead=0)
    assert min(unaware.blocks_ns) == pytest.approx(20e6)


def test_a_block_has_a_batch_of_every_worker() -> None:
    """Eight workers, two batches ahead each: steps of 100 ms in blocks of 0.2 s would be two."""
    timer, _ = timed([100.0] * 200, ahead=16)
    assert timer.block_steps == 8


def test_steps_that_alternate_are_settled() -> None:
    """Two workers bring two batches at once: a long step, then a short one."""
    timer, waits = timed([90, 10] * 100)
    assert timer.blocks_ns == pytest.approx([50e6] * 3, rel=0.2)
    assert waits[0] < 20


def test_a_program_that_ends_early_leaves_what_there_is() -> None:
    timer, _ = timed([50] * 15)
    assert timer.short()
    assert "ended after" in timer.to_dict()["stopped_because"]
    few, _ = timed([500, 300, 60, 60, 60])
    assert few.short()
    assert few.blocks_ns == [60e6] * 3
    assert not timed([50])[0].short()


def test_the_start_is_the_first_five_steps() -> None:
    timer, _ = timed([2_000, 100, 100, 100, 100, 100])
    assert timer.start_s(-1_000_000_000) == pytest.approx(1 + 2.3)
