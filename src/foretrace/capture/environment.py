"""The environment of a Run: what the program ran on and with, as far as that may explain its speed.

Values of variables are written for those known to matter only, and even these are checked for the shape of
a secret; of all others the name is kept. Nothing here imports torch: what only torch knows is read from the
module if the program has imported it.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foretrace import nvidia
from foretrace._version import __version__
from foretrace.capture import processor
from foretrace.capture.secret_shapes import without_secret_arguments, without_secrets_in
from foretrace.secret_formats import LEFT_OUT
from foretrace.secret_names import secret_name

_KNOWN_NAMES = (
    "GROUP_RANK LD_LIBRARY_PATH LD_PRELOAD LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT NODE_RANK RANK"
    " ROLE_RANK ROLE_WORLD_SIZE SLURM_CPUS_PER_TASK SLURM_GPUS_ON_NODE SLURM_JOB_ID SLURM_JOB_NUM_NODES"
    " SLURM_LOCALID SLURM_NNODES SLURM_NODEID SLURM_NTASKS SLURM_PROCID SLURM_STEP_ID TOKENIZERS_PARALLELISM"
    " WORLD_SIZE"
)
_KNOWN_PREFIXES = (
    "ACCELERATE_ AOT_ ATEN_ CUBLAS CUDA_ CUDNN_ DEEPSPEED_ DNNL_ FORETRACE_ FSDP_ GLOO_ GOMP_ HIP_ HSA_ KINETO_"
    " KMP_ MALLOC_ MIOPEN_ MKL_ NCCL_ NUMEXPR_ NVIDIA_ NVPL_ OMP_ OMPI_COMM_WORLD_ ONEDNN_ OPENBLAS_ PYTHON PYTORCH_"
    " RCCL_ ROCBLAS_ ROCR_ TCMALLOC_ TORCH TRITON_ UCX_"
)
# Would repeat what run.json says under `options`.
_REPEATED_NAMES = frozenset(("FORETRACE_CAPTURE",))
_PACKAGES = (
    "torch", "triton", "torchvision", "numpy", "transformers", "accelerate", "lightning", "pytorch-lightning",
    "deepspeed", "flash-attn", "xformers", "bitsandbytes", "transformer-engine", "vllm", "liger-kernel",
)  # fmt: skip
_VALUE_CHARACTERS = 2_000
_GIT_S = 5.0
_DEVICE = ("index", "name", "uuid", "driver", "memory_mib")
_CLOCKS = ("sm_mhz", "memory_mhz", "max_sm_mhz", "max_memory_mhz", "temperature_c", "power_limit_w")


def describe(
    command: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What run.json says of a command and of this machine: JSON values only, secrets left out."""
    variables, left_out = split_variables(os.environ if environ is None else environ)
    return {
        "foretrace": __version__,
        "command": without_secret_arguments(command),
        "cwd": without_secrets_in(str(Path(cwd or Path.cwd()).absolute())),
        "host": socket.gethostname(),
        "git": git_state(cwd or Path.cwd()),
        "versions": versions(),
        "devices": devices(),
        "environment": variables,
        "left_out": left_out,
        "limits": limits(),
    }


def split_variables(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables whose values may be written, and the names of all others."""
    written: dict[str, str] = {}
    for name, value in environ.items():
        if not _known(name) or secret_name(name):
            continue
        cleaned = without_secrets_in(value[:_VALUE_CHARACTERS])
        if cleaned != LEFT_OUT:
            written[name] = cleaned
    others = set(environ) - set(written) - _REPEATED_NAMES
    return dict(sorted(written.items())), sorted({without_secrets_in(name) for name in others})


def git_state(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Commit, branch and whether tracked files differ; None outside a repository. Remotes may hold passwords."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "branch": without_secrets_in(branch) if branch else None,
        "dirty": None if changes is None else bool(changes),
    }


def versions() -> dict[str, str]:
    """Python, the system, and the installed packages that matter; torch's own details if it is imported."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except Exception:  # damaged metadata raises whatever its parser does
            continue
    return {**found, **_torch_versions()}


def devices() -> list[dict[str, Any]]:
    """The NVIDIA GPUs of this machine with their driver and clocks; empty where neither NVML nor nvidia-smi answers."""
    return [_facts(gpu, (*_DEVICE, *_CLOCKS)) for gpu in nvidia.gpus(environ=_own_variables())]


def clocks(device: str | int | None = None) -> dict[str, Any] | None:
    """A GPU's clocks now and at most, by its index or its UUID."""
    gpus = nvidia.gpus(device, environ=_own_variables())
    return _facts(gpus[0], _CLOCKS) or None if gpus else None


def _facts(gpu: nvidia.Gpu, names: Sequence[str]) -> dict[str, Any]:
    return {name: fact for name in names if (fact := getattr(gpu, name)) is not None}


def torch_device() -> dict[str, Any]:
    """The device that this process computes on, as torch sees it; never starts CUDA by itself."""
    torch = sys.modules.get("torch")
    accelerator = getattr(torch, "cuda", None)
    try:
        if accelerator is None or not accelerator.is_available() or not accelerator.is_initialized():
            return {"type": "cpu", "name": platform.processor() or platform.machine()}
        index = accelerator.current_device()
        properties = accelerator.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        return {
            "type": "cuda",
            "index": index,
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "uuid": f"GPU-{uuid}" if uuid is not None else None,
        }
    except Exception as error:  # describing a device must never fail the program
        return {"type": "unknown", "problem": f"{type(error).__name__}: {error}"}


def describe_process() -> dict[str, Any]:
    """What rank.json says of this process: JSON values only."""
    device = torch_device()
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "device": device,
        "clocks": clocks(device["uuid"]) if device.get("uuid") else None,
        "processor": processor.describe(),
        "versions": versions(),
        "command": without_secret_arguments([sys.executable or "python", *sys.argv]),
    }


def rank_of_process(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """This process's rank and the world's size, by the launcher's variables or torch.distributed; (0, 1) alone."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:
        pass
    variables = os.environ if environ is None else environ
    for rank, size in (
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        # Slurm sets its variables in interactive shells too: a size of one says nothing.
        if (
            variables.get(rank, "").isdigit()
            and variables.get(size, "").isdigit()
            and int(variables[size]) > 1
        ):
            return int(variables[rank]), int(variables[size])
    return 0, 1


def limits() -> dict[str, Any]:
    """What the container or the scheduler leaves of the machine; null where there is no limit, or none is known."""
    return {
        "cpu_count": os.cpu_count(),
        "usable_cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "quota_cpu_count": _cpu_quota(),
        "memory_limit_bytes": _first_number(
            "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
        ),
        "shared_memory_bytes": shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
    }


def _known(name: str) -> bool:
    return name not in _REPEATED_NAMES and (
        name in _KNOWN_NAMES.split() or name.startswith(tuple(_KNOWN_PREFIXES.split()))
    )


def _git(folder: str | os.PathLike[str], *arguments: str) -> str | None:
    # Without optional locks, looking never disturbs what the user does in the repository meanwhile.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    return _output(["git", "-C", os.fspath(folder), *arguments], _GIT_S, environment)


def _output(
    command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None
) -> str | None:
    """What a command prints; None if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=limit_s,
            env=_own_variables(environment),
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


def _own_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those of a tool, which must not be recorded itself, nor see what only the program should."""
    variables = environment or os.environ
    return {name: value for name, value in variables.items() if name not in _REPEATED_NAMES}


def _torch_versions() -> dict[str, str]:
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    found = {
        "torch": getattr(torch, "__version__", None),
        "cuda": getattr(version, "cuda", None),
        "hip": getattr(version, "hip", None),
    }
    return {name: str(value) for name, value in found.items() if value}


def _cpu_quota() -> float | None:
    quota = _words("/sys/fs/cgroup/cpu.max") or [
        *_words("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
        *_words("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    ]
    if len(quota) != 2 or not all(each.isdigit() for each in quota) or int(quota[1]) == 0:
        return None
    return int(quota[0]) / int(quota[1])


def _first_number(*paths: str) -> int | None:
    for path in paths:
        words = _words(path)
        # Version 1 of the control groups writes a number near 2**63 for "no limit".
        if words and words[0].isdigit() and int(words[0]) < 1 << 60:
            return int(words[0])
    return None


def _words(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
