"""A report of Nsight Compute (.ncu-rep): printed by an installed `ncu`, or read with NVIDIA's ncu-report package."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foretrace.errors import FormatError, InputError
from foretrace.urls import on_disk

_MAGIC = b"NVR\0"
_LONGEST_S = 300
_FOLDERS = ("opt/nvidia/nsight-compute/*/ncu", "usr/local/cuda*/bin/ncu")
_PAGE = ("--csv", "--print-units", "base")
_ROOT = Path("/")
# The package's names for kinds of messages and of estimates, and what ncu prints for them.
_KINDS = {"MsgType_OK": "INF", "MsgType_OPTIMIZATION": "OPT", "MsgType_WARNING": "WRN", "MsgType_ERR": "ERR"}
_SPEEDUPS = {"SpeedupType_LOCAL": "local", "SpeedupType_GLOBAL": "global"}
_LINK = re.compile(r"@url:([^@]*?):(https?://[^@]*)@")
_MARK = re.compile(r"@(?:section|sass|source|metric|url|ctx):(?:[^@:]*:)*([^@:]*)@")


def is_report(head: bytes) -> bool:
    """Whether a file that begins like this is such a report."""
    return head.startswith(_MAGIC)


def pages(path: Path) -> Iterator[str]:
    """The report as CSV: the raw page and the details page."""
    if (tool := find_tool()) is not None:
        yield from (_printed(tool, path, page) for page in ("raw", "details"))
    elif find_spec("ncu_report") is not None:
        yield from _packaged(path)
    else:
        raise FormatError(
            f"{path}: a report of Nsight Compute, which only ncu or NVIDIA's package opens: pip install ncu-report, or where ncu "
            f"is installed: ncu --import {path.name} --csv --page raw --print-units base > kernels.csv"
        )


def find_tool(*, root: Path = _ROOT) -> str | None:
    """The newest `ncu`, on PATH or where its installers put it."""
    if on_path := shutil.which("ncu"):
        return on_path
    installed = [str(file) for pattern in _FOLDERS for file in root.glob(pattern) if file.is_file()]
    return max(installed, default=None)


def _printed(tool: str, path: Path, page: str) -> str:
    command = [tool, "--import", str(on_disk(path).absolute()), "--page", page, *_PAGE]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LONGEST_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{path}: ncu could not print it: {error}") from error
    if done.returncode:
        said = (done.stdout + done.stderr).decode("utf-8", "replace").strip().splitlines()
        raise InputError(
            f"{path}: ncu could not print it: {said[-1] if said else f'exit code {done.returncode}'}"
        )
    return done.stdout.decode("utf-8", "replace")


def _packaged(path: Path) -> Iterator[str]:
    """What ncu would print, as the package knows it."""
    import ncu_report

    try:
        report = ncu_report.load_report(str(on_disk(path)))
        actions = [(action, number) for number, action in enumerate(_actions(report))]
        yield _raw(actions)
        kinds, speedups = (
            {getattr(ncu_report, name): word for name, word in words.items()} for words in (_KINDS, _SPEEDUPS)
        )
        yield _rules(actions, kinds, speedups)
    except (RuntimeError, ValueError, OSError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: NVIDIA's ncu-report could not read it: {error}") from error


def _actions(report: Any) -> Iterator[Any]:
    for group in range(report.num_ranges()):
        held = report.range_by_idx(group)
        for number in range(held.num_actions()):
            yield held.action_by_idx(number)


_OWN = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
)


def _facts(action: Any, number: int) -> list[str]:
    sizes = [
        tuple(_value(action, f"launch__{what}_dim_{axis}") for axis in "xyz") for what in ("block", "grid")
    ]
    shown = [f"({', '.join(size)})" for size in sizes]
    name = action.name(action.NameBase_DEMANGLED)
    return [str(number), "", "", "", name, "", "", *shown, _value(action, "launch__device_id"), ""]


def _value(action: Any, name: str) -> str:
    metric = action.metric_by_name(name)
    return "" if metric is None else str(metric.value())


def _raw(actions: list[tuple[Any, int]]) -> str:
    names = sorted({name for action, _ in actions for name in action.metric_names()})
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow((*_OWN, *names))
    units: dict[str, str] = {}
    for action, _ in actions:
        for name in names:
            metric = action.metric_by_name(name)
            if metric is not None:
                units.setdefault(name, str(metric.unit() or ""))
    writer.writerow((*[""] * len(_OWN), *(units.get(name, "") for name in names)))
    for action, number in actions:
        writer.writerow((*_facts(action, number), *(_value(action, name) for name in names)))
    return out.getvalue()


def _rules(actions: list[tuple[Any, int]], kinds: Mapping[int, str], speedups: Mapping[int, str]) -> str:
    """What ncu's rules say, as rows of its details page."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    more = (
        "Section Name",
        "Metric Name",
        "Metric Unit",
        "Metric Value",
        "Rule Name",
        "Rule Type",
        "Rule Description",
    )
    writer.writerow((*_OWN, *more, "Estimated Speedup Type", "Estimated Speedup"))
    for action, number in actions:
        for result in action.rule_results():
            if not result.has_rule_message():
                continue
            message = result.rule_message()
            gain: dict[str, Any] = result.speedup_estimation() if result.has_speedup_estimation() else {}
            kind = kinds.get(message.get("type", 0), "")
            speedup = speedups.get(gain.get("type", 0), ""), str(gain.get("speedup", ""))
            told = (
                result.section_identifier(),
                "",
                "",
                "",
                result.rule_identifier(),
                kind,
                _plain(str(message.get("message", ""))),
            )
            writer.writerow((*_facts(action, number), *told, *speedup))
    return out.getvalue()


def _plain(text: str) -> str:
    """The text of a message without its marks: a link as ncu prints it, of other marks what they show."""
    return _MARK.sub(r"\1", _LINK.sub(r"\1 (\2)", text))
