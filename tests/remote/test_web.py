"""Recordings of web servers: the same tables whatever a server can do, and one line for whatever goes wrong."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace import cache
from foretrace.commands import main
from foretrace.errors import InputError, UsageError
from foretrace.ingest.snapshots import read_snapshot
from foretrace.ranks.recordings import find_recordings
from foretrace.remote import patience, ranges, streams
from tests.ingest import nsys_exports, snapshot_files
from tests.ingest.samples import KINETO
from tests.remote.web_server import serving

pytest.importorskip("fsspec", reason="needs fsspec (the extra http)")
pytest.importorskip("aiohttp", reason="needs aiohttp (the extra http)")

_EVENT = (
    b'{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,"ts":%d,"dur":2,"args":{"External id":%d}}'
)
_SECRETS = ("5ecre7", "hunter2", "t0ken")


def recording(events: int) -> bytes:
    """A plain recording of operators one after another."""
    return b'{"traceEvents":[' + b",\n".join(_EVENT % (3 * n, n) for n in range(events)) + b"]}"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setenv("FORETRACE_URL_TIMEOUT", "5")


WAYS: dict[str, dict[str, Any]] = {
    "ranges": {},
    "no ranges": {"ranges": False},
    "no ETag": {"etags": False},
    "no version": {"etags": False, "times": False},
    "no size": {"ranges": False, "lengths": False},
    "no HEAD": {"heads": False},
    "breaks twice": {"breaks_at": 300_000, "breaks": 2},
    "breaks twice, no ranges": {"breaks_at": 300_000, "breaks": 2, "ranges": False},
    "short answers": {"longest": 700_000},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_tables_are_the_same_whatever_the_server_can_do(way: str, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("inside.json", recording(9_000))
    contents = {"plain.json": recording(9_000), "zipped.json": packed.getvalue()}
    with serving(files={f"/{name}": content for name, content in contents.items()}, **WAYS[way]) as served:
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
            there = foretrace.open(f"{served.url}/{name}", cache=False)
            here = foretrace.open(tmp_path / name, cache=False)
            assert there.spans.height == 9_000
            assert there.spans.equals(here.spans)
            assert there.meta == here.meta
            assert there.repairs == here.repairs == ()


@pytest.mark.parametrize(
    ("name", "begins", "goes_on"),
    [
        (
            "endless.json",
            b'{"schemaVersion":1,"traceEvents":[' + _EVENT % (0, 0),
            (b",\n" + _EVENT % (3, 1)) * 500,
        ),
        ("endless.sqlite", b"SQLite format 3\0", bytes(1 << 16)),
    ],
)
def test_what_has_no_end_is_given_up(
    name: str,
    begins: bytes,
    goes_on: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The limit is 3 MB: hardly more is fetched, and nothing stays on the disk."""
    monkeypatch.setenv("FORETRACE_URL_LIMIT", "3e6")
    with serving(files={f"/{name}": begins}, endless=goes_on, ranges=False, lengths=False) as served:
        assert main(["diagnose", f"{served.url}/{name}", "--no-cache"]) == 3
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "more than 3,000,000 bytes came, and no end; FORETRACE_URL_LIMIT" in said


def test_a_file_above_the_limit_is_not_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = recording(9_000)
    monkeypatch.setenv("FORETRACE_URL_LIMIT", "1000")
    with serving(files={"/a.json": content}) as served:
        assert main(["diagnose", f"{served.url}/a.json", "--no-cache"]) == 3
        assert f"{len(content):,} bytes; FORETRACE_URL_LIMIT allows 1,000" in capsys.readouterr().err
        assert served.sent_bytes < len(content) / 2


@pytest.mark.slow
def test_drop_by_drop_is_too_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each byte comes in time, and all of them never would."""
    monkeypatch.setattr(patience, "_JUDGED_AFTER", 0.05)
    with serving(files={"/a.json": recording(9_000)}, drips_s=0.05, ranges=False, lengths=False) as served:
        assert main(["diagnose", f"{served.url}/a.json", "--no-cache"]) == 3
        assert "too slow" in capsys.readouterr().err
        assert served.sent_bytes < 1_000


@pytest.mark.parametrize("text", ["0", "-5", "x", "nan", "inf"])
def test_a_limit_is_a_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRACE_URL_LIMIT", text)
    with pytest.raises(UsageError, match="FORETRACE_URL_LIMIT must be a number of bytes"):
        patience.limit_bytes()


@pytest.mark.slow
def test_a_large_plain_recording_is_streamed_and_kept_by_its_version() -> None:
    content = recording(260_000)
    assert len(content) > 24 << 20
    with serving(files={"/large.json": content}) as served:
        url = f"{served.url}/large.json"
        assert foretrace.open(url).spans.height == 260_000
        assert served.sent_bytes == len(content)
        ranges._heads.clear()
        assert foretrace.open(url).spans.height == 260_000
        assert served.sent_bytes == len(content)  # an unchanged one is not fetched again
        served.files["/large.json"] = content.replace(b"aten::add", b"aten::mul", 1)
        assert "aten::mul" in foretrace.open(url).spans["name"].head(1).to_list()


@pytest.mark.slow
def test_without_a_version_nothing_is_kept() -> None:
    with serving(files={"/a.json": KINETO}, etags=False, times=False) as served:
        first = foretrace.open(f"{served.url}/a.json")
        served.files["/a.json"] = KINETO.replace(b"aten::mm", b"aten::xx")
        assert not foretrace.open(f"{served.url}/a.json").spans.equals(first.spans)


@pytest.mark.slow
@pytest.mark.parametrize("with_ranges", [True, False])
def test_a_connection_that_always_breaks_is_truncated_told_and_not_kept(with_ranges: bool) -> None:
    content = recording(60_000)
    with serving(files={"/a.json": content}, breaks_at=3_000_000, ranges=with_ranges) as served:
        trace = foretrace.open(f"{served.url}/a.json")
        told = {repair.code: repair for repair in trace.repairs}
        assert "the connection broke off" in told["broken-stream"].says
        # Without ranges, what the machine had received and not handed on yet is lost with the connection.
        least = 3_000_000 - ranges._SMALLEST_BYTES if with_ranges else 0
        assert least < (told["broken-stream"].offset or 0) <= 3_000_000
        served.breaks_at = None
        assert foretrace.open(f"{served.url}/a.json").spans.height == 60_000


def test_a_file_that_changes_while_it_is_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    content = recording(60_000)
    with serving(files={"/a.json": content}) as served:
        fetched = ranges._range_of

        def changing(url: str, begin: int, end: int, size: int | None) -> bytes:
            if begin:
                served.files["/a.json"] = content.replace(b"aten::add", b"aten::mul")
            return fetched(url, begin, end, size)

        monkeypatch.setattr(ranges, "_range_of", changing)
        with pytest.raises(InputError, match="changed while it was read"):
            foretrace.open(f"{served.url}/a.json")


@pytest.mark.slow
def test_databases_and_snapshots_are_read_and_no_copy_is_left(tmp_path: Path) -> None:
    export = nsys_exports.Export()
    export.call("cudaLaunchKernel", 100, 110, 1).work("KERNEL", 120, 150, 1, shortName=export.text("gemm"))
    database = export.write(tmp_path / "a.sqlite")
    snapshot = snapshot_files.written(tmp_path, snapshot_files.known())
    files = {"/a.sqlite": database.read_bytes(), "/b.pickle": snapshot.read_bytes()}
    for ranged in (True, False):
        with serving(files=files, ranges=ranged) as served:
            there = foretrace.open(f"{served.url}/a.sqlite", cache=False)
            assert there.spans.equals(foretrace.open(database, cache=False).spans)
            assert served.sent_bytes <= 3 * len(files["/a.sqlite"])
            (copy,) = {each.file for url, (_, each) in streams._copies.items() if url.startswith(served.url)}
            assert copy.is_file()
            here, there_too = read_snapshot(snapshot), read_snapshot(f"{served.url}/b.pickle")
            assert there_too.blocks.equals(here.blocks)
    left = subprocess.run(
        [sys.executable, "-c", _READS_A_COPY, str(database)], capture_output=True, text=True, check=True
    )
    assert not Path(left.stdout.strip()).exists()
    assert Path(left.stdout.strip()).name == "a.sqlite"


_READS_A_COPY = """
import sys, fsspec, foretrace
from foretrace.remote import streams
fsspec.filesystem("memory").pipe("/x/a.sqlite", open(sys.argv[1], "rb").read())
foretrace.open("memory://x/a.sqlite", cache=False)
((_, copy),) = streams._copies.values()
assert copy.file.is_file()
print(copy.file)
"""


@pytest.mark.slow
def test_folders_are_listed_by_the_pages_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    files = {"/job/one/a.json": KINETO, "/job/.git/b.json": KINETO, "/other/c.json": KINETO}
    with serving(files=files) as served:
        for folder in ("/job/", "/job/one/", "/other/c.json"):
            assert main(["show", "operators", f"{served.url}{folder}", "--format", "json"]) == 0
        assert find_recordings([f"{served.url}/job/"]) == [f"{served.url}/job/one/a.json"]
        assert find_recordings([f"{served.url}/job/*/a.json"]) == [f"{served.url}/job/one/a.json"]
    capsys.readouterr()


@pytest.mark.slow
def test_whatever_goes_wrong_is_one_line_without_credentials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(url: str) -> str:
        assert main([url]) == 3
        out = capsys.readouterr()
        assert out.out == ""
        assert out.err.count("\n") == 1
        assert "Traceback" not in out.err
        assert not any(secret in out.err for secret in _SECRETS)
        return out.err

    query = "?X-Amz-Signature=5ecre7&token=t0ken"
    statuses = {"/secret.json": 403, "/who.json": 401, "/gone.json": 410, "/down.json": 503}
    files = {"/page.json": b"<!DOCTYPE html><html>Sign in</html>", "/none.json": b"", "/a.json": KINETO}
    with serving(files=files, statuses=statuses) as served:
        signed = served.url.replace("://", "://someone:hunter2@")
        for name, says in (
            ("missing.json", "there is nothing at this address"),
            ("secret.json", "the server refuses it (403)"),
            ("who.json", "the server refuses it (401)"),
            ("gone.json", "there is nothing at this address"),
            ("down.json", "the server answered 503"),
            ("page.json", "an HTML page"),
            ("none.json", "the file is empty"),
        ):
            assert says in told(f"{signed}/{name}{query}")
            assert f"{served.url}/{name}" in told(f"{signed}/{name}{query}")
        assert all(who.startswith("Basic ") for _, _, who in served.asked)
        monkeypatch.setenv("FORETRACE_URL_TIMEOUT", "0.2")
        served.waits_s = 1.0
        assert "no answer for 0.2 s" in told(f"{signed}/slow.json{query}")
        monkeypatch.setenv("FORETRACE_URL_TIMEOUT", "5")
        served.waits_s = 0.0
        # Neither are they in what is kept or written.
        assert main(["report", f"{signed}/a.json{query}", "-o", str(tmp_path / "out.html")]) == 0
        assert main(["diagnose", f"{signed}/a.json{query}", "--format", "json"]) in (0, 4)
        assert main(["cache"]) == 0
    kept = [capsys.readouterr().out, (tmp_path / "out.html").read_text()]
    kept += [file.read_bytes().decode("latin-1") for file in cache.directory().rglob("*") if file.is_file()]
    assert any(served.url in text for text in kept)
    assert not any(secret in text for text in kept for secret in (*_SECRETS, "someone"))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        assert "cannot be reached" in told(f"http://127.0.0.1:{nobody.getsockname()[1]}/a.json{query}")
    assert "its host is not known" in told("http://foretrace.invalid/a.json")


@pytest.mark.slow
def test_a_new_signature_of_one_file_is_the_same_recording() -> None:
    with serving(files={"/a.json": KINETO, "/get": KINETO}) as served:
        foretrace.diagnose(f"{served.url}/a.json?X-Amz-Signature=1&X-Amz-Date=2")
        ranges._heads.clear()
        assert all("?" in path for _, path, _ in served.asked)  # nothing is looked for beside it
        sent = served.sent_bytes
        foretrace.open(f"{served.url}/a.json?X-Amz-Signature=3&X-Amz-Date=4")
        assert served.sent_bytes == sent
        foretrace.open(f"{served.url}/get?id=1")
        foretrace.open(f"{served.url}/get?id=2")  # what a query asks for may be another file
        assert [path for method, path, _ in served.asked if method == "GET"][-1] == "/get?id=2"
