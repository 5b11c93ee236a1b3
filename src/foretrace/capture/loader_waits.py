"""The time in every DataLoader.__next__ while steps are timed without a profiler, and the time that making a batch takes.

What a loader costs comes in bursts: ten recorded steps are no sample of it, all timed steps are. HF accelerate's and
Lightning's loaders iterate over torch's iterators, so one hook sees them all.

Batches are timed where they are made. Workers that are forked inherit the hook and a page of shared memory, into which each
writes for itself; nothing goes through the program's queues. Workers that are spawned are not timed.
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import sqrt
from statistics import fmean, median
from typing import Any

from foretrace.capture.step_hooks import drop_own_frame
from foretrace.capture.timing import StepTimes

KEPT = 100  # values that the waits of all steps are kept as
WAITS_FROM = 0.05  # of the step: a step that waits longer than this is one that waits
_KNOWN = 0.01  # of the step: so well the mean wait should be known
_MOST_STEPS = 100_000
_DEEP = 4  # of a batch made of lists and dicts, how deep its tensors are looked for
# For each process: batches, their nanoseconds, batches whose work was looked at, and a processor's nanoseconds for those.
_SLOTS, _SLOT = 1021, struct.Struct("qqqq")
_WORK_EVERY = 8  # batches: asking how long a processor worked takes a microsecond

_installed: _Hook | None = None


def install() -> None:
    """Hooks into torch's DataLoader, once; workers that are forked from here on can tell their pace."""
    global _installed
    if _installed is None:
        try:
            _installed = _Hook()
        except (ImportError, AttributeError, KeyError):
            _installed = None  # a torch whose loader is built in another way: its waits are not known


def remove() -> None:
    """Takes the hooks out again, where nobody has wrapped them."""
    global _installed
    if _installed is not None:
        _installed.remove()
        _installed = None


@dataclass
class Loader:
    """One DataLoader as the program made it."""

    workers: int
    batch_size: int | None
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    batch_bytes: int | None = None
    calls: int = field(default=0, repr=False)

    @classmethod
    def of(cls, iterator: Any, batch: object) -> Loader:
        """What an iterator of torch's knows of its loader; the batch is the first that was timed."""
        workers = int(getattr(iterator, "_num_workers", 0) or 0)
        sampler = getattr(iterator, "_index_sampler", None)
        return cls(
            workers=workers,
            batch_size=_number(getattr(sampler, "batch_size", None)),
            prefetch_factor=_number(getattr(iterator, "_prefetch_factor", None)) if workers else None,
            pin_memory=bool(getattr(iterator, "_pin_memory", False)),
            persistent_workers=bool(getattr(iterator, "_persistent_workers", False)),
            batch_bytes=_bytes_of(batch),
        )


class _Hook:
    """The wrappers, and what they write down while `waits` is set."""

    def __init__(self) -> None:
        from torch.utils.data import dataloader
        from torch.utils.data._utils import fetch

        self.waits: LoaderWaits | None = None
        self._slots = mmap.mmap(-1, _SLOTS * _SLOT.size)  # shared with the children of a fork
        self._undo: list[Callable[[], None]] = []
        fetchers = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
        wrapped = [(dataloader._BaseDataLoaderIter, "__next__", self._timed_next)]
        wrapped += [(fetcher, "fetch", self._timed_fetch) for fetcher in fetchers]
        made = [(owner, name, owner.__dict__[name], wrapping) for owner, name, wrapping in wrapped]
        for owner, name, original, wrapping in made:
            self._wrap(owner, name, original, wrapping(original))

    def _wrap(self, owner: type, name: str, original: Any, wrapped: Any) -> None:
        setattr(owner, name, wrapped)

        def undo() -> None:
            if owner.__dict__.get(name) is wrapped:
                setattr(owner, name, original)

        self._undo.append(undo)

    def remove(self) -> None:
        self.waits = None
        while self._undo:
            self._undo.pop()()

    def _timed_next(self, original: Any) -> Any:
        hook, now = self, time.perf_counter_ns

        @functools.wraps(original)
        def __next__(self: Any) -> Any:
            began = now()
            try:
                batch = original(self)
            except BaseException as error:
                drop_own_frame(error)
                raise
            waits = hook.waits
            if waits is not None:
                waits.add(self, batch, now() - began)
            return batch

        return __next__

    def _timed_fetch(self, original: Any) -> Any:
        slots, now, worked = self._slots, time.perf_counter_ns, time.process_time_ns

        @functools.wraps(original)
        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            at = os.getpid() % _SLOTS * _SLOT.size
            count, ns, looked, cpu_ns = _SLOT.unpack_from(slots, at)
            look = count % _WORK_EVERY == 0
            began_work = worked() if look else 0
            began = now()
            try:
                batch = original(self, possibly_batched_index)
            except BaseException as error:
                drop_own_frame(error)
                raise
            ns += now() - began
            if look:
                looked, cpu_ns = looked + 1, cpu_ns + worked() - began_work
            _SLOT.pack_into(slots, at, count + 1, ns, looked, cpu_ns)
            return batch

        return fetch

    def made(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the slots hold so far: of workers together, and of this process."""
        own = os.getpid() % _SLOTS
        rows = list(_SLOT.iter_unpack(self._slots[:]))
        everyone = [sum(column) for column in zip(*rows, strict=True)]
        return tuple(a - b for a, b in zip(everyone, rows[own], strict=True)), rows[own]


class LoaderWaits:
    """The waits of the steps that are timed: `begin`, `step` at each boundary, `facts` at the end."""

    def __init__(self) -> None:
        self._own = False  # whether the hooks are there for this alone
        self._thread = self._in_step = 0
        self._steps: list[int] = []
        self._sum = self._squares = 0
        self._loaders: dict[int, Loader] = {}
        self._began_ns = self._last_ns = 0
        self._last_wait_ns = 0
        self._made: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def begin(self) -> None:
        """From here on the steps of this thread are timed; what was written down before is forgotten."""
        own = self._own or _installed is None
        install()
        self.__init__()  # type: ignore[misc]
        if _installed is None:
            return
        self._own, self._thread = own, threading.get_ident()
        self._made = _installed.made()
        self._began_ns = self._last_ns = time.perf_counter_ns()
        _installed.waits = self

    def end(self) -> None:
        """No more calls are written down; hooks that were made for this alone go."""
        if _installed is not None and _installed.waits is self:
            _installed.waits = None
        if self._own:
            self._own = False
            remove()

    def add(self, iterator: Any, batch: object, wait_ns: int) -> None:
        """A call of __next__ has ended; those of other threads hold nobody up."""
        if threading.get_ident() != self._thread:
            return
        self._in_step += wait_ns
        key = id(getattr(iterator, "_dataset", None))  # each epoch has an iterator of its own
        loader = self._loaders.get(key)
        if loader is None:
            loader = self._loaders[key] = Loader.of(iterator, batch)
        loader.calls += 1

    def step(self) -> None:
        """A boundary."""
        if len(self._steps) < _MOST_STEPS:
            self._steps.append(self._in_step)
            self._sum += self._in_step
            self._squares += self._in_step**2
            self._last_ns = time.perf_counter_ns()
        self._last_wait_ns, self._in_step = self._in_step, 0

    @property
    def last_ns(self) -> int:
        """How long the step before the last boundary waited."""
        return self._last_wait_ns

    @property
    def uneven(self) -> bool:
        """Whether the mean wait is not known yet within 1 % of the step: more steps would tell."""
        count = len(self._steps)
        if count < 2 or not self._sum:
            return False
        variance = max(self._squares - self._sum * self._sum / count, 0.0) / (count - 1)
        return sqrt(variance / count) > _KNOWN * self._step_ns

    @property
    def _step_ns(self) -> float:
        return (self._last_ns - self._began_ns) / max(len(self._steps), 1)

    def facts(self) -> dict[str, Any] | None:
        """As rank.json holds them; `None` where no step called a loader."""
        if not self._steps or not self._loaders:
            return None
        chief = max(self._loaders.values(), key=lambda loader: loader.calls)
        return {
            **{name: value for name, value in chief.__dict__.items() if name != "calls"},
            "loaders": len(self._loaders),
            "calls": sum(loader.calls for loader in self._loaders.values()),
            "step_ns": round(self._step_ns),
            **spread(self._steps, self._step_ns),
            "made": self._made_since(chief),
            "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        }

    def told(self, times: StepTimes | None) -> StepTimes | None:
        """The times of the same steps, with their waits."""
        return replace(times, loader=self.facts()) if times is not None else None

    def _made_since(self, chief: Loader) -> dict[str, Any] | None:
        """What making a batch took since the beginning, where the loader makes them; of spawned workers nothing is known."""
        if _installed is None or self._made is None:
            return None
        side = 0 if chief.workers else 1
        count, ns, looked, cpu_ns = (
            now - before for now, before in zip(_installed.made()[side], self._made[side], strict=True)
        )
        if count < 1:
            return None
        return {
            "batches": count,
            "mean_ns": ns // count,
            "mean_cpu_ns": cpu_ns // looked if looked else None,
        }


def spread(waits_ns: Sequence[int], step_ns: float) -> dict[str, Any]:
    """The waits of steps as numbers: `waits_ns` are means of equal parts of them, from the shortest to the longest."""
    ordered = sorted(waits_ns)
    limit = round(WAITS_FROM * step_ns)
    long = [wait for wait in ordered if wait > limit]
    edges = [len(ordered) * part // KEPT for part in range(KEPT + 1)]
    kept = [round(fmean(ordered[start:end])) for start, end in pairwise(edges) if end > start]
    return {
        "steps": len(ordered),
        "mean_ns": round(fmean(ordered)),
        "median_ns": round(median(ordered)),
        "p90_ns": ordered[min(len(ordered) * 9 // 10, len(ordered) - 1)],
        "max_ns": ordered[-1],
        "waiting_from_ns": limit,
        "waiting_steps": len(long),
        "waiting_mean_ns": round(fmean(long)) if long else 0,
        "waits_ns": kept if len(ordered) > KEPT else ordered,
    }


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bytes_of(batch: object) -> int | None:
    """The bytes of the tensors in a batch; `None` where there are none, or a batch of the program's own kind refuses."""
    try:
        return _tensor_bytes(batch, _DEEP) or None
    except Exception:  # code of the program's, asked for what it need not answer
        return None


def _tensor_bytes(batch: object, depth: int) -> int:
    import torch

    if isinstance(batch, torch.Tensor):
        strided = batch.layout == torch.strided and not batch.is_nested
        return batch.numel() * batch.element_size() if strided else 0
    if depth and isinstance(batch, Mapping):
        return sum(_tensor_bytes(value, depth - 1) for value in batch.values())
    if depth and isinstance(batch, (list, tuple)):
        return sum(_tensor_bytes(value, depth - 1) for value in batch)
    return 0
