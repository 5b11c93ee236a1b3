"""`foretrace memory`: of a snapshot, of two, of a Run with one and of a recording without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import foretrace
from foretrace.analyze.snapshots.findings import SCHEMA
from foretrace.commands import main
from foretrace.commands._encoding import SPELLINGS
from foretrace.commands.agent.roots import Roots
from foretrace.commands.agent.tools import Tools
from foretrace.errors import InputError
from tests.analyze.snapshots.allocator import Allocator, OutOfMemoryError
from tests.analyze.snapshots.histories import MIB, at_line
from tests.analyze.snapshots.trainings import ACTIVATION, LAYERS, PARAMETER, STATE, appends, once, train
from tests.builders import Recording

PEAK = LAYERS * (ACTIVATION + STATE + PARAMETER) + PARAMETER + 3 * MIB


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return train(5).write(tmp_path / "healthy.pickle")


@pytest.fixture
def leaking(tmp_path: Path) -> Path:
    return train(5, after_step=appends(77)).write(tmp_path / "leaking.pickle")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["memory", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_document_has_the_fields_that_the_guide_lists(
    leaking: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(printed(capsys, leaking, "--format", "json"))
    assert list(document) == ["schema", "devices", "leaks", "fragmentation_pct", "oom"]
    (device,) = document["devices"]
    assert list(device) == [
        "device", "peak_allocated_bytes", "peak_reserved_bytes", "at_ns", "composition", "optimizer",
    ]  # fmt: skip
    assert document["schema"] == SCHEMA
    assert device["device"] == "cuda:0"
    # The last step's backward, with what four steps before it left.
    assert device["peak_allocated_bytes"] == PEAK + 4 * 2 * MIB
    assert sum(row["bytes"] for row in device["composition"]) == device["peak_allocated_bytes"]
    assert {tuple(row) for row in device["composition"]} == {("what", "bytes")}
    (leak,) = document["leaks"]
    assert list(leak) == ["device", "where", "bytes_per_step", "kept_bytes", "repetitions"]
    assert (leak["where"], leak["bytes_per_step"]) == ("train.py:77 <module>", 2 * MIB)
    assert document["oom"] is None
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "memory.md").read_text(encoding="utf-8")
    assert [name for name in (*document, *device) if f"`{name}`" not in guide] == []


@pytest.mark.parametrize("by", ["category", "line", "phase", "module", "block"])
def test_every_composition_sums_to_the_peak(
    by: str, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(printed(capsys, healthy, "--by", by, "--format", "json"))
    assert sum(row["bytes"] for row in document["devices"][0]["composition"]) == PEAK


def test_what_did_not_fit_is_in_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Allocator(64 * MIB)
    made.malloc(40 * MIB, at_line(3))
    with pytest.raises(OutOfMemoryError):
        made.malloc(30 * MIB, at_line(4))
    path = made.write(tmp_path / "short.pickle")
    short = json.loads(printed(capsys, path, "--format", "json"))["oom"]
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "memory.md").read_text(encoding="utf-8")
    assert [name for name in short if f"`{name}`" not in guide] == []
    assert (short["asked_bytes"], short["device_free_bytes"], short["missing_bytes"]) == (
        30 * MIB, 24 * MIB, 6 * MIB,
    )  # fmt: skip
    assert short["holders"] == [{"what": "train.py:3 <module>", "bytes": 40 * MIB}]
    assert short["count"] == 1
    page = printed(capsys, path)
    assert "out of memory at train.py:4 <module>: 30.0 MiB in one piece were asked for" in page
    assert "would fit with 6.00 MiB fewer in use" in page


@pytest.mark.parametrize("columns", ["100", "60", "30"])
def test_the_page_fits_and_names_the_leak(
    columns: str, leaking: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    page = printed(capsys, leaking, "--by", "line")
    assert all(len(line) <= int(columns) for line in page.splitlines() if "`" not in line)
    if columns != "30":
        assert "each step keeps 2.00 MiB more" in page
        assert "train.py:77" in page
    strange = {letter for letter in page if not letter.isascii()} - set(SPELLINGS)
    assert strange == set()


def test_a_healthy_program_is_said_to_be(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, healthy)
    assert "none in 5 steps, detected by the optimizer's steps" in page
    assert "3 calls at model.py:540 keep 6.00 MiB each for the backward pass: 18.0 MiB in all" in page


def test_rows_beyond_the_top_are_one_row(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = printed(capsys, healthy, "--format", "csv").splitlines()
    assert whole[0] == "device_name,category,held_bytes,share_pct,blocks_count"
    assert len(whole) == 6
    short = printed(capsys, healthy, "--format", "csv", "--top", "2").splitlines()
    assert short[:3] == whole[:3]
    assert short[3].startswith("cuda:0,(3 more),")
    assert sum(int(line.split(",")[2]) for line in short[1:]) == PEAK


@pytest.mark.slow
def test_other_tables_and_markdown(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = json.loads(printed(capsys, healthy, "--by", "step", "--format", "json"))["rows"]
    assert [row["step"] for row in steps] == [0, 1, 2, 3, 4]
    layers = json.loads(printed(capsys, healthy, "--by", "layer", "--format", "json"))["rows"]
    assert [row["saved_bytes"] for row in layers] == [ACTIVATION] * LAYERS
    assert "| activation | 18.0 MiB |" in printed(capsys, healthy, "--format", "md")
    block = json.loads(printed(capsys, healthy, "--by", "block", "--format", "json"))
    assert block["devices"][0]["composition"][0]["bytes"] == STATE


@pytest.mark.slow
def test_two_snapshots_are_compared(
    healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = train(5, after_forward=once(60)).write(tmp_path / "after.pickle")
    rows = json.loads(printed(capsys, healthy, after, "--by", "line", "--format", "json"))["rows"]
    first = {
        "line": "train.py:60 <module>",
        "before_bytes": 0,
        "after_bytes": 16 * MIB,
        "change_bytes": 16 * MIB,
    }
    assert rows[0] == first
    whole = {
        "line": "the peak",
        "before_bytes": PEAK,
        "after_bytes": PEAK + 16 * MIB,
        "change_bytes": 16 * MIB,
    }
    assert rows[-1] == whole
    assert sum(row["change_bytes"] for row in rows[:-1]) == 16 * MIB
    assert "16.0 MiB more" in printed(capsys, healthy, after)


@pytest.mark.slow
def test_a_run_knows_its_steps_and_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = tmp_path / "rank0"
    rank.mkdir()
    made = Allocator()
    times = []
    for number in range(4):
        began = made.now_ns
        made.malloc(3 * MIB, at_line(5))
        made.malloc(3 * MIB, at_line(5))
        times.append({"step": 20 + number, "began_ns": began, "ended_ns": made.now_ns - 1000})
    made.write(rank / "memory.pickle")
    made.write(rank / "oom.pickle")
    failed = {"file": "oom.pickle", "asked_bytes": 9 * MIB, "driver_free_bytes": MIB, "device": 0}
    facts = {
        "passes": [{"kind": "memory", "file": "memory.pickle", "step_times": times}],
        "out_of_memory": {**failed, "stack": [{"file": "/me/train.py", "line": 6, "function": "main"}]},
    }
    (rank / "rank.json").write_text(json.dumps(facts), encoding="utf-8")
    document = json.loads(printed(capsys, tmp_path, "--format", "json"))
    (leak,) = document["leaks"]
    assert (leak["where"], leak["bytes_per_step"]) == ("train.py:5 <module>", 6 * MIB)
    assert [row["step"] for row in leak["repetitions"]] == [20, 21, 22, 23]
    assert document["oom"] is None
    page = printed(capsys, tmp_path)
    assert "in step 23" in page
    assert "an allocation failed in this Run" in page
    short = json.loads(printed(capsys, rank / "oom.pickle", "--format", "json"))["oom"]
    assert (short["asked_bytes"], short["where"]) == (9 * MIB, "train.py:6 main")
    (rank / "memory.pickle").unlink()
    assert "out of memory at train.py:6 main" in printed(capsys, tmp_path)


def test_a_run_with_a_snapshot_is_read_by_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank0").mkdir()
    train(3).write(tmp_path / "rank0" / "memory.pickle")
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    assert "memory.pickle" in printed(capsys, tmp_path)


def test_of_a_recording_the_analysis_memory_tells(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[1] / "traces" / "operators" / "train.json.gz"
    document = json.loads(printed(capsys, path, "--format", "json", "--no-cache"))
    assert list(document) == ["schema", "devices", "leaks", "fragmentation_pct", "oom"]
    trace = foretrace.open(path, cache=False)
    result = foretrace.analyze.run(trace, "memory")
    device = document["devices"][0]
    assert device["peak_allocated_bytes"] == result.values["peak_bytes"]
    assert sum(row["bytes"] for row in device["composition"]) == result.values["peak_bytes"]
    assert result.says in " ".join(printed(capsys, path, "--no-cache").split())


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--by", "op"], 2, "--by op is for a recording"),
        (["--device", "3"], 4, "nothing of cuda:3 in this snapshot; it has: cuda:0"),
        (["--device", "tpu"], 2, "is no device"),
        (["OTHER", "--by", "block"], 2, "--by block lists one snapshot"),
    ],
)
def test_what_cannot_be_answered_is_said(
    arguments: list[str], code: int, says: str, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(healthy) if word == "OTHER" else word for word in arguments]
    assert main(["memory", str(healthy), *given]) == code
    assert says in capsys.readouterr().err


def test_a_recording_without_memory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Recording().step(0, 0, 100).op("aten::add", 5, 20).write(tmp_path)
    assert main(["memory", str(path), "--no-cache"]) == 4
    assert "record with profile_memory=True" in capsys.readouterr().err
    assert main(["memory", str(path), "--by", "line", "--no-cache"]) == 2
    assert "--by line needs a memory snapshot" in capsys.readouterr().err
    with pytest.raises(InputError, match="no memory snapshot"):
        foretrace.memory(path)


def test_python_is_told_the_same(leaking: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = foretrace.memory(leaking)
    assert found.to_dict() == json.loads(printed(capsys, leaking, "--format", "json"))
    assert found.devices[0].leaks[0].where == "train.py:77 <module>"


def test_counters_are_told_in_the_same_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counters = {
        "allocated_bytes.all.peak": 600 * MIB, "reserved_bytes.all.peak": 1000 * MIB,
        "allocated_bytes.all.current": MIB, "reserved_bytes.all.current": 900 * MIB,
        "active_bytes.all.current": 100 * MIB, "inactive_split_bytes.all.current": 3 * MIB,
        "num_alloc_retries": 1, "num_ooms": 2,
    }  # fmt: skip
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(counters), encoding="utf-8")
    document = json.loads(printed(capsys, path, "--format", "json"))
    (device,) = document["devices"]
    assert (device["peak_allocated_bytes"], device["peak_reserved_bytes"]) == (600 * MIB, 1000 * MIB)
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "memory.md").read_text(encoding="utf-8")
    assert [name for name in device if f"`{name}`" not in guide] == []
    page = " ".join(printed(capsys, path).split())
    for says in (
        "cuda:0 peaked at 600 MiB; torch held at most 1,000 MiB from the device",
        "40.0 % of the most that torch held was in no block then, at least (400 MiB)",
        "now 800 MiB are in none, 3.00 MiB of it beside blocks in use",
        "expandable_segments:True",
        "once torch gave its cache back",
        "2 times a request did not fit even then",
    ):
        assert says in page
    assert "cuda:0,629145600,1048576000" in printed(capsys, path, "--format", "csv")
    assert "out of memory" in printed(capsys, path, "--format", "md")
    assert main(["memory", str(path), "--by", "line"]) == 2
    assert "counters do not tell who holds memory" in capsys.readouterr().err


def test_an_answer_for_agents_lists_the_last_steps_of_a_leak(leaking: Path) -> None:
    """Steps 1 to 4 keep what the one before had appended: the last three, and how many there are."""
    (leak,) = Tools(Roots.of([leaking.parent])).memory(leaking.name).facts["leaks"]
    assert [(row["step"], row["kept_bytes"]) for row in leak["repetitions"]] == [
        (step, 2 * MIB) for step in (2, 3, 4)
    ]
    assert leak["repetitions_count"] == 4
