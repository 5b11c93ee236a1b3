"""The page of a memory snapshot says what is known of the history it was made from."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from foretrace.commands import main
from foretrace.diagnose.opening import open_case
from foretrace.errors import InputError, UsageError
from foretrace.present.web import payload, static_files
from foretrace.present.web.library import Library
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import snapshot as snapshot_resource
from foretrace.present.web.resources.compare import compare
from foretrace.present.web.resources.overview import missing
from foretrace.present.web.snapshot_view import SnapshotView
from tests.analyze.snapshots.allocator import Allocator
from tests.analyze.snapshots.histories import MIB, at_line
from tests.compare.recorded import run_folder, steps
from tests.present.web.contract import document, same_fields
from tests.present.web.snapshot_files import (
    FULL_LINE,
    KEPT,
    LEAK_LINE,
    TOO_LARGE,
    flushing,
    leaking,
    on_two_devices,
    without_history,
)
from tests.present.web.test_run_passes import a_run

STEPS, SAVED, MADE, FLOWING = 8, 4 * 16 * MIB, 3 * 20 * MIB, 8 * MIB
# All activations of the last step, what the eight steps kept, and the first gradient on its way.
PEAK = MADE + SAVED + STEPS * KEPT + FLOWING


def told(path: Path) -> dict[str, Any]:
    made = payload.resource(SnapshotView(path), "snapshot")
    assert isinstance(made, dict)
    return made


def column(table: dict[str, Any], name: str) -> list[Any]:
    found: list[Any] = table["data"][[each["name"] for each in table["columns"]].index(name)]
    return found


def test_the_page_keeps_its_contract(tmp_path: Path) -> None:
    whole = told(leaking(tmp_path / "a.pickle"))
    same_fields(whole, "Snapshot")
    same_fields(whole["devices"][0], "SnapshotDevice")
    same_fields(whole["devices"][0]["curve"], "SnapshotCurve")
    same_fields(whole["devices"][0]["out_of_memory"]["figures"][0], "Figure")
    for table in whole["devices"][0]["tables"].values():
        same_fields(table, "Table")


def test_the_peak_and_who_holds_it(tmp_path: Path) -> None:
    device = told(leaking(tmp_path / "a.pickle"))["devices"][0]
    assert device["peak"]["bytes"] == PEAK
    for by in ("line", "category", "phase", "module"):
        assert sum(column(device["tables"][by], "held_bytes")) == PEAK, by
    lines = dict(
        zip(
            column(device["tables"]["line"], "line"),
            column(device["tables"]["line"], "held_bytes"),
            strict=True,
        )
    )
    assert lines[f"train.py:{LEAK_LINE} <module>"] == STEPS * KEPT


def test_the_curve_sums_to_what_was_allocated_and_holds_the_peak(tmp_path: Path) -> None:
    device = told(leaking(tmp_path / "a.pickle"))["devices"][0]
    curve = device["curve"]
    totals = [sum(values) for values in zip(*(part["bytes"] for part in curve["series"]), strict=True)]
    assert max(totals) == PEAK
    assert curve["at_ns"][totals.index(PEAK)] == device["peak"]["at_ns"]
    assert curve["whole"]
    assert len(totals) == len(curve["at_ns"]) == len(curve["reserved"])
    assert all(held <= reserved for held, reserved in zip(totals, curve["reserved"], strict=True))
    assert max(curve["reserved"]) == device["peak"]["reserved_bytes"]


def test_a_long_history_is_drawn_with_few_points_and_its_extremes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = SnapshotView(leaking(tmp_path / "a.pickle"))
    monkeypatch.setattr(snapshot_resource, "_POINTS", 40)
    device = document(view, "snapshot")["devices"][0]
    curve = device["curve"]
    totals = [sum(values) for values in zip(*(part["bytes"] for part in curve["series"]), strict=True)]
    assert not curve["whole"]
    assert len(totals) <= 42
    assert (min(totals), max(totals)) == (0, PEAK)
    assert max(curve["reserved"]) == device["peak"]["reserved_bytes"]
    at = device["peak"]["at_ns"]
    near = payload.resource(
        view, "snapshot/curve", {"device": "cuda:0", "from": str(at - 5000), "to": str(at + 5000)}
    )
    assert isinstance(near, dict)
    # One event in each microsecond, and the one before, whose level holds at the beginning.
    assert near["at_ns"] == [at + 1000 * step for step in range(-6, 6)]
    for wrong in ({"device": "cuda:9"}, {"device": "cuda:0", "from": "x", "to": "1"}):
        with pytest.raises(UsageError):
            payload.resource(view, "snapshot/curve", wrong)


def test_a_block_has_its_stack(tmp_path: Path) -> None:
    device = told(leaking(tmp_path / "a.pickle"))["devices"][0]
    blocks, stacks = device["tables"]["block"], device["stacks"]
    lines = column(blocks, "line")
    assert len(lines) == len(stacks["of_block"])
    kept = lines.index(f"train.py:{LEAK_LINE} <module>")
    assert stacks["frames"][stacks["of_block"][kept]] == [f"train.py:{LEAK_LINE} <module>"]
    layers = lines.index("layer.py:10 forward")
    assert stacks["frames"][stacks["of_block"][layers]] == [
        "layer.py:10 forward", "model.py:540 forward", "train.py:91 <module>",
    ]  # fmt: skip


def test_leaks_and_what_did_not_fit_are_named(tmp_path: Path) -> None:
    device = told(leaking(tmp_path / "a.pickle"))["devices"][0]
    assert device["leaks"]["mark"] == "bad"
    assert column(device["leaks"]["table"], "where") == [f"train.py:{LEAK_LINE} <module>"]
    assert column(device["leaks"]["table"], "per_step_bytes") == [KEPT]
    assert column(device["leaks"]["repetitions"], "kept_bytes") == [KEPT] * STEPS
    assert device["leaks"]["stacks"] == [[f"train.py:{LEAK_LINE} <module>"]]
    short = device["out_of_memory"]
    assert short["where"] == f"train.py:{FULL_LINE} <module>"
    assert short["figures"][0] == {"label": "asked for", "value": f"{TOO_LARGE // MIB} MiB"}
    assert sum(column(short["holders"], "held_bytes")) == MADE + STEPS * KEPT


def test_a_setting_that_would_help_is_named(tmp_path: Path) -> None:
    unused = told(flushing(tmp_path / "a.pickle"))["devices"][0]["unused"]
    assert [advice["setting"] for advice in unused["advice"]] == [
        "PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8"
    ]
    assert f"train.py:{FULL_LINE}" in unused["flushes"]
    assert {figure["label"]: figure["at_end"] for figure in unused["figures"]}["in blocks"] == "80.0 MiB"
    healthy = told(leaking(tmp_path / "b.pickle"))["devices"][0]["unused"]
    assert (healthy["advice"], healthy["flushes"]) == ([], None)


def test_each_device_has_its_own_curve_the_largest_peak_first(tmp_path: Path) -> None:
    devices = told(on_two_devices(tmp_path / "two.pickle"))["devices"]
    assert [(device["name"], device["peak"]["bytes"]) for device in devices] == [
        ("cuda:1", PEAK + STEPS * KEPT), ("cuda:0", PEAK),
    ]  # fmt: skip


def test_without_a_history_the_page_says_so(tmp_path: Path) -> None:
    whole = told(without_history(tmp_path / "a.pickle"))
    device = whole["devices"][0]
    assert "no history" in device["history"]
    assert any("_record_memory_history" in note for note in whole["notes"])
    assert device["curve"]["at_ns"] == [0]
    assert sum(part["bytes"][0] for part in device["curve"]["series"]) == device["peak"]["bytes"]
    assert device["leaks"]["mark"] == "unknown"
    assert device["leaks"]["says"].startswith("not checked")
    assert device["tables"]["step"]["says"] == "no step is known in this history"


@pytest.mark.slow
def test_two_snapshots_differ_by_line(tmp_path: Path) -> None:
    first = SnapshotView(leaking(tmp_path / "a.pickle"), run_id="1")
    second = SnapshotView(on_two_devices(tmp_path / "b.pickle"), run_id="2")
    third = SnapshotView(leaking(tmp_path / "c.pickle", kept=2 * KEPT), run_id="3")
    made = payload.resource(first, "compare/3", find={"3": third}.__getitem__)
    assert isinstance(made, dict)
    same_fields(made, "SnapshotComparison")
    device = made["devices"][0]
    assert (device["before_bytes"], device["after_bytes"]) == (PEAK, PEAK + STEPS * KEPT)
    table = device["tables"]["line"]
    assert column(table, "line")[0] == f"train.py:{LEAK_LINE} <module>"
    assert column(table, "change_bytes")[0] == STEPS * KEPT == sum(column(table, "change_bytes"))
    other = payload.resource(first, "compare/2", find={"2": second}.__getitem__)
    assert isinstance(other, dict)
    assert other["notes"] == ["cuda:1: only in b"]


def test_a_snapshot_and_a_recording_are_not_compared(tmp_path: Path) -> None:
    recording = RecordingView(open_case(a_run(tmp_path)))
    view = SnapshotView(leaking(tmp_path / "a.pickle"))
    with pytest.raises(UsageError, match="a snapshot and a recording cannot be compared"):
        payload.resource(view, "compare/1", find={"1": recording}.__getitem__)


def resources_of(file: Path) -> dict[str, Any]:
    pattern = re.compile(r'data-resource="([^"]+)" data-part="0">([^<]*)<')
    return {
        name: json.loads(gzip.decompress(b64decode(text))) for name, text in pattern.findall(file.read_text())
    }


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "static"
    folder.mkdir()
    for name in ("index.html", "app.js", "app.css"):
        (folder / name).write_text("")
    monkeypatch.setattr(static_files, "_folder", lambda: folder)


@pytest.mark.slow
@pytest.mark.usefixtures("page")
def test_a_report_holds_snapshots_and_their_difference(tmp_path: Path) -> None:
    files = [leaking(tmp_path / f"{name}.pickle") for name in ("before", "after")]
    assert main(["report", *map(str, files), "-o", str(tmp_path / "x.html")]) == 0
    held = resources_of(tmp_path / "x.html")
    assert set(held) == {"runs", "1/snapshot", "2/snapshot", "1/compare/2", "2/compare/1"}
    assert [(run["sort"], run["name"]) for run in held["runs"]["runs"]] == [
        ("snapshot", "before"), ("snapshot", "after"),
    ]  # fmt: skip
    assert held["1/snapshot"] == told(files[0])


@pytest.mark.slow
def test_serve_lists_snapshots_and_answers_for_them(tmp_path: Path) -> None:
    file = leaking(tmp_path / "job.snapshot.pickle")
    for named in (file, tmp_path):
        library = Library([named], cache=False)
        (run,) = library.runs()["runs"]
        assert (run["sort"], run["name"]) == ("snapshot", "job")
        assert json.loads(gzip.decompress(library.resource(run["id"], "snapshot", {}).body)) == told(file) | {
            "name": "job"
        }


@pytest.mark.slow
def test_a_run_shows_its_snapshot_on_the_memory_page(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    view = RecordingView(open_case(run))
    nothing = payload.resource(view, "memory/snapshot")
    assert isinstance(nothing, dict)
    same_fields(nothing, "RunSnapshot")
    assert nothing["snapshot"] is None
    assert "foretrace run --memory" in nothing["missing"]
    assert "memory" in missing(view)

    leaking(run / "rank0" / "memory.pickle")
    assert {entry["sort"] for entry in Library([tmp_path], cache=False).runs()["runs"]} == {"recording"}
    view = RecordingView(open_case(run))
    shown = payload.resource(view, "memory/snapshot")
    assert isinstance(shown, dict)
    assert shown["missing"] is None
    assert shown["snapshot"]["devices"][0]["peak"]["bytes"] == PEAK
    assert "profile_memory=True" in shown["unrecorded"]
    assert "memory" not in missing(view)
    window = payload.resource(view, "memory/snapshot/curve", {"device": "cuda:0", "from": "0", "to": "5000"})
    assert isinstance(window, dict)
    assert len(window["at_ns"]) > 1


def test_a_damaged_snapshot_leaves_the_rest_of_the_run(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    whole = leaking(run / "rank0" / "memory.pickle").read_bytes()
    (run / "rank0" / "memory.pickle").write_bytes(whole[: len(whole) // 2])
    shown = payload.resource(RecordingView(open_case(run)), "memory/snapshot")
    assert isinstance(shown, dict)
    assert shown["snapshot"] is None or shown["snapshot"]["notes"], "half a snapshot must say what is lost"


class Bomb:
    """What a pickle could run."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.mark.usefixtures("page")
def test_nothing_in_a_pickle_is_run(tmp_path: Path) -> None:
    marker, file = tmp_path / "ran", tmp_path / "bad.pickle"
    document = {"segments": [], "device_traces": [[Bomb(marker)]], "allocator_settings": {}}
    file.write_bytes(pickle.dumps(document, protocol=4))
    assert main(["report", str(file), "-o", str(tmp_path / "x.html")]) != 0
    library = Library([file], cache=False)
    (run,) = library.runs()["runs"]
    with pytest.raises(InputError):
        library.resource(run["id"], "snapshot", {})
    assert library.runs()["runs"][0]["state"] == "failed"
    assert not marker.exists()


@pytest.mark.usefixtures("page")
def test_a_run_that_recorded_only_memory_is_its_snapshot(tmp_path: Path) -> None:
    run = tmp_path / "monday"
    (run / "rank0").mkdir(parents=True)
    leaking(run / "rank0" / "memory.pickle")
    passes = [{"kind": "memory", "file": "memory.pickle"}]
    (run / "rank0" / "rank.json").write_text(json.dumps({"passes": passes, "command": ["train.py"]}))
    (listed,) = Library([run], cache=False).runs()["runs"]
    assert (listed["sort"], listed["name"]) == ("snapshot", "rank0/memory")
    assert main(["report", str(run), "-o", str(tmp_path / "x.html")]) == 0
    assert set(resources_of(tmp_path / "x.html")) == {"runs", "1/snapshot"}


@pytest.mark.slow
def test_two_runs_are_compared_by_their_snapshots_too(tmp_path: Path) -> None:
    views = []
    for name, size in (("before", 20), ("after", 22)):
        folder = run_folder(tmp_path / name, steps((1_700.0,) * 3), (1.9,) * 7)
        made = Allocator()
        made.malloc(size * MIB, at_line(7))
        made.write(folder / "rank0" / "memory.pickle")
        facts = json.loads((folder / "rank0" / "rank.json").read_text(encoding="utf-8"))
        facts["passes"].append({"kind": "memory", "file": "memory.pickle"})
        (folder / "rank0" / "rank.json").write_text(json.dumps(facts), encoding="utf-8")
        views.append(RecordingView(open_case(folder), run_id=name))
    found = compare(views[0], views[1])["memory"]
    (device,) = found["devices"]
    assert (device["before_bytes"], device["after_bytes"]) == (20 * MIB, 22 * MIB)
    assert device["tables"]["line"]["data"][-1] == [2 * MIB]
    (tmp_path / "after" / "rank0" / "memory.pickle").unlink()
    alone = RecordingView(open_case(tmp_path / "after"), run_id="alone")
    assert compare(views[0], alone)["memory"] is None


@pytest.mark.slow
def test_a_report_compares_two_runs_of_one_program(tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / name, steps((1_700.0,) * 3), (1.9,) * 7) for name in ("monday", "tuesday")]
    output = tmp_path / "report.html"
    assert main(["report", *map(str, runs), "-o", str(output), "--no-cache"]) == 0
    text = output.read_text(encoding="utf-8")
    assert "1/compare/2" in text
    assert "2/compare/1" in text
    facts = json.loads((runs[1] / "rank0" / "rank.json").read_text(encoding="utf-8"))
    facts["command"] = ["python", "evaluate.py"]
    (runs[1] / "rank0" / "rank.json").write_text(json.dumps(facts), encoding="utf-8")
    assert main(["report", *map(str, runs), "-o", str(output), "--no-cache", "--force"]) == 0
    assert "1/compare/2" not in output.read_text(encoding="utf-8")
