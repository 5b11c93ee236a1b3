"""Whether other programs took the cores: from figures that can be worked out on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretrace.ingest.core_use import CoreUse, read_core_use
from foretrace.ingest.timed import read_timed

S = 1_000_000_000
# Two seconds of wall time on two cores: four seconds of core time.
ALONE = CoreUse(wall_ns=2 * S, usable=2, own_ns=3.9 * S, others_ns=0.04 * S, waited_ns=0.02 * S)


@pytest.mark.parametrize(
    ("use", "contended", "left"),
    [
        (ALONE, False, 2),
        # One busy loop and two threads: the loop takes a third of the machine, each thread waits a third of the time.
        (replace(ALONE, own_ns=2.67 * S, others_ns=1.33 * S, waited_ns=0.67 * S), True, 1),
        # The program's own four threads wait for each other; nobody else is there.
        (replace(ALONE, own_ns=3.95 * S, others_ns=0.03 * S, waited_ns=1 * S), False, 2),
        # One thread, and a busy loop on the other core: no wait, and no core is idle.
        (replace(ALONE, own_ns=2 * S, others_ns=2 * S, waited_ns=0.02 * S), True, 1),
        # One thread, the other core idle.
        (replace(ALONE, own_ns=2 * S, others_ns=0.1 * S, waited_ns=0.01 * S), False, 2),
        # Forty of 64 cores are others', and one thread of this program has one to itself.
        (CoreUse(2 * S, 64, own_ns=2 * S, others_ns=80 * S, waited_ns=0.01 * S), False, 24),
        # Others were not counted: two threads got 1 of 2 cores' time and waited.
        (replace(ALONE, own_ns=2 * S, others_ns=None, waited_ns=1 * S), True, 2),
        # Others were not counted: the program's own threads had all of the cores' time.
        (replace(ALONE, own_ns=4 * S, others_ns=None, waited_ns=1 * S), False, 2),
        # A container of two of 64 cores: its threads wait for its own quota, whatever others do.
        (CoreUse(2 * S, 64, own_ns=4 * S, others_ns=40 * S, waited_ns=1 * S, quota=2), False, 44),
        # Too short to tell.
        (CoreUse(0.1 * S, 2, own_ns=0.1 * S, others_ns=0.1 * S, waited_ns=0.05 * S), False, 2),
        # Nothing was counted.
        (CoreUse(2 * S, None), False, 2),
    ],
)  # fmt: skip
def test_others_take_the_cores_or_leave_them(use: CoreUse, contended: bool, left: int) -> None:
    assert use.contended is contended
    assert use.left_of(use.usable or 2) == left


def test_a_short_thread_pool_daemon_is_no_neighbour_worth_a_word() -> None:
    """A twentieth of a core for something else explains no wait of a fifth of the time."""
    assert not replace(ALONE, others_ns=0.1 * S, waited_ns=0.4 * S).contended


def test_each_of_two_ranks_has_its_half_of_what_others_leave() -> None:
    """Of eight cores others use two: three are left for each of two ranks."""
    use = CoreUse(2 * S, 8, own_ns=4 * S, others_ns=4 * S, waited_ns=0, ranks=2)
    assert use.left_of(4) == 3


FACTS: dict[str, Any] = {
    "wall_ns": 2 * S, "usable_cpu_count": 2, "own_cpu_ns": 3 * S, "others_cpu_ns": S, "thread_wait_ns": 0,
    "longest_wait_ns": S, "involuntary_switches": 300, "load_average": [0.5, 3.25],
}  # fmt: skip


def test_figures_are_read_from_the_timing_that_is_used() -> None:
    timed = read_timed({"unprofiled": {"cores": FACTS}}, {"limits": {"usable_cpu_count": 2}})
    assert timed.core_use == CoreUse(2 * S, 2, 3 * S, S, S, 300, 3.25)
    assert timed.free_cores == 1
    assert timed.core_use.says() == (
        "Other programs used 0.5 of 2 cores while steps were timed; this one waited for a core 50 % of the time"
    )


@pytest.mark.parametrize(
    "damage",
    [{"wall_ns": "2"}, {"wall_ns": float("nan")}, {"wall_ns": -1}, {"wall_ns": True}, {"wall_ns": 0}],
)
def test_figures_that_make_no_sense_are_not_known(damage: dict[str, Any]) -> None:
    assert read_core_use({**FACTS, **damage}) is None
    assert read_core_use(None) is None
    assert read_core_use([]) is None


def test_one_missing_figure_leaves_the_others() -> None:
    use = read_core_use({**FACTS, "others_cpu_ns": "many", "load_average": None})
    assert use is not None
    assert (use.others_ns, use.own_ns, use.load_average) == (None, 3 * S, None)


def test_programs_that_came_after_the_timing_count_too() -> None:
    """Steps were timed on idle cores; while the light pass recorded, others used half of a core and a thread waited."""
    calm = {**FACTS, "others_cpu_ns": 0, "longest_wait_ns": 0}
    limits = {"limits": {"usable_cpu_count": 2}}

    def use(timed: dict[str, Any], *passes: tuple[str, dict[str, Any]]) -> CoreUse | None:
        listed = [{"kind": kind, "file": f"{kind}.json", "cores": cores} for kind, cores in passes]
        return read_timed({"unprofiled": {"cores": timed}, "passes": listed}, limits).core_use

    late = use(calm, ("light", FACTS), ("rich", calm))
    assert late is not None
    assert late.contended
    assert late.says().startswith(
        "Other programs used 0.5 of 2 cores while steps were recorded; this one waited"
    )
    for alone in (
        use(calm, ("light", calm), ("rich", FACTS)),
        use(calm, ("light", FACTS), ("light", calm)),
        use(calm),
    ):
        assert alone is not None
        assert not alone.contended
    early = use(FACTS, ("light", calm))
    assert early is not None
    assert "while steps were timed" in early.says()
