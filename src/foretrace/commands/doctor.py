"""Check what this machine can record and read, and say how to get what is missing."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from foretrace._version import __version__
from foretrace.capture import machine
from foretrace.capture.machine import Check
from foretrace.commands import _output
from foretrace.secret_formats import without_known_secrets
from foretrace.units import format_value, visible

_PACKAGES = ("polars", "numpy", "rich", *(["backports.zstd"] if sys.version_info < (3, 14) else []))


def configure(parser: argparse.ArgumentParser) -> None:
    """How to print."""
    _output.add_format(parser)


def run(args: argparse.Namespace) -> None:
    """Prints every check; what is missing is reported and is no failure."""
    checks = [_shareable(check) for check in _checks()]
    if any(check.status != "ok" for check in checks if check.what in _PACKAGES):
        _print_plainly(checks, args.format)
    elif args.format == "table":
        from foretrace.present.text import terminal

        terminal.show_checks(checks)
    else:
        import polars as pl

        columns = dict.fromkeys(Check._fields, pl.String)
        _output.print_frame(
            pl.DataFrame(checks, schema=columns, orient="row"), _output.Printing(args.format, limit=0)
        )


def _print_plainly(checks: Sequence[Check], form: str) -> None:
    """Prints with the standard library alone: where a package lacks is where `doctor` is needed most."""
    if form == "json":
        rows = [check._asdict() for check in checks]
        document = {"schema": 1, "foretrace": __version__, "columns": Check._fields, "rows": rows}
        _output.print_document(json.dumps(document, indent=1))
        return
    for check in checks:
        says = "; ".join(text for text in (check.found, check.fix) if text)
        print(visible(f"{check.status:<7}  {check.what:<13}  {says}"))


def _checks() -> Iterator[Check]:
    yield Check("foretrace", "ok", f"{__version__} in {Path(__file__).parents[1]}")
    yield Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _reader()
    for package in _PACKAGES:
        yield _package(package, f"pip install {package}")
    faster = _package("isal", "nothing needs it: reading .gz takes longer without it")
    yield faster if faster.status == "ok" else faster._replace(found="zlib is used instead")
    yield _cache()
    yield from machine.checks()


def _shareable(check: Check) -> Check:
    """The check as it may stand in a public bug report: without the user's name in paths, or what looks like a secret."""
    home = os.path.expanduser("~")
    found = without_known_secrets(check.found)
    return check._replace(found=found.replace(home, "~") if len(home) > 1 else found)


def _reader() -> Check:
    try:
        from foretrace.ingest import kineto_native
    except ImportError as error:
        return Check("reader", "broken", f"cannot be loaded: {error}", "pip install foretrace")
    if not kineto_native.missing:
        return Check("reader", "ok", "native extension")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Check(
            "reader",
            "missing",
            "native extension, which free-threaded Python cannot load; the pure-Python reader gives the same tables, slower",
            "use a Python with the GIL to read large recordings",
        )
    return Check(
        "reader",
        "missing",
        f"native extension ({kineto_native.missing}); the pure-Python reader gives the same tables, slower",
        "install a wheel, or a C++17 compiler and then: `pip install --force-reinstall --no-deps foretrace`",
    )


def _package(name: str, fix: str) -> Check:
    from importlib import metadata

    try:
        return Check(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name, "missing", "", fix)


def _cache() -> Check:
    try:
        from foretrace import cache
    except ImportError as error:
        return Check("cache", "broken", f"cannot be loaded: {error}", "pip install foretrace")
    folder = cache.directory()
    entries = cache.entries()
    used = format_value("size_bytes", sum(entry.size_bytes for entry in entries))
    found = f"{folder}: {used} of {format_value('limit_bytes', cache.limit_bytes())}"
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(nearest, os.W_OK):
        return Check("cache", "broken", f"{folder}: not writable", "set FORETRACE_CACHE to a folder that is")
    return Check("cache", "ok", found)
