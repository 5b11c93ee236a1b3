"""An external profiler is NVIDIA's nsys or ncu, started around the program: what torch.profiler cannot see.

Neither can share a process with torch.profiler (one user of CUPTI at a time), so the program runs again under
it, without Foretrace's own passes: it only opens the window that the profiler waits for, an NVTX range named
`WINDOW` around settled steps. What ncu looks at is chosen from the light pass that came before.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretrace.errors import InputError, MissingDataError, UsageError, unknown

TOOLS = ("nsys", "ncu")
WINDOW = "foretrace-window"
KERNELS = 3  # each is a run of its own
KERNEL_SHARE = 0.8  # kernels beyond this share of GPU time do not matter
_NSYS_TRACES = "cuda,nvtx,cublas,cudnn"
_WHERE = {
    "nsys": "Nsight Systems is not installed: https://developer.nvidia.com/nsight-systems",
    "ncu": "Nsight Compute is not installed: https://developer.nvidia.com/nsight-compute",
}
# Where the installers put them without touching PATH.
_FOLDERS = {
    "nsys": ("opt/nvidia/nsight-systems/*/bin", "usr/local/cuda*/bin"),
    "ncu": ("opt/nvidia/nsight-compute/*", "usr/local/cuda*/bin"),
}
_ROOT = Path("/")


@dataclass(frozen=True)
class Kernel:
    """One kernel function by its share of the GPU's time, and how ncu is asked for it."""

    name: str
    name_base: str  # ncu's --kernel-name-base: what `name` is compared with
    share: float
    launches: int


@dataclass(frozen=True)
class ExternalRun:
    """One start of the program under a profiler: what to execute, and what that leaves behind."""

    tool: str
    command: tuple[str, ...]
    environment: Mapping[str, str]  # to be added to the program's
    report: Path
    afterwards: tuple[
        tuple[str, ...], ...
    ]  # commands that print the report as a table, for Foretrace to read
    says: str


def plan(
    tool: str, command: Sequence[str], folder: Path, *, light: Path | None = None, operators: bool = False
) -> tuple[ExternalRun, ...]:
    """The starts that `--with TOOL` means; `light` is the recording that kernels are chosen from."""
    if tool not in TOOLS:
        raise unknown(f"--with {tool}", tool, TOOLS)
    if not command:
        raise UsageError(f"--with {tool}: no program to start; give it after --")
    executable = find(tool)
    if tool == "nsys":
        return (nsys_run(command, folder, executable=executable, operators=operators),)
    if light is None:
        raise MissingDataError("--with ncu: no light pass to choose kernels from; leave it switched on")
    return tuple(
        ncu_run(command, folder, kernel=kernel, executable=executable, number=number)
        for number, kernel in enumerate(important_kernels(light), 1)
    )


def find(tool: str, *, root: Path = _ROOT) -> str:
    """Path of a tool: from PATH, else the newest in the folders that its installers use."""
    if on_path := shutil.which(tool):
        return on_path
    for pattern in _FOLDERS[tool]:
        installed = [each / tool for each in root.glob(pattern) if (each / tool).is_file()]
        if installed:
            return str(max(installed, key=lambda each: _version(str(each))))
    raise MissingDataError(f"--with {tool}: {_WHERE[tool]}; then see: foretrace doctor")


def _version(path: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path))


def nsys_run(
    command: Sequence[str], folder: Path, *, executable: str, operators: bool = False
) -> ExternalRun:
    """The program under nsys, recorded while the window is open.

    `operators` adds an NVTX range for every operator, in the backward pass too. It costs host time.
    """
    report = folder / "nsys.nsys-rep"
    labels = ("--pytorch=autograd-shapes-nvtx",) if operators else ()
    arguments = (
        executable,
        "profile",
        f"--trace={_NSYS_TRACES}",
        *labels,
        # Sampling the CPU needs rights that containers lack, and slows the host that is being timed.
        "--sample=none",
        "--cpuctxsw=none",
        # By default a CUDA graph is one row, without its kernels.
        "--cuda-graph-trace=node",
        "--capture-range=nvtx",
        f"--nvtx-capture={WINDOW}",
        "--capture-range-end=stop",
        "--kill=none",
        "--export=sqlite",
        f"--output={report.with_suffix('')}",
    )
    return ExternalRun(
        tool="nsys",
        command=(*arguments, *command),
        # torch pushes unregistered strings; nsys starts on registered ones only, and records nothing.
        environment={"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"},
        report=report,
        afterwards=(),
        says="the report holds every environment variable of the program: look before you share it",
    )


def ncu_run(
    command: Sequence[str], folder: Path, *, kernel: Kernel, executable: str, number: int = 1
) -> ExternalRun:
    """The program under ncu: one launch of each shape in which one kernel runs while the window is open.

    One kernel per start, since ncu counts launches per grid, block and shared memory, whatever the name.
    """
    report = folder / f"ncu-{number}.ncu-rep"
    arguments = (
        executable,
        "--target-processes", "all",
        "--nvtx",
        # Without a slash: a range from start to end, of the whole process. The backward pass is launched by a
        # thread of its own, where a range that the main thread pushed does not count.
        "--nvtx-include", WINDOW,
        "--kernel-name-base", kernel.name_base,
        "--kernel-name", f"regex:^{re.escape(kernel.name)}$",
        "--filter-mode", "per-launch-config",
        "--launch-count", "1",
        "--graph-profiling", "node",
        "--set", "full",
        # At the clocks of the light pass: by default ncu locks the base clock.
        "--clock-control", "none",
        "--export", str(report),
    )  # fmt: skip
    return ExternalRun(
        tool="ncu",
        command=(*arguments, *command),
        environment={},
        report=report,
        afterwards=tuple(_page(executable, report, page) for page in ("raw", "details")),
        says=f"{kernel.name}: {kernel.share:.0%} of kernel time, {kernel.launches} launches in the light pass",
    )


def _page(executable: str, report: Path, page: str) -> tuple[str, ...]:
    """What writes one page of a report beside it, as CSV."""
    # In base units: else the same metric comes in other units from row to row.
    look = (executable, "--import", str(report), "--page", page, "--csv", "--print-units", "base")
    return (*look, "--log-file", str(report.with_suffix(f".{page}.csv")))


def important_kernels(
    light: Path, *, limit: int = KERNELS, share: float = KERNEL_SHARE
) -> tuple[Kernel, ...]:
    """The kernels that together make up `share` of kernel time in a recording, longest first."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, dur_us in _kernel_times(light):
        times[_name_for_ncu(name)].append(dur_us)
    total = sum(map(sum, times.values()))
    if not total:
        raise MissingDataError(f"{light}: no kernel in it; ncu needs a program that uses an NVIDIA GPU")
    chosen: list[Kernel] = []
    for (name, base), durations in sorted(times.items(), key=lambda item: -sum(item[1]))[:limit]:
        if sum(each.share for each in chosen) >= share:
            break
        chosen.append(Kernel(name, base, sum(durations) / total, len(durations)))
    return tuple(chosen)


def _kernel_times(path: Path) -> Iterator[tuple[str, float]]:
    # Communication is left out: replaying a collective on one rank would hang the others.
    try:
        events = json.loads(path.read_bytes())["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a torch.profiler recording ({error})") from error
    for event in events:
        if event.get("cat") == "kernel" and not re.match(r"(nccl|rccl)", event["name"]):
            yield event["name"], float(event.get("dur", 0))


def _name_for_ncu(name: str) -> tuple[str, str]:
    """What ncu calls a kernel, and which of its names that is.

    ncu spells template arguments in its own way, so only the function's bare name can be compared. The profiler
    leaves very long names mangled; those are the same everywhere.
    """
    if name.startswith("_Z"):
        return name, "mangled"
    bare = re.split(r"[<(]", name.replace("(anonymous namespace)::", ""), maxsplit=1)[0].strip()
    return re.split(r"::|\s", bare)[-1] or name, "function"


class NvtxRange:
    """The range that an external profiler waits for; torch is there, since the program imported it."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._handle: int | None = None  # of the open range

    def open(self) -> None:
        """Begins the range, with the GPU idle: what earlier steps launched is not of this window."""
        import torch

        if not torch.cuda.is_available() or self._handle is not None:
            return
        torch.cuda.synchronize()
        nvtx = torch.cuda.nvtx
        self._handle = nvtx.range_start(WINDOW) if self._tool == "ncu" else nvtx.range_push(WINDOW)

    def close(self) -> None:
        """Ends the range once its work is done."""
        import torch

        if self._handle is None:
            return
        torch.cuda.synchronize()
        if self._tool == "ncu":
            torch.cuda.nvtx.range_end(self._handle)
        else:
            torch.cuda.nvtx.range_pop()
        self._handle = None
