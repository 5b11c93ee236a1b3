"""Times a program's steps without any profiler: time_steps.py OUT.json TICK SCRIPT [ARGUMENT ...]

TICK names what ends a step: `optimizer` (any optimizer's step), or `module:function`. After warming up, blocks of steps are
timed, one synchronisation at each end, until the last ones agree; then the process ends. From the environment:
TICKS_PER_STEP (1), WARM_S (1.2) and WARM_N (12) steps of warming up, BLOCKS (6) of at least BLOCK_S (0.25) and three steps.
ONLY_STEPS=N times nothing: the process ends after N steps.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

FIRST = 3  # steps before the clock of warming up starts: they compile and choose algorithms
FEWEST = 3  # steps of a block
SPREAD = 0.15  # of the median, between the longest and the shortest block of a program that has settled
LONGEST = 3  # times the blocks asked for, after which the last ones count as they are


class Timer:
    """Counts ticks, and ends the process once all blocks are timed."""

    def __init__(self, out: Path) -> None:
        read = os.environ.get
        self.out = out
        self.per_step = int(read("TICKS_PER_STEP", "1"))
        self.warm_s = float(read("WARM_S", "1.2"))
        self.warm_n = int(read("WARM_N", "12")) * self.per_step
        self.block_s, self.most = float(read("BLOCK_S", "0.25")), int(read("BLOCKS", "6"))
        self.only = int(read("ONLY_STEPS", "0")) * self.per_step
        self.ticks, self.first_at = 0, 0.0
        self.began, self.ticks_then = 0.0, 0
        self.blocks: list[float] = []

    def tick(self, *_: Any, **__: Any) -> None:
        """A step, or a part of one, has ended."""
        self.ticks += 1
        now = time.perf_counter()
        if self.only and self.ticks >= self.only:
            self.end({})
        if self.ticks == FIRST * self.per_step:
            self.first_at = now
        if not self.first_at or self.ticks % self.per_step:
            return
        if not self.began:
            if self.ticks >= self.warm_n and now - self.first_at > self.warm_s:
                self.begin()
        elif now - self.began >= self.block_s and self.ticks - self.ticks_then >= FEWEST * self.per_step:
            synchronize()
            steps = (self.ticks - self.ticks_then) / self.per_step
            self.blocks.append((time.perf_counter() - self.began) * 1e3 / steps)
            last = self.blocks[-self.most :]
            if len(last) == self.most and (settled(last) or len(self.blocks) >= LONGEST * self.most):
                self.blocks = last
                self.end({"step_ms": median(last), "lo": min(last), "hi": max(last)})
            self.begin()

    def begin(self) -> None:
        """Starts a block."""
        synchronize()
        self.began, self.ticks_then = time.perf_counter(), self.ticks

    def end(self, figures: dict[str, float]) -> None:
        """Writes the figures and ends the process."""
        synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
        steps = self.ticks // self.per_step
        self.out.write_text(json.dumps({**figures, "blocks": self.blocks, "peak_mib": peak, "steps": steps}))
        sys.stdout.flush()
        os._exit(0)


def settled(blocks: Sequence[float]) -> bool:
    """Whether the blocks agree: a program that still gets faster is timed on."""
    return max(blocks) - min(blocks) <= SPREAD * median(blocks)


def synchronize() -> None:
    """Waits for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def hook(tick_at: str, tick: Callable[..., None]) -> None:
    """Has `tick` called at the end of what `tick_at` names."""
    if tick_at == "optimizer":
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(tick)
        return
    module, _, name = tick_at.partition(":")
    holder: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        holder = getattr(holder, part)
    inner = getattr(holder, last)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        out = inner(*args, **kwargs)
        tick()
        return out

    setattr(holder, last, wrapped)


def main() -> None:
    """Runs the program under the timer."""
    out, tick_at, script = sys.argv[1:4]
    hook(tick_at, Timer(Path(out)).tick)
    sys.argv = sys.argv[3:]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
    sys.exit("the program ended before its steps were timed")


if __name__ == "__main__":
    main()
