"""The scratch folder: the program runs in a copy of its folder made of links, so that what it writes anew stays there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

_MOST_ENTRIES = 5_000  # that are linked one by one; folders beyond that are linked as a whole
_WHOLE = (".git", ".hg", ".venv", "venv", "node_modules")


def linked(source: Path, target: Path, *, leave_out: Path) -> Path:
    """A folder with links to all files of another, folder by folder; one that `leave_out` is in is walked too."""
    shutil.rmtree(target, ignore_errors=True)
    entries = 0
    open_folders = [(source, target)]
    while open_folders:
        here, there = open_folders.pop(0)
        there.mkdir(parents=True)
        for entry in sorted(os.scandir(here), key=lambda entry: entry.name):
            path = Path(entry.path)
            if path.resolve() == leave_out.resolve():
                continue
            entries += 1
            deep = (
                entry.is_dir(follow_symlinks=False) and entry.name not in _WHOLE and entries < _MOST_ENTRIES
            )
            if deep and not _is_large(path):
                open_folders.append((path, there / entry.name))
            else:
                (there / entry.name).symlink_to(path.resolve())
    return target


def _is_large(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return sum(1 for _ in entries) > _MOST_ENTRIES // 5


def environment(folder: Path, changes: Mapping[str, object]) -> dict[str, str]:
    """Variables of every variant: loggers stay on this machine and in the scratch folder, and what the changes need."""
    variables = {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "COMET_MODE": "DISABLED",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NEPTUNE_MODE": "offline",
    }
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(folder.parent / "compiled")
    if "expandable-segments" in changes:
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            given = [part for part in os.environ.get(name, "").split(",") if part]
            kept = [part for part in given if not part.startswith("expandable_segments")]
            if name == "PYTORCH_CUDA_ALLOC_CONF" or given:
                variables[name] = ",".join([*kept, "expandable_segments:True"])
    return variables
