"""The sections of run.json and rank.json that Foretrace reads, with their types and bounds."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from foretrace.own_files import Amount, Count, Integer, NotNegative

FileName = Annotated[str, Meta(min_length=1, max_length=255)]


class Cores(Struct):
    """Who used the processor's cores during a timing or a pass."""

    wall_ns: NotNegative | None = None
    usable_cpu_count: Amount | None = None
    own_cpu_ns: NotNegative | None = None
    others_cpu_ns: NotNegative | None = None
    thread_wait_ns: NotNegative | None = None
    longest_wait_ns: NotNegative | None = None
    involuntary_switches: Count | None = None
    load_average: list[NotNegative | None] | None = None


class Times(Struct):
    """A timing without the profiler."""

    median_ns: NotNegative | None = None
    low_ns: NotNegative | None = None
    high_ns: NotNegative | None = None
    steps: Count | None = None
    blocks_ns: list[NotNegative] | None = None
    stopped_because: str | None = None
    host_ns: NotNegative | None = None
    host_low_ns: NotNegative | None = None
    host_high_ns: NotNegative | None = None
    host_blocks: Count | None = None
    cores: Cores | None = None


class Settling(Struct):
    """What the timings before and after the passes say of each other."""

    verdict: str | None = None
    says: str | None = None
    light_ns: NotNegative | None = None
    light_settled: bool | None = None


class Making(Struct):
    """How long a loader's process takes for a batch."""

    mean_ns: NotNegative | None = None
    mean_cpu_ns: NotNegative | None = None


class Loader(Struct):
    """Waits for a DataLoader."""

    workers: Count | None = None
    steps: Count | None = None
    calls: Count | None = None
    step_ns: NotNegative | None = None
    mean_ns: NotNegative | None = None
    waits_ns: list[NotNegative] | None = None
    waiting_steps: Count | None = None
    waiting_mean_ns: NotNegative | None = None
    batch_bytes: NotNegative | None = None
    made: Making | None = None
    load_average: NotNegative | None = None


class DeviceTime(Struct):
    """A step recorded with nothing but the device's work."""

    step_ns: NotNegative | None = None
    busy_ns: NotNegative | None = None


class Processor(Struct):
    """The CPU and torch's threads."""

    model: str | None = None
    flags: list[str] | None = None
    usable_cpu_count: Amount | None = None
    load_average: Amount | None = None
    torch_threads_count: Count | None = None


class StepTime(Struct):
    """A step of the memory pass."""

    step: Integer | None = None
    began_ns: Integer | None = None
    ended_ns: Integer | None = None


class DeviceMemory(Struct):
    """The allocator of one device around the memory pass."""

    device: Count | None = None
    peak_allocated_bytes: Count | None = None
    peak_reserved_bytes: Count | None = None
    driver_free_bytes: Count | None = None
    driver_total_bytes: Count | None = None
    before: dict[str, Integer | None] | None = None
    after: dict[str, Integer | None] | None = None


class Pass(Struct):
    """A recording of the rank."""

    kind: str
    file: FileName | None = None
    steps: Count | None = None
    file_bytes: Count | None = None
    step_times: list[StepTime] | None = None
    devices: list[DeviceMemory] | None = None
    cores: Cores | None = None


class StackFrame(Struct):
    """A Python frame of a failed allocation."""

    file: str | None = None
    line: Integer | None = None
    function: str | None = None


class OutOfMemory(Struct):
    """An allocation that failed."""

    file: FileName | None = None
    why_no_file: str | None = None
    at_ns: Integer | None = None
    step: Integer | None = None
    device: Integer | None = None
    asked_bytes: Count | None = None
    limit_bytes: Count | None = None
    driver_free_bytes: Count | None = None
    history: bool | None = None
    stack: list[StackFrame] | None = None
    count: Count | None = None


class Group(Struct):
    """A process group of torch.distributed."""

    pg_name: str
    pg_desc: str | None = None
    pg_size: Count | None = None
    ranks: list[Count] | None = None


class Clock(Struct):
    """One moment by the host's own clock and by its date."""

    boot: str | None = None
    monotonic_ns: Integer | None = None
    epoch_ns: Integer | None = None


class Limits(Struct):
    """What the machine lets the program use."""

    usable_cpu_count: Amount | None = None
    quota_cpu_count: Amount | None = None


class Lines(Struct):
    """The sampler of lines: whether it ran, and what the moments of its samples were."""

    pid: Count | None = None
    why_off: str | None = None
    thread: Count | None = None
    steps: Count | None = None
    first_ns: Integer | None = None
    last_ns: Integer | None = None
    profiled_ns: list[tuple[Integer, Integer]] | None = None


RANK: dict[str, Any] = {
    "schema": int,
    "rank": Count,
    "host": str,
    "processor": Processor,
    "versions": dict[str, str | None],
    "command": list[str],
    "world_size": Count,
    "groups": list[Group],
    "clock": Clock,
    "unprofiled": Times,
    "timed_first": Times,
    "timed_again": Times,
    "settling": Settling,
    "loader": Loader,
    "device_time": DeviceTime,
    "passes": list[Pass],
    "lines": Lines,
    "out_of_memory": OutOfMemory,
    "status": str,
    "reason": str,
}
RUN: dict[str, Any] = {"schema": int, "limits": Limits, "notes": list[str]}
