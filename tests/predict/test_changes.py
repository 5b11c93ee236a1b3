"""Changes: their grammar, what they edit, and what a step with them takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import foretrace
from foretrace.commands import main
from foretrace.errors import MissingDataError, UsageError
from foretrace.intervals import union
from foretrace.predict import edits
from foretrace.predict.builder import build
from foretrace.predict.calibrate import Calibration, calibrate
from foretrace.predict.changes import Change, apply, parse
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Calls, ProgramTime
from foretrace.predict.prediction import predict
from foretrace.predict.replay import replay
from foretrace.predict.steady import step_ns
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.ingest.graph_files import STEP, Program
from tests.predict.programs import Draft


def device_bound(draft: Draft) -> Calibration:
    program = draft.program()
    return Calibration(program, step_ns(program), "made by hand", True, True, False)


def test_a_shorter_kernel_shortens_a_device_bound_step_by_as_much() -> None:
    fitted = device_bound(Draft(queue_calls=4).launch(1, 1, 600).launch(1, 1, 400))
    result = predict(fitted, (Change("half of the first", Edit(durations_ns={0: 300})),))
    assert result.after_ns.point == pytest.approx(700, rel=0.01)
    assert result.verdict == "gain"


def test_a_shorter_kernel_off_the_critical_path_gains_nothing() -> None:
    """The mistake that adding savings makes: 500 ns less on a stream that waits for the other anyway."""
    draft = Draft(queue_calls=4).launch(1, 1, 1000, stream=0).launch(1, 1, 600, stream=1).sync(0, 1)
    result = predict(device_bound(draft), (Change("less on the side stream", Edit(durations_ns={1: 100})),))
    assert result.speedup.point == pytest.approx(1.0, abs=0.01)
    assert result.verdict == "no gain"


def test_changes_together_are_simulated_not_added() -> None:
    """Two streams of 1000 ns: shortening either alone gains nothing, both together halve the step."""
    draft = Draft(queue_calls=4).launch(1, 1, 1000, stream=0).launch(1, 1, 1000, stream=1).sync(0, 1)
    fitted = device_bound(draft)
    first, second = (Change(f"task {task}", Edit(durations_ns={task: 500})) for task in (0, 1))
    assert predict(fitted, (first,)).speedup.point == pytest.approx(1.0, abs=0.01)
    assert predict(fitted, (first, second)).speedup.point == pytest.approx(2.0, rel=0.02)


def test_dropping_a_wait_lets_the_host_run_ahead() -> None:
    fitted = device_bound(Draft().launch(300, 10, 500).sync(0, 1, wake=7))
    result = predict(fitted, (Change("no sync", Edit(unwaited_calls=Calls(np.array([1])))),))
    assert result.step_ns == pytest.approx(300 + 500 + 7, rel=0.01)
    assert result.after_ns.point == pytest.approx(500, rel=0.01)


def test_work_moved_to_its_own_stream_overlaps() -> None:
    fitted = device_bound(Draft(queue_calls=4).launch(1, 1, 500).launch(1, 1, 500))
    result = predict(fitted, (Change("move", Edit(moved_tasks={1: 2})),))
    assert result.after_ns.point == pytest.approx(500, rel=0.01)


def test_removed_calls_take_their_work_and_their_time_with_them() -> None:
    program = Draft().launch(100, 10, 50).launch(100, 10, 50).launch(100, 10, 50).program()
    changed = edits.apply(program, Edit(removed_calls=Calls(np.array([1]))))
    run = replay(changed)
    assert len(run.task_end_ns) == 2
    assert run.host_ns == 3 * 100 + 2 * 10


def test_removed_host_time_shrinks_the_gaps_that_it_lies_in() -> None:
    program = Draft().call(100, 10).call(100, 10).program()
    removed = union([20, 130], [70, 160])  # 50 of the first gap, 30 of the second
    assert edits.apply(program, Edit(removed_host=ProgramTime(removed))).gap_ns.tolist() == [50, 70]


def test_nothing_changed_is_exactly_no_gain() -> None:
    fitted = device_bound(Draft(queue_calls=4).launch(1, 1, 600).launch(1, 1, 400))
    result = predict(fitted, (Change("nothing", Edit(), exact=True),))
    assert (result.speedup.point, result.speedup.low, result.speedup.high) == (1.0, 1.0, 1.0)
    assert result.verdict == "no gain"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    made = Recording()
    for number in range(3):
        at = 1000.0 * number
        made.step(number, at, at + 1000)
        made.op("aten::mm", at + 100, at + 200)
        made.launch(at + 150, "gemm", at + 160, at + 560)
        made.op("aten::copy_", at + 300, at + 420)
        made.launch(at + 350, "copy_kernel", at + 560, at + 660)
        made.runtime("cudaStreamSynchronize", at + 430, at + 665)
    return made.write(tmp_path)


def test_selectors_find_kernels_operators_and_calls(recording: Path) -> None:
    trace = foretrace.open(recording, cache=False)
    program = build(trace)
    assert parse("scale kernel:gemm 0.5", trace, program).edit.durations_ns == {
        0: 200_000,
        2: 200_000,
        4: 200_000,
    }
    assert set(parse("set kernel:~copy 7us", trace, program).edit.durations_ns.values()) == {7_000}
    removed = parse("remove op:aten::copy_", trace, program).edit
    assert removed.removed_host.total_ns == 3 * 120_000
    assert program.call_start_ns[removed.removed_calls].tolist() == [350_000, 1_350_000, 2_350_000]
    assert len(parse("unwait call:~Synchronize", trace, program).edit.unwaited_calls) == 3


def test_a_synchronising_step_without_its_wait_is_predicted_by_hand(recording: Path) -> None:
    """Device work of 500 µs and a host of 765 µs (1000 less the wait of 235): the host is left."""
    trace = foretrace.open(recording, cache=False)
    program = build(trace)
    after = step_ns(apply(program, (parse("unwait call:~Synchronize", trace, program),)))
    assert after / 1e3 == pytest.approx(765, rel=0.01)


@pytest.mark.parametrize(
    "text",
    ["", "shrink kernel:gemm 2", "scale kernel:gemm", "scale kernel:gemm fast", "set kernel:gemm 20", "scale thing:x 2",
     "scale kernel:~( 0.5", "add kernel:gemm 5us", "scale host", "remove op:a under:b under:c"],
)  # fmt: skip
def test_a_change_that_cannot_be_read_is_a_usage_error(recording: Path, text: str) -> None:
    trace = foretrace.open(recording, cache=False)
    with pytest.raises(UsageError):
        parse(text, trace, build(trace))


def test_a_name_that_is_not_there_is_said_to_be_missing(recording: Path) -> None:
    trace = foretrace.open(recording, cache=False)
    with pytest.raises(MissingDataError, match="no kernel of that name"):
        parse("scale kernel:flash 0.5", trace, build(trace))


@pytest.mark.slow
def test_the_command_prints_the_contract(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(recording), "--change", "scale kernel:gemm 0.5", "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {
        "schema",
        "foretrace",
        "path",
        "changes",
        "verdict",
        "step_ms",
        "after_ms",
        "speedup",
        "basis",
        "not_promised",
    }
    assert set(printed["speedup"]) == {"point", "low", "high"}
    assert main(["predict", str(recording), "--change", "scale kernel:gemm 0.5"]) == 0
    assert "→" in capsys.readouterr().out
    assert main(["predict", str(recording), "--change", "nonsense"]) == 2
    assert main(["predict", str(recording), "--change", "remove kernel:none"]) == 4
    capsys.readouterr()
    for change, code, meant in (
        ("scal kernel:gemm 0.5", 2, "did you mean scale?"),
        ("scale kernle:gemm 0.5", 2, "did you mean kernel?"),
        ("scale kernel:gem 0.5", 4, "did you mean gemm?"),
    ):
        assert main(["predict", str(recording), "--change", change]) == code
        assert meant in capsys.readouterr().err


def test_changes_that_leave_nothing_are_a_usage_error() -> None:
    fitted = device_bound(Draft(queue_calls=4).launch(1, 1, 600))
    nothing = Change(
        "all", Edit(removed_calls=Calls(np.array([0])), removed_host=ProgramTime(union([0], [1])))
    )
    with pytest.raises(UsageError, match="nothing is left of the step"):
        predict(fitted, (nothing,))


@needs_corpus
def test_pinned_copies_on_their_own_stream_are_worth_what_was_measured() -> None:
    """pageable_h2d's fix: 200 MB a step at 55 GB/s (measured on that machine) instead of pageable, not waited for."""
    truth = json.loads((CORPUS / "h200" / "pageable_h2d.truth.json").read_text())
    trace = foretrace.open(CORPUS / "h200" / "pageable_h2d.slow.lite.json.gz")
    fitted = calibrate(trace, build(trace), step_ns=truth["slow"]["step_ms"] * 1e6)
    texts = ("unwait call:~Memcpy", "move copy:~HtoD", "set copy:~HtoD 3660us")
    result = predict(fitted, tuple(parse(text, trace, fitted.program) for text in texts))
    low, high = truth["speedup_range"]
    assert low / 1.1 <= result.speedup.point <= high * 1.1
    assert result.verdict == "gain"


def test_operators_of_a_replayed_graph_can_be_changed(tmp_path: Path) -> None:
    """A step of five nodes of 8 us, two of them products: without those, 16 us less of GPU work."""
    program = Program().capture(STEP)
    for _ in range(3):
        program.replay(STEP, label="execute_context_0(0)_generation_8(8)")
    trace = program.recording.open(tmp_path)
    built = build(trace)
    removed = parse("remove op:aten::mm", trace, built).edit.removed_tasks
    assert built.task_dur_ns[removed].sum() == 3 * 16_000
    halved = parse("scale op:aten::mm 0.5", trace, built).edit
    assert set(halved.durations_ns.values()) == {4_000}
