"""A check is one thing that a recording needs from this machine: how it stands, and how to put it right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from foretrace import nvidia
from foretrace.capture import external
from foretrace.errors import MissingDataError
from foretrace.units import format_value

_ROOT = Path("/")
_GIB = 1 << 30
_TOOLS = {
    "nvidia-smi": "comes with NVIDIA's driver; not needed to read recordings",
    "nsys": "Nsight Systems, https://developer.nvidia.com/nsight-systems; only to record with it",
    "ncu": "Nsight Compute, https://developer.nvidia.com/nsight-compute; only to record with it",
    "rocprofv3": "comes with ROCm; only to record on AMD GPUs",
}
_CAP_SYS_ADMIN, _CAP_PERFMON = 21, 38  # linux/capability.h
_LITTLE_MEMORY = 2 * _GIB  # a rich recording of a large step takes about 1 GiB while it is written
_LITTLE_SHARED = 1 * _GIB  # a container has 64 MiB unless told otherwise; a few batches fill that

# Runs in a process of its own: a torch that cannot be imported, hangs or crashes must not take `doctor` along.
_TRIAL = """
import json, torch
from torch.profiler import profile, supported_activities
has_gpu = torch.cuda.is_available()
activities = sorted(supported_activities(), key=str)
with profile(activities=activities) as recording:
    tensor = torch.ones(64, 64, device="cuda" if has_gpu else "cpu")
    tensor @ tensor
    if has_gpu:
        torch.cuda.synchronize()
on_host = [str(event.device_type).endswith("CPU") for event in recording.events()]
print("foretrace:" + json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "devices": [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())] if has_gpu else [],
    "activities": [each.name for each in activities],
    "host_events": sum(on_host), "device_events": len(on_host) - sum(on_host),
}))
"""
_TRIAL_LIMIT_S = 120


class Check(NamedTuple):
    """One line of `foretrace doctor`."""

    what: str
    status: str  # ok, missing or broken
    found: str
    fix: str = ""


class Trial(NamedTuple):
    """What torch says of itself after it recorded one matrix product."""

    version: str
    cuda: str | None
    hip: str | None
    devices: Sequence[str]
    activities: Sequence[str]
    host_events: int
    device_events: int


def checks() -> Iterator[Check]:
    """Every check of what this machine can record."""
    gpus = nvidia.gpus(reasons=True)
    trial = _try_torch()
    yield from _gpu_checks(gpus, trial)
    yield from torch_checks(trial, has_nvidia=bool(gpus))
    if gpus:
        yield counters_check()
        yield clocks_check(gpus)
    elif isinstance(trial, Trial) and trial.devices and trial.cuda:
        yield Check(
            "clocks", "missing", nvidia.NOT_KNOWN.partition(":")[0], nvidia.NOT_KNOWN.partition(": ")[2]
        )
    for tool, hint in _TOOLS.items():
        where = _tool(tool)
        yield Check(tool, "ok", where) if where else Check(tool, "missing", "", hint)
    if sys.platform == "linux":
        yield memory_check()
        yield cores_check()
        yield shared_memory_check()


def _tool(name: str) -> str | None:
    try:
        return external.find(name) if name in external.TOOLS else shutil.which(name)
    except MissingDataError:
        return None


def _gpu_checks(gpus: Sequence[nvidia.Gpu], trial: Trial | str | None) -> Iterator[Check]:
    names = [_described(gpu) for gpu in gpus]
    if not names and isinstance(trial, Trial):
        names = list(trial.devices)  # as of AMD, which NVIDIA's driver does not know
    for name, count in Counter(names).items():
        yield Check("GPU", "ok", f"{count} × {name}" if count > 1 else name)
    if not names:
        fix = "only the host can be recorded here; in a container: `docker run --gpus all`"
        yield Check("GPU", "missing", "none answers", fix)
    if gpus:
        yield Check("driver", "ok", gpus[0].driver or "version not known")


def _described(gpu: nvidia.Gpu) -> str:
    memory = "" if gpu.memory_mib is None else f", {format_value('_bytes', gpu.memory_mib << 20)}"
    return f"{gpu.name or 'an NVIDIA GPU'}{memory}"


def torch_checks(trial: Trial | str | None, *, has_nvidia: bool) -> Iterator[Check]:
    """Whether torch is there, sees the GPU, and records what runs on it."""
    if trial is None:
        fix = "pip install torch; only to record programs, not to read recordings"
        yield Check("torch", "missing", "", fix)
        return
    if isinstance(trial, str):
        yield Check("torch", "broken", trial, 'see what this says: python -c "import torch"')
        return
    build = f"CUDA {trial.cuda}" if trial.cuda else f"ROCm {trial.hip}" if trial.hip else "CPU only"
    says = f"{trial.version}, {build}"
    if trial.devices or not has_nvidia:
        yield Check("torch", "ok", says)
    elif trial.cuda:
        fix = "compare the driver with torch's CUDA version; look at CUDA_VISIBLE_DEVICES"
        yield Check("torch", "broken", f"{says}, but it sees no GPU", fix)
    else:
        fix = "install a build for CUDA: https://pytorch.org/get-started"
        yield Check("torch", "broken", f"{says}, though there is a GPU", fix)
    yield _profiler_check(trial)


def _profiler_check(trial: Trial) -> Check:
    recorded = f"a trial recorded {trial.host_events} host events"
    if trial.devices:
        recorded += f" and {trial.device_events} of the GPU"
    if not trial.host_events:
        return Check("profiler", "broken", recorded, "this build of torch has no profiler: install another")
    if trial.devices and not trial.device_events:
        fix = (
            "stop other profilers and debuggers of this GPU; see the line on counters; "
            "in a container: --cap-add=SYS_ADMIN"
        )
        return Check("profiler", "broken", f"{recorded}: CUPTI gives nothing", fix)
    return Check("profiler", "ok", f"{recorded} ({', '.join(trial.activities)})")


def _try_torch() -> Trial | str | None:
    """What torch says of itself, or why it says nothing; None where there is none."""
    if find_spec("torch") is None:
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _TRIAL], capture_output=True, text=True, errors="replace",
            timeout=_TRIAL_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer ({error.__class__.__name__})"
    for line in done.stdout.splitlines():
        if line.startswith("foretrace:"):
            return Trial(**json.loads(line.removeprefix("foretrace:")))
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"cannot be used: {last}"


def counters_check(root: Path = _ROOT) -> Check:
    """Whether this user may read the GPU's performance counters, which ncu lives on."""
    params = _read(root / "proc" / "driver" / "nvidia" / "params")
    restricted = next((line for line in params.splitlines() if "RmProfilingAdminOnly" in line), "")
    if restricted.endswith("0"):
        return Check("counters", "ok", "open to every user")
    if held := _capabilities(root):
        return Check("counters", "ok", f"for administrators only; this process is one ({held})")
    return Check(
        "counters",
        "missing",
        "for administrators only: ncu will be refused (ERR_NVGPUCTRPERM)"
        if restricted
        else "the driver does not say who may read them, and this process is no administrator",
        "as root: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in modprobe.d, then reboot; "
        "in a container: docker run --cap-add=SYS_ADMIN",
    )


def _capabilities(root: Path) -> str:
    """The capability of this process that opens the counters, if it has one."""
    status = _read(root / "proc" / "self" / "status")
    effective = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    bits = int(effective.split()[1], 16)
    if bits >> _CAP_SYS_ADMIN & 1:
        return "CAP_SYS_ADMIN"
    return "CAP_PERFMON, from driver 565 on" if bits >> _CAP_PERFMON & 1 else ""


def clocks_check(gpus: Sequence[nvidia.Gpu]) -> Check:
    """Whether the GPUs' clocks will stand still while they are timed."""
    known = [gpu for gpu in gpus if gpu.sm_mhz is not None]
    if not known:
        return Check("clocks", "missing", "not reported", "update the driver")
    switch = {True: "enabled", False: "disabled", None: "not known"}
    says = [f"{gpu.sm_mhz} of {gpu.max_sm_mhz} MHz, persistence {switch[gpu.persistence]}" for gpu in known]
    found = "; ".join(dict.fromkeys(says))
    slowed = sorted({reason for gpu in known for reason in gpu.slowed_by or ()})
    if slowed:
        fix = "let it cool down or free its power; times recorded now are too long: nvidia-smi -q -d PERFORMANCE"
        return Check("clocks", "broken", f"{found}; slowed by {', '.join(slowed)}", fix)
    if any(gpu.persistence is False for gpu in known):
        fix = "as root: nvidia-smi -pm 1; without it the first program after a pause also pays for loading the driver"
        return Check("clocks", "missing", found, fix)
    return Check("clocks", "ok", found)


def memory_check(root: Path = _ROOT) -> Check:
    """How much memory a recording may still take."""
    total, free = _system_memory(root)
    limit, used = _memory_limit(root)
    size, left, whose = total, free, "of the machine"
    if limit is not None and limit < total:
        size, left, whose = limit, min(free, limit - used), "of this container"
    found = f"{format_value('_bytes', left)} free of {format_value('_bytes', size)} {whose}"
    if left >= _LITTLE_MEMORY:
        return Check("memory", "ok", found)
    fix = "record fewer steps, and no stacks or memory; in a container: docker run --memory"
    return Check("memory", "missing", found, fix)


def _system_memory(root: Path) -> tuple[int, int]:
    """Bytes that the machine has, and that are free."""
    lines = dict(line.split(":", 1) for line in _read(root / "proc" / "meminfo").splitlines() if ":" in line)
    total, free = (int(lines.get(name, "0 kB").split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total, free


def _memory_limit(root: Path) -> tuple[int | None, int]:
    """The container's limit in bytes, and how much of it is used: from cgroup 2, else 1."""
    group = root / "sys" / "fs" / "cgroup"
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        text = _read(group / limit).strip()
        if text.isdecimal():
            return int(text), int(_read(group / used).strip() or 0)
    return None, 0


def cores_check(root: Path = _ROOT, *, visible: int | None = None) -> Check:
    """How many cores there are to feed the GPU, and whether a container gives less than it shows."""
    shown = visible if visible is not None else _visible_cores()
    quota = _core_quota(root)
    if quota is None or quota >= shown:
        return Check("cores", "ok", f"{shown}")
    fix = f"start at most {max(int(quota), 1)} workers and threads, or: docker run --cpus={shown}"
    return Check("cores", "missing", f"{shown} are shown, but this container gets the time of {quota:g}", fix)


def _visible_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _core_quota(root: Path) -> float | None:
    """Cores' worth of time that the container may use; None where there is no limit."""
    group = root / "sys" / "fs" / "cgroup"
    words = _read(group / "cpu.max").split()
    if not words:
        words = [_read(group / "cpu" / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    quota, period = (*words, "", "")[:2]
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def shared_memory_check(path: Path = _ROOT / "dev" / "shm") -> Check:
    """Room for the batches that DataLoader workers hand over."""
    fix = "docker run --shm-size=8g or --ipc=host; else workers die with a bus error, or set num_workers=0"
    try:
        size, _, free = shutil.disk_usage(path)
    except OSError:
        return Check("shared memory", "missing", f"no {path}", fix)
    found = f"{format_value('_bytes', free)} free of {format_value('_bytes', size)} in {path}"
    if free >= _LITTLE_SHARED:
        return Check("shared memory", "ok", found)
    return Check("shared memory", "missing", found, fix)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
