"""A synthetic job: what every rank does, simulated in true time; collectives end when the last member has arrived.

The host issues work, the device's compute stream works it off in order, collectives run on streams of their own. All
noise is drawn from (seed, rank, step, place), so that a job without a fault is the same job but for the fault.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

LAUNCH_US, HOST_US = 5.0, 4.0
LATENCY_US = 12.0


@dataclass(frozen=True)
class Compute:
    """Kernels on the compute stream: `us` in all."""

    us: float
    kernels: int = 4
    expert: bool = False  # its length follows what the rank was sent


@dataclass(frozen=True)
class Send:
    """A communication of a group; `wait` makes the compute stream stand still for it."""

    kind: str
    members: tuple[int, ...]
    size_bytes: int
    stream: int = 20
    wait: bool = True
    tag: str = ""
    source: int = -1
    destination: int = -1
    description: str = "undefined"


@dataclass(frozen=True)
class Wait:
    """The compute stream stands still for the communications with this tag."""

    tag: str


@dataclass(frozen=True)
class Load:
    """The host waits for input."""

    us: float


@dataclass(frozen=True)
class Sync:
    """The host waits for the device."""


Op = Compute | Send | Wait | Load | Sync


@dataclass(frozen=True)
class Fault:
    """Something planted: `what` as `foretrace ranks` names it, and who has it."""

    what: str  # slow-rank, slow-node, slow-stage, late-input, slow-link, slow-nic (between nodes only), slow-pair (this node and the next), imbalance
    who: int
    factor: float = 1.0
    late_us: float = 0.0
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Job:
    """A layout with its faults and clocks."""

    name: str
    world: int
    steps: int
    program: Callable[[int, int], Iterable[Op]]  # rank, step
    stage: Callable[[int], int] = lambda rank: 0
    per_node: int = 8
    faults: tuple[Fault, ...] = ()
    noise: float = 0.01
    jitter: float = 0.0  # by which whole steps of a rank differ
    offset_us: float = 5_000.0
    drift_ppm: float = 50.0
    seed: int = 1
    intra_bytes_per_us: float = 200_000.0
    inter_bytes_per_us: float = 40_000.0
    leave_us: float = 0.3
    sync: bool = True
    first_step: int = 3

    def without(self, fault: Fault) -> Job:
        """The same job without one of its faults."""
        return replace(self, faults=tuple(each for each in self.faults if each is not fault))


@dataclass
class Row:
    """A communication of one rank as it was."""

    rank: int
    step: int
    op: Send
    launch_us: float
    key: tuple[object, ...]
    seq: int
    received: float = 1.0  # times what the others receive
    ready_us: float = 0.0
    start_us: float | None = None
    end_us: float | None = None
    peers: list[Row] = field(default_factory=list)


@dataclass
class Kernel:
    """Work on the compute stream."""

    start_us: float
    end_us: float
    launch_us: float
    name: str


@dataclass
class Rank:
    """What one rank did, in true time."""

    number: int
    kernels: list[Kernel] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    loads: list[tuple[float, float]] = field(default_factory=list)
    marks: list[tuple[int, float, float]] = field(default_factory=list)  # step, start, end
    offset_us: float = 0.0
    drift: float = 0.0

    def local_us(self, true_us: float) -> float:
        """What the rank's own clock shows."""
        return true_us + self.offset_us + self.drift * true_us


@dataclass
class Simulated:
    """A simulated job."""

    job: Job
    ranks: list[Rank]

    @property
    def step_us(self) -> float:
        """The mean step: from the first begin to the last end."""
        begin = min(rank.marks[0][1] for rank in self.ranks)
        return (max(rank.marks[-1][2] for rank in self.ranks) - begin) / self.job.steps


def simulate(job: Job) -> Simulated:
    """The job, run."""
    return _Simulation(job).run()


class _Simulation:
    def __init__(self, job: Job) -> None:
        self.job = job
        random = np.random.default_rng((job.seed, 10_000_019))
        self.ranks = [Rank(number) for number in range(job.world)]
        for rank in self.ranks:
            rank.offset_us = float(random.uniform(-job.offset_us, job.offset_us))
            rank.drift = float(random.uniform(-job.drift_ppm, job.drift_ppm)) * 1e-6
        self.compute_us = [1_000.0] * job.world  # when the compute stream is free
        self.host_us = [1_000.0] * job.world
        self.queues: dict[tuple[int, int], deque[Row]] = {}
        self.free_us: dict[tuple[int, int], float] = {}
        self.open: dict[tuple[object, ...], list[Row]] = {}
        self.counts: dict[tuple[object, ...], int] = {}
        self.sequence: dict[tuple[int, object], int] = {}
        self.blocked: dict[int, list[Row]] = {}
        self.woken: deque[int] = deque()
        self.leaving = np.random.default_rng((job.seed, 777))

    def run(self) -> Simulated:
        programs = [self._steps(rank) for rank in range(self.job.world)]
        self.woken.extend(range(self.job.world))
        alive = set(range(self.job.world))
        while self.woken:
            rank = self.woken.popleft()
            if rank not in alive:
                continue
            for rows in programs[rank]:
                pending = [row for row in rows if row.end_us is None]
                if pending:
                    self.blocked[rank] = pending
                    break
            else:
                alive.discard(rank)
        assert not alive, f"{len(alive)} ranks wait for ever"
        for simulated in self.ranks:
            simulated.rows.sort(key=lambda row: row.start_us or 0.0)
        return Simulated(self.job, self.ranks)

    def _steps(self, number: int) -> Iterable[list[Row]]:
        """Yields the communications that the rank has to wait for before it goes on."""
        job, rank = self.job, self.ranks[number]
        factor = np.prod([f.factor for f in job.faults if f.what == "slow-rank" and f.who == number] or [1.0])
        factor *= np.prod(
            [f.factor for f in job.faults if f.what == "slow-stage" and f.who == job.stage(number)] or [1.0]
        )
        hot = [f.factor for f in job.faults if f.what == "hot-node" and f.who == number // job.per_node]
        factor *= np.prod(hot or [1.0])
        expert = np.prod([f.factor for f in job.faults if f.what == "imbalance" and f.who == number] or [1.0])
        for step in range(job.steps):
            random = np.random.default_rng((job.seed, number, step))
            pace = np.random.default_rng((job.seed, number, step, 1)).lognormal(0.0, job.jitter)
            tagged: dict[str, list[Row]] = {}
            begin = self.host_us[number]
            for op in job.program(number, step):
                if isinstance(op, Compute):
                    slow = float(factor * pace * (expert if op.expert else 1.0))
                    self._compute(rank, op, slow, random)
                elif isinstance(op, Send):
                    row = self._send(rank, step, op, float(expert))
                    tagged.setdefault(op.tag, []).append(row)
                    if op.wait:
                        yield [row]
                        self._resume(number, [row])
                elif isinstance(op, Wait):
                    rows = tagged.pop(op.tag, [])
                    yield rows
                    self._resume(number, rows)
                elif isinstance(op, Load):
                    late = sum(
                        f.late_us
                        for f in job.faults
                        if f.what == "late-input" and f.who == number and step in f.steps
                    )
                    us = op.us * float(random.uniform(0.8, 1.2)) + late
                    rank.loads.append((self.host_us[number], self.host_us[number] + us))
                    self.host_us[number] += us
                else:
                    self.host_us[number] = max(self.host_us[number], self.compute_us[number])
            left = [row for rows in tagged.values() for row in rows if row.end_us is None]
            yield left
            end = max(
                [
                    self.compute_us[number],
                    self.host_us[number],
                    *(row.end_us or 0.0 for row in rank.rows[-1:]),
                ]
            )
            rank.marks.append((step + job.first_step, begin, end if job.sync else self.host_us[number]))
            if job.sync:
                self.host_us[number] = end + 3.0
                self.compute_us[number] = max(self.compute_us[number], end)

    def _compute(self, rank: Rank, op: Compute, slow: float, random: np.random.Generator) -> None:
        number = rank.number
        lengths = random.lognormal(0.0, self.job.noise, op.kernels) * (op.us * slow / op.kernels)
        for place, us in enumerate(lengths):
            launch = self.host_us[number]
            self.host_us[number] += HOST_US
            start = max(self.compute_us[number] + 0.5, launch + LAUNCH_US)
            rank.kernels.append(
                Kernel(start, start + us, launch, f"kernel_{place % 7}{'_expert' * op.expert}")
            )
            self.compute_us[number] = start + us

    def _send(self, rank: Rank, step: int, op: Send, expert: float) -> Row:
        number = rank.number
        if op.kind in ("send", "recv"):
            pair = ("p2p", op.source, op.destination)
            turn = self.counts[(number, *pair)] = self.counts.get((number, *pair), 0) + 1
            key: tuple[object, ...] = (*pair, turn)
            group: object = ("p2p", op.members)
        else:
            group = (op.members, op.description)
            turn = self.counts[(number, group)] = self.counts.get((number, group), 0) + 1
            key = (op.members, op.description, turn)
        sequence = self.sequence[(number, group)] = self.sequence.get((number, group), 0) + 1
        launch = self.host_us[number]
        self.host_us[number] += HOST_US
        row = Row(rank.number, step, op, launch, key, sequence, expert if op.kind == "all_to_all" else 1.0)
        row.ready_us = max(self.compute_us[number] + 1.0, launch + LAUNCH_US)
        rank.rows.append(row)
        queue = self.queues.setdefault((number, op.stream), deque())
        queue.append(row)
        if queue[0] is row:
            self._begin(row)
        return row

    def _begin(self, row: Row) -> None:
        place = (row.rank, row.op.stream)
        row.start_us = max(row.ready_us, self.free_us.get(place, 0.0) + 0.5)
        met = self.open.setdefault(row.key, [])
        met.append(row)
        expected = 2 if row.op.kind in ("send", "recv") else len(row.op.members)
        if len(met) == expected:
            del self.open[row.key]
            self._finish(met)

    def _finish(self, rows: Sequence[Row]) -> None:
        end = max(row.start_us or 0.0 for row in rows) + self.transfer_us(rows)
        begun = []
        for row in rows:
            row.peers = list(rows)
            row.end_us = end + float(self.leaving.normal(0.0, self.job.leave_us))
            place = (row.rank, row.op.stream)
            self.free_us[place] = row.end_us
            queue = self.queues[place]
            queue.popleft()
            if queue:
                begun.append(queue[0])
            waited = self.blocked.get(row.rank)
            if waited and all(each.end_us is not None for each in waited):
                del self.blocked[row.rank]
                self.woken.append(row.rank)
        for row in begun:
            self._begin(row)

    def transfer_us(self, rows: Sequence[Row]) -> float:
        """Without waiting: latency and bytes over the slowest link, slower where a node is."""
        job, op = self.job, rows[0].op
        members = (op.source, op.destination) if op.kind in ("send", "recv") else op.members
        nodes = {member // job.per_node for member in members}
        count = len(members)
        factor = {"all_reduce": 2 * (count - 1) / count, "send": 1.0, "recv": 1.0}.get(
            op.kind, (count - 1) / count
        )
        rate = job.intra_bytes_per_us if len(nodes) == 1 else job.inter_bytes_per_us
        slow = [
            f.factor
            for f in job.faults
            if (f.what == "slow-node" and len(nodes) > 1 and f.who in nodes)
            or (f.what == "slow-link" and f.who in members and count > 1)
            or (f.what == "slow-pair" and nodes == {f.who, f.who + 1})
            or (f.what == "slow-nic" and f.who in members and len(nodes) > 1)
        ]
        most = max(row.op.size_bytes for row in rows)
        place = _stable(job.seed, rows[0].key)
        noise = float(np.random.default_rng(place).lognormal(0.0, job.noise / 2))
        return (LATENCY_US + most * factor / rate * max([1.0, *slow])) * noise

    def _resume(self, number: int, rows: Sequence[Row]) -> None:
        for row in rows:
            assert row.end_us is not None
            self.compute_us[number] = max(self.compute_us[number], row.end_us)


def _stable(seed: int, key: tuple[object, ...]) -> list[int]:
    """Numbers that stand for a key in every run."""
    numbers = [part if isinstance(part, int) else zlib.crc32(str(part).encode()) for part in key]
    return [seed, *numbers]
