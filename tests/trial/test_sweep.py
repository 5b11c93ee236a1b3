"""The order of a sweep, its limits and how it goes on, with processes that are only pretended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from foretrace.errors import MissingDataError, UsageError
from foretrace.present.text import trials
from foretrace.trial import candidates, process, report
from foretrace.trial.sweep import MOST_ROUNDS, Settings, Sweep, Swept
from tests import schemas

# What a step takes with each change, in milliseconds.
STEPS = {
    "": 100.0,
    "workers": 50.0,
    "fused-optimizer": 80.0,
    "foreach-optimizer": 90.0,
    "tf32": 100.0,
    "compile": 130.0,
}
TRIED = ("fused-optimizer", "foreach-optimizer", "workers", "tf32", "compile")


def outcome(changes: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """What a process would write down; changes that are made together save what each saves."""
    step_ms = STEPS[""]
    for name in changes:
        step_ms *= STEPS.get(name, 100.0) / 100
    return {
        "status": process.MEASURED, "error": "", "problem": "", "took_s": 1.0, "changes": dict(changes),
        "blocks_ns": [step_ms * 1e6 * (1 + 0.001 * (number % 3)) for number in range(10)], "block_steps": 2, "let_by": 9,
        "stopped_because": "all blocks were timed", "step_source": "optimizer.step() of SGD", "start_s": 1.0,
        "proofs": {name: {"applied": True, "says": f"{name} is on"} for name in changes},
        "results": {"losses": [1.0, 0.5], "gradient_norms": [], "outputs": [], "draws_in_model": False, "draws_in_data": False},
        "side_effects": {"written": [], "redirected": [], "connected": []},
        "batches_ahead": 0, "peak_gpu_bytes": None, "peak_host_bytes": 1 << 30, "device": "CPU", **facts,
    }  # fmt: skip


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs no process; what would have been run, in order."""
    return pretend(monkeypatch, outcome)


def pretend(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> list[str]:
    ran: list[str] = []

    def run(command: list[str], options: Any, **_: Any) -> dict[str, Any]:
        ran.append("+".join(options.changes) or "base")
        return make(options.changes)

    monkeypatch.setattr(process, "run", run)
    return ran


def sweep(folder: Path, names: tuple[str, ...] = TRIED, **settings: Any) -> tuple[Swept, report.Report]:
    proposals = candidates.propose(None, None, numerics=True, also=names)
    swept = Sweep(
        ["python", "train.py"], proposals, Settings(in_place=True, **settings), folder, say=lambda _: None
    ).run()
    return swept, report.make("python train.py", proposals, swept, seed=0)


def test_the_program_as_it_is_runs_twice_and_between_and_the_best_together(
    tmp_path: Path, processes: list[str]
) -> None:
    _, made = sweep(tmp_path)
    assert processes == [
        "base", "base", "fused-optimizer", "base", "foreach-optimizer", "base", "workers", "base", "tf32", "base",
        "compile", "base", "fused-optimizer+workers",
    ]  # fmt: skip
    rows = {row.change: row for row in made.rows}
    assert {name: row.verdict for name, row in rows.items()} == {
        "fused-optimizer": "faster", "foreach-optimizer": "faster", "workers": "faster", "tf32": "same", "compile": "slower",
        "together": "faster",
    }  # fmt: skip
    # fused and foreach exclude each other: the faster one is taken.
    assert rows["together"].speedup is not None
    assert rows["together"].speedup.point == pytest.approx(2.5, rel=0.01)


def test_what_was_not_applied_or_fails_is_a_row_and_the_sweep_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(changes: Mapping[str, Any]) -> dict[str, Any]:
        if "compile" in changes:
            return {"status": process.FAILED, "error": "InductorError: no compiler", "took_s": 1.0}
        if "workers" in changes:
            proofs = {"workers": {"applied": False, "says": "the program makes no DataLoader"}}
            return outcome(changes, proofs=proofs)
        return outcome(changes)

    ran = pretend(monkeypatch, make)
    _, made = sweep(tmp_path, ("workers", "compile", "compile-reduce-overhead"))
    assert ran == ["base", "base", "workers", "compile", "compile-reduce-overhead", "base"]
    rows = {row.change: row for row in made.rows}
    assert (rows["workers"].status, rows["workers"].error) == (
        "not applied",
        "the program makes no DataLoader",
    )
    assert (rows["compile"].status, rows["compile"].error) == ("failed", "InductorError: no compiler")
    text = "\n".join("".join(part for part, _ in line) for line in trials.lines(made, 100))
    assert "compile: failed: InductorError: no compiler" in text


def test_it_stops_in_time_and_goes_on_where_it_stopped(
    tmp_path: Path, processes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(
        "foretrace.trial.sweep.time.monotonic", lambda: clock.__setitem__(0, clock[0] + 1) or clock[0]
    )
    swept, made = sweep(tmp_path, budget_s=5.5)
    assert processes == ["base", "base", "fused-optimizer", "base"]
    assert swept.not_tried == ("foreach-optimizer", "workers", "tf32", "compile")
    assert [row.status for row in made.rows[1:]] == ["not tried"] * 4
    assert any("goes on with them" in note for note in made.notes)
    processes.clear()
    sweep(tmp_path)
    assert processes[:3] == ["foreach-optimizer", "base", "workers"]
    state = json.loads((tmp_path / "try.json").read_text())
    assert [run["variant"] for run in state["runs"]][:5] == [
        "base",
        "base",
        "fused-optimizer",
        "base",
        "foreach-optimizer",
    ]
    with pytest.raises(UsageError, match="another command"):
        sweep(tmp_path, ("compile",))


def test_what_one_process_leaves_open_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes scatter by 2 %: TF32, which is worth 3 %, needs more than one; workers, which halve the step, do not."""
    scatter = iter([1.0, 1.02, 1.01, 0.99, 1.0, 1.01, 1.0, 1.015, 0.995, 1.005])
    monkeypatch.setitem(STEPS, "tf32", 97.0)

    def make(changes: Mapping[str, Any]) -> dict[str, Any]:
        made, share = outcome(changes), next(scatter)
        return {**made, "blocks_ns": [block * share for block in made["blocks_ns"]]}

    ran = pretend(monkeypatch, make)
    _, made = sweep(tmp_path, ("workers", "tf32"), together=False)
    assert ran[:6] == ["base", "base", "workers", "base", "tf32", "base"]
    assert ran[6:8] == ["tf32", "base"]
    assert ran.count("workers") == 1
    assert ran.count("tf32") <= MOST_ROUNDS
    rows = {row.change: row for row in made.rows}
    assert rows["tf32"].runs == ran.count("tf32")
    assert f"from {rows['tf32'].runs} processes" in trials.behind(rows["tf32"])


def test_rounds_can_be_asked_for(tmp_path: Path, processes: list[str]) -> None:
    sweep(tmp_path, ("workers", "tf32"), rounds=2, base_every=2, together=False)
    assert processes == ["base", "base", "workers", "tf32", "base", "workers", "tf32", "base"]


def test_a_process_that_fails_later_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count: Iterator[int] = iter(range(10))

    def make(changes: Mapping[str, Any]) -> dict[str, Any]:
        if changes and next(count) > 0:
            return {"status": process.FAILED, "error": "out of memory", "took_s": 1.0}
        return outcome(changes)

    pretend(monkeypatch, make)
    _, made = sweep(tmp_path, ("workers",), rounds=2, together=False)
    assert made.rows[0].runs == 1
    assert "one process with workers does not count: out of memory" in made.notes


def test_all_variants_time_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int | None, int | None]] = []

    def run(command: list[str], options: Any, **_: Any) -> dict[str, Any]:
        asked.append((options.let_by, options.block_steps))
        return outcome(options.changes)

    monkeypatch.setattr(process, "run", run)
    sweep(tmp_path, ("workers",), base_every=0)
    assert asked == [(None, None), (9, 2), (9, 2)]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (process.NO_STEPS, "foretrace.step"),
        (process.FAILED, "as it is fails"),
        (process.TOO_LONG, "--timeout"),
    ],
)
def test_without_the_program_as_it_is_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, says: str
) -> None:
    ran = pretend(monkeypatch, lambda _: {"status": status, "error": "why", "took_s": 1.0})
    with pytest.raises(MissingDataError, match=says):
        sweep(tmp_path)
    assert ran == ["base"]


def test_a_noisy_program_is_said_to_be_noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count: Iterator[int] = iter(range(10))

    def make(changes: Mapping[str, Any]) -> dict[str, Any]:
        made = outcome(changes)
        return made if next(count) else {**made, "blocks_ns": [block * 1.3 for block in made["blocks_ns"]]}

    pretend(monkeypatch, make)
    _, made = sweep(tmp_path, ("tf32",), base_every=0)
    assert made.base.noisy
    assert made.notes[0].startswith("too noisy to rank: runs of the program as it is differ by 2")
    assert made.rows[0].verdict == "inconclusive"  # 15 % faster than the middle of 100 and 130 ms


def test_the_start_is_told_apart_and_effects_on_the_machine_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """17 s more at the start and 20 ms less in a step pay back after 850 steps."""

    def make(changes: Mapping[str, Any]) -> dict[str, Any]:
        effects = {"written": ["log.csv"], "redirected": ["last.pt"], "connected": ["10.0.0.1"]}
        return outcome(changes, start_s=18.0 if changes else 1.0, side_effects=effects)

    pretend(monkeypatch, make)
    _, made = sweep(tmp_path, ("fused-optimizer",), base_every=0)
    (row,) = made.rows
    assert row.start_extra_s == pytest.approx(17)
    assert row.pays_back_steps == pytest.approx(850, rel=0.01)
    assert "which pays back after 8" in trials.behind(row)
    text = " ".join(made.notes)
    assert all(name in text for name in ("log.csv", "last.pt", "10.0.0.1"))


def test_the_same_report_in_every_format(tmp_path: Path, processes: list[str]) -> None:
    _, made = sweep(tmp_path, ("fused-optimizer", "compile"), base_every=0)
    document = made.to_dict()
    schemas.check(json.loads(json.dumps(document)), "try")
    assert document["schema"] == "foretrace.try/1"
    assert [change["change"] for change in document["changes"]] == ["fused-optimizer", "compile"]
    assert document["changes"][0]["speedup"]["point"] == pytest.approx(1.25, rel=0.01)
    assert json.loads(json.dumps(document)) == document
    frame = trials.frame(made)
    assert frame["verdict"].to_list() == ["faster", "slower"]
    for width in (80, 100):
        lines = ["".join(part for part, _ in line) for line in trials.lines(made, width)]
        assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "× 1.25" in text
    assert "torch.optim.…(…, fused=True)" in text
    assert "model.compile()" not in text  # it is slower
    assert "| fused-optimizer | – | × 1.25" in trials.to_markdown(made)
