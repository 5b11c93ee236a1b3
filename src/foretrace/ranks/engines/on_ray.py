"""The ray engine: the same function as tasks of a Ray cluster, which gives those of dead workers to others."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from foretrace.errors import InputError, UsageError
from foretrace.ranks.engines.outcome import IN_MEMORY, Outcome, summary_of
from foretrace.urls import full

_RETRIES = 3
_START_S = "180"  # on a busy machine Ray's own 30 s are too few
_AHEAD = 4  # tasks for each processor of the cluster that are under way at once


def run(paths: Sequence[str], *, address: str | None = None) -> Iterator[Outcome]:
    """The outcomes, in the order in which they come; paths must be readable from the cluster's machines.

    So must URLs, with the credentials that these machines have: those of this one are not sent, but for what a URL holds itself.
    """
    if any(path.startswith(IN_MEMORY) for path in paths):
        raise UsageError("memory:// is of this process alone; --on local reads it")
    ray = _ray()
    started = not ray.is_initialized()
    if started:
        _connect(ray, address)
    try:
        yield from _tasks(ray, [os.fspath(path) for path in paths])
    finally:
        if started:
            ray.shutdown()


def _ray() -> Any:
    # Ray's workers give way to everything else by default; read when it is imported.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", _START_S)
    try:
        import ray
    except ImportError as error:
        raise UsageError("--on ray needs Ray: pip install 'foretrace[ray]'") from error
    return ray


def _connect(ray: Any, address: str | None) -> None:
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=None if address else False)
    except Exception as error:  # Ray raises bare ones too
        where = address or "this machine"
        raise InputError(f"no Ray cluster at {where}: {' '.join(str(error).split())[:200]}") from error


def _tasks(ray: Any, paths: Sequence[str]) -> Iterator[Outcome]:
    task = ray.remote(max_retries=_RETRIES, num_cpus=1)(_named_summary_of)
    ahead = max(_AHEAD * int(ray.cluster_resources().get("CPU", 1)), 1)
    waiting = deque(paths)
    pending: dict[Any, str] = {}
    while waiting or pending:
        try:
            while waiting and len(pending) < ahead:
                pending[task.remote(full(waiting[0]))] = waiting[0]
                waiting.popleft()
            outcomes = _done(ray, pending)
        except (
            Exception
        ) as error:  # the node that this process is connected to died: Ray raises bare exceptions too
            reason = f"the Ray cluster was lost while it was read: {_line(error)}"
            outcomes = [
                Outcome(path, None, f"{path}: {reason}", lost=True) for path in (*pending.values(), *waiting)
            ]
            pending.clear()
            waiting.clear()
        yield from outcomes


def _named_summary_of(path: str) -> tuple[bytes | None, str]:
    outcome = summary_of(path)
    return outcome.summary, outcome.reason


def _done(ray: Any, pending: dict[Any, str]) -> list[Outcome]:
    """The outcome of a task that ended, however it did."""
    ready, _ = ray.wait(list(pending), num_returns=1)
    return [_outcome(ray, reference, pending.pop(reference)) for reference in ready]


def _outcome(ray: Any, reference: Any, path: str) -> Outcome:
    try:
        summary, reason = ray.get(reference)
    except ray.exceptions.WorkerCrashedError:
        says = f"{path}: the process that read it was killed {_RETRIES + 1} times"
        return Outcome(path, None, says, lost=True)
    except ray.exceptions.RayTaskError as error:
        return Outcome(path, None, f"{path}: {_line(error).replace(full(path), path)}")
    except ray.exceptions.RayError as error:
        says = f"{path}: the Ray node that read it was lost: {_line(error).replace(full(path), path)}"
        return Outcome(path, None, says, lost=True)
    return Outcome(path, summary, reason)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
