"""Time by line, function and phase, of samples made by hand whose shares one can count."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from foretrace import analyze
from foretrace.analyze.result import Result
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from tests.builders import Recording

MS = 1_000_000
PID, HELPER, WORKER = 20, 21, 30
GIL, WAITS = 1, 2
TRAIN = "/somewhere/train.py"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
# Places: file, function, its first line, line, column, end column; each stack is a place on top of another stack.
PLACES = [
    [TRAIN, "<module>", 1, 50, 0, 6],
    [TRAIN, "main", 10, 12, 4, 20],
    [TRAIN, "main", 10, 13, 4, 20],
    ["/venv/lib/python3.11/site-packages/torch/nn/functional.py", "linear", 1, 5, 0, 9],
    [LOADER, "_BaseDataLoaderIter.__next__", 600, 633, 0, 9],
    [TRAIN, "Items.__getitem__", 5, 7, 8, 16],
    ["/usr/lib/python3.11/threading.py", "Thread._bootstrap", 900, 1002, 0, 9],
    ["<frozen importlib._bootstrap>", "_find_and_load", 1, 2, 0, 9],
    [TRAIN, "main", 10, 13, 22, 40],
]
MODULE, MAIN_12, MAIN_13, LINEAR, NEXT, GETITEM, THREAD, IMPORT, MAIN_13_LATER, HELPS = range(10)
STACKS = [[-1, 0], [0, 1], [0, 2], [2, 3], [1, 4], [4, 5], [-1, 6], [0, 7], [0, 8], [6, 5]]

Row = tuple[int, int, int, int]  # at ms, thread, stack, flags


def process(folder: Path, rows: Sequence[Row], *, pid: int = PID, parent: int = 1, end: bytes = b"") -> Path:
    """The file of a process that was sampled like this; ticks of 10 ms."""
    times = [at * MS for at, *_ in rows]
    header = {
        "pid": pid,
        "parent": parent,
        "kind": "started",
        "prefixes": ["/venv", "/usr"],
        "package": ["/lib/foretrace"],
    }
    block = {
        "places": PLACES,
        "stacks": STACKS,
        "t_ns": [now - before for now, before in zip(times, [0, *times], strict=False)],
        "thread": [thread for _, thread, _, _ in rows],
        "stack": [stack for _, _, stack, _ in rows],
        "flags": [flags for *_, flags in rows],
        "cpu_us": [0 if flags & WAITS else 10_000 for *_, flags in rows],
        "facts": {
            "began_ns": times[0] - 10 * MS,
            "epoch_ns": times[-1],
            "ticks": len(set(times)),
            "torn": 0,
            "cost_ns": MS,
        },
    }
    text = f"{json.dumps(header)}\n{json.dumps(block)}\n"
    path = folder / f"lines-{pid}.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode() + end))
    return path


def recorded(folder: Path, rows: Sequence[Row], **facts: Any) -> Trace:
    """A recording of a rank whose lines were sampled."""
    trace = Recording().op("aten::mm", 0, 10).open(folder)
    lines = {"pid": PID, "thread": PID, **facts}
    (trace.path.parent / "rank.json").write_text(json.dumps({"rank": 0, "lines": lines}), encoding="utf-8")
    process(trace.path.parent, rows)
    return trace


def ticks(begin: int, count: int, stack: int, flags: int = GIL, thread: int = PID) -> list[Row]:
    return [(begin + 10 * number, thread, stack, flags) for number in range(count)]


def shares(result: Result, *columns: str) -> dict[tuple[Any, ...], float]:
    return {
        tuple(row[name] for name in columns): round(row["share_pct"], 1) for row in result.table.to_dicts()
    }


def test_a_line_counts_with_what_it_calls_in_libraries(tmp_path: Path) -> None:
    """60 ticks in line 12, 20 in line 13 itself and 20 in torch beneath it; shares sum to 100 %."""
    rows = [*ticks(10, 60, MAIN_12), *ticks(610, 20, MAIN_13), *ticks(810, 20, LINEAR, 0)]
    result = analyze.run(recorded(tmp_path, rows), "lines")
    assert shares(result, "line", "function") == {(12, "main"): 60.0, (13, "main"): 40.0}
    first, second = result.table.to_dicts()
    assert (first["python_pct"], second["python_pct"], second["operator_pct"]) == pytest.approx((60, 20, 20))
    assert first["error_pct"] == pytest.approx(100 * (0.6 * 0.4 / 100) ** 0.5)
    assert result.says == "train.py:12 in main takes 60 ± 5 % of the program's time, most of it Python"


def test_statements_of_one_line_are_told_apart_by_column(tmp_path: Path) -> None:
    rows = [*ticks(10, 30, MAIN_13), *ticks(310, 70, MAIN_13_LATER)]
    result = analyze.run(recorded(tmp_path, rows), "lines", by="statement")
    assert shares(result, "line", "column") == {(13, 22): 70.0, (13, 4): 30.0}


def test_time_without_a_users_frame_is_a_row_of_its_own(tmp_path: Path) -> None:
    rows = [*ticks(10, 25, MAIN_12), *ticks(260, 75, THREAD, 0)]
    result = analyze.run(recorded(tmp_path, rows), "lines")
    assert shares(result, "file", "function") == {(TRAIN, "main"): 25.0, (None, "(no user frame)"): 75.0}
    assert result.table["function"].to_list()[-1] == "(no user frame)"
    assert result.values["no_user_frame_pct"] == pytest.approx(75)


def test_a_wait_counts_for_the_thread_that_works_meanwhile(tmp_path: Path) -> None:
    """The main thread waits in line 12 for 80 ticks; in 60 of these a helper works, which nobody waits for in the others."""
    rows = [
        *ticks(10, 80, MAIN_12, WAITS),
        *ticks(10, 60, HELPS, GIL, HELPER),
        *ticks(610, 20, HELPS, WAITS, HELPER),
    ]
    result = analyze.run(recorded(tmp_path, sorted(rows)), "lines")
    assert shares(result, "line") == {(7,): 75.0, (12,): 25.0}
    assert result.table["wait_pct"].to_list() == pytest.approx([0, 25])


def test_phases_come_from_frames_else_from_boundaries(tmp_path: Path) -> None:
    """20 ticks import, 20 set up; of 100 within steps 40 load and 10 lie under a profiler; 10 more are behind the last step."""
    rows = [
        *ticks(10, 20, IMPORT), *ticks(210, 20, MAIN_12), *ticks(410, 40, GETITEM), *ticks(810, 50, MAIN_13),
        *ticks(1310, 10, MAIN_12), *ticks(1410, 10, MAIN_12),
    ]  # fmt: skip
    facts = {"first_ns": 400 * MS, "last_ns": 1400 * MS, "profiled_ns": [[1300 * MS, 1400 * MS]]}
    trace = recorded(tmp_path, rows, **facts)
    whole = analyze.run(trace, "lines", by="phase", part="program")
    counted = {"import": 20, "set-up": 20, "loading": 40, "step": 50, "end": 10}
    assert shares(whole, "phase") == {(name,): round(count / 1.4, 1) for name, count in counted.items()}
    assert whole.values["recording_pct"] == pytest.approx(100 * 10 / 150)
    steps = analyze.run(trace, "lines")
    assert shares(steps, "line", "function") == {(13, "main"): 55.6, (7, "Items.__getitem__"): 44.4}


def test_a_tick_after_a_gap_counts_for_the_gap(tmp_path: Path) -> None:
    """The cost guard lengthens intervals: 50 ticks of 10 ms and 50 of 30 ms."""
    slow = [(510 + 30 * (number + 1) - 10, PID, MAIN_13, GIL) for number in range(50)]
    result = analyze.run(recorded(tmp_path, [*ticks(10, 50, MAIN_12), *slow]), "lines")
    assert shares(result, "line") == {(13,): 75.0, (12,): 25.0}


def test_few_ticks_name_functions_and_no_lines(tmp_path: Path) -> None:
    result = analyze.run(recorded(tmp_path, ticks(10, 49, MAIN_12)), "lines")
    assert "line" not in result.table.columns
    assert result.notes[0] == "49 ticks: too few to name lines, so these are functions"
    assert result.says.startswith("main in train.py takes 100 ± 1 %")


def test_workers_are_other_processes(tmp_path: Path) -> None:
    trace = recorded(tmp_path, ticks(10, 60, NEXT, WAITS))
    process(trace.path.parent, ticks(10, 60, GETITEM, GIL, WORKER), pid=WORKER, parent=PID)
    result = analyze.run(trace, "lines", processes="workers")
    assert shares(result, "line", "function") == {(7, "Items.__getitem__"): 100.0}
    assert result.says.endswith("of the workers' time, most of it Python")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-20], "it breaks off"),
        (lambda data: gzip.compress(gzip.decompress(data) + b'{"places": 7}\n'), "damaged"),
        (lambda data: gzip.compress(gzip.decompress(data) + b'{"places": ['), "it breaks off"),
    ],
)
def test_a_damaged_file_costs_a_note(tmp_path: Path, damage: Any, says: str) -> None:
    """What is whole before the damage counts; that of another process counts as ever."""
    trace = recorded(tmp_path, ticks(10, 60, MAIN_12))
    path = process(trace.path.parent, ticks(10, 60, GETITEM, GIL, WORKER), pid=WORKER, parent=PID)
    path.write_bytes(damage(path.read_bytes()))
    result = analyze.run(trace, "lines")
    assert shares(result, "line") == {(12,): 100.0}
    assert result.notes[0].startswith(f"{path.name}: damaged, read up to its sample ")
    assert says in result.notes[0]


def test_stacks_that_do_not_fit_are_not_read(tmp_path: Path) -> None:
    trace = recorded(tmp_path, ticks(10, 60, 99))
    with pytest.raises(MissingDataError, match="a sample of a stack that is not there"):
        analyze.run(trace, "lines")


def test_a_run_says_why_there_are_no_lines(tmp_path: Path) -> None:
    trace = Recording().op("aten::mm", 0, 10).open(tmp_path)
    with pytest.raises(MissingDataError, match="foretrace run"):
        analyze.run(trace, "lines")
    facts = {"rank": 0, "lines": {"pid": PID, "why_off": "this Python is free-threaded"}}
    (trace.path.parent / "rank.json").write_text(json.dumps(facts), encoding="utf-8")
    trace = Recording().op("aten::mm", 0, 10).open(tmp_path)
    with pytest.raises(MissingDataError, match="no lines were sampled: this Python is free-threaded"):
        analyze.run(trace, "lines")


@pytest.mark.parametrize(
    ("file", "user"),
    [
        ("/somewhere/train.py", True),
        ("/tmp/ipykernel_7/123.py", True),
        ("<ipython-input-3-abc>", True),
        ("/usr/lib/python3.11/json/__init__.py", False),
        ("/venv/lib/python3.11/site-packages/torch/nn/functional.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        ("/lib/foretrace/capture/recorder.py", False),
        ("/somewhere/foretrace/train.py", True),
    ],
)
def test_whose_a_file_is(file: str, user: bool) -> None:
    from foretrace.ingest.line_samples import Header, _of_user

    header = Header(pid=1, parent=0, prefixes=["/venv", "/usr"], package=["/lib/foretrace"])
    assert _of_user(file, header, roots={"/somewhere/train.py"}) is user
    assert _of_user("<string>", header, roots={"<string>"})  # python -c
