"""URLs as paths: what a Path answers, a URL answers; what it holds of credentials is never shown nor kept."""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace import cache, urls
from foretrace.commands import main
from foretrace.commands.agent.roots import Roots
from foretrace.errors import InputError, UsageError
from foretrace.remote import objects
from foretrace.urls import RemotePath, full, located, named
from tests.ingest.samples import KINETO

fsspec = pytest.importorskip("fsspec", reason="needs fsspec (the extra http)")


@pytest.fixture
def store() -> Iterator[dict[str, bytes]]:
    """What memory:// holds, put there when it is set."""

    class Store(dict[str, bytes]):
        def __setitem__(self, name: str, content: bytes) -> None:
            system.pipe(name, content)

    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield Store()
    system.store.clear()


def test_a_url_is_asked_as_a_path(store: dict[str, bytes]) -> None:
    began = time.time()
    store["/job/rank0/rank.json"] = b"{}"
    store["/job/rank0/a.json"] = b"123"
    store["/job/.hidden/b.json"] = b"1"
    store["/job/c.json"] = b"2"
    job = named("memory://job/")
    assert isinstance(job, Path)
    assert job.is_dir()
    assert not job.is_file()
    file = job / "rank0" / "a.json"
    assert (str(file), file.name, file.parent.parent, file.suffix) == (
        "memory://job/rank0/a.json",
        "a.json",
        job,
        ".json",
    )
    assert file.is_file()
    assert file.stat().st_size == 3
    assert began <= file.stat().st_mtime <= time.time()
    assert abs(file.stat().st_mtime_ns - file.stat().st_mtime * 1e9) < 1e3
    assert file.read_bytes() == b"123"
    assert not (job / "d.json").exists()
    assert [str(each.relative_to(job)) for each in sorted(job.iterdir())] == [".hidden", "c.json", "rank0"]
    assert [str(each) for each in job.glob("rank*/rank.json")] == ["memory://job/rank0/rank.json"]
    assert [each.name for each in urls.walked(job)] == ["c.json", "a.json", "rank.json"]
    assert {str(each) for each in urls.matching(RemotePath("memory:", "job", "**", "*.json"))} == {
        "memory://job/.hidden/b.json",
        "memory://job/c.json",
        "memory://job/rank0/a.json",
        "memory://job/rank0/rank.json",
    }
    assert {file: 1}[located(str(file))] == 1
    assert pickle.loads(pickle.dumps(file)) == file
    with pytest.raises(UsageError, match="nothing is written"):
        file.open("wb")


def test_schemes() -> None:
    assert located("a/b.json") == Path("a/b.json")
    assert located("file:" + "//localhost/a/b%20c.json") == Path("/a/b c.json")
    assert str(located("gcs://bucket/x")) == "gs://bucket/x"
    for text, says in (
        ("ftp://host/x", "ftp:// is not read"),
        ("s3://", "no bucket"),
        ("https:///x", "no host"),
        ("s3://bucket/a//b", "with // in its path"),
        ("s3://AKIA:secret@bucket/x", "credentials come from the environment"),
    ):
        with pytest.raises(UsageError, match=says) as error:
            located(text)
        assert "secret" not in str(error.value)


def test_credentials_are_not_in_what_is_shown() -> None:
    signed = "https://someone:hunter2@host/a/trace.json?X-Amz-Signature=5ecre7&id=3"
    path = located(signed)
    assert path.name == "trace.json"
    assert str(path).startswith("https://host/a/trace.json?…")
    for text in (str(path), repr(path), path.as_uri(), path.as_posix()):
        assert not any(secret in text for secret in ("hunter2", "someone", "5ecre7"))
    assert full(path) == full(str(path)) == signed
    assert located(str(path)) == path != located("https://host/a/trace.json")
    # What lies beside it is asked for as the same user, without a signature that is of another file.
    assert full(path.parent / "rank.json") == "https://someone:hunter2@host/a/rank.json"


@pytest.mark.slow
def test_every_command_reads_a_url(
    store: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same words as of the file, but for its name."""
    local = tmp_path / "job" / "trace.json"
    local.parent.mkdir()
    local.write_bytes(KINETO)
    store["/job/trace.json"] = KINETO
    html, perfetto = str(tmp_path / "out.html"), str(tmp_path / "out.json")
    commands = (
        ["PATH", "--format", "json"],
        ["show", "kernels", "PATH", "--format", "json"],
        ["memory", "PATH"],
        ["compare", "PATH", "PATH", "--format", "json"],
        ["predict", "PATH", "--change", "compile", "--format", "json"],
        ["sql", "PATH", "select count(*) from spans"],
        ["flame", "PATH", "--metric", "host", "-o", str(tmp_path / "out.folded"), "--force"],
        ["perfetto", "PATH", "-o", perfetto, "--force"],
        ["report", "PATH", "-o", html, "--force"],
        ["ranks", "PATH"],
        ["verify", "PATH", "PATH", "--finding", "host-sync"],
    )
    for command in commands:
        told = []
        for path in (str(local), "memory://job/trace.json"):
            code = main([path if word == "PATH" else word for word in command])
            out = capsys.readouterr()
            told.append((code, out.out.replace(path, "PATH"), out.err.replace(path, "PATH")))
        assert told[0] == told[1], command
        assert told[0][0] in (0, 4), (command, told[0])
    assert main(["report", "memory://job", "-o", "s3://bucket/x.html"]) == 2
    assert main(["ranks", "memory://job", "--out", "s3://bucket/kept"]) == 2
    assert capsys.readouterr().err.count("on this machine only, not at a URL") == 2
    assert main(["show", "memory://job"]) == 2
    assert main(["memory://job/none.json"]) == 3
    assert "memory://job/none.json: there is nothing at this address" in capsys.readouterr().err


def test_what_changed_is_read_again(store: dict[str, bytes]) -> None:
    store["/a/trace.json"] = KINETO
    first = foretrace.open("memory://a/trace.json")
    assert foretrace.open("memory://a/trace.json").spans.equals(first.spans)
    assert [entry.source for entry in cache.entries()].count("memory://a/trace.json") == 1
    store["/a/trace.json"] = KINETO.replace(b"aten::mm", b"aten::xx")
    assert not foretrace.open("memory://a/trace.json").spans.equals(first.spans)


def test_runs_companions_and_folders(store: dict[str, bytes], tmp_path: Path) -> None:
    from foretrace.ingest.recordings import find_recording

    facts = {"passes": [{"kind": "light", "file": "light.json"}, {"kind": "rich", "file": "rich.json"}]}
    facts["unprofiled"] = {"median_ns": 5_000_000}  # type: ignore[assignment]
    for name, content in (
        ("rank.json", json.dumps(facts).encode()),
        ("light.json", KINETO),
        ("rich.json", KINETO),
    ):
        store[f"/run/rank0/{name}"] = content
    store["/run/run.json"] = b"{}"
    found = find_recording(named("memory://run"))
    assert (str(found.path), str(found.rich), found.step_ns) == (
        "memory://run/rank0/light.json",
        "memory://run/rank0/rich.json",
        5e6,
    )
    assert find_recording(named("memory://run/rank0/light.json")).step_ns == 5e6
    store["/empty/readme.txt"] = b"nothing"
    with pytest.raises(InputError, match="memory://empty: no recording in this folder"):
        find_recording(named("memory://empty"))


@pytest.mark.slow
def test_more_than_a_thousand_files_are_listed(
    store: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from foretrace.ranks.recordings import find_recordings

    for number in range(1_500):
        store[f"/many/rank{number}.json"] = b"{}"
        store[f"/run/rank{number}/rank.json"] = b'{"passes": [{"kind": "light", "file": "light.json"}]}'
        store[f"/run/rank{number}/light.json"] = b"{}"
    asked: list[str] = []
    ask = objects.asked

    def noted(url: str) -> Any:
        asked.append(url)
        return ask(url)

    monkeypatch.setattr(objects, "asked", noted)
    assert len(find_recordings(["memory://many"])) == 1_500
    assert find_recordings(["memory://run"])[10] == "memory://run/rank10/light.json"
    assert len(find_recordings(["memory://run"])) == 1_500
    assert len(asked) <= 3  # what was listed is not asked for one by one
    assert len(find_recordings(["memory://many/rank?7.json"])) == 9
    with pytest.raises(InputError, match="memory://none: there is nothing"):
        find_recordings(["memory://none"])


def test_agents_read_urls_below_a_root_alone(store: dict[str, bytes], tmp_path: Path) -> None:
    store["/open/a.json"] = KINETO
    store["/closed/a.json"] = KINETO
    with pytest.raises(UsageError, match="URLs are not read"):
        Roots.of([tmp_path]).path("memory://open/a.json")
    roots = Roots.of([named("memory://open")])
    assert str(roots.path("a.json")) == str(roots.path("memory://open/a.json")) == "memory://open/a.json"
    for text in (
        "memory://closed/a.json",
        "memory://open/../closed/a.json",
        "../closed/a.json",
        "/etc/passwd",
    ):
        with pytest.raises((UsageError, InputError)):
            roots.path(text)
    with pytest.raises(UsageError, match="outside of"):
        Roots.of([named("http://host/runs/")]).path("http://host/runs/a.json?to=elsewhere")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from foretrace.remote import systems

    monkeypatch.setattr(systems, "_systems", {})
    monkeypatch.setitem(sys.modules, "fsspec", None)
    for url, extra in (("s3://b/x.json", "s3"), ("gs://b/x.json", "gcs"), ("https://h/x.json", "http")):
        assert main([url]) == 2
        assert f"pip install 'foretrace[{extra}]'" in capsys.readouterr().err
