"""The diagnosis as a whole: its contract, its order, and the corpus's pairs with a measured speed-up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrace
from foretrace.commands import main
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, _order, diagnose, fix_of
from foretrace.diagnose.finding import Alternative, Finding, Fix
from foretrace.diagnose.rule import SECTIONS, Rule
from foretrace.diagnose.step_times import step_times
from foretrace.errors import MissingDataError, UsageError
from foretrace.intervals import Intervals
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Calls, ProgramTime, Tasks
from foretrace.predict.prediction import Prediction, Span
from foretrace.present.text.findings import finding_lines, to_markdown
from tests.corpus import CORPUS, needs_corpus

SAMPLE = next((Path(foretrace.__file__).parent / "samples").glob("*.json.gz"))

# Recording -> the rule that is its fault, and whether the corpus measured the fix alone.
FAULTS = {
    "naive_attention": "unfused-attention",
    "pageable_h2d": "pageable-copy",
    "host_stall": "host-stall",
    "nchw_conv": "layout-conversions",
}


def diagnosed(name: str) -> tuple[Diagnosis, dict[str, Any]]:
    stem, variant = name.split(".")[:2]
    truth = json.loads((CORPUS / "h200" / f"{stem}.truth.json").read_text())
    trace = foretrace.open(CORPUS / "h200" / f"{name}.json.gz", cache=False)
    return diagnose(Case(trace, step_ns=truth[variant]["step_ms"] * 1e6), RULES), truth


@pytest.fixture
def sample() -> foretrace.Trace:
    return foretrace.open(SAMPLE, cache=False)


def _finding(rule: str, change: Change | None) -> Finding:
    return Finding(rule=rule, says="", why="", fix=Fix("", ""), evidence={}, change=change)


def _rule(name: str, *findings: Finding) -> Rule:
    return Rule(name, lambda case: iter(findings), title="", topic="", see="")


@pytest.mark.slow
def test_findings_come_in_order_of_what_they_save(sample: foretrace.Trace) -> None:
    case = Case(sample)
    dur = case.program.task_dur_ns
    some = {int(task): int(dur[task] * 0.9) for task in range(len(dur))}
    more = {int(task): int(dur[task] * 0.5) for task in range(len(dur))}
    small = _rule("small", _finding("small", Change("a tenth less", Edit(durations_ns=some))))
    large = _rule("large", _finding("large", Change("half", Edit(durations_ns=more))))
    none = _rule("none", _finding("none", None))
    found = diagnose(case, (none, small, large))
    assert [each.rule for each in found.findings] == ["large", "small", "none"]
    assert (found.findings[0].severity, found.findings[-1].severity) == ("high", "low")
    assert found.findings[0].predicted is not None
    assert found.findings[0].predicted.speedup.point == pytest.approx(2, rel=0.05)


@pytest.mark.slow
def test_all_gains_together_are_replayed_together(sample: foretrace.Trace) -> None:
    """Two rules that shorten the same kernels to the same length gain once."""
    case = Case(sample)
    dur = case.program.task_dur_ns
    half = Edit(durations_ns={int(task): int(dur[task] * 0.5) for task in range(len(dur))})
    rules = tuple(_rule(name, _finding(name, Change(name, half))) for name in ("one", "two"))
    found = diagnose(case, rules)
    assert found.combined is not None
    assert found.combined.speedup.point == pytest.approx(2, rel=0.05)


def _choices(case: Case, plain: float, **others: tuple[float, bool]) -> Rule:
    """A rule with a plain fix and alternatives: what is left of every kernel's time, and whether each may lead."""
    dur = case.program.task_dur_ns

    def change(label: str, left: float) -> Change:
        return Change(label, Edit(durations_ns={task: int(dur[task] * left) for task in range(len(dur))}))

    alternatives = tuple(
        Alternative(label, Fix(f"Do {label}.", label), change(label, left), may_lead=may_lead)
        for label, (left, may_lead) in others.items()
    )
    finding = _finding("unfused-attention", change("plain", plain))
    return _rule(
        finding.rule,
        replace(finding, fix=Fix("Do plain.", "plain"), label="plain", alternatives=alternatives),
    )


def test_of_alternatives_the_one_that_promises_most_is_the_fix(sample: foretrace.Trace) -> None:
    case = Case(sample)
    (found,) = diagnose(case, (_choices(case, 0.8, slower=(1.2, True), half=(0.5, True)),)).findings
    assert (found.label, found.fix.code, found.severity) == ("half", "half", "high")
    assert [other.label for other in found.alternatives] == ["plain", "slower"]
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(2, rel=0.05)
    plain, slower = (other.predicted for other in found.alternatives)
    assert plain is not None
    assert plain.speedup.point == pytest.approx(1.25, rel=0.05)
    assert slower is not None
    assert slower.verdict == "no gain"
    assert slower.speedup.point < 1


def test_the_plain_fix_leads_where_another_is_hardly_better_or_needs_a_check(sample: foretrace.Trace) -> None:
    case = Case(sample)
    (close,) = diagnose(case, (_choices(case, 0.5, close=(0.495, True)),)).findings
    assert (close.label, [other.label for other in close.alternatives]) == ("plain", ["close"])
    (checked,) = diagnose(case, (_choices(case, 0.8, unsafe=(0.4, False)),)).findings
    assert checked.label == "plain"
    assert checked.change is not None
    assert checked.change.says == "plain"


def test_any_alternative_can_be_predicted_by_its_label(sample: foretrace.Trace) -> None:
    case = Case(sample)
    rules = (_choices(case, 0.8, half=(0.5, True)), _rule("silent"))
    assert fix_of(case, "unfused-attention", rules).says == "half"
    assert fix_of(case, "unfused-attention:plain", rules).says == "plain"
    with pytest.raises(UsageError, match="no fix named 'third' here; there are: half, plain"):
        fix_of(case, "unfused-attention:third", rules)
    with pytest.raises(MissingDataError):
        fix_of(case, "silent:plain", rules)


def test_alternatives_are_printed_below_the_fix(sample: foretrace.Trace) -> None:
    case = Case(sample)
    found = diagnose(case, (_choices(case, 0.8, half=(0.5, True)),))
    lines = ["".join(text for text, _ in line) for line in finding_lines(found, step_times(case), 100)]
    place = lines.index("    Do plain.")
    assert lines[place - 1].startswith("  or plain  gain, × 1.2")
    assert "   - or plain (gain, × 1.2" in to_markdown(found, step_times(case), "sample")


def test_two_findings_about_the_same_time_of_the_host_say_so(sample: foretrace.Trace) -> None:
    """The second names the first; one about other time names nobody."""
    wait, more = (
        Intervals(np.array([0]), np.array([5_000_000])),
        Intervals(np.array([0]), np.array([9_000_000])),
    )
    rules = tuple(
        _rule(name, _finding(name, Change(name, Edit(removed_host=ProgramTime(host)))))
        for name, host in (("one", wait), ("two", wait), ("three", more))
    )
    says = {each.rule: each.says for each in diagnose(Case(sample), rules).findings}
    assert [name for name, text in says.items() if "the same time as in" in text] == ["two"]
    assert says["two"].endswith("That is the same time as in one.")


def test_a_fix_that_leaves_nothing_of_the_step_is_not_predicted(sample: foretrace.Trace) -> None:
    """Found by tests/fuzz: a damaged recording may hold nothing but what one rule would take away."""
    case = Case(sample)
    program = case.program
    everything = Edit(
        removed_tasks=Tasks(np.arange(len(program.task_dur_ns))),
        removed_host=ProgramTime(Intervals(np.array([0]), np.array([program.measured_host_ns]))),
        removed_calls=Calls(np.arange(len(program.kind))),
    )
    found = diagnose(
        case, (_rule("unfused-attention", _finding("unfused-attention", Change("all", everything))),)
    )
    assert found.findings == ()
    assert "nothing is left of the step with: all" in found.unchecked[0].why


def test_a_rule_that_cannot_look_is_unchecked_and_one_that_finds_nothing_is_checked(
    sample: foretrace.Trace,
) -> None:
    def blind(case: Case) -> Iterator[Finding]:
        raise MissingDataError("no shapes recorded; record with record_shapes=True")
        yield

    found = diagnose(Case(sample), (Rule("blind", blind, title="", topic="", see=""), _rule("content")))
    assert [each.rule for each in found.unchecked] == ["blind"]
    assert "record_shapes" in found.unchecked[0].why
    assert found.checked == ("content",)


@pytest.mark.slow
def test_json_is_the_documented_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(SAMPLE), "--step-ms", "50.5", "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == 1
    assert set(printed) >= {"schema", "foretrace", "trace", "trust", "overview", "findings", "combined"}
    assert set(printed["trace"]) == {"path", "format", "devices", "rank", "world_size", "events"}
    assert set(printed["trust"]) == {"verdict", "notes"}
    assert printed["overview"]["unprofiled_step_ms"] == 50.5
    first = printed["findings"][0]
    assert set(first) >= {"rule", "severity", "says", "why", "where", "evidence", "fix", "predicted"}
    assert set(first["predicted"]) == {"verdict", "step_ms", "after_ms", "speedup", "basis", "not_promised"}
    assert {each["severity"] for each in printed["findings"]} <= {"high", "medium", "low", "unchecked"}


@pytest.mark.slow
def test_the_sample_is_diagnosed_and_its_fix_is_worth_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sample is the corpus's naive_attention: 50.5 ms a step, 16.5 ms with fused attention."""
    assert main(["diagnose", str(SAMPLE), "--step-ms", "50.5", "--format", "json"]) == 0
    first = json.loads(capsys.readouterr().out)["findings"][0]
    assert first["rule"] == "unfused-attention"
    after = first["predicted"]["after_ms"]
    assert after["low"] <= 16.5 <= after["high"]
    assert after["point"] == pytest.approx(16.5, rel=0.1)


@pytest.mark.slow
def test_markdown_and_table_name_the_finding(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("md", "table"):
        assert main(["diagnose", str(SAMPLE), "--format", form]) == 0
        assert "unfused-attention" in capsys.readouterr().out


def test_explain_prints_the_manual_page_of_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--explain", "unfused-attention"]) == 0
    page = capsys.readouterr().out.splitlines()
    assert [line for line in page if line in SECTIONS] == list(SECTIONS)
    assert any(line.startswith("    least_share") and "judgement" in line for line in page)
    assert main(["diagnose", "--explain", "nothing"]) == 2
    assert main(["diagnose"]) == 2


@needs_corpus
@pytest.mark.parametrize("form", ["lite", "rich"])
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_of_a_recording_comes_first(name: str, form: str) -> None:
    found, truth = diagnosed(f"{name}.slow.{form}")
    assert found.findings[0].rule == FAULTS[name]
    line = truth["truth"].get("line")
    if form == "rich" and line:
        place = found.findings[0].where[0]
        assert place.file
        assert place.line or place.lines, "other recordings than our own may leave several lines"


@needs_corpus
@pytest.mark.parametrize("name", FAULTS)
def test_the_worth_of_a_fix_is_close_to_what_was_measured(name: str) -> None:
    """Known step, light recording: within 15 % of the measured range, and promised as a gain."""
    found, truth = diagnosed(f"{name}.slow.lite")
    predicted = found.findings[0].predicted
    assert predicted is not None
    assert predicted.verdict == "gain"
    low, high = truth["speedup_range"]
    assert low / 1.15 <= predicted.speedup.point <= high * 1.15


def test_every_rule_says_where_to_see_its_evidence() -> None:
    from foretrace import analyze

    for rule in RULES:
        name, *options = rule.see.split()
        known = {f"--{option.replace('_', '-')}" for option in analyze.find(name).options}
        assert set(options) <= known, rule.name


@needs_corpus
def test_lines_come_from_the_rich_recording_and_times_from_the_light_one() -> None:
    """The fault is in naive_attention's `attend`; a light recording has no stacks, a rich one is slower."""
    light, truth = diagnosed("naive_attention.slow.lite")
    path = CORPUS / "h200" / "naive_attention.slow.rich.json.gz"
    trace = foretrace.open(CORPUS / "h200" / "naive_attention.slow.lite.json.gz", cache=False)
    step_ns = truth["slow"]["step_ms"] * 1e6
    both = diagnose(Case(trace, step_ns=step_ns, open_rich=lambda: foretrace.open(path, cache=False)), RULES)
    rich, _ = diagnosed("naive_attention.slow.rich")
    first, alone, named = (each.findings[0] for each in (both, light, rich))
    assert first.rule == alone.rule == named.rule == "unfused-attention"
    assert first.predicted == alone.predicted
    assert first.evidence == alone.evidence
    assert [place.file for place in alone.where] == [None] * len(alone.where)
    assert first.where == named.where
    assert first.where[0].file is not None
    light_only = {each.rule for each in light.unchecked}
    looked = light_only - {each.rule for each in both.unchecked}
    assert looked  # such as those that need memory or stacks
    ours = [each for each in both.findings if each.rule in light_only]
    assert all(each.change is None and "spans" not in each.evidence for each in ours)


@needs_corpus
def test_a_recording_that_is_not_trusted_is_promised_nothing() -> None:
    """13 s of compilation in one step, and the trust report says no."""
    trace = foretrace.open(CORPUS / "peers" / "hta" / "triton_example__triton_example.json.gz", cache=False)
    found = diagnose(Case(trace), RULES)
    assert found.findings
    assert [each.rule for each in found.findings if each.predicted and each.predicted.verdict == "gain"] == []
    assert found.combined is None


@pytest.mark.slow
def test_no_trust_takes_a_promise_back(sample: foretrace.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(sample)
    (trusted, *_) = diagnose(case, RULES).findings
    assert trusted.predicted is not None
    assert trusted.predicted.verdict == "gain"
    values = {**case.result("trust").values, "verdict": "no"}
    monkeypatch.setitem(case._results, "trust[]", replace(case.result("trust"), values=values))
    (doubted, *_) = diagnose(case, RULES).findings
    assert doubted.predicted is not None
    assert (doubted.rule, doubted.predicted.verdict) == (trusted.rule, "uncertain")
    assert doubted.predicted.speedup == trusted.predicted.speedup
    assert "not to be trusted" in doubted.predicted.basis


# What each faulty program of the corpus was written to show; matmul_add's steps are too small for anything else.
FIRST = {
    "decode_launch_bound": "launch-bound", "elementwise_chain": "unfused-elementwise", "fp32_gemm": "no-tensor-cores",
    "host_stall": "host-stall", "item_sync": "host-sync", "matmul_add": "launch-bound",
    "naive_attention": "unfused-attention", "nchw_conv": "layout-conversions", "pageable_h2d": "pageable-copy",
    "slow_dataloader": "input-bound",
}  # fmt: skip


@needs_corpus
@pytest.mark.parametrize("form", ["lite", "rich"])
@pytest.mark.parametrize("name", FIRST)
def test_the_fault_comes_first(name: str, form: str) -> None:
    found, _ = diagnosed(f"{name}.slow.{form}")
    assert found.findings[0].rule == FIRST[name]


def test_a_rich_recording_that_nobody_asks_for_is_not_opened(sample: foretrace.Trace) -> None:
    def opened() -> foretrace.Trace:
        raise AssertionError("it was opened")

    case = Case(sample, step_ns=50e6, open_rich=opened)
    assert diagnose(case, (_rule("content"),)).checked == ("content",)
    with pytest.raises(AssertionError, match="it was opened"):
        diagnose(case, (_rule("nowhere", _finding("nowhere", None)),))


def _worth(rule: str, verdict: str, speedup: float, *, general: bool = False) -> Finding:
    times = Span(speedup, speedup - 0.1, speedup + 0.1)
    predicted = Prediction(verdict, 1e6, Span(1e6 / speedup, 0, 1e6), times, "made by hand")
    return replace(_finding(rule, None), predicted=predicted, general=general)


def _ordered(*findings: Finding) -> list[str]:
    return [finding.rule for finding in sorted(findings, key=_order)]


def test_gains_come_first_whatever_else_may_be_worth() -> None:
    found = (
        _finding("none", None),
        _worth("nothing", "no gain", 1.0),
        _worth("doubtful", "uncertain", 9.0),
        _worth("perhaps", "no gain", 1.05),
        _worth("small", "gain", 1.1),
        _worth("large", "gain", 2.0),
    )
    expected = ["large", "small", "doubtful", "perhaps", "nothing", "none"]
    assert _ordered(*found) == _ordered(*reversed(found)) == expected


@pytest.mark.parametrize("verdict", ["gain", "uncertain"])
def test_a_general_fix_stands_behind_a_specific_one_unless_it_is_worth_much_more(verdict: str) -> None:
    """1.35 times as much: before a specific fix of x 2 one of x 2.8, not one of x 2.6."""
    specific = _worth("specific", verdict, 2.0)
    for speedup, expected in ((2.6, ["specific", "general"]), (2.8, ["general", "specific"])):
        assert _ordered(_worth("general", verdict, speedup, general=True), specific) == expected
    assert _ordered(_worth("plain", verdict, 2.6), specific) == ["plain", "specific"]
