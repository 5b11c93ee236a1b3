"""The library of recordings: what is read first, what is kept, and how Runs and ranks are put together."""

from __future__ import annotations

import gzip
import json
import queue
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from corpus import CORPUS, needs_corpus

from foretrace import cache as trace_cache
from foretrace.present.web import library as libraries
from foretrace.present.web import payload, run_files
from foretrace.present.web.library import Library
from tests.ingest.rocprof_files import csv_folder
from tests.present.web.recordings import recording

pytestmark = pytest.mark.slow


def test_a_large_diagnosis_lets_the_timeline_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_LARGE_SPANS", 1)
    library = Library([recording(folder)], settle_s=0)
    run = library.runs()["runs"][0]["id"]
    real, order = payload.resource, []
    begun = threading.Event()

    def watched(view: Any, name: str, *arguments: Any, **options: Any) -> Any:
        order.append(name)
        if name == "timeline":
            begun.set()
            time.sleep(0.2)
        made = real(view, name, *arguments, **options)
        order.append(f"{name} made")
        return made

    monkeypatch.setattr(payload, "resource", watched)
    quick = threading.Thread(target=lambda: library.resource(run, "timeline", {"findings": "no"}))
    quick.start()
    assert begun.wait(60)
    library.resource(run, "overview", {})
    quick.join()
    assert order == ["timeline", "timeline made", "overview", "overview made"]


def test_what_was_read_is_kept_in_the_cache_afterwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = threading.Event()
    monkeypatch.setattr(trace_cache, "store", lambda *_: stored.set())
    library = Library([recording(folder)], settle_s=0, poll_s=0.05)
    library.resource(library.runs()["runs"][0]["id"], "table/kernels", {})
    assert not stored.is_set()
    library.start()
    try:
        assert stored.wait(60)
    finally:
        library.stop()


def test_what_only_a_run_knows_does_not_go_into_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recording is kept after the Run was opened, which knows how long its steps waited for data."""
    rank = folder / "run" / "rank0"
    rank.mkdir(parents=True)
    recording(rank).rename(rank / "light.json")
    waits = {"steps": 10, "step_ns": 1e6, "mean_ns": 1e5, "workers": 0, "waits_ns": [1e5]}
    passes = [{"kind": "light", "file": "light.json"}]
    facts = {"passes": passes, "status": "complete", "loader": waits, "settling": {"verdict": "steady"}}
    (rank / "rank.json").write_text(json.dumps(facts))
    stored: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(trace_cache, "store", lambda _, trace: stored.put(trace.meta))
    library = Library([folder / "run"], settle_s=0, poll_s=0.05)
    library.resource(library.runs()["runs"][0]["id"], "table/kernels", {})
    library.start()
    try:
        kept = stored.get(timeout=60)
    finally:
        library.stop()
    assert json.dumps(kept)
    assert not {"loader", "settling"} & set(kept)


def test_the_run_that_is_looked_at_is_read_first(folder: Path) -> None:
    for number in range(3):
        recording(folder, f"{number}.json")
    library = Library([folder], settle_s=0)
    first, _, last = [run["id"] for run in library.runs()["runs"]]
    chosen = library._next_waiting()
    assert chosen is not None
    assert chosen.id == first
    library.runs(wanted=last)
    library.runs()
    chosen = library._next_waiting()
    assert chosen is not None
    assert chosen.id == last


@pytest.mark.parametrize(
    ("name", "group", "label"),
    [
        ("naive.slow.rich.json.gz", "naive", "slow.rich"),
        ("rank-0.Apr_03.1102.pt.trace.json.gz", "recordings", "rank-0.Apr_03.1102"),
        ("host_760.1763190533.pt.trace.json", "recordings", "host_760.1763190533"),
        ("trace.json", "recordings", "trace"),
    ],
)
def test_runs_of_one_program_stand_together(name: str, group: str, label: str, folder: Path) -> None:
    assert run_files.place_of(folder / name, folder) == (group, label)
    assert run_files.place_of(folder / "below" / name, folder)[0] == "below"


@needs_corpus
def test_a_rank_beside_the_others_tells_which_one_is_late() -> None:
    library = Library([CORPUS / "other" / "multirank_gloo"], cache=False, settle_s=0)
    (third,) = (run["id"] for run in library.runs()["runs"] if run["name"] == "rank3")
    overview = json.loads(gzip.decompress(library.resource(third, "overview", {}).body))
    (found,) = (each for each in overview["findings"] if each["rule"] == "straggler")
    assert found["title"] == "One rank keeps the others waiting"
    assert found["says"].startswith("Rank 2 arrives 6.72 ms a step after the median rank")


@needs_corpus
def test_the_light_pass_of_a_run_takes_its_lines_from_the_rich_one(tmp_path: Path) -> None:
    rank = tmp_path / "run" / "rank0"
    rank.mkdir(parents=True)
    for kind, form in (("light", "lite"), ("rich", "rich")):
        shutil.copy(CORPUS / "h200" / f"naive_attention.slow.{form}.json.gz", rank / f"{kind}.json.gz")
    passes = [{"kind": kind, "file": f"{kind}.json.gz"} for kind in ("light", "rich")]
    facts = {"passes": passes, "status": "complete", "unprofiled": {"median_ns": 50_500_000}}
    (rank / "rank.json").write_text(json.dumps(facts))
    library = Library([tmp_path / "run"], cache=False, settle_s=0)
    runs = {run["label"]: run["id"] for run in library.runs()["runs"]}
    (light,) = (run for label, run in runs.items() if "light" in label)
    encoded = library.resource(light, "overview", {})
    overview = json.loads(gzip.decompress(encoded.body))
    assert overview["headline"]["before_ms"] == 50.5
    first = overview["findings"][0]
    assert first["rule"] == "unfused-attention"
    assert any(place["file"] for place in first["where"])


def test_a_folder_of_tables_is_one_recording(tmp_path: Path) -> None:
    """rocprofv3's CSVs: one run, whose overview names the device."""
    library = Library([csv_folder(tmp_path / "out")], cache=False, settle_s=0)
    (run,) = library.runs()["runs"]
    body = gzip.decompress(library.resource(run["id"], "overview", {}).body)
    assert "MI250X" in body.decode()
