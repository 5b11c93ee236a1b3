"""Recordings of object stores: S3, as moto plays it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foretrace
from benchmarks.ranks.layouts import data_parallel
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import simulate
from foretrace import cache
from foretrace.commands import main
from foretrace.ranks.engines.outcome import summary_of
from foretrace.ranks.job import read_job
from foretrace.ranks.recordings import find_recordings
from foretrace.remote import ranges
from tests.ingest.samples import KINETO
from tests.remote.bucket import SECRET, bucket

pytest.importorskip("s3fs", reason="needs s3fs (the extra s3)")
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """The client, and a folder whose files lie in the bucket too."""
    patch = pytest.MonkeyPatch()
    folder = write(
        simulate(data_parallel(world=4, steps=2, buckets=2, kernels=1)), tmp_path_factory.mktemp("s3") / "job"
    )
    with bucket(patch) as client:
        for file in folder.iterdir():
            client.upload_file(str(file), "recordings", f"job/{file.name}")
        yield client, folder
    patch.undo()


@pytest.mark.slow
def test_summaries_are_the_same_bytes_and_kept(store: tuple[Any, Path], tmp_path: Path) -> None:
    """Four recordings: they are read in processes of their own, which are told the URLs."""
    _, folder = store
    for named in ("s3://recordings/job", "s3://recordings/job/rank*.json"):
        assert find_recordings([named]) == [f"s3://recordings/job/rank{number}.json" for number in range(4)]
    job = read_job(["s3://recordings/job"], out=tmp_path)
    kept = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert sorted(kept.values()) == sorted(summary_of(str(file)).summary or b"" for file in folder.iterdir())
    assert all(kept.values())
    assert read_job(["s3://recordings/job"], out=tmp_path).to_dict() == job.to_dict()
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == kept


@pytest.mark.slow
def test_what_changed_is_read_again_and_what_did_not_is_not(
    store: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = store
    fetched: list[int] = []
    range_of = ranges._range_of

    def noted(*args: Any) -> Any:
        fetched.append(args[1])
        return range_of(*args)

    monkeypatch.setattr(ranges, "_range_of", noted)
    client.put_object(Bucket="recordings", Key="a/trace.json", Body=KINETO)
    first = foretrace.open("s3://recordings/a/trace.json")
    assert fetched == [0]
    ranges._heads.clear()
    assert foretrace.open("s3://recordings/a/trace.json").spans.equals(first.spans)
    assert fetched == [0]
    client.put_object(Bucket="recordings", Key="a/trace.json", Body=KINETO.replace(b"aten::mm", b"aten::xx"))
    assert not foretrace.open("s3://recordings/a/trace.json").spans.equals(first.spans)
    assert fetched == [0, 0]


@pytest.mark.slow
def test_what_goes_wrong_is_one_line(
    store: tuple[Any, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(url: str) -> str:
        assert main(["ranks", url]) == 3
        assert main([url]) == 3
        err = capsys.readouterr().err
        assert err.count("\n") == 2
        assert SECRET not in err
        return err

    assert "s3://recordings/none.json: there is nothing" in told("s3://recordings/none.json")
    assert "there is no such bucket" in told("s3://not-there/x.json")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert "no credentials in the environment" in told("s3://recordings/job/rank0.json")
    for file in cache.directory().rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
