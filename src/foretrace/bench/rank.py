"""The program of one rank of a sweep over collectives: `python -m foretrace.bench.rank FOLDER RANK`.

All ranks take the same samples: each is the longest of all, and the time is rank 0's, so that all stop together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from foretrace.bench.benchmark import ERROR, OK
from foretrace.bench.clocks import Clock, Function, clock_for
from foretrace.bench.engine import measure
from foretrace.bench.kinds.collectives import with_bandwidth
from foretrace.bench.sweep import Case, Row, failure
from foretrace.bench.timing import Timing

_GIVE_UP = timedelta(seconds=120)  # on a rank that does not come


class GroupClock:
    """A clock that all ranks share: samples are the longest of all, the time is rank 0's."""

    def __init__(self, clock: Clock, distributed: Any, device: Any) -> None:
        import torch

        self._clock, self._distributed, self._device, self._torch = clock, distributed, device, torch
        self.says, self.least_sample_ms, self.most_together = (
            clock.says,
            clock.least_sample_ms,
            clock.most_together,
        )
        self.least_sample_ms = self._shared([self.least_sample_ms])[0]

    def samples(self, function: Function, *, calls: int, count: int) -> list[float]:
        """Each begins when all ranks are there."""
        self._distributed.barrier()
        return self._shared(self._clock.samples(function, calls=calls, count=count))

    def now_s(self) -> float:
        """Of rank 0."""
        now = self._torch.tensor([self._clock.now_s()], dtype=self._torch.float64, device=self._device)
        self._distributed.broadcast(now, 0)
        return float(now[0])

    def settle(self) -> None:
        """As the clock below."""
        self._clock.settle()

    def any_failed(self, failed: bool) -> bool:
        """Whether one of the ranks did."""
        return bool(self._shared([float(failed)])[0])

    def _shared(self, values: list[float]) -> list[float]:
        held = self._torch.tensor(values, dtype=self._torch.float64, device=self._device)
        self._distributed.all_reduce(held, op=self._distributed.ReduceOp.MAX)
        return [float(value) for value in held]


def call_of(case: Case, distributed: Any, device: Any) -> Callable[[], object]:
    """The collective of a case, on tensors that are made once; the size is that of the whole tensor, as in nccl-tests."""
    import torch

    ranks, name = case["ranks"], case["op"]
    part = max(int(case["MiB"] * 2**20 / 4 / ranks), 1)
    whole = torch.ones(part * ranks, device=device)
    if name == "all_reduce":
        return lambda: distributed.all_reduce(whole)
    if name == "broadcast":
        return lambda: distributed.broadcast(whole, 0)
    piece = torch.ones(part, device=device)
    if name == "all_gather":
        return lambda: distributed.all_gather_into_tensor(whole, piece)
    return lambda: distributed.reduce_scatter_tensor(piece, whole)


def row_of(case: Case, clock: GroupClock, timing: Timing, distributed: Any, device: Any) -> Row:
    """The row of one case; one that all ranks refuse, such as an operation that the backend has not, is a row too."""
    status, reason, call = OK, None, None
    try:
        call = call_of(case, distributed, device)
        call()
        clock.settle()
    except Exception as error:
        status, reason = failure(error)
    if clock.any_failed(status != OK) or call is None:
        return {
            **case,
            "status": status if status != OK else ERROR,
            "reason": reason or "another rank failed",
        }
    taken = measure(call, clock, timing)
    return with_bandwidth({**case, "status": OK, "reason": None, **taken.columns()})


def main(folder: Path, rank: int) -> None:
    """Runs all cases with the others; rank 0 writes a row after each."""
    import torch
    import torch.distributed as distributed

    given = json.loads(Path(folder, "cases.json").read_text(encoding="utf-8"))
    timing, cases = Timing.from_dict(given["timing"]), given["cases"]
    backend, ranks = cases[0]["backend"], cases[0]["ranks"]
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    meeting = Path(folder, "meeting").resolve().as_uri()
    distributed.init_process_group(
        backend, init_method=meeting, rank=rank, world_size=ranks, timeout=_GIVE_UP
    )
    clock = GroupClock(clock_for(device, timing.how), distributed, device)
    for case in cases:
        row = row_of(case, clock, timing, distributed, device)
        if rank == 0:
            with open(Path(folder, "rows.jsonl"), "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
