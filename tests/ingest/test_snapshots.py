"""Memory snapshots: hand-made pickles whose tables are known, and both readers alike."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from foretrace.ingest import snapshot_columns, snapshot_native, snapshot_python
from foretrace.ingest.snapshot_columns import SnapshotColumns, SnapshotFault
from foretrace.ingest.snapshots import read_snapshot
from foretrace.snapshot import (
    ANNOTATIONS,
    BLOCKS,
    EVENTS,
    FRAMES,
    HOST,
    SEGMENTS,
    STACKS,
    Snapshot,
    baseline_bytes,
    frees_of_earlier,
)  # fmt: skip
from tests.corpus import CORPUS, needs_corpus
from tests.ingest.snapshot_files import (
    INNER,
    OUTER,
    block,
    both_readers,
    event,
    known,
    needs_native,
    rows,
    says,
    segment,
    written,
)

TABLES = {
    "segments": SEGMENTS, "blocks": BLOCKS, "events": EVENTS, "stacks": STACKS, "frames": FRAMES, "annotations": ANNOTATIONS,
}  # fmt: skip


@both_readers
@pytest.mark.parametrize("protocol", range(6))
def test_a_known_structure_has_these_tables(protocol: int, reader: str, tmp_path: Path) -> None:
    made = read_snapshot(written(tmp_path, known(), protocol), reader=reader)
    for name, types in TABLES.items():
        assert dict(getattr(made, name).schema) == dict(types), name
    assert rows(made.segments, "device", "address", "total_bytes", "kind", "pool", "expandable") == [
        (0, 4096, 4096, "small", "0,0", False), (1, 2**63 + 4096, 4096, "small", "2,1", True), (HOST, 100, 64, None, None, False),
    ]  # fmt: skip
    assert made.segments.row(0)[3:7] == (512, 1024, 500, 3)
    assert made.segments.row(2)[3:7] == (None, None, None, None)
    assert rows(made.blocks, "segment", "device", "address", "size_bytes", "requested_bytes", "state", "stack") == [
        (0, 0, 4096, 512, 500, "active", 0), (0, 0, 4608, 512, 500, "pending", -1),
        (1, 1, 2**63 + 4096, 4096, 4084, "inactive", -1), (2, HOST, 100, 64, 52, "pending", -1),
    ]  # fmt: skip
    s = 1_000_000_000
    assert made.events.rows() == [
        (0, "segment_alloc", 4096, 4096, 0, "0,0", s, -1, None, None),
        (0, "alloc", 4096, 500, 0, None, s, 0, "0/1", "step 3"),
        (0, "alloc", 4608, 500, 0, None, s, -1, None, None),
        (0, "free_requested", 4608, 500, 0, None, 2 * s, 1, None, None),
        (0, "oom", 99, 10**12, 0, None, 3 * s, -1, None, None),
        (1, "segment_map", 2**63 + 4096, 64, 0, None, s, -1, None, None),
        (HOST, "alloc", 100, 52, 0, None, s, -1, None, None),
    ]
    assert made.frames.rows() == [("net.py", 7, "forward"), ("träin.py", 40, "<module>")]
    assert made.stacks.rows() == [(0, 0, 0), (0, 1, 1), (1, 0, 1)]
    assert made.annotations.rows() == [(1, "START", "step", 5000)]
    assert made.settings == {
        "expandable_segments": True,
        "gc": 0.5,
        "divisions": {"1": 0},
        "pair": [1, 2],
        "none": None,
    }
    assert made.notes == ()  # what is held at the end is what the history adds
    assert baseline_bytes(made) == {HOST: 0, 0: 0, 1: 0}


@both_readers
def test_an_old_list_of_segments(reader: str, tmp_path: Path) -> None:
    """Before torch 2.1, blocks had a history and no address."""
    history = [{"addr": 4096, "real_size": 77, "frames": [INNER]}, {"addr": 1, "real_size": 1}]
    old = [
        {"size": 512, "state": "active_allocated", "history": history},
        {"size": 3584, "state": "inactive"},
    ]
    whole = {
        "device": 0,
        "address": 4096,
        "total_size": 4096,
        "stream": 0,
        "segment_type": "large",
        "blocks": old,
    }
    made = read_snapshot(written(tmp_path, [whole], 2), reader=reader)
    assert rows(made.blocks, "address", "requested_bytes", "stack") == [(4096, 77, 0), (4608, None, -1)]
    assert made.events.height == 0
    assert made.notes == ("a list of segments, as old versions of torch wrote: it has no history",)


@both_readers
def test_a_packed_snapshot(reader: str, tmp_path: Path) -> None:
    plain = read_snapshot(written(tmp_path, known()), reader=reader)
    packed = read_snapshot(written(tmp_path, gzip.compress(pickle.dumps(known()))), reader=reader)
    assert_same(plain, packed)
    cut = gzip.compress(pickle.dumps(known()))[:-200]
    assert "gzip" in says(tmp_path, cut, reader)


def test_a_lost_start_is_said_with_its_bytes(tmp_path: Path) -> None:
    """1,000 B were held before: 400 B are freed in the history, 600 B are there at its end beside 50 B of the history's own."""
    content = {
        "segments": [segment(0, 0, block(0, 512, "active_allocated", requested_size=600), block(512, 512, "active_allocated", requested_size=50))],
        "device_traces": [[event("free_completed", 400, addr=7), event("alloc", 50, addr=512)], [event("alloc", 9)]],
    }  # fmt: skip
    made = read_snapshot(written(tmp_path, content))
    assert baseline_bytes(made) == {0: 1000, 1: -9}
    assert frees_of_earlier(made, 0) == 1
    assert made.notes == (
        "device 0: the start of the history is lost: 1,000 B were held before it; 1 free of memory from before",
        "device 1: its history leaves 9 B more than were held at the end: frees are missing",
    )


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    trace = [event("teleport", 5), event("alloc", 5, addr=None), event("snapshot", 0, addr=None)]
    made = read_snapshot(written(tmp_path, {"segments": [], "device_traces": [trace]}))
    assert made.events["action"].to_list() == ["snapshot"]
    assert made.notes == (
        "left out: 1 event of an action that is not known (teleport)",
        "left out: 1 event without an address",
    )
    secret = "ghp_" + "A1b2C3d4E5" * 3 + "abcdef"
    noted = read_snapshot(
        written(tmp_path, {"segments": [], "device_traces": [[event("alloc", 5, user_metadata=secret)]]})
    )
    assert secret not in str(noted.events["note"][0])
    assert noted.notes[0] == "1 text held a secret, which shows as <left out>"


FIELDS: dict[str, tuple[Any, str]] = {
    "device is a list": ({"segments": [segment([], 0)]}, "the field device of a segment is a list"),
    "size is a text": ({"device_traces": [[event("alloc", "5")]]}, "the field size of an event is a text"),  # type: ignore[arg-type]
    "negative size": ({"device_traces": [[event("alloc", -1)]]}, "the field size of an event is negative"),
    "size beyond 64 bits": ({"device_traces": [[event("alloc", 2**63)]]}, "the field size of an event is out of range"),
    "size of 2**100": ({"device_traces": [[event("alloc", -(2**100))]]}, "the field size of an event is negative"),
    "size is true": ({"device_traces": [[event("alloc", True)]]}, "the field size of an event is true or false"),
    "no size": ({"device_traces": [[{"action": "alloc"}]]}, "the field size of an event is missing"),
    "time is a fraction": ({"device_traces": [[event("alloc", 1, time_us=1.5)]]}, "the field time_us of an event is a fraction"),
    "time beyond": ({"device_traces": [[event("alloc", 1, time_us=2**62)]]}, "the field time_us of an event is out of range"),
    "address beyond": ({"segments": [segment(0, 2**64)]}, "the field address of a segment is out of range"),
    "pool is a text": ({"segments": [segment(0, 0, segment_pool_id="0")]}, "the field segment_pool_id of a segment is a text"),
    "frames are texts": ({"device_traces": [[event("alloc", 1, frames=["a"])]]}, "the field frames of an event is a list"),
    "file is a number": ({"device_traces": [[event("alloc", 1, frames=[{**INNER, "filename": 1}])]]}, "the field filename of a frame is a number"),
    "unknown state": ({"segments": [segment(0, 0, block(0, 64, "asleep"))]}, "the field state of a block is none that is known"),
    "blocks are events": ({"segments": [segment(0, 0, event("alloc", 1))]}, "in blocks stands an event"),
    "segments is a text": ({"segments": "none"}, "segments is a text"),
    "traces of texts": ({"device_traces": [["alloc"]]}, "in device_traces stands a text"),
    "something else": ({"weights": [1, 2, 3]}, "it holds neither segments nor device_traces, so it is no memory snapshot"),
    "nothing": ([], "it holds neither segments nor device_traces"),
    "settings without end": ({"segments": [], "allocator_settings": {"a": [[i] for i in range(9000)]}}, "allocator_settings holds more than settings"),
}  # fmt: skip


@both_readers
@pytest.mark.parametrize("case", FIELDS)
def test_types_are_checked(case: str, reader: str, tmp_path: Path) -> None:
    content, expected = FIELDS[case]
    assert expected in says(tmp_path, content, reader)


# --- both readers -------------------------------------------------------------------------------------------------------


def assert_same(left: Snapshot, right: Snapshot) -> None:
    for name in TABLES:
        assert_frame_equal(getattr(left, name), getattr(right, name), check_exact=True)
    assert left.settings == right.settings
    assert left.notes == right.notes


def outcome(scan: Callable[..., SnapshotColumns], *pieces: bytes) -> Any:
    """All that a reader says of a file."""
    try:
        made = scan(iter(pieces))
    except SnapshotFault as fault:
        return fault.says, fault.at
    groups = {
        group: {name: array.tolist() for name, array in columns.items()}
        for group, columns in made.groups.items()
    }
    return made.texts, groups, repr(made.settings), made.bare_list


@pytest.mark.slow
@both_readers
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cut_at_every_byte_it_is_refused(protocol: int, reader: str) -> None:
    """Wherever a file breaks off, that is said with its length; nothing is read of it."""
    content = pickle.dumps(known(), protocol)
    scan = snapshot_native.scan if reader == "native" else snapshot_python.scan
    slow = reader == "python" and protocol < 4
    for length in range(0, len(content), 7 if slow else 1):
        assert outcome(scan, content[:length]) == (snapshot_python.BREAKS_OFF, length)


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("protocol", range(6))
def test_damaged_files_are_read_alike(protocol: int) -> None:
    """Bytes changed, left out and doubled: both readers give the same columns, or the same reason at the same byte."""
    rng, whole = random.Random(protocol), pickle.dumps(known(), protocol)
    codes = b"(NJKMGILFVX}])tldaesupqrgh.\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x94\x95"
    read = 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(rng.choice((1, 1, 3))):
            at, other = rng.randrange(len(content)), rng.randrange(len(content))
            content[at : at + rng.randrange(3)] = rng.choice(
                (
                    bytes([rng.randrange(256)]),
                    bytes([rng.choice(codes)]),
                    content[other : other + rng.randrange(20)],
                    b"",
                )
            )
        cut = rng.randrange(len(content))
        found = outcome(snapshot_python.scan, bytes(content))
        assert outcome(snapshot_native.scan, bytes(content[:cut]), bytes(content[cut:])) == found, bytes(
            content
        )
        read += len(found) > 2
    assert 20 < read < 280  # neither all refused nor all as if nothing had happened


@needs_native
def test_numbers_and_texts_are_read_alike() -> None:
    """The numbers at the borders of what a value holds, and texts beyond Latin-1, by every protocol."""
    numbers = [
        sign * (2**power + more)
        for power in (0, 7, 8, 15, 31, 54, 55, 62, 63, 64, 80)
        for more in (-1, 0, 1)
        for sign in (1, -1)
    ]
    texts = ["", "\x00", "é\\u0041", "漢字", "😀", "\ud800", "line\nline\\", "x" * 300]
    settings = {
        "numbers": numbers,
        "texts": texts,
        "reals": [0.1, -1e300, 1e-320, float("inf"), 5.0],
        "more": (True, None, ()),
    }
    for protocol in range(6):
        content = pickle.dumps({"segments": [], "allocator_settings": settings}, protocol)
        found = outcome(snapshot_python.scan, content)
        assert found == outcome(
            snapshot_native.scan, *(content[at : at + 7] for at in range(0, len(content), 7))
        )
        read = snapshot_python.scan(iter([content])).settings
        assert read["numbers"] == [
            n if -(2**63) <= n < 2**64 else "a number of more than 64 bits" for n in numbers
        ]
        assert [
            text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogatepass") for text in read["texts"]
        ] == texts
        assert read["reals"] == settings["reals"]


@pytest.mark.slow
@needs_native
def test_both_readers_have_the_same_limits() -> None:
    """What a file of plain values may hold, to the value."""
    for code, limit in ((b"N", snapshot_columns.HELD_AT_LEAST), (b"(", snapshot_columns.HELD_AT_LEAST)):
        content = b"\x80\x02" + code * (limit + limit // 2)
        found = outcome(snapshot_python.scan, content)
        assert found[0] == "it holds more values than a snapshot of this size"
        assert found == outcome(snapshot_native.scan, content)


# --- real files ---------------------------------------------------------------------------------------------------------


@needs_corpus
@both_readers
def test_encoder12_has_the_peak_that_torch_counted(reader: str) -> None:
    folder = CORPUS / "other" / "memory"
    truth = json.loads((folder / "encoder12.truth.json").read_text())
    made = read_snapshot(folder / "encoder12.snapshot.pickle", reader=reader)
    change = pl.when(pl.col("action") == "alloc").then("size_bytes").when(pl.col("action") == "free_completed").then(-pl.col("size_bytes")).otherwise(0)  # fmt: skip
    assert made.events.select(change.cum_sum().max()).item() == pytest.approx(truth["peak"], rel=1e-3)
    assert made.segments["total_bytes"].sum() == truth["peak_reserved"]
    assert made.blocks.filter(pl.col("state") == "active")["size_bytes"].sum() == truth["now"]
    assert baseline_bytes(made) == {0: 0}
    assert made.notes == ()


@needs_corpus
@needs_native
@pytest.mark.parametrize(
    "name", ["other/memory/encoder12.snapshot.pickle", "peers/memory/snapviewer_memory.pickle"]
)
def test_real_files_are_read_as_pickle_loads_them(name: str) -> None:
    """Both readers alike, and row by row what pickle itself makes of a file that is known to be harmless."""
    path = CORPUS / name
    made = read_snapshot(path)
    assert_same(made, read_snapshot(path, reader="python"))
    with path.open("rb") as file:
        loaded = pickle.load(file)
    trace = loaded["device_traces"][0]
    assert rows(made.events, "action", "address", "size_bytes", "time_ns") == [
        (entry["action"], entry["addr"], entry["size"], entry["time_us"] * 1000) for entry in trace
    ]
    frames = made.frames.rows()
    stacks = dict(made.stacks.group_by("stack", maintain_order=True).agg("frame").iter_rows())
    for number, entry in zip(made.events["stack"], trace, strict=True):
        told = [(frame["filename"], frame["line"], frame["name"]) for frame in entry["frames"]]
        assert [frames[frame] for frame in stacks.get(number, [])] == told
    pieces = [piece for whole in loaded["segments"] for piece in whole["blocks"]]
    assert made.blocks["address"].to_list() == [piece["address"] for piece in pieces]


@both_readers
@pytest.mark.parametrize("line", [2**64 - 1, -1, 2**31, 2**70, None])
def test_a_frame_without_a_line_is_kept(line: int | None, reader: str, tmp_path: Path) -> None:
    """Of Python 3.13, torch writes -1 as an unsigned number: the rest of the file is as good as any."""
    frame = {"filename": "net.py", "line": line, "name": "forward"}
    content = {"segments": [], "device_traces": [[event("alloc", 500, frames=[frame, OUTER])]]}
    made = read_snapshot(written(tmp_path, content), reader=reader)
    assert made.frames.rows() == [("net.py", 0, "forward"), ("träin.py", 40, "<module>")]
    assert made.events["size_bytes"].to_list() == [500]


@both_readers
def test_a_line_that_is_no_number_is_refused(reader: str, tmp_path: Path) -> None:
    content = {"segments": [], "device_traces": [[event("alloc", 1, frames=[{**INNER, "line": "7"}])]]}
    assert "the field line of a frame is a text" in says(tmp_path, content, reader)
