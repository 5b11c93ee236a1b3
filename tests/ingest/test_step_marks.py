"""Which ranges are the steps of a recording."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace import analyze
from foretrace.errors import MissingDataError, UsageError
from foretrace.ingest.server_marks import Lengths, kind_of, lengths_of, tokens_of
from foretrace.trace import Trace
from tests.builders import MAIN_THREAD, Recording
from tests.corpus import CORPUS, needs_corpus
from tests.ingest.comparison import READERS

PERIOD = 1000


def work(recording: Recording, start: float, *, kernels: int = 4, length: float = 200) -> Recording:
    """Operators with a kernel each, from `start` on."""
    for place in range(kernels):
        at = start + place * length
        recording.op("aten::mm", at, at + 20).launch(at + 2, "gemm", at + 10, at + 0.9 * length)
    return recording


def loop(mark: Callable[[Recording, int, float], None], *, steps: int = 5) -> Recording:
    """Iterations of 1,000 us with four kernels of 180 us; `mark` adds what marks each."""
    recording = Recording()
    for number in range(steps):
        work(recording, PERIOD * number + 100)
        mark(recording, number, PERIOD * number)
    return recording


def optimizer(recording: Recording, _: int, start: float) -> None:
    # torch nests the mark in itself
    recording.annotation("Optimizer.step#AdamW.step", start + 920, start + 990)
    recording.annotation("Optimizer.step#AdamW.step", start + 925, start + 985)


def loader(recording: Recording, _: int, start: float) -> None:
    recording.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, start + 60)


def bounds_us(trace: Trace) -> list[tuple[int, float, float]]:
    return [(step.number, step.start_ns / 1e3, step.end_ns / 1e3) for step in trace.steps]


def note(trace: Trace, code: str) -> dict[str, object]:
    return analyze.run(trace, "trust").table.filter(pl.col("code") == code).row(0, named=True)


@pytest.mark.parametrize("reader", READERS)
def test_optimizer_steps_end_steps(reader: str, tmp_path: Path) -> None:
    path = loop(optimizer, steps=12).write(tmp_path)
    trace = foretrace.open(path, cache=False, reader=reader)
    # The recording begins with the first operator, 100 us into the first iteration.
    assert bounds_us(trace) == [(0, 0, 890), *((n, PERIOD * n - 110, PERIOD * n + 890) for n in range(1, 12))]
    steps = analyze.run(trace, "steps")
    assert (steps.values["step_count"], steps.values["step_host_ns"]) == (12, 1_000_000)
    assert steps.table["launched_count"].to_list() == [4] * 12
    told = note(trace, "step-marks")
    assert told["weight"] == "info"
    assert told["says"] == (
        "Taken as steps: 12 optimizer steps (Optimizer.step#AdamW.step), the first from the beginning of the "
        "recording: step() was not called."
    )


@pytest.mark.parametrize("second", ["AdamW", "SGD"])
def test_optimizers_that_take_turns_end_one_step(second: str, tmp_path: Path) -> None:
    def two(recording: Recording, _: int, start: float) -> None:
        recording.annotation("Optimizer.step#AdamW.step", start + 920, start + 950)
        recording.annotation(f"Optimizer.step#{second}.step", start + 955, start + 990)

    assert bounds_us(loop(two).open(tmp_path))[1:] == [
        (n, PERIOD * n - 110, PERIOD * n + 890) for n in range(1, 5)
    ]


def test_of_two_optimizers_the_one_that_steps_less_often_counts(tmp_path: Path) -> None:
    def two(recording: Recording, number: int, start: float) -> None:
        recording.annotation("Optimizer.step#SGD.step", start + 400, start + 410)
        if number % 2:
            recording.annotation("Optimizer.step#AdamW.step", start + 920, start + 990)

    assert [step.end_ns for step in loop(two, steps=8).open(tmp_path).steps] == [
        (PERIOD * n + 890) * 1000 for n in (1, 3, 5, 7)
    ]


def test_profiler_steps_go_before_optimizer_steps(tmp_path: Path) -> None:
    def both(recording: Recording, number: int, start: float) -> None:
        optimizer(recording, number, start)
        recording.step(number + 3, start, start + PERIOD)

    trace = loop(both).open(tmp_path)
    assert [step.number for step in trace.steps] == [3, 4, 5, 6, 7]
    assert trace.meta["step_marks"]["source"] == "profiler"
    assert "step-marks" not in analyze.run(trace, "trust").table["code"].to_list()


def test_batches_begin_steps(tmp_path: Path) -> None:
    recording = loop(loader)
    loader(recording, 5, 5 * PERIOD)  # the loader has no more
    trace = recording.open(tmp_path)
    assert bounds_us(trace) == [(n, PERIOD * n, PERIOD * (n + 1)) for n in range(5)]
    told = note(trace, "step-marks")
    assert told["weight"] == "care"
    assert str(told["says"]).startswith("Taken as steps: 5 batches of the DataLoader: step() was not called")


def test_batches_that_only_python_marks_need_no_operators(tmp_path: Path) -> None:
    """Found by tests/fuzz: nothing else was on the host, so that no span of it ended."""
    recording = Recording()
    for start in (0, PERIOD, 2 * PERIOD):
        recording.python("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, start + 60)
        recording.kernel("gemm", start + 100, start + 900)
    assert recording.open(tmp_path).spans.height == 6


def test_ranges_called_a_step(tmp_path: Path) -> None:
    def mark(recording: Recording, number: int, start: float) -> None:
        recording.annotation(f"train step {number + 7}", start + 50, start + 950)
        recording.annotation("attention", start + 100, start + 500)

    trace = loop(mark).open(tmp_path)
    assert bounds_us(trace) == [
        (n + 7, PERIOD * n, PERIOD * n + 900) for n in range(5)
    ]  # numbers of the names
    assert note(trace, "step-marks")["weight"] == "care"
    roles = analyze.run(trace, "steps").values
    assert float(roles["cpu_exec_pct"] or 0) < 10, "the range itself is no work of the host"


def test_other_ranges_are_named_but_not_taken(tmp_path: Path) -> None:
    def mark(recording: Recording, _: int, start: float) -> None:
        recording.annotation("block", start + 50, start + 950)

    trace = loop(mark).open(tmp_path)
    assert trace.steps == ()
    assert str(note(trace, "no-steps")["says"]).endswith(
        "Ranges that repeat: block (5); name one that is a step with --step."
    )


def test_the_user_names_the_steps(tmp_path: Path) -> None:
    def mark(recording: Recording, number: int, start: float) -> None:
        recording.step(number, start, start + PERIOD)
        for half in (0, 1):
            recording.annotation(f"half {half}", start + 450 * half + 50, start + 450 * half + 500)

    path = loop(mark).write(tmp_path)
    assert len(foretrace.open(path, cache=False).steps) == 5
    exact = foretrace.open(path, cache=False, step="half 1")
    assert bounds_us(exact) == [(n, PERIOD * n + 500, PERIOD * n + 950) for n in range(5)]
    assert exact.device_spans["step"].to_list() == [
        n if late else None for n in range(5) for late in (0, 0, 1, 1)
    ]
    assert len(foretrace.open(path, cache=False, step="half").steps) == 10
    assert len(foretrace.open(path, cache=False, step="~0$").steps) == 5
    assert note(exact, "step-marks")["says"] == "Taken as steps: 5 ranges that --step half 1 names."


def test_named_ranges_inside_others_count_once(tmp_path: Path) -> None:
    def mark(recording: Recording, _: int, start: float) -> None:
        recording.annotation("[measure|forward]", start + 50, start + 950)
        recording.annotation("forward", start + 60, start + 900)

    trace = foretrace.open(loop(mark).write(tmp_path), cache=False, step="~forward")
    assert bounds_us(trace) == [(n, PERIOD * n, PERIOD * n + 900) for n in range(5)]


def test_a_name_that_nothing_has(tmp_path: Path) -> None:
    def mark(recording: Recording, _: int, start: float) -> None:
        recording.annotation("block", start + 50, start + 950)

    path = loop(mark).write(tmp_path)
    with pytest.raises(MissingDataError, match=r"no range is named layer; ranges that repeat: block \(5\)"):
        foretrace.open(path, cache=False, step="layer")
    with pytest.raises(UsageError, match="not a pattern"):
        foretrace.open(path, cache=False, step="~(")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("thread", [MAIN_THREAD, MAIN_THREAD + 1])
@pytest.mark.parametrize("shift", [0, 40])
def test_nested_profiler_steps_count_once(thread: int, shift: int, reader: str, tmp_path: Path) -> None:
    """Lightning's profiler and the program's own mark the same steps, the second with numbers of its own."""

    def mark(recording: Recording, number: int, start: float) -> None:
        recording.step(number + 3, start, start + 1000)
        recording.step(number + 3 + shift, start + 2, start + 998, thread=thread)

    trace = foretrace.open(loop(mark).write(tmp_path), cache=False, reader=reader)
    assert bounds_us(trace) == [(n + 3, PERIOD * n, PERIOD * (n + 1)) for n in range(5)]
    steps = analyze.run(trace, "steps")
    assert (steps.values["step_count"], steps.values["step_host_ns"]) == (5, 1_000_000)
    assert steps.table["launched_count"].to_list() == [4] * 5
    assert note(trace, "nested-steps")["affected_count"] == 5


def test_a_mark_around_all_steps_is_none(tmp_path: Path) -> None:
    """A profiler whose step() is never called has one step, which holds those of another."""

    def mark(recording: Recording, number: int, start: float) -> None:
        recording.step(number + 3, start, start + 1000)

    trace = loop(mark).step(0, 0, 5500).open(tmp_path)
    assert [step.number for step in trace.steps] == [3, 4, 5, 6, 7]


def test_neighbours_that_rounding_lets_overlap_are_two(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 101).step(2, 100, 201).step(3, 200, 300)
    assert [step.number for step in recording.open(tmp_path).steps] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("step[DECODE bs=32]", "decode"),
        ("step[EXTEND bs=1 toks=512]", "prefill"),
        ("step[MIXED bs=4]", "mixed"),
        ("step[TARGET_VERIFY bs=4]", "target verify"),
        ("step[DRAFT_LOOP raw_bs=3 bs=4 topk=2]", "draft loop"),
        (
            "step[MIXED bs=4 c=1 g=3 c_sq=9 c_sk=9 c_sqsq=81 c_sqsk=81 g_sq=3 g_sk=30 g_sqsq=3 g_sqsk=30]",
            "mixed",
        ),
        ("execute_context_1(888_788544)_generation_0(0)", "prefill"),
        ("execute_32_context_0(sq0sk0)_generation_32(sq32sk55086)", "decode"),
        ("execute_context_2(64)_generation_3(3)", "mixed"),
        ("execute_new_0_cached_31", "decode"),
        ("execute_model", None),
        ("prefill", "prefill"),
        ("decode step 4", "decode"),
        ("decoder", None),
        ("ProfilerStep#4", None),
    ],
)
def test_kinds_of_server_marks(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def server(*, decodes: int = 8) -> Recording:
    """A prefill of 2,000 us with four long kernels, then decodes of 300 us with two kernels of 100, twice."""
    recording, at = Recording(), 0.0
    for decode_count in (decodes, 2):
        work(recording, at + 10, length=450)
        recording.annotation("step[EXTEND bs=1 toks=512]", at, at + 2000)
        at += 2000
        for _ in range(decode_count):
            work(recording, at + 10, kernels=2, length=110)
            recording.annotation("step[DECODE bs=32]", at, at + 300)
            at += 300
    return recording


def test_prefill_and_decode_are_told_apart(tmp_path: Path) -> None:
    trace = server(decodes=20).open(tmp_path)
    steps = analyze.run(trace, "steps")
    assert steps.table["kind"].to_list() == ["prefill", *["decode"] * 20, "prefill", *["decode"] * 2]
    assert steps.values["step_kind"] == "decode"
    assert (steps.values["step_count"], steps.values["step_host_ns"]) == (22, 300_000)
    assert (steps.values["prefill_step_count"], steps.values["prefill_step_host_ns"]) == (2, 2_000_000)
    assert "22 decode steps of" in steps.says
    assert "beside 2 prefill steps" in steps.says
    overview = analyze.run(trace, "overview").values
    assert overview["kernels_per_step_count"] == 2
    codes = analyze.run(trace, "trust").table
    assert "first-step-slow" not in codes["code"].to_list()
    assert codes.filter(pl.col("code") == "step-spread")["weight"].to_list() == ["info"]
    assert note(trace, "step-kinds")["says"] == (
        "2 prefill and 22 decode steps: averages and predictions are of the decode steps, which take most of the time."
    )


def test_the_kind_that_takes_most_time_is_averaged(tmp_path: Path) -> None:
    values = analyze.run(server(decodes=3).open(tmp_path), "steps").values
    assert (values["step_kind"], values["step_count"], values["step_host_ns"]) == ("prefill", 2, 2_000_000)


def test_ranges_that_hold_little_of_the_work_are_no_steps(tmp_path: Path) -> None:
    def mark(recording: Recording, _: int, start: float) -> None:
        recording.annotation("decode", start + 90, start + 150)  # one of four launches

    assert loop(mark).open(tmp_path).steps == ()


def test_a_server_that_does_not_tell_the_kind(tmp_path: Path) -> None:
    def mark(recording: Recording, _: int, start: float) -> None:
        recording.annotation("execute_model", start + 50, start + 950)
        recording.annotation("gpu_model_runner: forward", start + 60, start + 940)

    trace = loop(mark).open(tmp_path)
    assert bounds_us(trace) == [(n, PERIOD * n, PERIOD * n + 900) for n in range(5)]
    assert {step.kind for step in trace.steps} == {None}
    assert note(trace, "step-marks")["weight"] == "info"


@pytest.mark.parametrize(
    "mark",
    [
        "execute_context_0(0)_generation_4(4)",
        "step[DECODE bs=4]",
        "execute_model",
        "gpu_model_runner: forward",
    ],
)
def test_a_server_samples_after_its_mark(mark: str, tmp_path: Path) -> None:
    """One graph launch inside of the mark, three kernels of sampling after it; the third step waits for requests first."""
    recording, begins = Recording(), (0, 1000, 6000, 7000)
    for start in begins:
        recording.annotation(mark, start, start + 300)
        work(recording, start + 10, kernels=1, length=500)
        work(recording, start + 400, kernels=3, length=100)
    # Before the third mark, long after the second step, something is prepared.
    work(recording, 5970, kernels=1, length=30)
    trace = recording.open(tmp_path)
    assert trace.meta["step_marks"]["source"] == "server"
    # Each step ends with its last launch, called at 602, which takes half a microsecond (tests/builders.py).
    assert [(first, last - first) for _, first, last in bounds_us(trace)] == [
        (start, 602.5) for start in begins
    ]
    assert trace.device_spans.sort("start_ns")["step"].to_list() == [
        *[0] * 4,
        *[1] * 4,
        None,
        *[2] * 4,
        *[3] * 4,
    ]


@needs_corpus
def test_the_step_of_a_real_server(tmp_path: Path) -> None:
    """vLLM's decode of 32 sequences, whose name also tells what attention works on."""
    trace = foretrace.open(CORPUS / "peers" / "tracelens" / "vllm_decode_graph_execution.json.gz")
    (step,) = trace.steps
    assert (trace.meta["step_marks"]["source"], step.kind) == ("server", "decode")
    name = trace.meta["step_marks"]["name"]
    assert (tokens_of(name), lengths_of(name)) == (32, (Lengths(0, 0, 0), Lengths(32, 55086, 55086)))
    assert set(trace.device_spans["step"].to_list()) == {0}


@needs_corpus
@pytest.mark.parametrize(
    ("name", "left_out", "source"),
    [
        ("other/multirank_gloo/rank0.json.gz", ("ProfilerStep#",), "optimizer"),
        ("h200/slow_dataloader.slow.lite.json.gz", ("ProfilerStep#", "Optimizer."), "loader"),
    ],
)
def test_steps_found_in_real_recordings_are_those_that_were_marked(
    name: str, left_out: tuple[str, ...], source: str, tmp_path: Path
) -> None:
    """Without the profiler's marks, the step takes within 1 % of the same time on both clocks."""
    document = json.loads(gzip.decompress((CORPUS / name).read_bytes()))
    document["traceEvents"] = [
        event for event in document["traceEvents"] if not str(event.get("name")).startswith(left_out)
    ]
    path = tmp_path / "unmarked.json"
    path.write_text(json.dumps(document))
    found, marked = (foretrace.open(file, cache=False) for file in (path, CORPUS / name))
    assert found.meta["step_marks"]["source"] == source
    told, known = (analyze.run(trace, "steps").values for trace in (found, marked))
    assert told["step_count"] == known["step_count"]
    for clock in ("step_gpu_ns", "step_host_ns"):
        assert told[clock] == pytest.approx(known[clock], rel=0.01)
