"""`benchmarks/memory_truth.py`: what a snapshot adds up to, beside what torch's counters say, on one made by hand."""

from __future__ import annotations

import importlib.util
import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from foretrace.snapshot import ANNOTATIONS, BLOCKS, COMMON_POOL, EVENTS, FRAMES, SEGMENTS, STACKS, Snapshot
from tests.corpus import ACCURACY, needs_accuracy

MIB = 2**20
AT_NS = 1_790_000_000_000_000_000


@pytest.fixture(scope="module")
def script() -> Any:
    """The benchmark, as a module."""
    path = Path(__file__).parents[1] / "benchmarks" / "memory_truth.py"
    spec = importlib.util.spec_from_file_location("memory_truth", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = sys.modules["memory_truth"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def table(schema: Any, *rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=dict(schema))


def made(marked_bytes: int) -> Snapshot:
    """A segment of 20 MiB: 4 in use, 2 that a stream waits for, 6 free, 8 the marked block's; and a free segment of 10.

    The history: 4 + 2 MiB were there, 5 came and went, then the marked block came, and a segment of 2 MiB was given back.
    """

    def block(segment: int, address: int, mib: int, state: str) -> dict[str, Any]:
        return {
            "segment": segment,
            "device": 0,
            "address": address,
            "size_bytes": mib * MIB,
            "state": state,
            "stack": -1,
        }

    def event(action: str, size_bytes: int, at_us: int) -> dict[str, Any]:
        return {
            "device": 0, "action": action, "size_bytes": size_bytes, "time_ns": AT_NS + at_us * 1000, "pool": COMMON_POOL,
        }  # fmt: skip

    segment = {"device": 0, "kind": "large", "pool": COMMON_POOL, "expandable": False, "stack": -1}
    requested = 6 * MIB + marked_bytes
    return Snapshot(
        Path("x"),
        table(
            SEGMENTS,
            {**segment, "total_bytes": 20 * MIB, "requested_bytes": requested},
            {**segment, "total_bytes": 10 * MIB, "requested_bytes": 0},
        ),
        table(
            BLOCKS,
            block(0, 0, 4, "active"),
            block(0, 4, 2, "pending"),
            block(0, 6, 6, "inactive"),
            block(0, 12, 8, "active"),
            block(1, 0, 10, "inactive"),
        ),
        table(
            EVENTS,
            event("alloc", 5 * MIB, 1),
            event("free_requested", 5 * MIB, 2),
            event("free_completed", 5 * MIB, 3),
            event("segment_free", 2 * MIB, 4),
            event("alloc", marked_bytes, 5),
        ),
        table(STACKS), table(FRAMES), table(ANNOTATIONS),
    )  # fmt: skip


def test_totals_and_peaks_are_what_paper_says(script: Any) -> None:
    snapshot = made(script.MARKED_BYTES)
    read = script.totals(snapshot)
    assert read == {
        "reserved": 30 * MIB,
        "allocated": 12 * MIB,
        "active": 14 * MIB,
        "requested": 6 * MIB + script.MARKED_BYTES,
        "inactive splits": 6 * MIB,
    }
    assert script.peak(snapshot, "peak reserved", read) == 32 * MIB
    # 6 MiB before, 5 more for a while; the marked block at the end is the larger one.
    assert script.peak(snapshot, "peak requested", read) == 6 * MIB + script.MARKED_BYTES
    rows = snapshot.events.with_columns(
        size_bytes=pl.col("size_bytes") * pl.when(pl.col("size_bytes") == 5 * MIB).then(2).otherwise(1)
    )
    assert script.peak(replace(snapshot, events=rows), "peak requested", read) == 16 * MIB


@pytest.mark.parametrize(("at_us", "outside_ns"), [(5, 0), (8, 3000), (1, 4000)])
def test_an_event_is_compared_with_its_marks(script: Any, at_us: int, outside_ns: int) -> None:
    snapshot = made(script.MARKED_BYTES)
    moved = snapshot.events.with_columns(
        time_ns=pl.when(pl.col("size_bytes") == script.MARKED_BYTES)
        .then(AT_NS + at_us * 1000)
        .otherwise(pl.col("time_ns"))
    )
    row = script.marked("training", replace(snapshot, events=moved), [AT_NS + 5000, AT_NS + 5000])
    assert (row.read, row.good) == (outside_ns, True)
    late = script.marked("training", snapshot, [AT_NS - 9_000_000, AT_NS - 8_000_000])
    assert (late.read, late.good) == (8_005_000, False)


@pytest.mark.parametrize(("off_bytes", "code", "wrong"), [(0, 0, 0), (20_000, 0, 0), (40_000, 1, 1)])
def test_a_total_that_is_off_by_a_thousandth_fails(
    script: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    off_bytes: int,
    code: int,
    wrong: int,
) -> None:
    """Of 30 MiB reserved, a thousandth is 31,457 bytes."""
    read = {**script.totals(made(script.MARKED_BYTES))}
    stats = {key: read[what] for what, key in script.TOTALS.items()}
    stats["reserved_bytes.all.current"] += off_bytes
    known = {
        "stats": stats, "sums": {"total_size": 30 * MIB, "allocated_size": 12 * MIB, "active_size": 14 * MIB}, "peaks": False,
        "marked_ns": [AT_NS, AT_NS + 9000],
    }  # fmt: skip
    (tmp_path / "ring.json").write_text(json.dumps(known))
    reader = ModuleType("foretrace.ingest.snapshots")
    reader.read_snapshot = lambda path: made(script.MARKED_BYTES)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, reader.__name__, reader)
    monkeypatch.setattr(script, "CASES", ("ring",))
    assert script.main(["--judge", str(tmp_path)]) == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"9 numbers of 1 programs, {wrong} differ"
    assert out.count("DIFFERS") == wrong
    monkeypatch.setattr(script, "CASES", ("ring", "graph"))
    assert script.main(["--judge", str(tmp_path)]) == 1, "a program that was not recorded is no success"


@needs_accuracy
def test_seven_programs_of_an_h200(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every number that torch counted there is the one that the snapshot gives."""
    with tarfile.open(ACCURACY / "memory" / "truth.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    assert script.judge(tmp_path / "truth") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "87 numbers of 7 programs, 0 differ"
