"""The guard: no recording that cannot carry a gain promises one, whichever rule asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace.analyze.trust import judge
from foretrace.commands import main
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.promises import WITHOUT_PROMISE, why_not
from foretrace.diagnose.rule import Rule
from foretrace.diagnose.rules.host.host_stall import host_stall
from foretrace.hardware import DEVICES
from foretrace.predict.changes import Change
from foretrace.predict.costs.measured_on import ELSEWHERE, HERE, UNKNOWN, model_for
from foretrace.predict.edits import Edit
from foretrace.predict.prediction import Prediction, Span
from foretrace.trace import Trace
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.kernels import Op, device_bound
from tests.diagnose.loops import H200

LENGTH = 3_000.0
TO_HOST = "Memcpy DtoH (Device -> Pageable)"
GEMM = "ampere_sgemm_128x128_nn"


def stalling(
    *, steps: int = 3, marked: bool = True, operators: bool = True, stall: float = 1_976.0, apart: int = 1, **header: object
) -> Recording:  # fmt: skip
    """Steps of 1,000 µs of kernel, whose result is waited for, and then of Python that the device waits for.

    `apart` is how far the numbers lie apart that the profiler gave to two operators in turn.
    """
    recording = Recording(deviceProperties=[H200], **header)
    length = 1_024.0 + stall
    for number in range(steps):
        at = number * length
        if marked:
            recording.step(number, at, at + length)
        if operators:
            recording.op("aten::mm", at, at + 10, **{"External id": apart * (2 * number + 1)})
            recording.op("aten::to", at + 12, at + 1_024, **{"External id": apart * (2 * number + 2)})
        recording.launch(at + 5, "gemm", at + 10, at + 1_010, call=3)
        recording.launch(at + 14, TO_HOST, at + 1_012, at + 1_017, category="gpu_memcpy", call=3, bytes=4)
        recording.runtime("cudaStreamSynchronize", at + 18, at + 1_022)
    return recording


def _shorter(case: Case) -> Iterator[Finding]:
    """A rule that knows nothing of trust: kernels could take a tenth of their time."""
    durations = {int(task): int(dur) // 10 for task, dur in enumerate(case.program.task_dur_ns)}
    change = Change("kernels shorter", Edit(durations_ns=durations))
    yield Finding(says="", why="", fix=Fix("", ""), evidence={}, change=change)


SHORTER = Rule("shorter", _shorter, title="", topic="", see="trust")


def predicted_for(trace: Trace, *, rule: Rule = SHORTER, step_ns: float | None = None) -> Prediction:
    (found,) = diagnose(Case(trace, step_ns=step_ns), (rule,)).findings
    assert found.predicted is not None
    return found.predicted


def test_three_whole_steps_carry_a_promise(tmp_path: Path) -> None:
    predicted = predicted_for(stalling().open(tmp_path))
    assert (predicted.verdict, predicted.not_promised) == ("gain", "")


def two_processes() -> Recording:
    recording = stalling()
    return recording.add("cpu_op", "aten::mul", 50.0, 10.0, 101, 101)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: stalling(steps=1), "only one whole step"),
        (lambda: stalling(marked=False), "no steps are marked"),
        (lambda: stalling(operators=False), "no operators were recorded"),
        (lambda: stalling(apart=100), "sampled or filtered"),
        (two_processes, "other processes were at work"),
    ],
)
def test_a_recording_that_cannot_carry_a_promise_makes_none(
    tmp_path: Path, made: Callable[[], Recording], why: str
) -> None:
    """The finding stays with its number, and says why that is not promised."""
    predicted = predicted_for(made().open(tmp_path))
    assert predicted.speedup.point > 1.3
    assert predicted.verdict == "uncertain"
    assert why in predicted.not_promised
    assert f"Not promised: {predicted.not_promised}." in predicted.basis


@pytest.mark.slow
def test_a_stated_step_far_from_the_recorded_one_is_said_and_not_promised_from(tmp_path: Path) -> None:
    """470 ms stated, 3 ms recorded."""
    trace = stalling().open(tmp_path)
    found = diagnose(Case(trace, step_ns=470e6), RULES)
    assert not found.promised
    note = next(note for note in judge(trace).notes if note.code == "stated-step-far")
    assert "470 ms" in note.says
    assert "3.00 ms" in note.says
    assert note.values["recorded_ns"] == 3_000_000
    assert judge(trace).verdict == "no"
    Case(trace)  # without a stated step there is nothing to compare with
    assert "stated-step-far" not in [note.code for note in judge(trace).notes]


@pytest.mark.parametrize("times", [0.2, 0.5, 1.0, 2.0])
def test_a_stated_step_that_recording_may_have_lengthened_is_no_note(tmp_path: Path, times: float) -> None:
    trace = stalling().open(tmp_path)
    Case(trace, step_ns=times * LENGTH * 1_000)
    assert "stated-step-far" not in [note.code for note in judge(trace).notes]


def test_no_more_is_said_than_a_few_events_can_tell(tmp_path: Path) -> None:
    """Five events in a step of 10 s, 0.01 % of which they fill: what is left without the rest is not in the recording."""
    recording = Recording(deviceProperties=[H200])
    for number in range(3):
        at = number * 1e7
        recording.step(number, at, at + 1e7).op("aten::mm", at, at + 10)
        recording.launch(at + 5, "gemm", at + 10, at + 1_010, call=3)
        recording.runtime("cudaStreamSynchronize", at + 18, at + 1_022)
    predicted = predicted_for(recording.open(tmp_path), rule=host_stall)
    assert predicted.verdict == "uncertain"
    assert predicted.speedup.high <= 5
    assert predicted.after_ns.point >= predicted.step_ns / 5
    assert "events fill 0.01 % of a step of 10.0 s" in predicted.not_promised


def test_a_ratio_of_work_that_was_recorded_is_told_from_few_events(tmp_path: Path) -> None:
    """One kernel of 10 ms a step and little else: it is the step, and may become a hundredth of it."""
    trace = device_bound(tmp_path, [Op("aten::mm", GEMM, 10_000)])
    case = Case(trace, step_ns=1e7)
    given = Prediction("gain", 1e7, Span(1e5, 9e4, 1.1e5), Span(100.0, 90.0, 110.0), "made by hand")
    (found,) = diagnose(case, (_rule(given),)).findings
    assert found.predicted == given


def test_a_gain_below_what_steps_differ_by_is_not_promised(tmp_path: Path) -> None:
    """Steps of 2, 3 and 4 ms: a tenth of the kernels' time saves a third, where they differ by two thirds."""
    recording = Recording(deviceProperties=[H200])
    at = 0.0
    for number, stall in enumerate((976.0, 1_976.0, 2_976.0)):
        recording.step(number, at, at + 1_024 + stall).op("aten::mm", at, at + 1_024)
        recording.launch(at + 5, "gemm", at + 10, at + 1_010, call=3)
        recording.runtime("cudaStreamSynchronize", at + 18, at + 1_022)
        at += 1_024 + stall
    trace = recording.open(tmp_path)
    predicted = predicted_for(trace)
    assert predicted.verdict == "uncertain"
    assert predicted.not_promised.startswith("the recorded steps differ by 67 %, more than the ")
    assert predicted_for(trace, step_ns=3e6).verdict == "gain"  # many more were timed


def _rule(given: Prediction) -> Rule:
    def forgetful(_: Case) -> Iterator[Finding]:
        yield Finding(says="", why="", fix=Fix("", ""), evidence={}, predicted=given)

    return Rule("forgetful", forgetful, title="", topic="", see="trust")


def test_a_rule_with_a_prediction_of_its_own_is_not_past_the_guard(tmp_path: Path) -> None:
    given = Prediction("gain", 3e6, Span(1.5e6, 1.4e6, 1.6e6), Span(2.0, 1.9, 2.1), "made by hand")
    (whole,) = diagnose(Case(stalling().open(tmp_path)), (_rule(given),)).findings
    (one,) = diagnose(Case(stalling(steps=1).open(tmp_path, "one.json")), (_rule(given),)).findings
    assert (whole.predicted, one.predicted and one.predicted.verdict) == (given, "uncertain")


def noted(case: Case, code: str, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The case with one more note in its trust report."""
    trust = case.result("trust")
    row = trust.table.head(1).with_columns(code=pl.lit(code))
    monkeypatch.setitem(case._results, "trust[]", replace(trust, table=pl.concat((trust.table, row))))
    return case


@pytest.mark.parametrize("code", WITHOUT_PROMISE)
def test_each_note_takes_the_promise(tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = noted(Case(stalling().open(tmp_path)), code, monkeypatch)
    (found,) = diagnose(case, (SHORTER,)).findings
    assert why_not(case) == WITHOUT_PROMISE[code] == (found.predicted and found.predicted.not_promised)


@pytest.mark.slow
def test_no_rule_is_past_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(foretrace.__file__).parent / "samples" / "naive_attention.json.gz"
    case = noted(Case(foretrace.open(path, cache=False)), "one-step", monkeypatch)
    found = diagnose(case, RULES)
    assert [each.rule for each in found.findings if each.predicted] != []
    assert not found.promised
    assert found.combined is None
    assert found.not_promised == WITHOUT_PROMISE["one-step"]


@pytest.mark.slow
def test_people_read_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(stalling(steps=1).write(tmp_path))
    for form in ("table", "md", "json"):
        assert main(["diagnose", path, "--format", form]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "only one whole step was recorded" in printed


def ranks(folder: Path, *stalls: float) -> list[Trace]:
    """Ranks of one job with Python of so many microseconds in each step."""
    world = len(stalls)
    return [
        stalling(stall=stall, distributedInfo={"backend": "nccl", "rank": rank, "world_size": world}).open(
            folder, f"rank{rank}.json"
        )
        for rank, stall in enumerate(stalls)
    ]


def verdicts(traces: list[Trace]) -> list[tuple[str, str]]:
    found = []
    for trace in traces:
        others = [other for other in traces if other is not trace]
        (finding,) = diagnose(Case(trace, open_ranks=partial(list, others)), (SHORTER,)).findings
        assert finding.predicted is not None
        found.append((finding.predicted.verdict, finding.predicted.not_promised))
    return found


@pytest.mark.slow
def test_ranks_that_all_gain_are_all_promised_it(tmp_path: Path) -> None:
    assert verdicts(ranks(tmp_path, 1_976.0, 1_900.0)) == [("gain", ""), ("gain", "")]


def test_what_one_rank_would_not_gain_none_is_promised(tmp_path: Path) -> None:
    """Kernels are nine tenths of rank 0's step, and a twentieth of rank 1's."""
    first, second = verdicts(ranks(tmp_path, 100.0, 20_000.0))
    assert first == ("uncertain", "the same change promises no gain on rank 1 of this job")
    assert second[0] != "gain"


@pytest.mark.slow
def test_costs_hold_less_on_other_gpus(tmp_path: Path) -> None:
    """The same program on an H200, on a GPU of another architecture, and on one that hardware.py does not know."""
    ranges = []
    for name in ("NVIDIA H200", "Tesla V100-SXM2-32GB", "Wonder 9000"):
        device = {"id": 0, "name": name, "numSms": 80 if "V100" in name else 132}
        trace = device_bound(tmp_path, [Op("aten::cat", "CatArrayBatchedCopy", 1_000)], device=device)
        case = Case(trace, step_ns=1e6)
        task = int(case.tasks["task"][0])
        modelled = Edit(durations_ns={task: 200_000}, modelled=frozenset({task}))
        ranges.append(case.predict((Change("modelled", modelled),)))
    wide = [each.speedup.high / each.speedup.low for each in ranges]
    assert wide == sorted(wide)
    assert wide[0] < wide[1] < wide[2]
    assert "range is wider" not in ranges[0].basis
    assert "another architecture" in ranges[1].basis
    assert "the peaks of this GPU are not known" in ranges[2].basis


def test_each_device_knows_how_well_costs_hold() -> None:
    off = {device.name: model_for(device).off for device in DEVICES}
    assert model_for(None).off == UNKNOWN
    assert {name for name, share in off.items() if share == HERE} == {
        name for name in off if name.startswith(("H100", "H200", "H800", "H20")) or "GH200" in name
    }
    assert set(off.values()) == {HERE, ELSEWHERE}


@needs_corpus
@pytest.mark.parametrize("rank", [0, 1])
def test_a_sampled_recording_is_told(rank: int) -> None:
    trace = foretrace.open(CORPUS / "peers" / "hta" / f"trace_filter__sampled_rank-{rank}.json.gz")
    note = next(note for note in judge(trace).notes if note.code == "events-missing")
    assert note.severity == "no"
    assert not diagnose(Case(trace), RULES).promised
