"""What measuring waits for a DataLoader costs, and what it costs to get a batch from a worker.

python benchmarks/loader.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, Dataset

from foretrace.capture import loader_waits

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 23, 1 << 26)
REPEATS = 15


class Ready(Dataset[torch.Tensor]):
    """Items that are there already."""

    def __init__(self, size_bytes: int) -> None:
        self.items = [torch.ones(max(size_bytes // 16, 1)) for _ in range(4)]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.items[index % 4]


def a_batch_ns(count: int) -> float:
    """The time of one __next__ of a loader that does next to nothing."""
    batches = iter(DataLoader(Ready(64), batch_size=None))
    began = time.perf_counter_ns()
    for _ in range(count):
        next(batches)
    return (time.perf_counter_ns() - began) / count


def a_step_ns(count: int) -> float:
    """A step of training of a small model, with its batch."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = iter(DataLoader(Ready(256), batch_size=32))
    began = time.perf_counter_ns()
    for _ in range(count):
        model(next(batches)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter_ns() - began) / count


def compared(measure: Callable[[int], float], count: int) -> list[float]:
    """The best of many without hooks, with them, and while waits are written down; in turn, for machines wander."""
    best = [float("inf")] * 3
    waits = loader_waits.LoaderWaits()
    for _ in range(REPEATS):
        loader_waits.remove()
        best[0] = min(best[0], measure(count))
        loader_waits.install()
        best[1] = min(best[1], measure(count))
        waits.begin()
        best[2] = min(best[2], measure(count))
        waits.end()
    loader_waits.remove()
    return best


def handed_over_ns(size_bytes: int, workers: int) -> float:
    """The quickest five batches in a row, with nothing done between them."""
    batches = iter(DataLoader(Ready(size_bytes), batch_size=4, num_workers=workers))
    times = []
    for _ in range(40):
        began = time.perf_counter_ns()
        next(batches)
        times.append(time.perf_counter_ns() - began)
    return min(sum(times[at : at + 5]) / 5 for at in range(5, 36, 5))


def main() -> None:
    torch.set_num_threads(1)
    for name, measure, count in (("__next__", a_batch_ns, 3_000), ("a step", a_step_ns, 100)):
        without, hooked, writing = compared(measure, count)
        print(
            f"{name:10} {without:10,.0f} ns; hooked {hooked:10,.0f}; writing down {writing:10,.0f}",
            flush=True,
        )
    for size in SIZES:
        none, one = (handed_over_ns(size, workers) / 1e3 for workers in (0, 1))
        print(
            f"{size:>10,} bytes: {none:10,.0f} µs in the main process, {one:10,.0f} µs by a worker",
            flush=True,
        )


if __name__ == "__main__":
    main()
