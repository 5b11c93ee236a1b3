"""Two sides: which times are compared, for how much work, and what explains the difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.compare.sides import Side, side_of
from foretrace.compare.steps import compare_sides, to_dict
from foretrace.diagnose.opening import open_case
from tests.compare.recorded import run_folder, steps

SIDE = Side(
    name="before",
    device="GPU",
    times_ns=(10e6, 10.01e6, 9.99e6, 10.02e6, 9.98e6, 10e6),
    parts={("GPU", "matrix products"): 9.5e6, ("wait", "pauses between kernels"): 0.5e6},
    marked=True,
    clock="GPU",
)


def other(*, scale: float = 1.0, **changed: object) -> Side:
    """A side whose step takes `scale` times as long, all of it in its products."""
    added = (scale - 1) * 10e6
    parts = {**SIDE.parts, ("GPU", "matrix products"): 9.5e6 + added}
    times = tuple(scale * time for time in SIDE.times_ns)
    return replace(SIDE, name="after", times_ns=times, parts=parts, **changed)  # type: ignore[arg-type]


def test_the_causes_sum_to_the_difference() -> None:
    found = compare_sides(SIDE, other(scale=1.2))
    assert found.verdict == "slower"
    assert found.causes[0].what == "matrix products"
    assert sum(cause.delta_ns for cause in found.causes) == pytest.approx(found.after_ns - found.before_ns)
    assert "2.00 ms more" in found.says


def test_more_tokens_are_compared_by_the_token() -> None:
    """Twice the step for four times the tokens is twice as fast."""
    before = replace(SIDE, taken_in={"items": 8.0, "tokens": 1_024.0})
    found = compare_sides(before, other(scale=2.0, taken_in={"items": 8.0, "tokens": 4_096.0}))
    assert found.verdict == "faster"
    assert (found.basis.unit, found.basis.count) == ("tokens", 1_024)
    assert found.after_ns == pytest.approx(5e6)
    assert found.speedup.point == pytest.approx(2.0)
    assert sum(cause.delta_ns for cause in found.causes) == pytest.approx(-5e6)
    assert any("1,024 and 4,096 tokens" in note for note in found.notes)


def test_other_work_of_unknown_size_is_inconclusive() -> None:
    before = replace(SIDE, product_flops=1e12)
    found = compare_sides(before, other(scale=2.0, product_flops=4e12))
    assert found.verdict == "inconclusive"
    assert "the work of a step differs: 1.00 TFLOP and 4.00 TFLOP" in found.says
    same = compare_sides(before, other(scale=2.0, product_flops=1.2e12))
    assert same.verdict == "slower"


def test_unprofiled_times_come_first_and_the_profiler_is_a_cause() -> None:
    blocks = tuple(0.8 * time for time in SIDE.times_ns)
    before = replace(SIDE, unprofiled_ns=8e6, blocks_ns=blocks)
    after = other(scale=1.2, unprofiled_ns=8e6, blocks_ns=blocks)
    found = compare_sides(before, after)
    assert (found.known_by, found.verdict) == ("unprofiled", "same")
    recording = next(cause for cause in found.causes if cause.kind == "recording")
    assert [recording.before_ns, recording.after_ns] == pytest.approx([-2e6, -4e6])
    alone = compare_sides(before, other(scale=1.2))
    assert alone.known_by == "recorded"
    assert any("only before was also timed" in note for note in alone.notes)


def test_recordings_with_and_without_stacks_conclude_nothing() -> None:
    found = compare_sides(SIDE, other(scale=1.5, has_stacks=True))
    assert found.verdict == "inconclusive"
    assert "Python calls" in found.judged.why


def test_a_program_that_waits_a_lot_needs_a_large_difference() -> None:
    """With nine tenths of the step waiting, two runs may differ by 45 %; with almost none, by 3."""
    waits = {("GPU", "matrix products"): 1e6, ("wait", "launching: operators and calls"): 9e6}
    before = replace(SIDE, parts=waits)
    after = replace(before, name="after", times_ns=tuple(0.8 * time for time in SIDE.times_ns))
    assert compare_sides(before, after).verdict == "inconclusive"
    assert compare_sides(SIDE, other(scale=0.8)).verdict == "faster"


def test_what_json_tells(tmp_path: Path) -> None:
    side = side_of(steps().open(tmp_path), "a")
    told = to_dict(compare_sides(side, side))
    assert told["per"] == {"unit": "step", "count": 1.0}
    assert told["before"]["kernels"] == 2
    assert told["before"]["peak_bytes"] is None
    assert told["speedup"]["point"] == 1.0


def test_the_peak_of_a_run_is_in_its_rich_pass(tmp_path: Path) -> None:
    rich = steps()
    args = {
        "Device Type": 1,
        "Device Id": 0,
        "Bytes": 512,
        "Addr": 64,
        "Total Allocated": 4_096,
        "Total Reserved": 8_192,
    }
    event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 100}
    rich.events.append({**event, "ts": 50.0, "args": args})
    passes = [{"kind": "light", "file": "light.json"}, {"kind": "rich", "file": "rich.json"}]
    run = run_folder(tmp_path / "run", steps(), [2.0] * 6, passes=passes)
    assert "peak_bytes" not in side_of(open_case(run), "run").counts
    rich.write(run / "rank0", "rich.json")
    assert side_of(open_case(run), "run").counts["peak_bytes"] == 4_096
