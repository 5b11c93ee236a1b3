"""The host's own time for a step, from the first step of each block, on a made-up host and device with known times."""

from __future__ import annotations

import pytest

from foretrace.capture.timing import AGREEING, BlockTimer, StepTimes, summarise

MS = 1_000_000


class Machine:
    """A host that launches the work of steps, and runs at most three of them ahead of the device."""

    def __init__(self, host_ns: int, device_ns: int, *, waits: bool = False) -> None:
        self.host_ns, self.device_ns, self.waits = host_ns, device_ns, waits
        self.at_ns = self.busy_until_ns = 0
        self.loading_ns: list[int] = [0]  # of steps, in turn
        self.steps = self.asked = self.synchronised = 0

    def now(self) -> int:
        self.asked += 1
        return self.at_ns

    def synchronize(self) -> None:
        self.synchronised += 1
        self.at_ns = max(self.at_ns, self.busy_until_ns)

    @property
    def waited_ns(self) -> int:
        """Of the step before."""
        return self.loading_ns[(self.steps - 1) % len(self.loading_ns)]

    def step(self) -> None:
        self.at_ns += self.loading_ns[self.steps % len(self.loading_ns)]
        self.busy_until_ns = max(self.at_ns, self.busy_until_ns) + self.device_ns
        self.at_ns += self.host_ns
        ahead = 0 if self.waits else 3 * self.device_ns
        self.at_ns = max(self.at_ns, self.busy_until_ns - ahead)
        self.steps += 1


def timed(machine: Machine, expected_ns: float) -> StepTimes:
    timer = BlockTimer(
        expected_ns=expected_ns,
        limit_s=3,
        synchronize=machine.synchronize,
        waited_ns=lambda: machine.waited_ns,
    )
    while not timer.step(machine.now):
        machine.step()
    times = timer.result()
    assert times is not None
    return times


def test_a_hidden_host_shows_in_the_first_step_of_each_block() -> None:
    """6 ms of host under 20 ms of device."""
    machine = Machine(6 * MS, 20 * MS)
    times = timed(machine, 20e6)
    assert times.median_ns == pytest.approx(20 * MS, rel=0.01)
    assert (times.host_ns, times.host_low_ns, times.host_high_ns) == (6 * MS, 6 * MS, 6 * MS)
    assert times.host_blocks == AGREEING
    assert machine.synchronised == AGREEING + 1, "none was added"
    assert machine.asked == 2 * AGREEING + 1, "the clock is read once more a block"
    facts = times.to_dict()
    names = ("host_ns", "host_low_ns", "host_high_ns", "host_blocks")
    assert [facts[name] for name in names] == [6 * MS, 6 * MS, 6 * MS, AGREEING]


def test_waits_for_data_are_not_the_hosts_own() -> None:
    machine = Machine(6 * MS, 20 * MS)
    machine.loading_ns = [0, 5 * MS, 0, 1 * MS, 0, 0, 7 * MS]
    assert timed(machine, 20e6).host_ns == 6 * MS


def test_a_step_that_waits_for_the_device_takes_the_host_as_long_as_itself() -> None:
    times = timed(Machine(6 * MS, 20 * MS, waits=True), 20e6)
    assert times.host_ns == times.median_ns == 20 * MS


def test_a_block_of_one_step_shows_no_host() -> None:
    """Its end is that of the device too."""
    times = timed(Machine(6 * MS, 400 * MS), 400e6)
    assert (times.host_ns, times.host_low_ns, times.host_high_ns, times.host_blocks) == (None, None, None, 0)


def test_the_host_is_of_the_blocks_that_count() -> None:
    """The first two were not settled; of the others one did not see it."""
    blocks = [(90, 10), (50, 10), *[(20, 10)] * 5]
    times = summarise(blocks, "", [80, 40, 9, None, 7, 8, 12])
    assert times is not None
    assert (times.median_ns, times.host_low_ns, times.host_high_ns, times.host_blocks) == (20, 7, 12, 4)
    assert times.host_ns == 8  # between 8 and 9
