"""Input: waits for the DataLoader, per step, and what the GPU did meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import foretrace
from foretrace import analyze
from foretrace.errors import MissingDataError
from foretrace.ingest.run import find_recorded
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

US = 1_000
SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def test_waits_by_step_and_what_the_gpu_did(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 100).step(2, 100, 200)
    recording.annotation(SINGLE, 0, 40).annotation(SINGLE, 100, 110)
    recording.launch(60, "gemm", 70, 105)
    result = analyze.run(recording.open(tmp_path), "input")
    table = result.table
    assert table["step"].to_list() == [1, 2]
    assert table["wait_ns"].to_list() == [40 * US, 10 * US]
    assert table["wait_pct"].to_list() == [40, 10]
    # In the second wait the kernel of the first step still ran for 5.
    assert table["device_idle_ns"].to_list() == [40 * US, 5 * US]
    assert table["device_idle_pct"].to_list() == [100, 50]
    assert (result.values["wait_pct"], result.values["device_idle_pct"]) == (25, 90)
    assert result.values["loader"] == "in the main process"


def test_a_run_adds_the_waits_of_its_unprofiled_steps(tmp_path: Path) -> None:
    """Ten steps of which four wait 90 ms; the two that were recorded waited for nothing."""
    rank = tmp_path / "rank0"
    rank.mkdir()
    recording = Recording().step(1, 0, 100).step(2, 100, 200).op("aten::mm", 10, 20)
    recording.write(rank, "light.json")
    loader = {
        "workers": 2, "steps": 10, "step_ns": 90e6, "mean_ns": 36e6, "waiting_steps": 4, "waiting_mean_ns": 90e6,
        "waits_ns": [0] * 6 + [90_000_000] * 4,
    }  # fmt: skip
    facts = {
        "passes": [{"kind": "light", "file": "light.json"}],
        "unprofiled": {"median_ns": 90e6},
        "loader": loader,
    }
    (rank / "rank.json").write_text(json.dumps(facts))
    recorded = find_recorded(tmp_path)
    assert recorded is not None
    result = analyze.run(recorded.told(foretrace.open(recorded.path)), "input")
    assert result.values["unprofiled_wait_pct"] == 40
    assert result.says == (
        "the program did not wait for a DataLoader; without the profiler 4 of 10 steps waited, on average 36.0 ms a "
        "step (40.0 % of it)"
    )
    alone = analyze.run(foretrace.open(recorded.path), "input")
    assert "unprofiled_wait_pct" not in alone.values
    assert alone.says == "the program did not wait for a DataLoader"


def test_nested_waits_count_once(tmp_path: Path) -> None:
    recording = (
        Recording().step(1, 0, 100).annotation(WORKERS, 10, 30).op("enumerate(DataPipe)#Mapper", 12, 25)
    )
    result = analyze.run(recording.open(tmp_path), "input")
    assert result.table["wait_ns"].to_list() == [20 * US]
    assert result.values["loader"] == "by workers"
    assert result.table["device_idle_ns"].to_list() == [None]


def test_a_wait_across_two_steps_is_divided(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 50).step(2, 60, 100).annotation(SINGLE, 40, 70)
    table = analyze.run(recording.open(tmp_path), "input").table
    assert table["step"].to_list() == [1, 2, None]
    assert table["wait_ns"].to_list() == [10 * US, 10 * US, 10 * US]
    assert table["calls_count"].to_list() == [1, 0, 0]


def test_without_steps_there_is_no_share(tmp_path: Path) -> None:
    result = analyze.run(Recording().annotation(SINGLE, 0, 30).open(tmp_path), "input")
    assert result.table.row(0, named=True)["wait_ns"] == 30 * US
    assert result.values["wait_pct"] is None
    assert any("no steps" in note for note in result.notes)


def test_a_program_without_a_dataloader(tmp_path: Path) -> None:
    result = analyze.run(Recording().step(1, 0, 9).op("aten::mm", 1, 2).open(tmp_path), "input")
    assert result.values["calls_count"] == 0
    assert result.values["loader"] is None
    assert "did not wait for a DataLoader" in result.says
    with pytest.raises(MissingDataError):
        analyze.run(Recording().kernel("k", 0, 1).open(tmp_path), "input")


@needs_corpus
def test_the_slow_loader_of_the_corpus() -> None:
    for detail in ("lite", "rich"):
        slow = analyze.run(
            foretrace.open(CORPUS / "h200" / f"slow_dataloader.slow.{detail}.json.gz"), "input"
        ).values
        fixed = analyze.run(
            foretrace.open(CORPUS / "h200" / f"slow_dataloader.fixed.{detail}.json.gz"), "input"
        ).values
        assert float(slow["wait_pct"] or 0) > 90
        assert float(slow["device_idle_pct"] or 0) > 99
        assert float(fixed["wait_pct"] or 0) < 2
        assert (slow["loader"], fixed["loader"]) == ("in the main process", "by workers")


@needs_corpus
def test_more_than_the_plugins_share_which_leaves_out_what_the_gpu_covers() -> None:
    for name, plugin_pct in (("resnet50_workers0", 33.37), ("resnet50_workers4", 0.84)):
        trace = foretrace.open(CORPUS / "peers" / "kineto" / f"{name}.pt.trace.json.gz")
        result = analyze.run(trace, "input")
        steps = analyze.run(trace, "steps")
        wall = int(steps.table["wall_ns"].sum())
        assert 100 * int(result.values["device_idle_ns"] or 0) / wall <= plugin_pct + 0.5
        assert 100 * int(result.values["wait_ns"] or 0) / wall >= plugin_pct
