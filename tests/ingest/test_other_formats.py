"""Files of other profilers: told by their content, in one line that says what they are and what to do."""

from __future__ import annotations

import cProfile
import gzip
import io
import lzma
import marshal
import pickle
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.errors import FormatError
from foretrace.ingest import open_trace
from foretrace.ingest.other_formats import OTHER_FORMATS, recognised
from foretrace.ingest.recordings import is_recording
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

SEGMENT = {"device": 0, "address": 1 << 40, "total_size": 2097152, "segment_type": "small", "blocks": []}
SNAPSHOT = {"segments": [SEGMENT], "device_traces": [[]], "allocator_settings": {}}
NSYS_TRACE = b"Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),Name\n"


def archived() -> bytes:
    """A tar with one file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("trace.json"))
    return packed.getvalue()


def profiled() -> bytes:
    """What `python -m cProfile -o` writes."""
    profile = cProfile.Profile()
    profile.runcall(len, "a")
    profile.create_stats()
    return marshal.dumps(profile.stats)


# What the tools write at the beginning, by their documentation or source, and what is said of it.
FILES: dict[str, tuple[bytes, str]] = {
    "snapshot": (pickle.dumps(SNAPSHOT), "snapshot of torch's CUDA allocator"),
    "old snapshot": (pickle.dumps(SNAPSHOT, protocol=2), "snapshot of torch's CUDA allocator"),
    "oldest snapshot": (pickle.dumps([SEGMENT], protocol=0), "snapshot of torch's CUDA allocator"),
    "pickle": (pickle.dumps({"a": [1, 2]}), "a Python pickle"),
    "hatchet msgpack": (b"\x92\x83\xa8children\x90\xa5frame\x82\xa4name\xa4ROOT", "Proton (.hatchet_msgpack)"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "`git lfs pull` downloads"),
    "xz": (lzma.compress(b"{}"), "an xz archive"),
    "tar": (archived(), "a tar archive"),
    "utf-16": ('{"traceEvents": []}'.encode("utf-16"), "text in UTF-16"),
    "execution trace": (
        b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "2025-01-01", "start_ts": 5,\n  "nodes": [{"id": 1}]}',
        "a PyTorch execution trace",
    ),
    "xplane": (b"\n\xa1\xf0\x08\x12\x0e/host:metadata\"\xbf\x14", "an XPlane file"),
    "xplane of a device": (b"\n\x85\x02\x08\x01\x12\x0d/device:GPU:0\x1a", "an XPlane file"),
    "speedscope": (b'{"$schema":"https://www.speedscope.app/file-format-schema.json","profiles":[]}', "a speedscope profile"),
    "pyinstrument": (b'{"start_time": 1.0, "duration": 2.0, "sample_count": 3, "root_frame": {}}', "pyinstrument"),
    "memray": (b"memray\0\x0c\0\0\0", "a capture of memray"),
    "cprofile": (profiled(), "a profile of cProfile"),
    "averages": (
        b"-------  ------------\n   Name    Self CPU %    Self CPU\n-------  ------------\naten::mm  9 %\n",
        "a table of torch.profiler",
    ),
    "stacks": (b"train.py(3): <module>;model.py(5): forward 1200\nmain;f 7\n", "counted stacks"),
    "nsys csv": (NSYS_TRACE, "a trace table of `nsys stats` (CSV)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("packed", [False, True])
def test_each_is_told_by_its_content(kind: str, packed: bool, tmp_path: Path) -> None:
    content, says = FILES[kind]
    path = tmp_path / "recording.json"  # a name that says nothing of it
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(FormatError) as told:
        open_trace(path, cache=False)
    assert says in str(told.value)
    ends = "`foretrace memory FILE` shows it" if "snapshot" in kind else "python ...` or torch.profiler"
    if kind not in ("git lfs", "xz", "tar", "utf-16"):  # what these hold may be a recording
        assert str(told.value).endswith(ends)
    assert "\n" not in str(told.value)
    assert not is_recording(path)


def database(path: Path, *tables: str) -> Path:
    """A database whose tables' names do not lie in its first 64 KiB."""
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute("begin")  # one transaction: each of its own would wait for the disk
        for number in range(40):
            made.execute(f"create table filler_{number} ({', '.join(f'c{n} integer' for n in range(200))})")
        for table in tables:
            made.execute(f"create table {table} (a integer)")
        made.execute("commit")
    assert not any(table.encode() in path.read_bytes()[: 1 << 16] for table in tables)
    return path


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (("CUPTI_ACTIVITY_KIND_KERNEL", "META_DATA_EXPORT"), "without its table StringIds"),
        (("rocpd_metadata_0001",), "a rocpd database without kernels and regions"),
        (("people",), "an SQLite database, which"),
    ],
)
def test_a_database_is_told_by_its_tables(tables: tuple[str, ...], says: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as told:
        open_trace(database(tmp_path / "x", *tables), cache=False)
    assert says in str(told.value)


def test_a_damaged_database_is_still_one(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"SQLite format 3\0" + b"\xff" * 200)
    with pytest.raises(FormatError, match="an SQLite database"):
        open_trace(tmp_path / "x", cache=False)


def test_names_of_tables_need_not_be_text(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with closing(sqlite3.connect(path)) as made:
        made.execute("create table people (a integer)")
    path.write_bytes(path.read_bytes().replace(b"people", b"p\xb9ople"))
    with pytest.raises(FormatError, match="an SQLite database"):
        open_trace(path, cache=False)


def test_a_folder_without_a_recording_says_what_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("notes")
    (tmp_path / "b.bin").write_bytes(FILES["pickle"][0])
    assert main(["summary", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert "no recording in this folder; in it is" in said
    assert "b.bin: a Python pickle" in said
    assert said.count("\n") == 1


def test_recordings_are_none_of_these(tmp_path: Path) -> None:
    """An annotation may be named as another tool's column is."""
    made = Recording().step(1, 0, 100).op('"children" "frame" "metrics" "call_stack"', 5, 20)
    path = made.launch(10, "Kind,Agent_Id", 30, 60).write(tmp_path)
    assert recognised(path.read_bytes()) is None
    assert is_recording(path)


def test_each_says_what_it_is_and_what_shows_it() -> None:
    assert all(other.what and other.instead for other in OTHER_FORMATS)
    assert recognised(b"") is recognised(b"\x80") is recognised(b"plain text") is None


@needs_corpus
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("other/memory/encoder12.snapshot.pickle", "snapshot of torch's CUDA allocator"),
        ("peers/memory/snapviewer_memory.pickle", "snapshot of torch's CUDA allocator"),
        ("other/nsys_synthetic/cuda_gpu_trace.csv", "a trace table of `nsys stats`"),
    ],
)
def test_real_files(name: str, says: str) -> None:
    with pytest.raises(FormatError) as told:
        open_trace(CORPUS / name, cache=False)
    assert says in str(told.value)
