"""The files of the line sampler: published into the ranks of a Run, masked and compressed, once the program has ended.

Each process writes RUN/.lines/PID.jsonl. A rank gets the files of its recorded process and of those that this one forked or
started, as rankN/lines-PID.jsonl.gz; the others are dropped.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretrace.capture import known_secrets, line_sampler
from foretrace.capture.masking import mask_in_file
from foretrace.capture.run_folder import RANK_FILE, RunFolder
from foretrace.whole_files import replacing

_HEADER_BYTES = 4096


def folder_of(run: Path) -> Path:
    """Where the processes that `foretrace run` starts write while they run; they do not make it."""
    return run / line_sampler.FOLDER


def own_folder_of(run: Path) -> Path:
    """Where this process writes, with its children; other ranks may write into the same Run."""
    return run / f"{line_sampler.FOLDER}-{os.getpid()}"


def start(run: Path) -> None:
    """Samples this process and its children into its own folder."""
    folder = own_folder_of(run)
    folder.mkdir(parents=True, exist_ok=True)
    line_sampler.start(str(folder))


def mask(folder: Path) -> None:
    """Masks the secrets that this process knows of, also those that the program made."""
    if secrets := known_secrets.values():
        for path in folder.glob("*.jsonl"):
            mask_in_file(path, secrets, formats=False)


def publish(run: RunFolder, folder: Path | None = None) -> None:
    """Gives each rank its files, and removes the rest."""
    folder = folder or folder_of(run.path)
    if not folder.is_dir():
        return
    parents = {header["pid"]: header["parent"] for header in map(_header, folder.glob("*.jsonl")) if header}
    try:
        for rank in run.path.glob(f"rank*/{RANK_FILE}"):
            recorded = _recorded_process(rank)
            for pid in sorted(parents):
                if recorded is not None and recorded in _ancestry(pid, parents):
                    _publish(folder / f"{pid}.jsonl", rank.with_name(f"lines-{pid}.jsonl.gz"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(raw: Path, target: Path) -> None:
    mask_in_file(raw, known_secrets.values())
    with raw.open("rb") as lines, replacing(target) as partial, gzip.open(partial, "wb", 6) as packed:
        shutil.copyfileobj(lines, packed, 1 << 20)


def _header(path: Path) -> dict[str, Any] | None:
    """The process that a file is of; None for one whose header is not whole."""
    with path.open("rb") as file:
        try:
            header = json.loads(file.readline(_HEADER_BYTES))
            return {"pid": int(header["pid"]), "parent": int(header["parent"])}
        except (ValueError, KeyError, TypeError):
            return None


def _recorded_process(rank_file: Path) -> int | None:
    try:
        lines = json.loads(rank_file.read_bytes()).get("lines")
    except (OSError, ValueError):
        return None
    return lines.get("pid") if isinstance(lines, dict) else None


def _ancestry(pid: int, parents: dict[int, int]) -> Iterator[int]:
    """A process and those that it comes from."""
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        yield pid
        seen.add(pid)
        pid = parents[pid]
