"""Gates: what they limit, when they fail, and that noise never makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.compare.gates import Checked, check, parse, saved_values
from foretrace.compare.sides import Side, side_of
from foretrace.compare.steps import compare_sides
from foretrace.errors import MissingDataError, UsageError
from tests.compare.recorded import steps

STEADY = tuple(1e6 * time for time in (10.0, 10.01, 9.99, 10.02, 9.98, 10.0, 10.01))
SIDE = Side(
    name="before",
    device="GPU",
    times_ns=STEADY,
    parts={("GPU", "matrix products"): 10e6},
    marked=True,
    clock="GPU",
    counts={"kernels": 100.0, "launches": 50.0, "peak_bytes": 2.0**30},
)


def checked(text: str, *, scale: float = 1.0, noise: float = 1.0, **counts: float) -> Checked:
    """A gate on a step that takes `scale` times as long, scattered `noise` times as much."""
    times = tuple(scale * (10e6 + noise * (time - 10e6)) for time in STEADY)
    after = replace(SIDE, name="after", times_ns=times, counts={**SIDE.counts, **counts})
    return check(parse(text), compare_sides(SIDE, after), None, None)


@pytest.mark.parametrize(
    ("scale", "noise", "state"),
    [(1.0, 1.0, "passed"), (1.02, 1.0, "passed"), (1.2, 1.0, "failed"), (1.035, 1.0, "inconclusive"),
     (1.2, 200.0, "inconclusive"), (0.5, 1.0, "passed")],
)  # fmt: skip
def test_a_step_fails_only_where_the_interval_is_beyond_the_limit(
    scale: float, noise: float, state: str
) -> None:
    found = checked("step_ms > +3%", scale=scale, noise=noise)
    assert found.state == state
    assert "step_ms 10" in found.says


def test_a_step_by_its_time() -> None:
    assert checked("step_ms > 15").state == "passed"
    assert checked("step_ms > 8").state == "failed"
    assert checked("step_ms > 9.95").state == "inconclusive"
    assert checked("step_ms > 8000us").state == "failed"
    assert checked("step_ms > +2", scale=1.5).state == "failed"
    assert checked("step_ms > +2", scale=1.1).state == "passed"


@pytest.mark.parametrize(
    ("text", "counts", "state"),
    [
        ("kernels > +3%", {"kernels": 102.0}, "passed"),
        ("kernels > +3%", {"kernels": 104.0}, "failed"),
        ("kernels > +0", {"kernels": 101.0}, "failed"),
        ("kernels > 120", {"kernels": 101.0}, "passed"),
        ("launches < -5%", {"launches": 40.0}, "failed"),
        ("peak_bytes > +10%", {"peak_bytes": 2.0**30}, "passed"),
        ("peak_bytes > 1GiB", {"peak_bytes": 2.0**30 + 1}, "failed"),
        ("peak_bytes>=1GiB", {"peak_bytes": 2.0**30}, "failed"),
    ],
)
def test_counts(text: str, counts: dict[str, float], state: str) -> None:
    assert checked(text, **counts).state == state


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step_ms", "not a limit"),
        ("step_ms > fast", "not a limit"),
        ("step_ms > 3%", "the sign of a change"),
        ("stepms > +3%", "did you mean step_ms"),
        ("speed > +3%", "there are: step_ms, peak_bytes"),
        ("overveiw.gpu_idle_pct > 5", "did you mean overview"),
        ("kernels > 5ms", "not measured in ms"),
    ],
)
def test_wrong_limits(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(text)


def test_any_value_of_an_analysis(tmp_path: Path) -> None:
    first, second = (
        steps((1_000.0,) * 3).open(tmp_path, "a.json"),
        steps((1_500.0,) * 3).open(tmp_path, "b.json"),
    )
    found = compare_sides(side_of(first, "a"), side_of(second, "b"))
    idle = check(parse("overview.gpu_idle_pct < -10%"), found, first, second)
    assert idle.state == "failed"  # the GPU works 500 us more of each 2 ms
    assert check(parse("overview.gpu_busy_pct > 90"), found, first, second).state == "passed"
    assert check(parse("exposed_communication_pct > 5%"), found, first, second).state == "passed"
    with pytest.raises(UsageError, match=r"overview has no value 'nothing'; there are: .*gpu_idle_pct"):
        check(parse("overview.nothing > 5"), found, first, second)
    with pytest.raises(MissingDataError, match="peak_bytes was not recorded"):
        check(parse("peak_bytes > +5%"), found, first, second)


def test_a_baseline_keeps_what_its_gates_ask_for(tmp_path: Path) -> None:
    trace = steps().open(tmp_path)
    values = saved_values([parse("overview.gpu_idle_pct > +1"), parse("step_ms > +3%")], trace)
    assert set(values) == {"overview.gpu_idle_pct", "exposed_communication_pct"}
    side = side_of(trace, "main")
    found = compare_sides(replace(side, values=values), side)
    assert check(parse("overview.gpu_idle_pct > +1"), found, None, trace).state == "passed"
    with pytest.raises(MissingDataError, match="save it anew"):
        check(parse("overview.gpu_busy_pct > +1"), found, None, trace)
