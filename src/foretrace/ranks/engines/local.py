"""The local engine: worker processes, of which any may be killed: what it held is given to another."""

from __future__ import annotations

import os
import selectors
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from foretrace.ranks.engines.outcome import IN_MEMORY, Outcome, summary_of
from foretrace.urls import full

_TRIES = 3  # of one recording: a worker that dies of it three times is killed by it
_HEADER = struct.Struct("<BI")
_IN_PROCESS = 2  # as few recordings are read sooner than a worker has started


def run(paths: Sequence[str]) -> Iterator[Outcome]:
    """The outcomes, in the order in which they come."""
    if len(paths) <= _IN_PROCESS or any(path.startswith(IN_MEMORY) for path in paths):
        yield from map(summary_of, paths)
        return
    with Pool(min(_cpus(), len(paths))) as pool:
        yield from pool.map(paths)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """So many worker processes; those that die are replaced."""

    def __init__(self, size: int) -> None:
        self.workers = [_Worker() for _ in range(size)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            worker.stop()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self.workers]

    def map(self, paths: Sequence[str]) -> Iterator[Outcome]:
        """Each path's outcome, once."""
        waiting = deque((path, 1) for path in paths)
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
            left = len(waiting)
            while left:
                for place, worker in enumerate(self.workers):
                    if worker.task is None and waiting and not worker.give(*waiting[0]):
                        self.workers[place] = _replaced(worker, selector)
                    elif worker.task is not None and waiting and worker.task == waiting[0]:
                        waiting.popleft()
                for key, _ in selector.select():
                    worker = key.data
                    outcome = worker.take()
                    if outcome is None:
                        place = self.workers.index(worker)
                        path, tries = worker.task or ("", _TRIES)
                        self.workers[place] = _replaced(worker, selector)
                        if not path:
                            continue
                        if tries < _TRIES:
                            waiting.appendleft((path, tries + 1))
                            continue
                        says = f"{path}: the process that read it was killed {tries} times"
                        outcome = Outcome(path, None, says, lost=True)
                    left -= 1
                    yield outcome


def _replaced(dead: _Worker, selector: selectors.BaseSelector) -> _Worker:
    selector.unregister(dead.answers)
    dead.stop()
    worker = _Worker()
    selector.register(worker.answers, selectors.EVENT_READ, worker)
    return worker


class _Worker:
    """A process with a task, or without."""

    def __init__(self) -> None:
        environment = {"POLARS_MAX_THREADS": "1", **os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "foretrace.ranks.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.questions, self.answers = self.process.stdin, self.process.stdout
        self.task: tuple[str, int] | None = None

    def give(self, path: str, tries: int) -> bool:
        """Whether the worker still takes a task."""
        try:
            self.questions.write(os.fsencode(full(path)).replace(b"\n", b"\0") + b"\n")
            self.questions.flush()
        except OSError:
            return False
        self.task = (path, tries)
        return True

    def take(self) -> Outcome | None:
        """The answer to its task; None where it died over it."""
        head = self.answers.read(_HEADER.size)
        if len(head) < _HEADER.size or self.task is None:
            return None
        read, size = _HEADER.unpack(head)
        data = self.answers.read(size)
        if len(data) < size:
            return None
        path, _ = self.task
        self.task = None
        return Outcome(path, data) if read else Outcome(path, None, data.decode())

    def stop(self) -> None:
        """Ends the process and its pipes."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.questions, self.answers):
            with suppress(OSError):  # a write to a dead process may still be buffered
                pipe.close()
