"""Syncs: what blocks the host, for how long, why and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace import analyze
from foretrace.errors import MissingDataError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

US = 1_000
TO_HOST = "Memcpy DtoH (Device -> Pinned)"


def rows(recording: Recording, folder: Path) -> list[dict[str, Any]]:
    return analyze.run(recording.open(folder), "syncs").table.to_dicts()


def item(at: float = 0, **links: Any) -> Recording:
    """A kernel until 30, and an .item() that waits for it and its copy, in a step of 100."""
    recording = Recording().step(1, 0, 100).python("train.py(8): loop", 0, 100)
    recording.launch(1, "gemm", 2, 30, call=1).op("aten::item", 5, 40).op("aten::_local_scalar_dense", 6, 39)
    recording.runtime("cudaMemcpyAsync", 7, 9, correlation=77)
    recording.copy(TO_HOST, 30, 32, correlation=77)
    return recording.runtime("cudaStreamSynchronize", 10, 36)


def test_an_item_is_told_by_its_operator_and_line(tmp_path: Path) -> None:
    recording = item().launch(50, "relu", 56, 60, call=2)
    (row,) = rows(recording, tmp_path)
    assert (row["call"], row["reason"], row["op"]) == ("cudaStreamSynchronize", "item", "aten::item")
    assert row["where"] == "train.py: loop"
    assert (row["calls_count"], row["per_step_count"], row["wait_pct"]) == (1, 1, 26)
    # Blocked for 26, of which the device ran until 32; then idle until the next kernel at 56.
    assert (row["wait_ns"], row["pending_ns"], row["idle_after_ns"]) == (26 * US, 22 * US, 24 * US)
    assert row["waited_for"] == TO_HOST


def test_without_later_work_nothing_is_known_of_idle_time(tmp_path: Path) -> None:
    (row,) = rows(item(), tmp_path)
    assert row["idle_after_ns"] is None


def test_a_gap_counts_once(tmp_path: Path) -> None:
    recording = Recording().launch(0, "a", 1, 10).runtime("cudaStreamSynchronize", 2, 12)
    recording.runtime("cudaDeviceSynchronize", 13, 15).launch(20, "b", 30, 31)
    found = {row["call"]: row["idle_after_ns"] for row in rows(recording, tmp_path)}
    assert found == {"cudaStreamSynchronize": 20 * US, "cudaDeviceSynchronize": 0}


def test_a_sync_while_the_device_works_on_costs_no_idle_time(tmp_path: Path) -> None:
    recording = Recording().launch(0, "a", 1, 10).launch(1, "b", 5, 40, stream=8)
    recording.runtime("cudaStreamSynchronize", 2, 12).launch(20, "c", 50, 51)
    (row,) = rows(recording, tmp_path)
    assert (row["idle_after_ns"], row["waited_for"]) == (0, "a")


@pytest.mark.parametrize(
    ("call", "operators", "copy", "reason"),
    [
        ("cudaDeviceSynchronize", (), None, "synchronize"),
        ("hipDeviceSynchronize", (), None, "synchronize"),
        ("cuStreamSynchronize", (), None, "synchronize"),
        ("cuCtxSynchronize", (), None, "synchronize"),
        ("cudaEventSynchronize_v3020", (), None, "synchronize"),
        ("cudaStreamSynchronize", ("aten::index", "aten::nonzero"), None, "boolean mask"),
        ("cudaStreamSynchronize", ("aten::nonzero",), None, "nonzero"),
        ("cudaStreamSynchronize", ("aten::is_nonzero", "aten::item"), None, "item"),
        ("cudaMemcpy", ("aten::to", "aten::copy_"), TO_HOST, "copy to host"),
        ("cudaMemcpyAsync", ("aten::to", "aten::copy_"), "Memcpy DtoH (Device -> Pageable)", "copy to host"),
        ("cudaMemcpyAsync", ("aten::to", "aten::copy_"), "Memcpy HtoD (Pageable -> Device)", "pageable copy"),
        ("hipMemcpyWithStream", ("aten::to",), "Memcpy HtoD (Host -> Device)", "blocking copy"),
        ("cudaFree", (), None, "free memory"),
        ("hipHostFree", (), None, "free memory"),
    ],
)
def test_reasons(
    tmp_path: Path, call: str, operators: tuple[str, ...], copy: str | None, reason: str
) -> None:
    recording = Recording()
    for depth, name in enumerate(operators):
        recording.op(name, 1 + depth, 50 - depth)
    recording.runtime(call, 10, 30, correlation=5)
    if copy:
        recording.copy(copy, 15, 25, correlation=5)
    (row,) = rows(recording, tmp_path)
    assert row["reason"] == reason
    assert row["op"] == (operators[0] if operators else None)


@pytest.mark.parametrize(
    ("call", "copy"),
    [
        ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)"),
        ("cudaLaunchKernel", None),
        ("cudaFreeAsync", None),
        ("cudaMalloc", None),
        ("cudaEventQuery", None),
        ("cudaStreamWaitEvent", None),
        ("cudaFuncGetAttributes", None),
    ],
)
def test_what_does_not_block(tmp_path: Path, call: str, copy: str | None) -> None:
    recording = Recording().runtime(call, 10, 30, correlation=5)
    if copy:
        recording.copy(copy, 15, 25, correlation=5)
    result = analyze.run(recording.open(tmp_path), "syncs")
    assert result.table.is_empty()
    assert result.says == "no call waited for the GPU"


def test_a_sync_has_the_reason_of_the_copy_before_it(tmp_path: Path) -> None:
    recording = Recording().op("aten::to", 0, 50).runtime("cudaMemcpyAsync", 5, 20, correlation=5)
    recording.copy("Memcpy HtoD (Pageable -> Device)", 8, 22, correlation=5).runtime(
        "cudaStreamSynchronize", 21, 25
    )
    assert {row["reason"] for row in rows(recording, tmp_path)} == {"pageable copy"}


def test_calls_outside_of_steps_come_last(tmp_path: Path) -> None:
    recording = item().runtime("cudaDeviceSynchronize", 110, 900)
    result = analyze.run(recording.open(tmp_path), "syncs")
    assert result.table["call"].to_list() == ["cudaStreamSynchronize", "cudaDeviceSynchronize"]
    assert result.table["per_step_count"].to_list() == [1, 0]
    assert result.values["outside_steps_count"] == 1


def test_nothing_recorded_is_not_nothing_found(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="runtime"):
        analyze.run(
            Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
            .op("aten::mm", 0, 1)
            .open(tmp_path),
            "syncs",
        )


@needs_corpus
@pytest.mark.parametrize(
    ("name", "reason", "op", "where", "per_step"),
    [
        ("item_sync", "item", "aten::item", "workloads.py(60): forward", 10),
        ("pageable_h2d", "pageable copy", "aten::to", "workloads.py(264): load", 1),
    ],
)
def test_the_known_culprit_comes_first(name: str, reason: str, op: str, where: str, per_step: int) -> None:
    for detail in ("lite", "rich"):
        trace = foretrace.open(CORPUS / "h200" / f"{name}.slow.{detail}.json.gz")
        top = analyze.run(trace, "syncs").table.row(0, named=True)
        assert (top["reason"], top["op"], top["per_step_count"]) == (reason, op, per_step)
        assert top["where"] == (where if detail == "rich" else None)


@needs_corpus
@pytest.mark.parametrize("name", ["item_sync", "pageable_h2d", "gpt_healthy", "naive_attention"])
def test_the_fixed_programs_do_not_wait_within_steps(name: str) -> None:
    trace = foretrace.open(CORPUS / "h200" / f"{name}.fixed.lite.json.gz")
    assert analyze.run(trace, "syncs").values["per_step_count"] == 0


@needs_corpus
def test_waits_are_sound_in_every_recording() -> None:
    for path in sorted((CORPUS / "peers").glob("*/*.json.gz")):
        try:
            result = analyze.run(foretrace.open(path), "syncs")
        except foretrace.errors.ForetraceError:
            continue
        table = result.table
        assert (table["pending_ns"] <= table["wait_ns"]).all(), path.name
        assert (table["idle_after_ns"].drop_nulls() >= 0).all()
        assert table["calls_count"].sum() == result.values["calls_count"]
        assert (table["wait_pct"].drop_nulls() <= 100).all(), path.name
