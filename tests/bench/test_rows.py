"""Cases that fail become rows, the rest goes on; what the command says and writes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from foretrace import bench
from foretrace.bench.benchmark import Benchmark
from foretrace.bench.kinds import KINDS, latency, matmul
from foretrace.commands import _parser, main
from foretrace.commands import bench as command
from foretrace.errors import FormatError, InputError, UsageError
from foretrace.present.export.bench_plot import to_svg
from foretrace.present.text import bench_tables

needs_torch = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
QUICK = bench.Timing(device="cpu", warmup_s=0, least_s=0, most_s=0.02)
PROGRAM = """
import os, time
def fine(): return 1
def wrong(): raise ValueError("not today")
def short_of_memory(): raise MemoryError
def huge():
    import torch
    torch.empty(1 << 55)
def slow(): time.sleep(0.03)
calls = []
def starts_slowly():
    calls.append(1)
    if len(calls) == 1: time.sleep(0.2)
def hangs(): time.sleep(100)
def crashes(): os.abort()
def needs_two(a, b): return a
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(PROGRAM)
    return file


def statuses(found: Benchmark) -> list[str]:
    return [row["status"] for row in found.rows]


class TestFailures:
    pytestmark = needs_torch

    def test_the_sweep_goes_on(self, program: Path) -> None:
        names = ("wrong", "short_of_memory", "huge", "fine")
        found = bench.functions(*(f"{program}::{name}" for name in names), timing=QUICK)
        assert statuses(found) == ["ERROR", "OOM", "OOM", "OK"]
        assert found.rows[0]["reason"] == "ValueError: not today"
        assert found.rows[3]["reason"] is None

    def test_a_case_that_takes_too_long_is_ended_between_calls(self, program: Path) -> None:
        timing = bench.Timing(device="cpu", warmup_s=10, timeout_s=0.05)
        found = bench.functions(f"{program}::slow", timing=timing)
        assert statuses(found) == ["TIMEOUT"]

    def test_a_process_of_its_own_may_crash(self, program: Path) -> None:
        timing = replace(QUICK, isolate=True)
        found = bench.functions(f"{program}::crashes", f"{program}::fine", timing=timing)
        assert statuses(found) == ["ERROR", "OK"]
        assert "SIGABRT" in found.rows[0]["reason"]
        assert found.rows[1]["samples_ms"]

    def test_cold_calls_are_the_first_of_a_process_of_their_own(self, program: Path) -> None:
        timing = bench.Timing(device="cpu", cold=True)
        (row,) = bench.functions(f"{program}::starts_slowly", timing=timing).rows
        assert len(row["samples_ms"]) == 10
        assert min(row["samples_ms"]) < 100 < 200 <= row["samples_ms"][0]

    def test_a_process_that_hangs_is_ended(self, program: Path) -> None:
        timing = replace(QUICK, isolate=True, timeout_s=0.1)
        (row,) = bench.functions(f"{program}::hangs", timing=timing).rows
        assert (row["status"], row["reason"]) == ("TIMEOUT", "took longer than 0.1 s, and was ended")

    def test_what_was_measured_before_memory_ran_out_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        def no_room(*args: object, **options: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB")

        monkeypatch.setattr(torch.autograd, "grad", no_room)
        (row,) = bench.attention(d_model=(8,), seq_len=(8,), batch=(1,), timing=QUICK).rows
        assert row["status"] == "OOM"
        assert row["fwd_ms"] > 0
        assert row["bwd_ms"] is None

    def test_functions_that_cannot_be_called_are_wrong_usage(self, program: Path) -> None:
        with pytest.raises(UsageError, match="needs 2 arguments"):
            bench.functions(f"{program}::needs_two", timing=QUICK)
        with pytest.raises(UsageError, match="did you mean fine"):
            bench.functions(f"{program}::fin", timing=QUICK)
        with pytest.raises(InputError, match="no such file"):
            bench.functions("absent.py::f", timing=QUICK)
        with pytest.raises(UsageError, match=r"FILE\.py::function"):
            bench.functions(lambda: 1, timing=bench.Timing(isolate=True))

    def test_callables_and_bare_times(self) -> None:
        found = bench.functions(str, timing=QUICK)
        assert found.rows[0]["function"] == "str"
        taken = bench.time(lambda: None, QUICK)
        assert taken.median_ms.low <= taken.median_ms.point <= taken.median_ms.high
        assert "samples of" in str(taken)

    def test_nothing_timed_is_exit_code_1(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["bench", f"{program}::wrong", "--device", "cpu", "-q"]) == 1
        captured = capsys.readouterr()
        assert "nothing could be timed: ValueError: not today" in captured.err
        assert "ERROR, 1 row: ValueError: not today" in captured.out


def test_without_torch_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench", "matmul"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("foretrace: bench needs torch: pip install torch")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["matmull"], "did you mean matmul"),
        (["matmul", "attention"], "one kind at a time"),
        (["matmul", "--shape", "3x4"], "a shape is MxNxK"),
        (["matmul", "--seq-len", "4"], "unrecognized arguments: --seq-len"),
        (["matmul", "--most-s", "0"], "no time to measure in"),
        (["transformer", "--size", "huge"], "no size 'huge'"),
        (["attention", "--impl", "flesh"], "did you mean flash"),
        (["attention", "--seq-len", "x"], "invalid literal"),
        (["matmul", "-o", "a.txt"], "end the name in"),
    ],
)
def test_wrong_calls_are_told(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("foretrace.bench.sweep.import_torch", lambda: None)
    assert main(["bench", *words]) == 2
    assert says in capsys.readouterr().err


def test_options_may_come_before_the_kind() -> None:
    """`--size` is one size for latency, and several for a transformer."""
    for words in (["latency", "--size", "xl"], ["--size", "xl", "latency"]):
        parsed = _parser("bench", ["bench", *words]).parse_args(["bench", *words])
        assert parsed.target == ["latency"]
        assert vars(parsed)["option:size"] == "xl"
    parsed = _parser("bench", ["bench", "--size", "xl,small", "transformer"]).parse_args(
        ["bench", "--size", "xl,small", "transformer"]
    )
    assert vars(parsed)["option:size"] == ("xl", "small")
    assert parsed.command_line == "foretrace bench --size xl,small transformer"


def test_every_option_has_its_help() -> None:
    for name, kind in command._kinds().items():
        for option in command._options(kind):
            assert option in command._HELP, f"{name}: add {option} to _HELP"
    assert all(callable(getattr(module, name)) for name, module in KINDS.items())


ROWS: tuple[dict[str, Any], ...] = (
    {
        "size": "small", "mode": "fwd", "status": "OK", "reason": None, "median_ms": 2.0, "low_ms": 1.9, "high_ms": 2.1,
        "avg_ms": 2.05, "std_ms": 0.1, "samples_ms": [2.0, 2.1], "calls": 1, "stopped": "precise", "tokens_per_s": 112312.4,
    },
    {"size": "small", "mode": "train", "status": "OOM", "reason": "too | large"},
    {
        "size": "small", "mode": "fwd_bwd", "status": "OK", "reason": None, "median_ms": 200.0, "low_ms": 190.0,
        "high_ms": 210.0, "avg_ms": 205.0, "std_ms": None, "samples_ms": [200.0], "calls": 1, "stopped": "time",
        "tokens_per_s": 1000.0,
    },
)  # fmt: skip
MADE = Benchmark("transformer", "NVIDIA H200", "2.11.0", ("size", "mode"), ROWS, ("A note.",))


def test_the_json_form() -> None:
    document = json.loads(MADE.to_json())
    assert list(document) == [
        "schema", "foretrace", "kind", "device", "torch", "began", "command", "timing", "clock", "case", "notes", "rows",
    ]  # fmt: skip
    assert document["schema"] == "foretrace.bench/1"
    assert document["rows"] == list(ROWS)
    assert MADE.cases() == (("small", "fwd"), ("small", "train"), ("small", "fwd_bwd"))
    assert Benchmark.from_dict(document) == MADE
    dated = {"began": "2026-11-16T22:58:03+00:00", "command": "foretrace bench transformer"}
    assert Benchmark.from_dict({**document, **dated}).to_dict() == {**document, **dated}
    with pytest.raises(FormatError, match="its schema is 1"):
        Benchmark.from_dict({"schema": 1})
    with pytest.raises(FormatError, match="missing required field `kind`"):
        Benchmark.from_dict({"schema": "foretrace.bench/1"})
    infinite = Benchmark("k", "d", "t", (), ({"status": "OK", "median_ms": float("nan")},))
    assert json.loads(infinite.to_json())["rows"][0]["median_ms"] is None


def test_markdown_has_the_columns_by_their_names() -> None:
    assert bench_tables.markdown(MADE).splitlines() == [
        "**transformer**: NVIDIA H200, torch 2.11.0; size small",
        "",
        "| mode | median_ms | low_ms | high_ms | avg_ms | std_ms | tokens_per_s | status | reason |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |",
        "| fwd | 2 | 1.9 | 2.1 | 2.05 | 0.1 | 112,312 | OK | – |",
        r"| train | – | – | – | – | – | – | OOM | too \| large |",
        r"| fwd\_bwd | 200 | 190 | 210 | 205 | – | 1,000 | OK | – |",
        "",
        "- A note.",
    ]


def test_memory_is_shown_to_a_hundredth_of_a_mib() -> None:
    assert bench_tables.cell("mem_before_bwd_MiB", 8336.25) == "8,336.25"
    assert bench_tables.cell("median_ms", 8336.25) == "8,336"
    assert bench_tables.cell("mfu_pct", 41.236) == "41.24 %"
    assert bench_tables.cell("value", 9.953125) == "9.9531"
    assert bench_tables.cell("status", None) == "–"


def test_csv_leaves_the_samples_out() -> None:
    head, first, *_ = bench_tables.csv(MADE).splitlines()
    assert head == "size,mode,status,reason,median_ms,low_ms,high_ms,avg_ms,std_ms,tokens_per_s"
    assert first == "small,fwd,OK,,2.0,1.9,2.1,2.05,0.1,112312.4"


def test_what_all_rows_share_is_said_once() -> None:
    (result,) = bench_tables.results(MADE)
    assert result.says == "NVIDIA H200, torch 2.11.0; size small"
    assert "size" not in result.table.columns
    assert result.notes == ("OOM, 1 row: too | large",)
    (chosen,) = bench_tables.results(MADE, ["mode", "median_ms"])
    assert chosen.table.columns == ["mode", "median_ms"]
    with pytest.raises(UsageError, match="did you mean"):
        bench_tables.results(MADE, ["media_ms"])


def test_bars_are_as_long_as_medians() -> None:
    short, long = bench_tables.bars(MADE, 80)
    assert long.count("█") > 40
    assert short.startswith("fwd      ▋ 2 ms")  # 63 columns for 200 ms: 5 eighths of one for 2
    assert long.endswith(" 200 ms")


def test_the_picture_holds_every_row_and_is_xml() -> None:
    picture = ElementTree.fromstring(to_svg(MADE))
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "fwd_bwd" in texts
    assert "200 ms" in texts
    dots = list(picture.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(dots) == 2  # times so far apart stand on a logarithmic axis
    nothing = Benchmark("k", "d<", "t", ("size",), (ROWS[1],))
    assert "nothing was timed" in "".join(ElementTree.fromstring(to_svg(nothing)).itertext())


def test_the_alignment_cliff_is_told() -> None:
    def row(k: int, tflops: float) -> dict[str, Any]:
        aligned = matmul.alignment(4096, k, "bf16")
        return {
            "m": 4096,
            "n": 4096,
            "k": k,
            "precision": "bf16",
            "status": "OK",
            "align_bytes": aligned,
            "tflops": tflops,
        }

    (told,) = matmul.finish([row(4096, 700.0), row(4097, 350.0), row(4160, 690.0), row(1024, 100.0)])
    assert told == (
        "bf16: 4096x4096x4097 (rows at multiples of 2 bytes) takes 2.00 times as long for its work as 4096x4096x4096 (128)."
    )


def test_latency_that_grows_with_the_batch_is_told() -> None:
    rows = [
        {"batch": batch, "p50_ms": ms, "status": "OK"}
        for batch, ms in ((1, 5.0), (2, 5.1), (8, 6.0), (16, 11.9))
    ]
    (told,) = latency.finish(rows)
    assert [row.get("sublinear") for row in rows] == [None, True, True, False]
    assert told.startswith("At batch 16 latency grows 1.98 times where the batch grows 2 times")
    assert "not full yet" in latency.finish(rows[:3])[0]
    assert latency.finish(rows[:1]) == []


def test_the_page_of_tables_names_every_command_of_the_script() -> None:
    root = Path(__file__).parents[2]
    spec = spec_from_file_location("bench_h200", root / "benchmarks" / "bench_h200.py")
    assert spec
    assert spec.loader
    script = module_from_spec(spec)
    sys.modules[spec.name] = script  # its dataclass looks itself up there
    spec.loader.exec_module(script)
    page = (root / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert [table.name for table in script.TABLES if f"`foretrace bench {table.command}`" not in page] == []
    for table in script.TABLES:
        for command_line in (table.command, table.tiny):
            words = ["bench", *command_line.split()]
            assert _parser("bench", words).parse_args(words).target == [words[1]]
