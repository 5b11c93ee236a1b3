"""What Linux counts of the cores, read from made-up files of /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from foretrace.capture import core_use, environment
from foretrace.capture.core_use import CoreUse
from foretrace.capture.timing import StepTimes

TICK_NS = 10_000_000


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with three cores, of which this process may use the first two, and has a child with a child of its own."""
    monkeypatch.setattr(core_use, "_PROC", tmp_path)
    monkeypatch.setattr(core_use, "_usable_cores", lambda: frozenset({0, 1}))
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(environment, "rank_of_process", lambda: (0, 1))
    own = os.getpid()
    write(tmp_path, busy=(100, 200, 5_000), own=(50, 20, 5), waits_ns=(1_000, 2_000))
    for pid, parent_of in ((own, 11), (11, 12), (12, None)):
        task = tmp_path / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        (task / "children").write_text(f"{parent_of} " if parent_of else "")
    return tmp_path


def write(
    proc: Path, *, busy: tuple[int, int, int], own: tuple[int, int, int], waits_ns: tuple[int, int]
) -> None:
    """The counters: ticks at work by core, ticks of this process and its descendants, and how long two threads waited."""
    lines = [f"cpu{core} {ticks} 0 0 99999 7 3 2 0 0 0\n" for core, ticks in enumerate(busy)]
    (proc / "stat").write_text("cpu  1 1 1 1 1 1 1 1 1 1\n" + "".join(lines) + "intr 5\n")
    for pid, ticks in zip((os.getpid(), 11, 12), own, strict=True):
        (proc / str(pid)).mkdir(exist_ok=True)
        (proc / str(pid) / "stat").write_text(
            f"{pid} (a (name) R 9) S 1 1 1 0 0 0 0 0 0 0 {ticks} 0 0 0 20 0\n"
        )
    for thread, wait in zip((threading.get_native_id(), 999_999), waits_ns, strict=True):
        folder = proc / "self" / "task" / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"123 {wait} 4\n")


def test_others_are_what_is_left_of_the_usable_cores(proc: Path) -> None:
    """350 ticks of work on the first two cores, 180 of them of this process and its descendants; the third core is not ours."""
    use = CoreUse()
    use.begin()
    write(proc, busy=(250, 400, 9_999), own=(150, 70, 35), waits_ns=(4_000, 9_000))
    facts = use.facts()
    assert facts is not None
    assert facts["own_cpu_ns"] == (100 + 50 + 30) * TICK_NS
    assert facts["others_cpu_ns"] == (150 + 200 - 180) * TICK_NS
    assert (facts["thread_wait_ns"], facts["longest_wait_ns"]) == (3_000, 7_000)
    assert facts["usable_cpu_count"] == 2


def test_time_that_another_virtual_machine_took_is_others(proc: Path) -> None:
    use = CoreUse()
    use.begin()
    stolen = (proc / "stat").read_text().replace("99999 7 3 2 0 0 0", "99999 7 3 2 40 0 0")
    (proc / "stat").write_text(stolen)
    facts = use.facts()
    assert facts is not None
    assert facts["others_cpu_ns"] == 2 * 40 * TICK_NS


def test_what_the_system_does_not_count_is_null(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_use, "_PROC", proc / "nothing")
    use = CoreUse()
    assert use.facts() is None
    use.begin()
    facts = use.facts()
    assert facts is not None
    names = ("own_cpu_ns", "others_cpu_ns", "thread_wait_ns", "longest_wait_ns")
    assert [facts[name] for name in names] == [None] * 4
    assert facts["wall_ns"] > 0


def test_without_a_list_of_children_nobody_is_called_a_neighbour(proc: Path) -> None:
    (proc / str(os.getpid()) / "task" / str(os.getpid()) / "children").unlink()
    use = CoreUse()
    use.begin()
    facts = use.facts()
    assert facts is not None
    assert (facts["own_cpu_ns"], facts["others_cpu_ns"]) == (None, None)


def test_of_several_ranks_the_launcher_is_the_program(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank, a sibling, is no neighbour: its 60 ticks count as this program's."""
    monkeypatch.setattr(environment, "rank_of_process", lambda: (0, 2))
    monkeypatch.setattr(os, "getppid", lambda: 12)
    use = CoreUse()
    use.begin()
    write(proc, busy=(160, 200, 5_000), own=(50, 20, 65), waits_ns=(1_000, 2_000))
    facts = use.facts()
    assert facts is not None
    assert (facts["own_cpu_ns"], facts["others_cpu_ns"]) == (60 * TICK_NS, 0)


def test_the_times_carry_the_figures(proc: Path) -> None:
    use, times = CoreUse(), StepTimes(1, 1, 1, 1, (1,), "")
    use.begin()
    told = use.told(times)
    assert told is not None
    assert told.cores is not None
    assert told.to_dict()["cores"]["usable_cpu_count"] == 2
    assert use.told(None) is None
