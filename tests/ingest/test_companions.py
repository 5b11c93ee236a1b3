"""Recordings of one program beside each other: which one is read, what completes it, and what is said of them."""

from __future__ import annotations

import json
import pickle
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from foretrace.errors import InputError, UsageError
from foretrace.ingest import READERS, companions, open_trace
from foretrace.ingest.companions import COUNTERS, MEMORY, TIMELINE
from foretrace.ingest.recordings import completes_another, find_recording, opened_with
from foretrace.ingest.run import Recorded
from foretrace.trace import Trace
from tests.analyze.nine_kernels import DETAILS, RAW, recording
from tests.ingest.nsys_exports import of_recording
from tests.ingest.snapshot_files import known


def opened(recorded: Recorded) -> Trace:
    return recorded.told(open_trace(recorded.path, cache=False))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trace, both pages of ncu, and a memory snapshot."""
    found = tmp_path / "program"
    found.mkdir()
    recording().write(found)
    for page in (RAW, DETAILS):
        shutil.copy(page, found)
    (found / "memory.pickle").write_bytes(pickle.dumps(known(), protocol=4))
    return found


def test_what_each_file_is(folder: Path) -> None:
    found = {file.name: companions.companion(file) for file in folder.iterdir()}
    assert {name: each and (each.format, each.gives) for name, each in found.items()} == {
        "trace.json": ("kineto", TIMELINE),
        RAW.name: ("ncu", COUNTERS),
        DETAILS.name: ("ncu", COUNTERS),
        "memory.pickle": ("snapshot", MEMORY),
    }
    (folder / "notes.txt").write_text("slow today")
    assert companions.companion(folder / "notes.txt") is None


def test_a_folder_opens_as_one(folder: Path) -> None:
    recorded = find_recording(folder)
    assert recorded.path == folder / "trace.json"
    trace = opened(recorded)
    assert trace.profile is not None
    assert (trace.profile.height, trace.profile.rules.height) == (9, 94)
    assert {each["file"]: each["kind"] for each in trace.meta["recordings"]} == {
        "trace.json": TIMELINE, RAW.name: COUNTERS, DETAILS.name: COUNTERS, "memory.pickle": MEMORY,
    }  # fmt: skip
    assert trace.meta["unread"] == []


def test_a_file_that_is_named_is_read_alone(folder: Path) -> None:
    trace = opened(find_recording(folder / "trace.json"))
    assert trace.profile is None
    assert "recordings" not in trace.meta
    named = opened(find_recording(folder / "trace.json", counters=[folder / RAW.name]))
    assert named.profile is not None
    assert named.profile.rules.is_empty()


def test_counters_alone_in_a_folder(tmp_path: Path) -> None:
    for page in (RAW, DETAILS):
        shutil.copy(page, tmp_path)
    trace = opened(find_recording(tmp_path))
    assert trace.format == "ncu"
    assert trace.profile is not None
    assert (trace.profile.height, trace.profile.rules.height, trace.spans.height) == (9, 94, 0)


def test_several_timelines_of_one_kind_are_for_the_user_to_choose(folder: Path) -> None:
    recording().write(folder, "other.json")
    with pytest.raises(UsageError, match=r"2 recordings in this folder, name one: other\.json, trace\.json"):
        find_recording(folder)


def test_timelines_of_another_kind_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kind of their format: a reader that is added to READERS has its place without further words."""
    import types

    other = types.ModuleType("foretrace.ingest.made_up")
    other.accepts = lambda head: head.startswith(b"MADE UP")  # type: ignore[attr-defined]
    monkeypatch.setattr(companions, "READERS", (*READERS, other))
    (folder / "other.bin").write_bytes(b"MADE UP\n")
    recorded = find_recording(folder)
    assert recorded.path == folder / "trace.json"
    told = {each["file"]: each["gives"] for each in opened(recorded).meta["recordings"]}
    assert told["other.bin"].startswith("not used: another timeline")
    monkeypatch.setattr(companions, "READERS", (other, *READERS))
    assert find_recording(folder).path == folder / "trace.json", (
        "torch's own gives the times, wherever its reader stands"
    )


def test_a_report_gives_way_to_its_printed_pages(tmp_path: Path) -> None:
    (tmp_path / "kernels.ncu-rep").write_bytes(b"NVR\0\x10")
    shutil.copy(RAW, tmp_path)
    recording().write(tmp_path)
    found = find_recording(tmp_path)
    assert companions.counters_among(found.beside) == (tmp_path / RAW.name,)
    (tmp_path / RAW.name).unlink()
    assert companions.counters_among(find_recording(tmp_path).beside) == (tmp_path / "kernels.ncu-rep",)


def test_what_cannot_be_read_is_said_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretrace.ingest.ncu_report_file.find_tool", lambda: None)
    monkeypatch.setattr("foretrace.ingest.ncu_report_file.find_spec", lambda _: None)
    (tmp_path / "kernels.ncu-rep").write_bytes(b"NVR\0\x10")
    recording().write(tmp_path)
    trace = opened(find_recording(tmp_path))
    assert trace.profile is None
    assert len(trace.meta["unread"]) == 1
    assert "pip install ncu-report" in trace.meta["unread"][0]
    with pytest.raises(InputError, match="pip install ncu-report"):
        opened(find_recording(tmp_path / "trace.json", counters=[tmp_path / "kernels.ncu-rep"]))
    with pytest.raises(InputError, match="no counters of kernels"):
        opened(find_recording(tmp_path / "trace.json", counters=[tmp_path / "trace.json"]))


def test_a_run_has_what_ncu_left_in_its_folder(tmp_path: Path) -> None:
    rank = tmp_path / "rank0"
    rank.mkdir()
    recording().write(rank, "light.json")
    (tmp_path / "run.json").write_text("{}")
    (rank / "rank.json").write_text(json.dumps({"passes": [{"kind": "light", "file": "light.json"}]}))
    shutil.copy(RAW, tmp_path / "ncu-1.raw.csv.gz")
    shutil.copy(DETAILS, tmp_path / "ncu-1.details.csv.gz")
    for path in (tmp_path, rank, rank / "light.json"):
        trace = opened(find_recording(path))
        assert trace.profile is not None
        assert (trace.profile.height, trace.profile.rules.height) == (9, 94)
    assert completes_another(tmp_path / "ncu-1.raw.csv.gz")
    assert not completes_another(rank / "light.json")


def test_what_completes_a_recording_is_no_run_of_its_own(folder: Path) -> None:
    for name in (RAW.name, DETAILS.name, "memory.pickle"):
        assert completes_another(folder / name)
    assert not completes_another(folder / "trace.json")
    assert opened_with(folder / "trace.json", folder) == folder
    assert opened_with(folder / RAW.name, folder) == folder / RAW.name
    recording().write(folder, "other.json")
    assert not completes_another(folder / RAW.name), "of which of the two is not known"
    assert opened_with(folder / "trace.json", folder) == folder / "trace.json"


def test_counters_complete_a_folder_of_tables(tmp_path: Path) -> None:
    """Tables of Nsight Systems are no recordings one by one: the folder is the timeline."""
    export = of_recording(recording())
    export.write(tmp_path / "trace.sqlite")
    folder = tmp_path / "tables"
    folder.mkdir()
    with closing(sqlite3.connect(tmp_path / "trace.sqlite")) as database:
        for table in export.rows:
            frame = pl.read_database(f"select * from {table}", database, infer_schema_length=None)
            frame.write_parquet(folder / f"{table}.parquet")
    shutil.copy(RAW, folder)
    trace = opened(find_recording(folder))
    kernels = open_trace(recording().write(tmp_path), cache=False).kernel_spans.height
    assert (trace.path, trace.format, trace.kernel_spans.height) == (folder, "nsys", kernels)
    assert trace.profile is not None
    assert trace.profile.height == 9
