"""Reads what the line sampler left in a rank's folder. Damage costs a note and what comes behind it in its file, never an error."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
from msgspec import Meta, Struct

from foretrace import line_samples
from foretrace.errors import ForetraceError, InputError, MissingDataError
from foretrace.ingest.run import rank_facts
from foretrace.ingest.secret_texts import mask_texts
from foretrace.line_samples import LineSamples
from foretrace.own_files import Integer, decoded, read_bytes
from foretrace.trace import Trace, once_per_trace

_RANK = "rank.json"
_FILES = "lines-*.jsonl.gz"
_MOST_BYTES = 1 << 30  # of one file, unpacked
_PIECE_BYTES = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS
_HOLDS_GIL, _WAITS = 1, 2
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_OF_NOTEBOOKS = ("<ipython-input", "<stdin>")

Number = Annotated[int, Meta(ge=-1, le=2**31 - 1)]


class Header(Struct):
    """Of which process a file is."""

    pid: Integer
    parent: Integer
    kind: str = "started"
    python: str = ""
    prefixes: list[str] = []
    package: list[str] = []


class Facts(Struct):
    """The sampler's counts when it wrote."""

    began_ns: Integer
    epoch_ns: Integer
    ticks: Integer
    torn: Integer
    cost_ns: Integer


class Block(Struct):
    """What is new since the sampler wrote before."""

    places: list[tuple[str, str, Number, Number, Number, Number]]
    stacks: list[tuple[Number, Number]]
    t_ns: list[Integer]
    thread: list[Integer]
    stack: list[Number]
    flags: list[Number]
    cpu_us: list[Integer]
    facts: Facts


@dataclass
class _File:
    """The valid blocks of one file."""

    header: Header
    blocks: list[Block] = field(default_factory=list)
    places: int = 0
    stacks: int = 0

    def add(self, block: Block) -> None:
        """Takes a block whose numbers fit what came before."""
        rows = len(block.t_ns)
        if not all(len(column) == rows for column in (block.thread, block.stack, block.flags, block.cpu_us)):
            raise InputError("columns of different lengths")
        places, stacks = self.places + len(block.places), self.stacks + len(block.stacks)
        for number, (parent, place) in enumerate(block.stacks, self.stacks):
            if parent >= number or not 0 <= place < places:
                raise InputError("a stack of places that are not there")
        if any(not 0 <= stack < stacks for stack in block.stack):
            raise InputError("a sample of a stack that is not there")
        self.places, self.stacks = places, stacks
        self.blocks.append(block)


@once_per_trace
def lines_of(trace: Trace) -> LineSamples:
    """The samples of the rank that a recording is of; raises MissingDataError, which says why there are none."""
    folder = trace.path.parent
    if not (folder / _RANK).is_file():
        raise MissingDataError(
            f"{trace.path.name}: no lines were sampled: `foretrace run -- python train.py` does, on Linux"
        )
    facts = rank_facts(folder).get("lines") or {}
    samples = read(sorted(folder.glob(_FILES)), facts)
    if samples.samples.is_empty():
        why = facts.get("why_off") or (samples.notes[0] if samples.notes else "the sampler left nothing")
        raise MissingDataError(f"{folder.name}: no lines were sampled: {why}")
    return samples


def read(files: Sequence[Path], facts: dict[str, object]) -> LineSamples:
    """The samples of these files; `facts` are what rank.json says of them."""
    notes: list[str] = []
    sound = [file for path in files if (file := _read_file(path, notes)) is not None and file.blocks]
    recorded = facts.get("pid")
    windows = facts.get("profiled_ns")
    return LineSamples(
        processes=_processes(sound, recorded),
        places=_places(sound),
        stacks=_stacks(sound),
        samples=_samples(sound),
        recorded=_integer(recorded),
        thread=_integer(facts.get("thread")),
        first_ns=_integer(facts.get("first_ns")),
        last_ns=_integer(facts.get("last_ns")),
        profiled_ns=tuple((int(begin), int(end)) for begin, end in windows)
        if isinstance(windows, list)
        else (),
        notes=tuple(notes),
    )


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _read_file(path: Path, notes: list[str]) -> _File | None:
    file = None
    try:
        for line in _lines(read_bytes(path)):
            if file is None:
                file = _File(decoded(line, Header, path.name))
            else:
                file.add(decoded(line, Block, path.name))
    except (ForetraceError, zlib.error) as error:
        seconds = sum(len(block.t_ns) for block in file.blocks) if file else 0
        notes.append(f"{path.name}: damaged, read up to its sample {seconds:,}: {error}")
    return file


def _lines(packed: bytes) -> Iterator[bytes]:
    """The lines of a compressed file, as many as are whole."""
    inflate = zlib.decompressobj(_GZIP)
    rest, unpacked, given = packed, b"", 0
    while rest and not inflate.eof:
        piece = inflate.decompress(rest, _PIECE_BYTES)
        rest = inflate.unconsumed_tail
        given += len(piece)
        if given > _MOST_BYTES:
            raise InputError(f"more than {_MOST_BYTES >> 20} MiB")
        *whole, unpacked = (unpacked + piece).split(b"\n")
        yield from whole
    if unpacked or not inflate.eof:
        raise InputError("it breaks off")


def _processes(files: list[_File], recorded: object) -> pl.DataFrame:
    last = [file.blocks[-1].facts for file in files]
    headers = [file.header for file in files]
    return line_samples.frame(
        "processes",
        {
            "process": [header.pid for header in headers],
            "parent": [header.parent for header in headers],
            "recorded": [header.pid == recorded for header in headers],
            "kind": [header.kind for header in headers],
            "python": [header.python for header in headers],
            "began_ns": [facts.began_ns for facts in last],
            "ended_ns": [facts.epoch_ns for facts in last],
            "ticks_count": [facts.ticks for facts in last],
            "torn_count": [facts.torn for facts in last],
            "cost_ns": [facts.cost_ns for facts in last],
        },
    )


def _places(files: list[_File]) -> pl.DataFrame:
    rows = [row for file in files for block in file.blocks for row in block.places]
    sources = [row[0] for row in rows]
    functions = [row[1] for row in rows]
    users = [
        _of_user(row[0], file.header, roots)
        for file, roots in _with_roots(files)
        for block in file.blocks
        for row in block.places
    ]
    mask_texts(sources)
    mask_texts(functions)
    return line_samples.frame(
        "places",
        {
            "id": range(len(rows)),
            "process": [pid for file in files for pid in [file.header.pid] * file.places],
            "file": sources,
            "function": functions,
            "first_line": [row[2] for row in rows],
            "line": [row[3] if row[3] > 0 else None for row in rows],
            "column": [row[4] if row[4] >= 0 else None for row in rows],
            "end_column": [row[5] if row[5] >= 0 else None for row in rows],
            "user": users,
        },
    )


def _with_roots(files: list[_File]) -> Iterator[tuple[_File, set[str]]]:
    """Each file with the sources that its stacks begin with: a program given by -c has no file."""
    for file in files:
        places = [row[0] for block in file.blocks for row in block.places]
        roots = {places[place] for block in file.blocks for parent, place in block.stacks if parent < 0}
        yield file, roots


def _of_user(source: str, header: Header, roots: set[str]) -> bool:
    """Whether a source file is the user's: not Python's, not installed, not Foretrace's."""
    if source.startswith("<"):
        return source.startswith(_OF_NOTEBOOKS) or (source == "<string>" and source in roots)
    if _INSTALLED.search(source) or any(source.startswith(f"{package}/") for package in header.package):
        return False
    return not any(
        source.startswith((f"{prefix}/lib/python", f"{prefix}/lib64/python")) for prefix in header.prefixes
    )


def _stacks(files: list[_File]) -> pl.DataFrame:
    parents: list[int | None] = []
    places: list[int] = []
    first_place = 0
    for file in files:
        first = len(places)
        for parent, place in (row for block in file.blocks for row in block.stacks):
            parents.append(parent + first if parent >= 0 else None)
            places.append(place + first_place)
        first_place += file.places
    return line_samples.frame("stacks", {"id": range(len(places)), "parent_id": parents, "place_id": places})


def _samples(files: list[_File]) -> pl.DataFrame:
    tables = []
    first = 0
    for file in files:
        for block in file.blocks:
            flags = np.array(block.flags, np.int64)
            cpu = pl.Series(block.cpu_us, dtype=pl.Int64)
            tables.append(
                line_samples.frame(
                    "samples",
                    {
                        "process": [file.header.pid] * len(flags),
                        "t_ns": np.cumsum(np.array(block.t_ns, np.int64)),
                        "thread": block.thread,
                        "stack_id": np.array(block.stack, np.int64) + first,
                        "holds_gil": (flags & _HOLDS_GIL).astype(bool),
                        "waits": (flags & _WAITS).astype(bool),
                        "cpu_ns": pl.select(pl.when(cpu >= 0).then(cpu * 1000)).to_series(),
                    },
                )
            )
        first += file.stacks
    return (
        pl.concat(tables)
        if tables
        else line_samples.frame("samples", {name: [] for name in line_samples.TABLES["samples"]})
    )
