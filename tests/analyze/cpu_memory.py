"""Small training programs on the CPU, recorded with the allocator's events: with and without checkpoint, by batch size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import foretrace
from foretrace.trace import Trace

KINDS = ("encoder", "mlp", "convolutions")


def trained(kind: str, *, checkpointed: bool = False, batch: int = 8) -> Any:
    """A step of the program."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: Any) -> Any:
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
            self.norm, self.last, self.relu = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            y = self.last(self.second(self.relu(self.norm(self.first(x)))))
            y += x
            return self.relu(y)

    class Net(nn.Module):
        def __init__(self, blocks: list[Any]) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(blocks)

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
            return x

    torch.manual_seed(0)
    encoder = {"d_model": 32, "nhead": 2, "dim_feedforward": 64, "batch_first": True}
    kinds: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
        "encoder": (lambda: nn.TransformerEncoderLayer(**encoder), (batch, 48, 32)),
        "mlp": (Mlp, (batch * 64, 64)),
        "convolutions": (Convolutions, (batch, 8, 24, 24)),
    }
    blocks, shape = kinds[kind]
    net, given = Net([blocks() for _ in range(6)]), torch.randn(shape)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        net(given.clone()).square().mean().backward()
        optimizer.step()

    return step


@cache
def recorded(kind: str, *, checkpointed: bool = False, batch: int = 8) -> Trace:
    """Two steps of the program, as torch's profiler has them."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine take seconds
    step = trained(kind, checkpointed=checkpointed, batch=batch)
    step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
    ) as profiler:
        for _ in range(2):
            step()
            profiler.step()
    torch.set_num_threads(threads)
    path = Path(mkdtemp()) / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = foretrace.open(path, cache=False)
    for table in ("spans", "ops", "python", "allocations", "counters", "modules", "tracks", "stacks"):
        trace.table(table)
    path.unlink()
    path.parent.rmdir()
    return trace
