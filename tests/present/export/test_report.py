from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from foretrace.diagnose.case import Case
from foretrace.errors import MissingDataError, UsageError
from foretrace.present.export import report
from foretrace.present.export.perfetto_page import hash_of
from foretrace.present.web import binary, payload, static_files, timeline_cut
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.timeline import timeline
from tests.builders import Recording

pytestmark = pytest.mark.slow
SCRIPT = 'const text = "</script><!--"\n'
PAGE = {"index.html": "<!doctype html>", "app.js": SCRIPT, "app.css": "p{color:red}"}


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "static"
    folder.mkdir()
    for name, content in PAGE.items():
        (folder / name).write_text(content, encoding="utf-8")
    monkeypatch.setattr(static_files, "_folder", lambda: folder)


def training(steps: int = 4, name: str = "job.slow.json") -> Recording:
    """Steps of an operator, a kernel and many Python frames each."""
    made = Recording()
    for step in range(steps):
        at = 1000.0 * step
        made.step(step, at, at + 900).op("aten::mm", at + 10, at + 40).launch(
            at + 20, "gemm", at + 50, at + 800
        )
        for call in range(20):
            made.python(
                f"train.py({step * 20 + call}): <forward>", at + 100 + call * 10, at + 105 + call * 10
            )
    return made


def view(folder: Path, name: str = "job.slow.json", run_id: str = "1", steps: int = 4) -> RecordingView:
    return RecordingView(Case(training(steps).open(folder, name)), run_id=run_id)


class Parts(HTMLParser):
    """What a browser would find in the file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.pieces: dict[str, list[str]] = {}
        self.policy = self.script = self.style = self.title = ""
        self._into: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        self._into = [tag]
        if tag == "meta" and named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"] or ""
        if tag == "script" and "data-resource" in named:
            assert named["type"] == "application/gzip+base64"
            found = self.pieces.setdefault(str(named["data-resource"]), [])
            assert int(named["data-part"] or -1) == len(found)
            self._into = ["part", str(named["data-resource"])]

    def handle_data(self, data: str) -> None:
        if self._into[:1] == ["part"]:
            self.pieces[self._into[1]].append(data)
        elif self._into and self._into[0] in ("script", "style", "title"):
            setattr(self, self._into[0], getattr(self, self._into[0]) + data)

    def handle_endtag(self, tag: str) -> None:
        self._into = [""]

    def bytes(self, name: str) -> bytes:
        return gzip.decompress(b"".join(b64decode(piece) for piece in self.pieces[name]))

    def json(self, name: str) -> Any:
        return json.loads(self.bytes(name))


def test_a_report_holds_what_the_server_would_send(tmp_path: Path) -> None:
    slow, fixed = view(tmp_path), view(tmp_path, "job.fixed.json", "2", steps=2)
    parts = Parts(report.make([slow, fixed]).text)
    runs = parts.json("runs")
    assert runs["embedded"] is True
    assert [(run["id"], run["label"], run["state"]) for run in runs["runs"]] == [
        ("1", "slow", "ready"), ("2", "fixed", "ready"),
    ]  # fmt: skip
    assert parts.json("1/overview") == json.loads(json.dumps(payload.resource(slow, "overview")))
    assert parts.json("1/table/kernels") == json.loads(json.dumps(payload.resource(slow, "table/kernels")))
    assert parts.bytes("2/timeline") == payload.resource(fixed, "timeline")
    details = parts.json("1/spans")
    assert details
    assert all(details[span]["id"] == int(span) for span in details)
    others = [name for name in payload.RESOURCES if name not in payload.LIVE]
    available = {name.partition("/")[2] for name in parts.pieces if name.startswith("1/")}
    assert {"overview", "timeline", *({"whatif"} & set(others))} <= available


def test_nothing_but_the_page_may_run(tmp_path: Path) -> None:
    parts = Parts(report.make([view(tmp_path)]).text)
    assert parts.policy.startswith("default-src 'none'; ")
    assert f"script-src '{hash_of(parts.script)}'" in parts.policy
    assert f"style-src '{hash_of(parts.style)}'" in parts.policy
    assert "unsafe" not in parts.policy
    assert parts.script == 'const text = "<\\/script><\\!--"\n', "it cannot end its own element"


def test_a_hostile_name_is_text(tmp_path: Path) -> None:
    made = report.make([view(tmp_path, "<img src=x onerror=alert(1)>.json")]).text
    assert "<img" not in made
    assert Parts(made).title == "<img src=x onerror=alert(1)> · Foretrace"


def test_the_same_recording_gives_the_same_file(tmp_path: Path) -> None:
    assert report.make([view(tmp_path)]).text == report.make([view(tmp_path)]).text


def test_parts_are_short_and_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Parts(report.make([view(tmp_path)]).text)
    monkeypatch.setattr(report, "_PART_BYTES", 300)
    parts = Parts(report.make([view(tmp_path)]).text)
    assert max(len(piece) for pieces in parts.pieces.values() for piece in pieces) == 400
    assert len(parts.pieces["1/overview"]) > 1
    assert parts.json("1/overview") == whole.json("1/overview")


def rows(data: bytes) -> list[tuple[str, int, int, int]]:
    """The spans of a timeline: track's group, start, duration, id."""
    header, columns = binary.unpack(data)
    start, dur = timeline_cut.starts(header, columns), timeline_cut.durations(columns)
    return [
        (track["group"], int(start[at]), int(dur[at]), int(columns["id"][at]))
        for track in header["tracks"]
        for row in track["rows"]
        for at in range(row["offset"], row["offset"] + row["count"])
    ]


def left_out(made: report.Report) -> list[str]:
    found: list[str] = Parts(made.text).json("1/overview")["left_out"]
    return found


def test_python_goes_first_then_other_steps(tmp_path: Path) -> None:
    many = view(tmp_path, steps=100)
    whole = timeline(many)
    full = report.make([many])
    assert (left_out(full), full.notes) == ([], ())
    without_python = report.make([many], budget_bytes=len(full.text) - 1)
    assert left_out(without_python) == ["2,000 Python frames of the timeline"]
    kept = rows(Parts(without_python.text).bytes("1/timeline"))
    assert kept == [row for row in rows(whole) if row[0] != "python"]
    smaller = report.make([many], budget_bytes=len(without_python.text) - 1)
    assert left_out(smaller)[0] == "2,000 Python frames of the timeline"
    assert re.fullmatch(r"[\d,]+ spans outside step 99 on the timeline", left_out(smaller)[1])
    last = rows(Parts(smaller.text).bytes("1/timeline"))
    assert {row for row in kept if row[1] >= 99_000_000} <= set(last) <= set(kept)
    assert len(smaller.text) < len(without_python.text) < len(full.text)
    assert [note.startswith("job.slow: left out ") for note in smaller.notes] == [True, True]


def test_what_cannot_be_made_small_enough_is_told(tmp_path: Path) -> None:
    made = report.make([view(tmp_path)], budget_bytes=1000)
    assert made.notes[-1].endswith("MB is above the budget of 0.00 MB, and nothing more can be dropped")


def test_chosen_steps_are_kept_alone(tmp_path: Path) -> None:
    made = report.make([view(tmp_path)], steps=(1, 2))
    assert all("outside steps 1 to 2" in text for text in left_out(made))
    kept = rows(Parts(made.text).bytes("1/timeline"))
    # The GPU was idle when the first of them began: that gap reaches into it.
    starts = [row[1] for row in kept if row[0] != "idle"]
    assert min(starts) >= 1_000_000
    assert max(row[1] for row in kept) < 3_000_000
    assert min(row[1] + row[2] for row in kept) >= 1_000_000


def test_without_steps_the_end_is_kept(tmp_path: Path) -> None:
    made = Recording().launch(0, "first", 10, 20)
    for call in range(500):
        made.launch(1000 + call * 20, f"kernel{call % 7}", 1010 + call * 20, 1020 + call * 20)
    one = RecordingView(Case(made.open(tmp_path)), run_id="1")
    full = report.make([one])
    smaller = report.make([one], budget_bytes=len(full.text) - 2000)
    assert re.fullmatch(r"[\d,]+ spans outside the last [\d.]+ ms on the timeline", left_out(smaller)[0])


def test_what_no_browser_opens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="browsers fail above 0 MB: choose fewer runs, or --steps"):
        report.make([view(tmp_path)])


def test_without_a_page_it_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_files, "_folder", lambda: tmp_path / "nothing")
    with pytest.raises(
        MissingDataError, match=r"no report without the page: .*pip install --force-reinstall"
    ):
        report.make([view(tmp_path)])


def test_a_recording_without_a_gpu_has_a_report(tmp_path: Path) -> None:
    made = Recording().step(1, 0, 100).op("aten::add", 5, 20)
    parts = Parts(report.make([RecordingView(Case(made.open(tmp_path)), run_id="1")]).text)
    assert parts.json("1/table/operators")["data"]
