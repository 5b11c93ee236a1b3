"""The options of `foretrace.profile`, with their types: what an editor completes and a type checker checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from foretrace.capture.options import Switches


class ProfileOptions(TypedDict, total=False):
    """All are optional; those of torch.profiler apply to the rich pass."""

    passes: Annotated[str | Sequence[str], "what to record, one after the other: light, rich, memory"]
    light: Annotated[Switches, "torch.profiler's switches of the light pass"]
    rich: Annotated[Switches, "torch.profiler's switches of the rich pass"]
    wait: Annotated[int | None, "steps before anything is measured; by default, by time"]
    warmup: Annotated[
        int | None, "steps under the profiler that are thrown away, in each pass; by default, by time"
    ]
    active: Annotated[int | None, "steps recorded in each pass; by default, by time"]
    repeat: Annotated[int, "how often each pass is recorded"]
    ranks: Annotated[int | Sequence[int] | None, "ranks to record; by default, every one"]
    rich_ranks: Annotated[
        int | Sequence[int] | None, "ranks whose rich pass is recorded; by default, every one"
    ]
    step_function: Annotated[str | None, "the function whose calls are the steps, as module:qualname"]
    labels: Annotated[bool, "module names as annotations and NVTX ranges in the rich pass"]
    launch_blocking: Annotated[
        bool, "refused here: it must be set before the program starts, by `foretrace run`"
    ]
    memory: Annotated[
        bool, "the history of CUDA's allocator over whole steps, and a snapshot where memory runs out"
    ]
    lines: Annotated[bool, "sample the lines of all Python threads; on by default, on Linux"]
    stop_after_capture: Annotated[bool, "end the program once everything is recorded"]
    on_demand: Annotated[bool, "begin at SIGUSR2 or when the trigger file appears, not at once"]
    trigger: Annotated[str | None, "a file whose appearance begins a capture"]
    settle_s: Annotated[float, "steps that belong to the program's start: at least so many seconds ..."]
    settle_steps: Annotated[int, "... and so many steps"]
    time_s: Annotated[float, "timing unprofiled steps ends after so many seconds at the latest"]
    warm_s: Annotated[float, "each pass is warmed for so many seconds"]
    record_s: Annotated[float, "a window closes after so many seconds, whatever `active` says"]
    total_s: Annotated[float, "nothing new begins so many seconds after the first step"]
    file_bytes: Annotated[int, "a rich pass whose file would be larger is recorded with less in it"]
    cpu: Annotated[bool, "torch.profiler: the host's activity"]
    cuda: Annotated[bool, "torch.profiler: the device's activity; ignored where there is none"]
    record_shapes: Annotated[bool, "torch.profiler: shapes of the operators' inputs"]
    profile_memory: Annotated[bool, "torch.profiler: allocations"]
    with_stack: Annotated[bool, "torch.profiler: Python stacks"]
    with_modules: Annotated[bool, "torch.profiler: the nn.Modules around operators"]
    with_flops: Annotated[bool, "torch.profiler: estimated FLOPs of operators"]
