"""What a Run knows of its steps without a profiler: their blocks, how long they waited for data, and what the machine has."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from foretrace.ingest.core_use import CoreUse, read_core_use
from foretrace.ingest.processor import Processor, read_processor
from foretrace.statistics import robust_deviation

_WORKERS = re.compile(
    r"--?(?:(?:data|dataloader|loader|train|num|n|nb|number|of|max)[_.-]?)*workers?", re.IGNORECASE
)
_JOBS = "-j"  # as of make, timm and pytorch/examples
_MOST_WORKERS = 1_024
_HOST_BLOCKS = 3  # fewer do not show whether they agree
_HOST_SPREAD = (
    0.15  # of the host's own time: a block that is shorter by more than this, and the median is one by chance
)


@dataclass(frozen=True)
class LoaderTimes:
    """The waits of unprofiled steps for their DataLoader, and its pace."""

    workers: int
    steps: int
    step_ns: float  # the mean of the same steps
    mean_ns: float
    waits_ns: tuple[float, ...]  # equal parts of the steps, from the shortest wait to the longest
    waiting_steps: int  # that wait for more than a small part of the step
    waiting_mean_ns: float
    batches: float = 1.0  # a step
    batch_bytes: int | None = None
    made_ns: float | None = None  # the time that making one batch takes, in a worker or in the main process
    made_cpu_ns: float | None = None  # of which all threads of that process worked
    load_average: float | None = None


@dataclass(frozen=True)
class HostTimes:
    """The host's own time for a step, which begins with an idle device and an empty launch queue; waits for data are out."""

    median_ns: float
    low_ns: float
    high_ns: float
    blocks: int

    @property
    def agree(self) -> bool:
        """Whether the median can be relied on. A hiccup makes a step longer, never shorter: the lowest block tells."""
        return self.blocks >= _HOST_BLOCKS and self.low_ns >= (1 - _HOST_SPREAD) * self.median_ns


@dataclass(frozen=True)
class DeviceTimes:
    """A step recorded with nothing but the device's work: how long it took, and how long any stream was at work."""

    step_ns: float
    busy_ns: float


@dataclass(frozen=True)
class Timed:
    """The unprofiled steps of one rank."""

    blocks_ns: tuple[float, ...]
    loader: LoaderTimes | None = None  # Runs made before waits were measured have none
    cores: float | None = None  # for each rank
    named_workers: int | None = None  # as the command says, such as --num-workers 4
    ranks: int = 1
    host: HostTimes | None = None  # Runs made before it was measured have none
    device: DeviceTimes | None = None
    processor: Processor | None = None  # Runs made before it was described have none
    core_use: CoreUse | None = None  # Runs made before it was counted have none

    @property
    def host_ns(self) -> float | None:
        """The host's own time for a step, without waits for data; None where it was not measured or blocks differ."""
        return self.host.median_ns if self.host is not None and self.host.agree else None

    @property
    def loading_host_ns(self) -> float | None:
        """The same with the waits for data, at their mean."""
        if self.host_ns is None or self.loader is None:
            return self.host_ns
        return self.host_ns + self.loader.mean_ns

    @property
    def scatter(self) -> float:
        """How far two timings as long as this one may differ, as a share of the step: the standard error of both."""
        if not self.blocks_ns:
            return 0.0
        middle = median(self.blocks_ns)
        errors = math.sqrt(2 / len(self.blocks_ns)) * robust_deviation(self.blocks_ns)
        return errors / middle if middle else 0.0

    @property
    def free_cores(self) -> int | None:
        """Whole cores that other programs leave this rank; None where its cores are not known."""
        if self.cores is None or self.core_use is None:
            return None if self.cores is None else int(self.cores)
        return self.core_use.left_of(self.cores)

    @property
    def machine_cores(self) -> float:
        """Those of all ranks; 0 where they are not known."""
        return (self.cores or 0.0) * self.ranks


def read_timed(rank: Mapping[str, Any], run: Mapping[str, Any]) -> Timed:
    """From what rank.json and run.json hold; what is missing or makes no sense is not known."""
    times = _mapping(rank.get("unprofiled"))
    blocks = times.get("blocks_ns")
    cores = _cores(_mapping(run.get("limits")), rank.get("world_size"))
    ranks = max(int(_number(rank.get("world_size")) or 1), 1)
    return Timed(
        blocks_ns=_numbers(blocks),
        loader=_loader(_mapping(rank.get("loader"))),
        cores=cores,
        named_workers=named_workers(rank.get("command")),
        ranks=ranks,
        host=_host(times),
        device=_device(_mapping(rank.get("device_time"))),
        processor=read_processor(rank.get("processor"), cores),
        core_use=_core_use(rank, _mapping(run.get("limits")).get("quota_cpu_count"), ranks),
    )


def _core_use(rank: Mapping[str, Any], quota: object, ranks: int) -> CoreUse | None:
    """Of the timed steps; of the recorded ones where only those were beside other programs."""
    timed = read_core_use(_mapping(rank.get("unprofiled")).get("cores"), quota=quota, ranks=ranks)
    if timed is not None and timed.contended:
        return timed
    passes = rank.get("passes")
    last_first = map(_mapping, reversed(passes) if isinstance(passes, list) else ())
    cores = next((done.get("cores") for done in last_first if done.get("kind") == "light"), None)
    recorded = read_core_use(cores, quota=quota, ranks=ranks, steps="recorded")
    return recorded if recorded is not None and recorded.contended else timed


def bursty_step_ns(facts: Mapping[str, Any], least_share: float) -> float | None:
    """The mean step where waits for data come in bursts: the median of blocks is one of them by chance."""
    loader = _loader(_mapping(facts.get("loader")))
    if loader is None or loader.mean_ns < least_share * loader.step_ns:
        return None
    uneven = 0 < loader.waiting_steps < loader.steps
    return loader.step_ns if uneven else None


def named_workers(command: object) -> int | None:
    """The number behind an option for workers: `--num_workers 4`, `--workers=4`, `-j 4`."""
    words = [str(word) for word in command] if isinstance(command, list) else []
    found = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if _WORKERS.fullmatch(name) or name == _JOBS:
            text = value if equals else following
            if text.isdecimal() and int(text) <= _MOST_WORKERS:
                found.append(int(text))
    return found[-1] if found else None


def _loader(facts: Mapping[str, Any]) -> LoaderTimes | None:
    steps, step_ns, mean_ns = (_number(facts.get(name)) for name in ("steps", "step_ns", "mean_ns"))
    waits, workers = _numbers(facts.get("waits_ns")), _number(facts.get("workers"))
    if not steps or not step_ns or mean_ns is None or workers is None or not waits:
        return None
    made = _mapping(facts.get("made"))
    size = _number(facts.get("batch_bytes"))
    return LoaderTimes(
        workers=int(workers),
        steps=int(steps),
        step_ns=step_ns,
        mean_ns=mean_ns,
        waits_ns=waits,
        waiting_steps=int(_number(facts.get("waiting_steps")) or 0),
        waiting_mean_ns=_number(facts.get("waiting_mean_ns")) or 0.0,
        batches=(_number(facts.get("calls")) or steps) / steps,
        batch_bytes=None if size is None else int(size),
        made_ns=_number(made.get("mean_ns")),
        made_cpu_ns=_number(made.get("mean_cpu_ns")),
        load_average=_number(facts.get("load_average")),
    )


def _host(times: Mapping[str, Any]) -> HostTimes | None:
    names = ("host_ns", "host_low_ns", "host_high_ns", "host_blocks")
    median_ns, low_ns, high_ns, blocks = (_number(times.get(name)) for name in names)
    if not median_ns or low_ns is None or high_ns is None or blocks is None:
        return None
    return HostTimes(median_ns, low_ns, high_ns, int(blocks))


def _device(times: Mapping[str, Any]) -> DeviceTimes | None:
    step_ns, busy_ns = _number(times.get("step_ns")), _number(times.get("busy_ns"))
    return DeviceTimes(step_ns, busy_ns) if step_ns and busy_ns and busy_ns <= step_ns else None


def _cores(limits: Mapping[str, Any], world_size: object) -> float | None:
    known = [_number(limits.get(name)) for name in ("usable_cpu_count", "quota_cpu_count")]
    cores = min((count for count in known if count), default=None)
    ranks = _number(world_size) or 1.0
    return None if cores is None else cores / max(ranks, 1.0)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _numbers(value: object) -> tuple[float, ...]:
    listed = (
        [_number(item) for item in value]
        if isinstance(value, Sequence) and not isinstance(value, str)
        else []
    )
    return tuple(item for item in listed if item is not None)


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
