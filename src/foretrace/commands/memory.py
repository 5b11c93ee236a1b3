"""Show who holds GPU memory at the peak, what leaks, what is wasted and why a request did not fit."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.commands import _input, _output
from foretrace.errors import MissingDataError, UsageError
from foretrace.urls import named

if TYPE_CHECKING:
    from foretrace.analyze.result import Result
    from foretrace.analyze.snapshots.counters import CounterFindings
    from foretrace.analyze.snapshots.findings import DeviceFindings, SnapshotFindings
    from foretrace.snapshot import Snapshot
    from foretrace.trace import Trace

_BY = ("category", "line", "phase", "module", "block", "step", "layer", "op")
_COMPOSED = ("category", "line", "phase", "module")
_OF_A_RECORDING = ("category", "op", "module")
_TOP = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """The paths, what to list and how to print."""
    says = "a snapshot of torch's CUDA allocator, a Run with one, a recording with memory events, or torch.cuda.memory_stats() as JSON"
    parser.add_argument("path", metavar="PATH", type=named, help=says)
    says = "another snapshot: what the peaks differ in, from PATH to this one"
    parser.add_argument("other", metavar="PATH2", type=named, nargs="?", help=says)
    says = "what to list at the peak (default: category); step: the level after each, layer: what each call of a repeated block saves"
    parser.add_argument("--by", choices=_BY, default="category", help=f"{says}; op: of a recording only")
    says = "only this device: 0, cuda:0, or host (default: all, the largest peak first)"
    parser.add_argument("--device", metavar="DEVICE", type=_device, help=says)
    says = f"rows of a table; 0 for all (default: {_TOP} in a table, else all)"
    parser.add_argument("--top", metavar="N", type=_output.row_limit, help=says)
    _output.add_format(parser)
    _input.add_no_cache(parser)
    _input.add_reading(parser)


def run(args: argparse.Namespace) -> None:
    """Prints what the snapshot tells, or what two differ in; for a recording, its analysis `memory`."""
    if args.other is not None:
        _print_difference(args)
        return
    found = _findings(args, args.path)
    if found is None:
        counted = _counters(args)
        _print_recording(args) if counted is None else _print_counters(counted, args)
        return
    if args.by == "op":
        raise UsageError("--by op is for a recording; a snapshot knows lines, modules and phases")
    _print_findings(found, args)


def _findings(args: argparse.Namespace, path: Path) -> SnapshotFindings | None:
    from foretrace.analyze.snapshots.opening import open_findings
    from foretrace.ingest.snapshots import read_snapshot
    from foretrace.present.text import terminal

    def read(file: Path) -> Snapshot:
        with terminal.reading(file) as progress:
            return read_snapshot(file, progress=progress)

    return open_findings(path, device=args.device, read=read)


def _counters(args: argparse.Namespace) -> CounterFindings | None:
    from foretrace.analyze.snapshots.counters import counter_findings
    from foretrace.ingest.allocator_counters import read_counters

    read = read_counters(args.path)
    return None if read is None else counter_findings(args.path, read, device=args.device)


def _print_counters(found: CounterFindings, args: argparse.Namespace) -> None:
    from foretrace.present.text import counters_page, tables, terminal

    if args.by != "category":
        raise UsageError(f"--by {args.by} needs a memory snapshot; counters do not tell who holds memory")
    if args.format == "table":
        terminal.show_lines(lambda width: counters_page.page_lines(found, width))
    elif args.format == "json":
        _output.print_document(tables.document_to_json(found.to_dict()))
    elif args.format == "md":
        _output.print_text(counters_page.markdown(found))
    else:
        _output.print_frame(counters_page.frame(found), _output.Printing(args.format, None, 0))


def _print_findings(found: SnapshotFindings, args: argparse.Namespace) -> None:
    from foretrace.present.text import memory_page, tables, terminal

    top = _top(args)
    if args.format == "table":
        terminal.show_lines(lambda width: memory_page.page_lines(found, args.by, top, width))
    elif args.format == "json" and args.by in (*_COMPOSED, "block"):
        by = None if args.by == "block" else args.by
        _output.print_document(tables.document_to_json(found.to_dict(by)))
    elif args.format == "md":
        _output.print_text(memory_page.markdown(found, args.by, top))
    else:
        _output.print_frame(_all_devices(found, args.by, top), _output.Printing(args.format, None, 0))


def _all_devices(found: SnapshotFindings, by: str, top: int) -> Any:
    import polars as pl

    from foretrace.present.text import memory_page

    parts = [
        memory_page.frame(device, by, top).select(pl.lit(device.name).alias("device_name"), pl.all())
        for device in found.devices
    ]
    return pl.concat(parts)


def _print_difference(args: argparse.Namespace) -> None:
    from foretrace.present.text import memory_page, memory_words, tables, terminal

    if args.by not in _COMPOSED:
        raise UsageError(f"--by {args.by} lists one snapshot; two are compared by {', '.join(_COMPOSED)}")
    before, after = _one_device(args)
    top = _top(args)
    frame = memory_page.compared_frame(before, after, args.by, top)
    if args.format == "table":
        terminal.show_lines(lambda width: memory_page.compared_lines(before, after, args.by, top, width))
    elif args.format == "md":
        _output.print_text(f"{memory_words.compared_says(before, after)}\n\n{tables.to_markdown(frame)}")
    else:
        _output.print_frame(frame, _output.Printing(args.format, None, 0))


def _one_device(args: argparse.Namespace) -> tuple[DeviceFindings, DeviceFindings]:
    """The same device of both: the one with the largest peak in the second, unless one is named."""
    both = [_findings(args, path) for path in (args.path, args.other)]
    for path, found in zip((args.path, args.other), both, strict=True):
        if found is None:
            raise UsageError(f"{path}: no memory snapshot; `foretrace compare` compares recordings")
    before, after = (found.devices for found in both if found is not None)
    name = after[0].name
    same = [device for device in before if device.name == name]
    if not same:
        raise MissingDataError(f"{args.path}: nothing of {name}, which {args.other} is about; see --device")
    return same[0], after[0]


def _print_recording(args: argparse.Namespace) -> None:
    """The analysis `memory` of a recording."""
    from foretrace import analyze
    from foretrace.ingest.recordings import find_recording
    from foretrace.present.text import tables

    if args.by not in _OF_A_RECORDING:
        raise UsageError(
            f"--by {args.by} needs a memory snapshot; a recording's memory is listed by {', '.join(_OF_A_RECORDING)}"
        )
    recorded = find_recording(args.path)
    reading = _input.reading(args)
    trace = recorded.told(_input.read(recorded.path, reading, no_cache=args.no_cache))
    try:
        result = analyze.run(trace, "memory", by=args.by)
    except MissingDataError:
        if recorded.rich is None:
            raise
        # The light pass of a Run has no memory events.
        trace = _input.read(recorded.rich, reading.of_others(), no_cache=args.no_cache)
        result = analyze.run(trace, "memory", by=args.by)
    result = _of_device(result, args)
    if args.format == "json":
        _output.print_document(tables.document_to_json(_document(trace, result, args)))
    else:
        _output.print_result(result, trace, _output.Printing(args.format, None, args.top))


def _of_device(result: Result, args: argparse.Namespace) -> Result:
    from dataclasses import replace

    import polars as pl

    if args.device is None:
        return result
    names = {"cpu"} if args.device < 0 else {f"cuda:{args.device}"}
    table = result.table.filter(pl.col("device_name").is_in(list(names)))
    if table.is_empty():
        known = ", ".join(result.table["device_name"].unique().sort())
        raise MissingDataError(
            f"{args.path}: no memory of {', '.join(names)} in this recording; it has: {known}"
        )
    return replace(result, table=table)


def _document(trace: Trace, result: Result, args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a snapshot's document, as far as a recording tells them."""
    import polars as pl

    from foretrace.analyze.concepts.memory import memory_curve
    from foretrace.analyze.snapshots.findings import SCHEMA

    named = set(result.table["device_name"].unique())
    curves = [curve for curve in memory_curve.curves(trace) if curve.device in named]
    reserved = curves[0].reserved_at_peak_bytes
    unused = None if not reserved else 100 * max(reserved - curves[0].peak_bytes, 0) / reserved
    devices = []
    for curve in curves:
        rows = result.table.filter((pl.col("device_name") == curve.device) & (pl.col("peak_bytes") > 0))
        listed = rows.select(pl.col(args.by).alias("what"), pl.col("peak_bytes").alias("bytes"))
        devices.append(
            {
                "device": curve.device,
                "peak_allocated_bytes": curve.peak_bytes,
                "peak_reserved_bytes": curve.reserved_peak_bytes,
                "at_ns": curve.peak_at_ns,
                "composition": listed.to_dicts(),
            }
        )
    return {"schema": SCHEMA, "devices": devices, "leaks": [], "fragmentation_pct": unused, "oom": None}


def _top(args: argparse.Namespace) -> int:
    if args.top is not None:
        return int(args.top)
    return _TOP if args.format == "table" else 0


def _device(text: str) -> int:
    if text == "host":
        return -1
    match = re.fullmatch(r"(?:cuda:|hip:|gpu:)?(\d{1,6})", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no device: 0, cuda:0 or host")
    return int(match[1])
