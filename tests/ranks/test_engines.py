"""Engines: the same bytes from each, no rank lost when a worker is killed, unreadable files named."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ranks.layouts import data_parallel
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import Simulated, simulate
from foretrace.errors import FormatError, InputError, MissingDataError, UsageError
from foretrace.ranks.engines import engine, local
from foretrace.ranks.engines.outcome import summary_of
from foretrace.ranks.job import read_job
from foretrace.ranks.summary import SUFFIX, Summary, read_summary, runs_of
from tests.remote.bucket import bucket


@pytest.fixture(scope="module")
def small() -> Simulated:
    return simulate(data_parallel(world=6, steps=2, buckets=2, kernels=1))


@pytest.fixture
def folder(small: Simulated, tmp_path: Path) -> Path:
    return write(small, tmp_path / "job")


@pytest.mark.slow
def test_a_killed_worker_loses_no_rank(folder: Path) -> None:
    paths = [str(path) for path in sorted(folder.iterdir())]
    found = {}
    with local.Pool(2) as pool:
        outcomes = pool.map(paths)
        first = next(outcomes)
        found[first.path] = first.summary
        os.kill(pool.pids[0], signal.SIGKILL)
        os.kill(pool.pids[1], signal.SIGKILL)
        found.update({outcome.path: outcome.summary for outcome in outcomes})
    assert found == {path: summary_of(path).summary for path in paths}
    assert all(found.values())


@pytest.mark.slow
def test_summaries_are_kept_and_reused(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    first = read_job([folder], out=out)
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    assert len(kept) == 6
    assert all(name.endswith(SUFFIX) for name in kept)
    for path in folder.iterdir():  # the same size and time, but no recording any more: it is not read again
        facts = path.stat()
        path.write_bytes(b" " * facts.st_size)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert read_job([folder], out=out).to_dict() == first.to_dict()
    assert read_job([out]).to_dict() == first.to_dict()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == kept


@pytest.mark.slow
def test_damaged_files_are_named_and_the_rest_is_read(folder: Path) -> None:
    whole = (folder / "rank3.json").read_bytes()
    (folder / "rank1.json").write_text("<!DOCTYPE html><html><body>404</body></html>")
    (folder / "rank3.json").write_bytes(whole[: len(whole) // 3])
    (folder / "rank4.json").unlink()
    ranks = read_job([folder])
    assert set(ranks.missing) == {1, 4}
    (reason,) = ranks.unread.values()
    assert "rank1.json" in reason
    truncated = summary_of(str(folder / "rank3.json")).summary
    assert truncated is not None
    assert "truncated" in dict(Summary.from_bytes(truncated).repairs)


def test_nothing_to_read_is_told(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_job([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no recording"):
        read_job([tmp_path / "empty"])
    with pytest.raises(MissingDataError, match="one rank alone"):
        read_job([folder / "rank0.json"])
    with pytest.raises(UsageError, match="no engine"):
        engine("spark")


def test_a_summary_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    data = summary_of(str(folder / "rank2.json")).summary
    assert data is not None
    assert len(data) < 10_000
    summary = Summary.from_bytes(data)
    assert (summary.rank, summary.world) == (2, 6)
    assert summary.to_bytes() == data
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 0xFF
    for bad in (bytes(damaged), data[:-7], b"", b"{}"):
        place = tmp_path / f"bad{SUFFIX}"
        place.write_bytes(bad)
        with pytest.raises(FormatError):
            read_summary(place)


def test_members_as_runs() -> None:
    for members in ([0, 1, 2, 3], [1, 5, 9], [7], [], [3, 1, 2], [0, 1, 8, 9]):
        expanded = [
            first + stride * place for first, count, stride in runs_of(members) for place in range(count)
        ]
        assert expanded == members


@pytest.mark.exhaustive
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
@pytest.mark.filterwarnings("ignore")
def test_ray_makes_the_same_summaries_and_survives_a_killed_worker(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local cluster of two processors; the first task's process kills itself once. Half of the recordings lie in a store."""
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")
    import ray

    pytest.importorskip("s3fs", reason="needs s3fs (the extra s3)")
    from foretrace.ranks.engines import on_ray

    mark = tmp_path / "killed"

    def dies_once(path: str) -> tuple[bytes | None, str]:
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            outcome = summary_of(path)
            return outcome.summary, outcome.reason
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still there")

    paths = [str(path) for path in sorted(folder.iterdir())]
    bad = folder / "rank9.json"
    bad.write_text("<html></html>")
    monkeypatch.setattr(on_ray, "_named_summary_of", dies_once)
    with bucket(monkeypatch) as client:
        for path in paths[3:]:
            client.upload_file(path, "recordings", Path(path).name)
        lie = {
            path: path if number < 3 else f"s3://recordings/{Path(path).name}"
            for number, path in enumerate(paths)
        }
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            outcomes = {outcome.path: outcome for outcome in engine("ray")([*lie.values(), str(bad)])}
        finally:
            ray.shutdown()
    assert mark.exists()
    assert {path: outcomes[lie[path]].summary for path in paths} == {
        path: summary_of(path).summary for path in paths
    }
    assert outcomes[str(bad)].summary is None
    assert "rank9.json" in outcomes[str(bad)].reason


@pytest.mark.slow
def test_ranks_are_asked_from_python_as_documented(folder: Path) -> None:
    """In a process that imported nothing else: the name is looked up when first used."""
    code = "import sys, foretrace; print(foretrace.ranks(sys.argv[1]).to_dict()['ranks_read'])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("6", 0), done.stderr
