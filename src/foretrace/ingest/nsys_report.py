"""Reports of Nsight Systems (.nsys-rep): read through an installed `nsys export`, since their format is not public."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from foretrace.errors import InputError
from foretrace.ingest import nsys
from foretrace.ingest.formats import Format
from foretrace.ingest.source import Progress, Source, open_source
from foretrace.trace import Trace
from foretrace.units import visible
from foretrace.urls import on_disk

FORMATS = (
    Format(
        "Nsight Systems report",
        "*.nsys-rep",
        "nsys profile --trace cuda,nvtx",
        "all",
        "the same as the export; it is read through an installed nsys",
    ),
)
_BEGINS = b"NVIDIA Tegra Profiler Report"
_MOST_S = 3600  # exporting a report of many gigabytes takes minutes


def accepts(head: bytes) -> bool:
    """Whether a file that begins like this is a report."""
    return head.startswith(_BEGINS)


def read(
    source: Source, *, reader: str | None = None, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """The recording in a report."""
    program = shutil.which("nsys")
    if program is None:
        raise InputError(
            f"{source.path}: a report of Nsight Systems, which nsys exports, and nsys is not installed here; where it is: "
            f"nsys export --type sqlite {source.path.name}"
        )
    if source.compression:
        raise InputError(f"{source.path}: a compressed report of Nsight Systems; unpack it first")
    with tempfile.TemporaryDirectory(prefix="foretrace-nsys-") as folder:
        exported = Path(folder) / "exported.sqlite"
        _export(program, source.path, exported)
        trace = nsys.read(open_source(exported), reader=reader, pid=pid, progress=progress)
    return replace(trace, path=source.path)


def _export(program: str, report: Path, to: Path) -> None:
    command = [
        program,
        "export",
        "--type",
        "sqlite",
        "--force-overwrite",
        "true",
        "--output",
        str(to),
        str(on_disk(report).absolute()),
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_MOST_S, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{report}: `nsys export` could not be run: {error}") from error
    # nsys ends with 0 where it could not export, too.
    if done.returncode or not to.is_file():
        said = (
            visible(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1][:200])
            if done.stdout.strip()
            else "nothing"
        )
        raise InputError(f"{report}: `nsys export` could not read it; it said: {said}")
