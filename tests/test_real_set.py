"""`benchmarks/real`: what was measured becomes a truth, what was predicted is judged by it, and the sets are whole."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretrace.diagnose import RULES

FOLDER = Path(__file__).parents[1] / "benchmarks" / "real"
SETS = sorted(FOLDER.glob("*.toml"))
ENTRY = {
    "what": "a program",
    "changes": {"tf32": "TF32", "bf16": "autocast"},
    "rule": {"tf32": "no-tensor-cores"},
}


def load(name: str) -> Any:
    """A module of benchmarks/real."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


truth, packing, measure, judge = load("truth"), load("packing"), load("measure"), load("judge")


def run(step_ms: float) -> dict[str, float]:
    return {"step_ms": step_ms, "lo": step_ms - 1, "hi": step_ms + 1}


def prediction(point: float, verdict: str = "gain") -> Any:
    return SimpleNamespace(
        verdict=verdict, speedup=SimpleNamespace(point=point, low=point - 0.1, high=point + 0.1)
    )


def finding(rule: str, label: str, point: float, *others: tuple[str, float]) -> Any:
    alternatives = [SimpleNamespace(label=other, predicted=prediction(worth)) for other, worth in others]
    return SimpleNamespace(rule=rule, label=label, predicted=prediction(point), alternatives=alternatives)


def diagnosis(*findings: Any) -> Any:
    return SimpleNamespace(findings=findings, combined=prediction(3.0))


def judged(point: float, measured: tuple[float, float], verdict: str = "gain") -> Any:
    return judge.Judged("p", "c", "r", measured, True, verdict, point, point - 0.1, point + 0.1)


def test_a_speedup_ranges_over_all_runs_of_the_program_as_it_is() -> None:
    assert truth.speedup_range([12.0, 10.0], [5.0]) == [2.0, 2.4]
    assert truth.speedup_range([12.0, 10.0], [5.0, 4.0]) == [2.0, 3.0]


def test_a_truth_leaves_out_what_was_not_measured() -> None:
    made = truth.truth_of(ENTRY, "a GPU", {"base": [run(10.0), run(12.0)], "tf32": [run(5.0)]})
    assert made["step_ms"] == [10.0, 12.0]
    assert (made["lo"], made["hi"]) == (9.0, 13.0)
    assert list(made["changes"]) == ["tf32"]
    assert made["changes"]["tf32"]["speedup_range"] == [2.0, 2.4]
    assert made["changes"]["tf32"]["rule"] == "no-tensor-cores"
    assert truth.truth_of(ENTRY, "a GPU", {"tf32": [run(5.0)]})["changes"] == {}


def test_files_are_grouped_below_the_limit() -> None:
    made = packing.groups({"a": 6, "b": 5, "c": 4, "d": 30}, most=10)
    assert made == [["d"], ["a", "c"], ["b"]]


def test_an_error_is_also_told_from_the_middle_of_what_was_measured() -> None:
    row = judged(3.3, (2.0, 4.5))  # the middle is 3: as far from 2 as from 4.5, as factors
    assert row.error == 0.0
    assert row.error_from_middle == pytest.approx(0.1)
    assert judge.summary([row]).endswith("error median 10.0 %, p90 10.0 %; ranges that hold it: 0/1")


def test_a_change_is_judged_by_the_alternative_that_its_label_names() -> None:
    found = diagnosis(finding("no-tensor-cores", "tf32", 1.5, ("bf16-autocast", 1.2)))
    assert judge.predicted_for(found, "bf16", "no-tensor-cores:bf16-autocast")[1].speedup.point == 1.2
    assert judge.predicted_for(found, "bf16", "no-tensor-cores")[1].speedup.point == 1.2
    assert judge.predicted_for(found, "tf32", "no-tensor-cores:tf32")[1].speedup.point == 1.5
    assert judge.predicted_for(found, "half", "no-tensor-cores:weights") == ("no-tensor-cores:weights", None)
    assert judge.predicted_for(found, "noitem", "host-sync") == ("host-sync", None)
    assert judge.predicted_for(found, "all", "together")[1].speedup.point == 3.0


def test_a_loop_over_parameters_is_a_loop_of_an_optimizer() -> None:
    """Where the optimizer is written by hand, its loop is what is found."""
    found = diagnosis(finding("parameter-loop", "", 1.03))
    assert judge.predicted_for(found, "foreach", "loop-optimizer")[1].speedup.point == 1.03
    both = diagnosis(finding("parameter-loop", "", 1.03), finding("loop-optimizer", "", 1.2))
    assert judge.predicted_for(both, "foreach", "loop-optimizer")[1].speedup.point == 1.2


def test_what_no_rule_found_is_predicted_to_gain_nothing() -> None:
    facts = {"rule": "host-sync", "speedup_range": [1.13, 1.16]}
    rows = judge.judge("p", {"changes": {"noitem": facts, "other": {**facts, "rule": ""}}}, diagnosis())
    assert [(row.change, row.found, row.point, row.covered) for row in rows] == [
        ("noitem", False, 1.0, False)
    ]
    assert rows[0].error == pytest.approx(0.13)


def test_promises_are_counted_by_the_ends_of_the_measured_range() -> None:
    kept, missed = judged(1.3, (1.25, 1.35)), judged(1.12, (1.12, 1.2), "uncertain")
    unsure, false = judged(1.2, (1.05, 1.2)), judged(1.5, (0.9, 1.02))
    assert [row.true_gain for row in (kept, missed, unsure, false)] == [True, True, False, False]
    assert [row.false_promise for row in (kept, missed, unsure, false)] == [False, False, False, True]
    said = judge.summary([kept, missed, unsure, false])
    assert "promised: 1/2" in said
    assert "false promises: 1" in said
    assert "cover: 3/4" in said


def test_runs_are_found_in_folders_and_tars(tmp_path: Path) -> None:
    folder, scratch, inner = tmp_path / "set", tmp_path / "scratch", tmp_path / "inner"
    for place in (folder / "a", inner / "b", scratch):
        place.mkdir(parents=True)
    (folder / "a" / "run.json").write_text("{}")
    (inner / "b" / "run.json").write_text("{}")
    with tarfile.open(inner / "b.tar.xz", "w:xz") as file:
        file.add(inner / "b", "b")
    with tarfile.open(folder / "recordings-1.tar", "w") as file:
        file.add(inner / "b.tar.xz", "b.tar.xz")
    assert sorted(judge.unpack(folder, scratch)) == ["a", "b"]


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_a_set_names_programs_that_are_there_and_know_their_changes(path: Path) -> None:
    rules = {rule.name for rule in RULES} | set(judge.STANDS_FOR) | {"", "together"}
    for name, entry in measure.load_set(path).items():
        source = (FOLDER / entry["file"]).read_text()
        words = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
        assert set(entry["changes"]) <= words, name
        assert set(entry["rule"]) == set(entry["changes"]), name
        assert {rule.partition(":")[0] for rule in entry["rule"].values()} <= rules, name
    assert tomllib.loads(path.read_text())


@pytest.mark.parametrize(("double", "graphs"), [("double", 0), ("torch.compile(double, backend='eager')", 1)])
def test_a_program_is_timed_step_by_step(tmp_path: Path, double: str, graphs: int) -> None:
    pytest.importorskip("torch")
    script, out = tmp_path / "program.py", tmp_path / "out.json"
    script.write_text(
        "import time, torch\n"
        "def double(x): return 2 * x\n"
        f"made = {double}\n"
        "optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)\n"
        "while True:\n"
        "    time.sleep(0.02)\n"
        "    made(torch.ones(1))\n"
        "    optimizer.step()\n"
    )
    variables = {"WARM_S": "0", "WARM_N": "4", "BLOCKS": "3", "BLOCK_S": "0.06"}
    command = [sys.executable, FOLDER / "time_steps.py", out, "optimizer", script]
    subprocess.run(command, env={"PATH": "", **variables}, check=True, timeout=120)
    figures = json.loads(out.read_text())
    assert 20 <= figures["lo"] <= figures["step_ms"] <= figures["hi"]
    assert figures["steps"] >= 4 + 3 * 3
    assert figures["graphs"] == graphs  # a change that compiles nothing is not measured


def test_a_recording_is_cut_to_whole_steps_with_what_they_launched() -> None:
    def event(category: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args}

    events = [{"ph": "M", "name": "process_name"}]
    for step in range(5):
        at = 100.0 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", at, 99))
        events.append(event("cuda_runtime", "cudaLaunchKernel", at + 50, 5, correlation=step))
        events.append(event("kernel", f"k{step}", at + 140, 10, correlation=step))  # in the step behind it
    kept = load("cut").cut({"traceEvents": events}, 3)["traceEvents"]
    assert [each["name"] for each in kept if each.get("cat") == "kernel"] == ["k1", "k2", "k3"]
    assert [each["name"] for each in kept if each.get("cat") == "user_annotation"] == [
        f"ProfilerStep#{step}" for step in (1, 2, 3)
    ]
    assert [each["ts"] for each in kept if each.get("cat") == "cuda_runtime"] == [150, 250, 350]
    assert kept[0]["ph"] == "M"


@pytest.mark.parametrize(("blocks", "agree"), [([10.0, 10.4, 11.2], True), ([35.0, 50.0, 57.0], False)])
def test_blocks_of_a_program_that_still_gets_faster_do_not_agree(blocks: list[float], agree: bool) -> None:
    pytest.importorskip("torch", reason="time_steps.py times programs of torch")
    assert load("time_steps").settled(blocks) is agree
