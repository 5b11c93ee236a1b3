"""One number for one thing: terminal, JSON, page and report of every recording of the corpus say the same."""

from __future__ import annotations

import base64
import gzip
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.analyze.concepts.host.input_waits import input_waits
from foretrace.commands import diagnose as command
from foretrace.commands import main, summary
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, diagnose
from foretrace.diagnose.opening import open_case
from foretrace.diagnose.step_times import step_times, worded
from foretrace.present.export import report
from foretrace.present.text import findings, terminal
from foretrace.present.web.payload import resource
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import timeline
from foretrace.units import format_value
from tests.corpus import CORPUS, needs_corpus, unlike

SAMPLE = next((Path(foretrace.__file__).parent / "samples").glob("*.json.gz"))
RECORDINGS = [
    SAMPLE,
    *unlike((CORPUS / "h200").glob("*.json.gz")),
    *(path for path in sorted((CORPUS / "peers").glob("*/*.json.gz")) if path.parent.name != "rocprof"),
    *sorted((CORPUS / "other" / "multirank_gloo").glob("rank0.json.gz")),
    *sorted((CORPUS / "other" / "cold_start").glob("*.json")),
    *sorted((CORPUS / "real").glob("*.tar.xz")),  # Runs, each packed
]


def milliseconds(time_ms: float | None) -> str:
    return "" if time_ms is None else str(format_value("_ns", time_ms * 1e6))


class Views:
    """What every view gives of one recording, diagnosed once."""

    def __init__(self, case: Case, printed: pytest.CaptureFixture[str]) -> None:
        found = diagnose(case, RULES)
        self.json: dict[str, Any] = json.loads(json.dumps(command._contract(case, found)))
        view = RecordingView(case)
        view.keep("diagnosis", lambda: found)
        answer = resource(view, "overview")
        assert isinstance(answer, dict)
        self.page: dict[str, Any] = json.loads(json.dumps(answer))
        self.report: dict[str, Any] = json.loads(gzip.decompress(report._overview(view).packed))
        self.drawn_steps = timeline._steps(case.whole)
        self.waits_for_input = bool(input_waits(case.whole).total_ns)
        self.terminal = self._terminal(case, found, printed)
        self.markdown = findings.to_markdown(found, step_times(case), case.whole.path.name)

    @staticmethod
    def _terminal(case: Case, found: Diagnosis, printed: pytest.CaptureFixture[str]) -> str:
        printed.readouterr()
        results, missing = summary.analyse(case.whole, ("trust", "overview", "steps"))
        terminal.show_diagnosis(case.whole, results, missing, found, step_times(case))
        return " ".join(printed.readouterr().out.split())  # lines are wrapped anywhere


@pytest.fixture(scope="module", params=RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def views_of(path: Path, printed: pytest.CaptureFixture[str], scratch: Path) -> Views:
    if path.suffix == ".xz":
        with tarfile.open(path) as packed:
            packed.extractall(scratch, filter="data")
        (path,) = (run.parent for run in scratch.glob("*/run.json"))
    case = open_case(path)  # all of them can be read: an error is one
    if not case.whole.has_device:
        pytest.skip(f"{path.name}: no GPU work recorded, so there is nothing to replay")
    return Views(case, printed)


@needs_corpus
def test_all_views_of_a_recording_give_the_same_numbers(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    views = views_of(path, capsys, tmp_path)
    assert views.report == views.page
    check_step_times(views)
    check_drawn_steps(views)
    check_shares(views)
    check_counts_and_trust(views)
    check_findings(views)
    check_together(views)


def check_step_times(views: Views) -> None:
    known = views.json["overview"]
    if known["step_known_by"] is None:
        assert (known["recorded_step_ms"], known["step_count"]) == (None, 0)
        assert "no step was recorded" in views.terminal
        return
    used = known[f"{known['step_known_by']}_step_ms"]
    assert used == pytest.approx(known["step_ms"])
    assert views.page["headline"]["before_ms"] == pytest.approx(used)
    assert views.page["waterfall"]["now_ms"] == pytest.approx(used)
    shown, caption = milliseconds(used), views.page["headline"]["caption"]
    if not known["steps"]:
        assert f"{shown} for the recording" in views.terminal
        assert "no steps are marked" in caption
        return
    how = {"unprofiled": "measured without the profiler", "estimated": "estimated without the profiler"}
    said = how[known["step_known_by"]]
    assert f"{shown}: {said}" in views.terminal
    assert said in caption
    assert said in views.markdown
    recorded = f"recorded: {milliseconds(known['recorded_step_ms'])}"
    assert known["recorded_step_ms"] is None or all(
        recorded in text for text in (views.terminal, caption, views.markdown)
    )
    on_gpu, on_host = known["step_gpu_ns"], known["step_host_ns"]
    if known["recorded_step_ms"] is not None:
        recorded_ns, median_ns = known["recorded_step_ms"] * 1e6, on_host if on_gpu is None else on_gpu
        waits_in_bursts = views.waits_for_input and recorded_ns > median_ns  # then they are averaged
        assert waits_in_bursts or recorded_ns == pytest.approx(median_ns)


def check_drawn_steps(views: Views) -> None:
    """The timeline's steps are as long as those of Overview: the wait before the first work is part of a step."""
    divided = {step["step"]: step["total_ns"] for step in views.page["step_time"]["steps"]}
    drawn = {step["step"]: step["to_ns"] - step["from_ns"] for step in views.drawn_steps}
    assert {number: drawn[number] for number in divided} == divided


def check_shares(views: Views) -> None:
    known = views.json["overview"]
    for name, label in (("gpu_busy_pct", "kernels running"), ("gpu_idle_pct", "GPU idle")):
        if known[name] is not None:
            assert format_value(name, known[name]) in views.terminal, name
            assert label in views.terminal
    if known["gpu_busy_pct"] is not None:
        said = f"{known['gpu_busy_pct']:.1f} % of the time, and {{}} idle {known['gpu_idle_pct']:.1f} %"
        assert f"runs kernels {said.format('is')}" in views.terminal
        assert not re.search("Kernels run", views.page["headline"]["says"]) or (
            f"Kernels run {said.format('the GPU is')}" in views.page["headline"]["says"]
        )
        assert known["gpu_busy_pct"] + known["gpu_idle_pct"] <= 100 + 1e-6
    parts = {part["kind"]: part["pct"] for part in views.page["step_time"]["parts"]}
    one_kind = all("kind" not in step for step in views.page["step_time"]["steps"])
    alone = len(views.json["trace"]["devices"]) <= 1
    if (
        parts
        and known["gpu_idle_pct"] is not None
        and known["step_count"] == known["steps"]
        and one_kind
        and alone
    ):
        # The steps and the time from the first to the last of them differ by what lies between two steps.
        assert parts["idle"] + parts.get("wait", 0.0) == pytest.approx(known["gpu_idle_pct"], abs=1.0)


def check_counts_and_trust(views: Views) -> None:
    known, facts = views.json["overview"], views.page["facts"]
    steps = f"{known['steps']:,} step" + ("" if known["steps"] == 1 else "s")
    assert steps in facts
    assert " · ".join(facts) in views.terminal
    complete = next(fact for fact in views.page["trust"]["facts"] if fact["label"] == "Complete steps")
    if known["steps"]:
        whole, every = complete["value"].split(" of ")
        assert int(every) == known["steps"]
        assert int(whole) >= known["step_count"]  # of the kind that takes most time, where there are several
    assert views.page["trust"]["verdict"] == views.json["trust"]["verdict"]
    assert f"trust ● {views.json['trust']['verdict']}" in views.terminal
    assert {note["code"] for note in views.page["trust"]["notes"]} == {
        note["code"] for note in views.json["trust"]["notes"]
    }


def check_findings(views: Views) -> None:
    listed = [each for each in views.json["findings"] if each["severity"] != "unchecked"]
    assert views.page["counts"]["findings"] == str(len(listed))
    assert [each["rule"] for each in views.page["findings"]] == [each["rule"] for each in listed]
    shown_count = 6  # in the terminal
    for number, (one, other) in enumerate(zip(listed, views.page["findings"], strict=True), 1):
        assert one["says"] == other["says"]
        assert one["fix"] == other["fix"]
        for own, theirs in zip([one, *one["alternatives"]], [other, *other["alternatives"]], strict=True):
            assert (own["predicted"] is None) == (theirs["predicted"] is None)
            if own["predicted"] is None:
                continue
            span = own["predicted"]["speedup"]
            assert theirs["predicted"]["speedup"] == span
            assert theirs["predicted"]["after_ms"] == own["predicted"]["after_ms"]
            assert theirs["predicted"]["verdict"] == own["predicted"]["verdict"]
            text = f"× {span['point']:.2f} ({span['low']:.2f} to {span['high']:.2f})"
            assert text in views.markdown
            assert number > shown_count or text in views.terminal


def check_together(views: Views) -> None:
    combined, headline = views.json["combined"], views.page["headline"]
    rows = views.page["waterfall"]["rows"]
    gains = [
        number
        for number, each in enumerate(views.page["findings"], 1)
        if each["predicted"] and each["predicted"]["verdict"] == "gain"
    ]
    assert (combined is None) == (headline["after_ms"] is None) == (not gains)
    if combined is None:
        assert "no fix promises a gain" in views.terminal or "no gain is promised" in views.terminal
        return
    assert headline["after_ms"] == combined["after_ms"]
    assert headline["speedup"] == combined["speedup"]
    assert views.page["waterfall"]["together_ms"] == combined["after_ms"] or len(gains) > len(rows)
    assert [row["finding"] for row in rows] == gains[: len(rows)]
    assert rows[0]["after_ms"] == views.page["findings"][gains[0] - 1]["predicted"]["after_ms"]
    after, speedup = combined["after_ms"], combined["speedup"]
    point, low, high = (milliseconds(after[end]) for end in ("point", "low", "high"))
    said = f"→ {point} ({low} to {high})"
    worth = f"× {speedup['point']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})"
    for text in (views.terminal, views.markdown):
        assert said in text
        assert worth in text


@pytest.mark.slow
def test_a_report_holds_the_page_of_the_recording(tmp_path: Path) -> None:
    """The sample's report, written by the command, against the payload that the server would send."""
    out = tmp_path / "report.html"
    assert main(["report", str(SAMPLE), "-o", str(out), "--no-cache"]) == 0
    view = RecordingView(open_case(SAMPLE))
    answer = resource(view, "overview")
    assert isinstance(answer, dict)
    pattern = r'data-resource="\d+/overview" data-part="\d+">([^<]*)</script>'
    packed = b"".join(map(base64.b64decode, re.findall(pattern, out.read_text(encoding="utf-8"))))
    embedded = json.loads(gzip.decompress(packed))
    made = json.loads(json.dumps(answer))
    assert made["headline"]["after_ms"] is not None
    for part in ("headline", "waterfall", "findings", "trust", "step_time", "counts", "facts"):
        assert embedded[part] == made[part], part


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("40 kernels a step take 3 %", "40 kernels in the recording take 3 %"),
        ("5 % of a step is idle", "5 % of the recording is idle"),
        ("0.7 % of the step, less than 5 %", "0.7 % of the recording, less than 5 %"),
        ("Autograd makes 9 nodes in every step", "Autograd makes 9 nodes in the recording"),
    ],
)
def test_where_no_steps_are_marked_nothing_is_said_of_a_step(text: str, said: str) -> None:
    assert worded(text, marked=True) == text
    assert worded(text, marked=False) == said
