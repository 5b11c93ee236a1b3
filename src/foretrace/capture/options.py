"""The CaptureOptions: what to record of a program, as the launcher and the API hand it to the recorder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from foretrace.errors import UsageError

VARIABLE = "FORETRACE_CAPTURE"  # the environment variable that carries the options into the program
LIGHT, RICH, MEMORY = "light", "rich", "memory"
DEVICE = "device"  # only what the device does, so that the host runs nearly as fast as ever; leaves no file
AGAIN = "again"  # no profiler at all: steps are timed once more, after the passes; leaves no file


@dataclass(frozen=True)
class Switches:
    """torch.profiler's switches for one pass; `None` leaves a choice to the pass."""

    cpu: bool = True
    cuda: bool = True  # ignored where there is no such device
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_modules: bool = False
    with_flops: bool = False


LIGHT_SWITCHES = Switches(record_shapes=True)  # shapes cost little, and the rules need them
DEVICE_SWITCHES = Switches(cpu=False)
RICH_SWITCHES = Switches(
    record_shapes=True, profile_memory=True, with_stack=True, with_modules=True, with_flops=True
)


@dataclass(frozen=True)
class CaptureOptions:
    """What to record, for how long, and where to."""

    output: str  # the Run folder
    passes: tuple[str, ...] = (LIGHT, RICH)
    light: Switches = LIGHT_SWITCHES
    rich: Switches = RICH_SWITCHES
    # The schedule. `None`: by time, so that short and long steps are both measured well.
    wait: int | None = None  # steps before anything is measured
    warmup: int | None = None  # steps under the profiler that are thrown away, in each pass
    active: int | None = None  # steps recorded in each pass
    repeat: int = 1  # how often each pass is recorded
    ranks: tuple[int, ...] | None = None  # `None`: every rank
    rich_ranks: tuple[int, ...] | None = None  # of these only the rich pass too; `None`: of every rank
    step_function: str | None = None  # module:qualname
    labels: bool = False  # module names as NVTX ranges and annotations in the rich pass
    launch_blocking: bool = False  # CUDA_LAUNCH_BLOCKING=1: readable, but its times are not the program's
    memory: bool = (
        False  # the history of CUDA's allocator over whole steps, and a snapshot where memory runs out
    )
    lines: bool = True  # samples the lines of all threads, from the program's start to its end
    stop_after_capture: bool = False
    on_demand: bool = False  # begin at SIGUSR2 or when the trigger file appears, not at once
    trigger: str | None = None  # a file whose appearance begins a capture
    # Limits: a capture ends rather than going past them.
    settle_s: float = 1.0  # steps that belong to the program's start: at least so long ...
    settle_steps: int = 3  # ... and so many
    time_s: float = 3.0  # timing unprofiled steps ends here at the latest
    warm_s: float = 0.5  # each pass is warmed for so long
    record_s: float = 3.0  # a window closes after so long, whatever `active` says
    total_s: float = 300.0  # nothing new begins after so long since the first step
    file_bytes: int = 512 << 20  # a rich pass whose file would be larger is recorded with less in it

    def to_json(self) -> str:
        """The text for the environment variable."""
        return json.dumps(asdict(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self)

    @staticmethod
    def from_json(text: str) -> CaptureOptions:
        """The options in such a text; names of another version are left out."""
        try:
            values: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{VARIABLE} is not JSON: {error}") from error
        known = {field.name for field in fields(CaptureOptions)}
        values = {name: value for name, value in values.items() if name in known}
        for name in (LIGHT, RICH):
            if isinstance(values.get(name), dict):
                values[name] = Switches(**values[name])
        for name in ("passes", "ranks", "rich_ranks"):
            if isinstance(values.get(name), list):
                values[name] = tuple(values[name])
        return CaptureOptions(**values)

    def switches(self, kind: str) -> Switches:
        """Those of one pass."""
        return {RICH: self.rich, DEVICE: DEVICE_SWITCHES}.get(kind, self.light)

    def wants_rank(self, rank: int) -> bool:
        """Whether this rank is to be recorded."""
        return self.ranks is None or rank in self.ranks

    def wants_rich(self, rank: int) -> bool:
        """Whether this rank is to be recorded richly too."""
        return self.rich_ranks is None or rank in self.rich_ranks
