"""Drives the C++ scanner: in two threads over a large plain file, else over a stream of chunks."""

from __future__ import annotations

import os
import re
import threading
from typing import Any

import numpy as np

from foretrace.errors import FormatError, InputError
from foretrace.ingest import lenient, processes
from foretrace.ingest.columns import GROUPS, NULL_I32, NULL_I64, NULL_U32, NULL_U64, Array, Columns, nothing
from foretrace.ingest.source import CHUNK, Progress, Source
from foretrace.urls import RemotePath

try:
    from foretrace._scan import Scanner
except ImportError as _error:  # not built: `kineto` then uses the Python scanner, and `doctor` says why
    Scanner = None
    missing: str | None = str(_error)
else:
    missing = None

# Below this a second thread costs more than it saves.
_TWO_THREADS_FROM = 24 << 20
_CUT = re.compile(rb'\{\s*"ph"')
_NULLS: dict[str, float] = {
    "u1": 0, "u2": 0, "u4": NULL_U32, "u8": NULL_U64, "i4": NULL_I32, "i8": NULL_I64, "f8": np.nan,
}  # fmt: skip


def scan(
    source: Source, progress: Progress | None = None, *, threads: int | None = None, pid: str | None = None
) -> Columns:
    """A Kineto file, read and linked; of several processes in it, the asked one or that with most device work."""
    threads = (os.cpu_count() or 1) if threads is None else threads
    scanner = None
    in_ranges = not source.compression and not isinstance(source.path, RemotePath)
    if in_ranges and threads > 1 and source.size >= _TWO_THREADS_FROM:
        scanner = _scan_halves(source, progress)
    if scanner is None:
        scanner = Scanner()
        for chunk in source.chunks(progress):
            scanner.push(chunk)
    return linked(scanner, pid)


def linked(scanner: Any, pid: str | None = None) -> Columns:
    """What a scanner read, linked."""
    told = scanner.processes()
    if told is None:
        return columns_of(scanner.finish())
    texts, _ = _decode(told["texts"])
    lanes = [
        (_lane(is_text_p, process, texts, told), _lane(is_text_t, thread, texts, told))
        for is_text_p, process, is_text_t, thread in told["lanes"]
    ]
    types = {"lane": "u4", "kind": "u1", "start": "i8", "dur": "i8", "correlation": "u8"}
    rows = processes.Rows(lanes, **{name: np.frombuffer(told[name], code) for name, code in types.items()})
    if not rows.several():
        return columns_of(scanner.finish())
    left_out, found = processes.choose(rows, pid)
    columns = columns_of(scanner.finish(left_out.astype(np.uint8).tobytes()))
    columns.processes = tuple(process.to_dict() for process in found)
    columns.repairs["other-processes"] = (int(left_out.sum()), None)
    return columns


def _scan_halves(source: Source, progress: Progress | None) -> Any:
    """The scanner of a file that was read as two halves, or None if no cut between them can be proven.

    The cut is a guess at where an event begins. It is right if the first scanner, given every byte before
    the cut, has read whole events and nothing is left over.
    """
    try:
        with source.path.open("rb", buffering=0) as file:
            cut = _find_cut(file.fileno(), source.size)
            if cut is None:
                return None
            done = [0, 0]
            report = _Report(done, source.size, progress)
            second = Scanner(cut)
            worker = threading.Thread(
                target=report.guard, args=(lambda: _read_range(source, second, cut, source.size, report, 1),)
            )
            worker.start()
            first = Scanner()
            _read_range(source, first, 0, cut, report, 0)
            worker.join()
            report.reraise()
            if not first.between_events():
                return None
            first.merge(second)
            return first
    except OSError as error:
        raise InputError(f"{source.path}: {error.strerror or error}") from error


class _Report:
    """Progress of both halves, and what went wrong in the second."""

    def __init__(self, done: list[int], size: int, progress: Progress | None) -> None:
        self.done, self.size, self.progress = done, size, progress
        self.error: BaseException | None = None

    def advance(self, half: int, count: int) -> None:
        self.done[half] += count
        if half == 0 and self.progress:
            self.progress(sum(self.done), self.size)

    def guard(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # raised again in the first thread
            self.error = error

    def reraise(self) -> None:
        if self.error:
            raise self.error


def _find_cut(file: int, size: int) -> int | None:
    middle = size // 2
    match = _CUT.search(os.pread(file, 1 << 20, middle)) if hasattr(os, "pread") else None
    return middle + match.start() if match else None


def _read_range(source: Source, scanner: Any, begin: int, end: int, report: _Report, half: int) -> None:
    with source.path.open("rb", buffering=0) as file:
        file.seek(begin)
        left = end - begin
        while left > 0 and (count := scanner.read(file.fileno(), min(CHUNK, left))):
            left -= count
            report.advance(half, count)


def columns_of(result: dict[str, Any] | None) -> Columns:
    """What the scanner handed over, with text decoded and absent columns filled in."""
    if result is None:
        raise FormatError("not JSON")
    names, unclean_names = _decode(result["names"])
    texts, unclean_texts = _decode(result["texts"])
    repairs = dict(result["repairs"])
    if unclean_names + unclean_texts:
        repairs["not-utf8"] = (unclean_names + unclean_texts, None)
    return Columns(
        groups={group: _arrays(group, result["groups"].pop(group)) for group in GROUPS},
        names=names,
        texts=texts,
        lanes=[
            (_lane(is_text_p, process, texts, result), _lane(is_text_t, thread, texts, result))
            for is_text_p, process, is_text_t, thread in result["lanes"]
        ],
        header=_header(result["header"]),
        origin_ns=result["origin_ns"],
        counts=result["counts"],
        repairs=repairs,
    )


def _arrays(group: str, buffers: dict[str, Any]) -> dict[str, Array]:
    """Arrays over the scanner's memory; a column that nothing was recorded for is all null."""
    arrays = {name: np.frombuffer(buffers.pop(name), dtype) for name, dtype in GROUPS[group].items()}
    rows = max(len(array) for array in arrays.values())
    for name, dtype in GROUPS[group].items():
        if len(arrays[name]) != rows:
            arrays[name] = nothing(rows, dtype, _NULLS[dtype.str[1:]])
    return arrays


def _decode(texts: list[bytes]) -> tuple[list[str], int]:
    """The texts that the tagged bytes stand for, and how many are not UTF-8."""
    decoded, unclean = [], 0
    for tagged in texts:
        text = tagged[1:].decode("utf-8", "surrogateescape")
        if tagged[:1] == b"j":
            text = lenient.canonical(_parse(text))
        elif tagged[:1] == b"i":
            text = str(lenient.int_of(text))
        elif "\\" in text:
            text = lenient.unescape(text)
        clean = lenient.clean(text)
        unclean += clean != text
        decoded.append(clean)
    return decoded, unclean


def _parse(text: str) -> Any:
    try:
        return lenient.strict.decode(text)
    except (ValueError, RecursionError):
        try:
            return lenient.value(text + ",", 0)[0]  # what stands behind a value says where it ends
        except lenient.DamagedError:
            return text  # its event was left out as damaged


def _lane(is_text: int, value: int, texts: list[str], result: dict[str, Any]) -> int | str:
    if not is_text:
        return value
    return int(texts[value]) if result["texts"][value][:1] == b"i" else texts[value]


def _header(members: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        lenient.unescape(key.decode("utf-8", "surrogateescape")): _parse(
            value.decode("utf-8", "surrogateescape")
        )
        for key, value in members
    }
