from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import foretrace
from foretrace import cache, schema
from foretrace.commands.demo import SAMPLE
from foretrace.errors import InputError, UsageError
from foretrace.present.web import run_files
from foretrace.trace import Repair, Trace
from tests.builders import Recording


@pytest.fixture(scope="module")
def sample() -> Trace:
    return foretrace.open(SAMPLE, cache=False)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FORETRACE_CACHE_LIMIT", raising=False)
    return tmp_path / "cache"


def key_of(number: int) -> str:
    return f"{number:032x}"


def small(name: str = "k", *, spans: int = cache.MIN_SPANS) -> Trace:
    """A trace with a value in few columns only, large enough to be kept."""
    frames = {table: pl.DataFrame(schema=schema.polars_schema(table)) for table in schema.TABLES}
    rows = {
        "id": range(spans), "track_id": [0] * spans, "kind": ["kernel"] * spans, "name": [name] * spans,
        "start_ns": range(spans), "dur_ns": [None] * spans, "depth": [0] * spans, "parent_id": [None] * spans,
        "launch_id": [None] * spans, "op_id": [None] * spans, "step": [None] * spans,
    }  # fmt: skip
    frames["spans"] = pl.DataFrame(rows, schema=schema.polars_schema("spans"))
    repairs = (Repair("truncated", "it breaks off", 1, 7), Repair("not-utf8", "names", 2, None))
    return Trace(Path("small.json"), "kineto", {"steps": [[1, 2, 3]]}, repairs, frames.__getitem__, frames)


def assert_same(one: Trace, other: Trace) -> None:
    assert (one.format, dict(one.meta), one.repairs) == (other.format, dict(other.meta), other.repairs)
    for name in schema.TABLES:
        assert one.table(name).schema == other.table(name).schema
        assert_frame_equal(one.table(name), other.table(name), categorical_as_str=False)


@pytest.mark.parametrize("which", ["sample", "small"])
def test_what_is_stored_comes_back_whole(which: str, sample: Trace) -> None:
    trace = sample if which == "sample" else small()
    cache.store(key_of(1), trace)
    again = cache.load(key_of(1), trace.path)
    assert again is not None
    assert again.path == trace.path
    assert again._frames == {}, "tables are loaded when first used"
    assert_same(again, trace)


def test_numbers_that_do_not_rise_come_back_too() -> None:
    """Differences to the row before wrap around; a span may be inside one that comes later, or in none."""
    trace = small()
    rows = trace.spans.height
    starts = pl.Series([2**63 - 1, -(2**63), 0, -5] * (rows // 4))
    parents = pl.Series([rows - 1, None, 0, 2**32 - 1] * (rows // 4), dtype=pl.UInt32)
    trace._frames["spans"] = trace.spans.with_columns(start_ns=starts, parent_id=parents)
    trace._frames["args"] = pl.DataFrame(
        {
            "span_id": [7, 0, 2**32 - 1],
            "key": ["a", "b", "a"],
            "int": [1, None, 2],
            "float": None,
            "text": None,
        },
        schema=schema.polars_schema("args"),
    )
    cache.store(key_of(1), trace)
    again = cache.load(key_of(1), trace.path)
    assert again is not None
    assert again.spans["start_ns"].to_list() == starts.to_list()
    assert again.spans["parent_id"].to_list() == parents.to_list()
    assert_same(again, trace)


def test_nothing_stored_is_none(folder: Path) -> None:
    assert cache.load(key_of(1), Path("x.json")) is None
    assert cache.entries() == []
    assert not folder.exists()


def test_key_is_of_content_and_not_of_folder(tmp_path: Path) -> None:
    paths = [tmp_path / name / "trace.json" for name in ("a", "b", "c", "d")]
    for path, content in zip(paths, (b"one", b"one", b"two", b"one"), strict=True):
        path.parent.mkdir()
        path.write_bytes(content)
        os.utime(path, ns=(10, 10))
    os.utime(paths[3], ns=(10, 11))
    same, copy, changed, touched = map(cache.key, paths)
    assert same == copy
    assert len({same, changed, touched}) == 3
    # A file's name may hold its rank.
    renamed = paths[0].rename(tmp_path / "rank1.json")
    assert cache.key(renamed) != same


def test_key_of_a_large_file_sees_its_ends_and_middle(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    size = 12 << 20
    seen = set()
    for place in (None, 0, size // 2, size - 1):
        data = bytearray(size)
        if place is not None:
            data[place - (place == size // 2) : place + 200_000] = b"x" * 200_000
        path.write_bytes(data[:size])
        os.utime(path, ns=(10, 10))
        seen.add(cache.key(path))
    assert len(seen) == 4


def wait_for_the_clock_of_files(folder: Path) -> None:
    """Returns once a write gets another time than now: that clock goes in steps of some milliseconds."""
    probe, until = folder / "probe", time.monotonic() + 60
    probe.write_bytes(b"")
    now_ns = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == now_ns:
        assert time.monotonic() < until
        probe.write_bytes(b"")


@pytest.mark.skipif(sys.platform == "win32", reason="its ctime is when the file was made")
def test_a_changed_file_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    """One byte between the samples of a large file, its time put back: only the system's own time tells."""
    path = tmp_path / "large.json"
    path.write_bytes(b" " * (12 << 20))
    os.utime(path, ns=(10, 10))
    before = path.stat(), cache.key(path), run_files.stamp_of(path)
    wait_for_the_clock_of_files(tmp_path)
    with path.open("r+b") as file:
        file.seek((1 << 20) + 40_000)
        file.write(b"x")
    os.utime(path, ns=(10, 10))
    facts = path.stat()
    assert (facts.st_size, facts.st_mtime_ns) == (before[0].st_size, before[0].st_mtime_ns)
    assert cache.key(path) != before[1]
    assert run_files.stamp_of(path) != before[2]


def test_key_depends_on_the_schema_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Recording().op("a", 0, 1).write(tmp_path)
    before = cache.key(path)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    assert cache.key(path) != before


def test_key_of_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.json: No such file"):
        cache.key(tmp_path / "absent.json")


@pytest.mark.parametrize("table", ["spans", "args", "stacks"])
def test_damaged_table_is_read_again_and_the_entry_removed(table: str, sample: Trace, folder: Path) -> None:
    cache.store(key_of(1), sample)
    file = folder / key_of(1) / f"{table}.arrow"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    trace = cache.load(key_of(1), sample.path, reread=lambda: sample)
    assert trace is not None
    assert_frame_equal(trace.table(table), sample.table(table))
    assert cache.entries() == []
    assert_same(trace, sample)  # the other tables too, though their files are gone


def test_damaged_table_without_a_way_to_read_again_is_one_line(sample: Trace, folder: Path) -> None:
    cache.store(key_of(1), sample)
    (folder / key_of(1) / "spans.arrow").write_bytes(
        b"\0" * (folder / key_of(1) / "spans.arrow").stat().st_size
    )
    trace = cache.load(key_of(1), sample.path)
    assert trace is not None
    with pytest.raises(InputError, match="damaged and is removed"):
        _ = trace.spans
    assert cache.load(key_of(1), sample.path) is None


def change_meta(entry: Path) -> None:
    """A value of another type, which nothing later would check."""
    checksum, manifest = json.loads((entry / "entry.json").read_text())
    manifest["meta"]["devices"] = 5
    (entry / "entry.json").write_text(json.dumps([checksum, manifest]))


def cut_table(entry: Path) -> None:
    data = (entry / "ops.arrow").read_bytes()
    (entry / "ops.arrow").write_bytes(data[:-1])


@pytest.mark.parametrize(
    "damage",
    [
        cut_table,
        lambda entry: (entry / "ops.arrow").unlink(),
        lambda entry: (entry / "entry.json").unlink(),
        lambda entry: (entry / "entry.json").write_text("{"),
        lambda entry: (entry / "entry.json").write_text("[]"),
        lambda entry: (entry / "entry.json").write_text('{"meta": {}, "format": "kineto"}'),
        lambda entry: (entry / "entry.json").write_bytes(b"\xff\xfe"),
        lambda entry: (entry / "entry.json").write_text("[" * 200_000),
        change_meta,
    ],
    ids=[
        "cut",
        "table-gone",
        "entry-gone",
        "half-json",
        "list",
        "fields-gone",
        "not-utf8",
        "nested",
        "changed",
    ],
)
def test_half_an_entry_counts_as_none(damage: Any, folder: Path) -> None:
    cache.store(key_of(1), small())
    damage(folder / key_of(1))
    assert cache.load(key_of(1), Path("small.json")) is None
    assert list(folder.iterdir()) == []


STORE = """
import sys, time
from pathlib import Path
from foretrace import cache
from tests.test_cache import key_of, small
trace = small()
if sys.argv[1] == "hang":
    def hang(*_):
        print("written", flush=True)
        time.sleep(60)
    cache._publish = hang
for number in range(1000):
    cache.store(key_of(number), trace)
    print(number, flush=True)
"""


def start_storing(how: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[1]
    return subprocess.Popen([sys.executable, "-c", STORE, how], stdout=subprocess.PIPE, text=True, cwd=root)


@pytest.mark.slow
def test_killed_before_the_end_leaves_no_entry(folder: Path) -> None:
    with start_storing("hang") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert cache.load(key_of(0), Path("small.json")) is None
    (left,) = folder.iterdir()
    assert left.name.startswith(".tmp-")
    cache.store(key_of(1), small())
    assert left.exists(), "it may belong to a process that still writes"
    old = time.time() - cache.STALE_S - 1
    os.utime(left, (old, old))
    cache.store(key_of(2), small())
    assert not left.exists()


@pytest.mark.slow
def test_killed_at_any_moment_leaves_only_whole_entries(folder: Path) -> None:
    expected = small()
    for entries in (1, 3):
        with start_storing("run") as process:
            assert process.stdout is not None
            for _ in range(entries):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        found = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".tmp-")]
        assert found
        for name in found:
            trace = cache.load(name, expected.path)
            assert trace is not None
            assert_same(trace, expected)
        cache.clear()


def store_small(number: int) -> None:
    for each in range(5):
        cache.store(key_of(each), small())


@pytest.mark.slow
def test_many_writers_of_the_same_entries(folder: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(store_small, range(2), chunksize=1)
    assert sorted(entry.name for entry in folder.iterdir()) == [key_of(each) for each in range(5)]
    for each in range(5):
        trace = cache.load(key_of(each), Path("small.json"))
        assert trace is not None
        assert_same(trace, small())


def test_least_recently_used_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        cache.store(key_of(number), small())
        os.utime(folder / key_of(number) / "entry.json", (1000 + number, 1000 + number))
    size = cache.entries()[0].size_bytes
    assert cache.load(key_of(0), Path("small.json")) is not None  # used: now the newest
    monkeypatch.setenv("FORETRACE_CACHE_LIMIT", str(size * 3 + size // 2))
    cache.store(key_of(3), small())
    assert {entry.key for entry in cache.entries()} == {key_of(0), key_of(2), key_of(3)}


def test_larger_than_the_limit_is_not_kept_but_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRACE_CACHE_LIMIT", "100")
    with pytest.warns(cache.CacheWarning, match="exceed FORETRACE_CACHE_LIMIT"):
        cache.store(key_of(1), small())
    assert list(folder.iterdir()) == []


def test_limit_of_zero_turns_storing_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRACE_CACHE_LIMIT", "0")
    cache.store(key_of(1), small())
    assert not folder.exists()


def test_limit_that_is_no_number_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRACE_CACHE_LIMIT", "2G")
    with pytest.raises(UsageError, match="number of bytes, not '2G'"):
        cache.limit_bytes()


def test_small_recordings_are_not_kept(folder: Path) -> None:
    cache.store(key_of(1), small(spans=cache.MIN_SPANS - 1))
    assert not folder.exists()


def test_cache_that_cannot_be_made_is_a_warning(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    with pytest.warns(cache.CacheWarning, match="not kept in the cache"):
        cache.store(key_of(1), small())
    assert cache.load(key_of(1), Path("small.json")) is None
    assert cache.entries() == []


def test_full_disk_is_a_warning_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device (os error 28)")  # as polars has it, without a number

    monkeypatch.setattr(pl.LazyFrame, "sink_ipc", full)
    with pytest.warns(cache.CacheWarning, match="No space left on device"):
        cache.store(key_of(1), small())
    assert list(folder.iterdir()) == []


def test_entries_and_clear(folder: Path) -> None:
    cache.store(key_of(1), small())
    cache.store(key_of(2), small("other"))
    (folder / "not-ours.txt").write_text("stays")
    assert [entry.source for entry in cache.entries()] == ["small.json", "small.json"]
    total = sum(
        file.stat().st_size for entry in folder.iterdir() if entry.is_dir() for file in entry.iterdir()
    )
    assert cache.clear() == (2, total)
    assert [path.name for path in folder.iterdir()] == ["not-ours.txt"]


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, "home/.cache/foretrace"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/foretrace"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "home/.cache/foretrace"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "home/Library/Caches/foretrace"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/foretrace/Cache"),
        ("win32", {}, "home/AppData/Local/foretrace/Cache"),
        ("linux", {"FORETRACE_CACHE": "/mine"}, "/mine"),
    ],
)
def test_place_follows_the_platform(
    platform: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORETRACE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert cache.directory() == Path(expected)


@pytest.mark.skipif(sys.platform == "win32", reason="users of Windows have temporary folders of their own")
@pytest.mark.parametrize("taken", ["nothing", "own", "open to all", "link", "file"])
def test_without_a_home_the_cache_is_private(
    taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may make the usual folder first: what can be written by others, or is a link, is not used."""

    def nowhere() -> Path:
        raise RuntimeError("no home")

    for name in ("FORETRACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr(sys, "platform", "linux")
    cache._temporary_home.cache_clear()
    usual = tmp_path / f"foretrace-{os.getuid()}"
    if taken in ("own", "open to all"):
        usual.mkdir(mode=0o700)
        usual.chmod(0o700 if taken == "own" else 0o777)
    elif taken == "link":
        (tmp_path / "elsewhere").mkdir()
        usual.symlink_to(tmp_path / "elsewhere")
    elif taken == "file":
        usual.touch()
    home = cache.directory().parents[1]
    cache._temporary_home.cache_clear()
    assert (home == usual) is (taken in ("nothing", "own"))
    assert home.stat().st_mode & 0o777 == 0o700
    assert not home.is_symlink()
