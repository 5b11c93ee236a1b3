"""Say what this installation can do, and how to get what is missing."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from foretrace._version import __version__
from foretrace.commands import _output
from foretrace.units import format_value

_PACKAGES = ("polars", "numpy", "rich", "isal", "zstandard")
_TOOLS = {
    "nvidia-smi": "comes with NVIDIA's driver; not needed to read recordings",
    "nsys": "Nsight Systems, https://developer.nvidia.com/nsight-systems; only to record with it",
    "ncu": "Nsight Compute, https://developer.nvidia.com/nsight-compute; only to record with it",
    "rocprofv3": "comes with ROCm; only to record on AMD GPUs",
}
Check = tuple[str, str, str, str]  # what, ok / missing / broken, what was found, how to fix it


def configure(parser: argparse.ArgumentParser) -> None:
    """How to print."""
    _output.add_format(parser)


def run(args: argparse.Namespace) -> None:
    """Prints every check; missing things are told, not failed."""
    checks = list(_checks())
    if args.format == "table":
        from foretrace.present import terminal

        terminal.show_checks(checks)
        return
    import polars as pl

    columns = dict.fromkeys(("what", "status", "found", "fix"), pl.String)
    _output.print_frame(pl.DataFrame(checks, schema=columns, orient="row"), args)


def _checks() -> Iterator[Check]:
    yield "foretrace", "ok", f"{__version__} in {Path(__file__).parents[1]}", ""
    yield "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}", ""
    yield _reader()
    for package in _PACKAGES:
        yield _package(package, f"pip install {package}")
    yield _cache()
    yield _package("torch", "pip install torch; only to record programs, not to read recordings")
    for tool, hint in _TOOLS.items():
        where = shutil.which(tool)
        yield (tool, "ok", where, "") if where else (tool, "missing", "", hint)


def _reader() -> Check:
    from foretrace.ingest import kineto_native

    if not kineto_native.missing:
        return "reader", "ok", "native extension", ""
    return (
        "reader",
        "missing",
        f"native extension ({kineto_native.missing}); the pure-Python reader gives the same tables, slower",
        "install a wheel, or a C++17 compiler and then: pip install --force-reinstall --no-deps foretrace",
    )


def _package(name: str, fix: str) -> Check:
    # From the package's metadata: importing torch only to learn its version takes seconds.
    from importlib import metadata

    try:
        return name, "ok", metadata.version(name), ""
    except metadata.PackageNotFoundError:
        return name, "missing", "", fix


def _cache() -> Check:
    from foretrace import cache

    folder = cache.directory()
    entries = cache.entries()
    used = format_value("size_bytes", sum(entry.size_bytes for entry in entries))
    found = f"{folder}: {used} of {format_value('limit_bytes', cache.limit_bytes())}"
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(nearest, os.W_OK):
        return "cache", "broken", f"{folder}: not writable", "set FORETRACE_CACHE to a folder that is"
    return "cache", "ok", found, ""
