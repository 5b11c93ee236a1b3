"""Strings of a recording that a careless reader would obey: they arrive on the page whole, as data, from one end to the other."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretrace.diagnose.case import Case
from foretrace.errors import ForetraceError
from foretrace.present.export import perfetto, perfetto_page, report
from foretrace.present.web import binary, payload, static_files
from foretrace.present.web.encoding import to_json
from foretrace.present.web.library import Library
from foretrace.present.web.recording_view import RecordingView
from tests.builders import Recording

SCRIPT = "<script>window.hacked=1</script><img src=x onerror=window.hacked=2>"
CLOSE = "</script></style></title><!--<script>window.hacked=3"
QUOTES = "\"><svg onload=window.hacked=4>'"
BIDI = "kernel_\u202egnp.exe\u2066\u200b_end"
CONTROL = "ker\x00nel\x1b[31m\x07"
LONE = "half\ud800_of_a_pair"
LONG = "long_" + "kernel<int, " * 850 + "_end"
MARKDOWN = "| a | b |\n[x](javascript:window.hacked=5) `</code>`"
SEPARATORS = "line\u2028paragraph\u2029end"
FORMULA = "=cmd|' /C calc'!A0"
NAMES = (SCRIPT, CLOSE, QUOTES, BIDI, CONTROL, LONE, LONG, MARKDOWN, SEPARATORS, FORMULA)

PAGE = {"index.html": "<!doctype html>", "app.js": "start()\n", "app.css": "p{color:red}"}


def hostile() -> Recording:
    """Three steps in which every operator, kernel, frame and annotation has one of the names."""
    made = Recording(
        deviceProperties=[
            {"id": 0, "name": SCRIPT, "totalGlobalMem": 10**10, "computeMajor": 9, "numSms": 132}
        ]
    )
    for step in range(3):
        at = 20_000.0 * step
        made.step(step, at, at + 19_000)
        for number, name in enumerate(NAMES):
            begin = at + 100 + 1_500 * number
            made.annotation(name, begin, begin + 1_400)
            made.python(f"{CLOSE}.py({number}): {name}", begin + 1, begin + 1_390)
            made.op(name, begin + 2, begin + 1_300, **{"Input Dims": [[name]], "Input type": [QUOTES]})
            made.launch(begin + 10, name, begin + 100, begin + 1_200)
    return made


@pytest.fixture
def view(tmp_path: Path) -> RecordingView:
    # As a file name may be: everything but a slash.
    return RecordingView(Case(hostile().open(tmp_path, f"{SCRIPT.replace('/', '')}.json")), run_id="1")


def resources(view: RecordingView) -> Iterator[tuple[str, Any]]:
    spans = range(0, view.trace.spans.height, 7)
    names = [name for name in payload.RESOURCES if not name.endswith("/") and name not in payload.LIVE]
    tables = [
        f"table/{name}"
        for name in ("kernels", "operators", "steps", "launches", "idle", "trust", "annotations")
    ]
    for name in (*names, *tables, *(f"span/{span}" for span in spans)):
        try:
            yield name, payload.resource(view, name)
        except ForetraceError as error:
            yield name, {"says": str(error)}


@pytest.mark.slow
def test_every_resource_is_data_that_a_browser_reads(view: RecordingView) -> None:
    seen = set()
    for name, made in resources(view):
        seen.add(name.partition("/")[0])
        body = made if isinstance(made, bytes) else to_json(made)
        if isinstance(made, bytes):
            header = json.loads(to_json(binary.unpack(made)[0]))
            assert all(isinstance(each, str) for each in header["names"]), name
        else:
            assert body.isascii(), name  # no lone half of a pair, no separator that ends a line of script
            json.loads(body)
    assert {"overview", "timeline", "table", "span"} <= seen


def test_names_arrive_whole(view: RecordingView) -> None:
    kernels = payload.resource(view, "table/kernels")
    assert isinstance(kernels, dict)
    column = [each["name"] for each in kernels["columns"]].index("name")
    found = set(kernels["data"][column])
    for name in (SCRIPT, CLOSE, QUOTES, BIDI, LONG, SEPARATORS, FORMULA):
        assert name in found


class TestReport:
    @pytest.fixture(autouse=True)
    def page(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "static"
        folder.mkdir()
        for name, content in PAGE.items():
            (folder / name).write_text(content, encoding="utf-8")
        monkeypatch.setattr(static_files, "_folder", lambda: folder)

    @pytest.mark.slow
    def test_the_file_has_no_element_of_the_recording(self, view: RecordingView) -> None:
        text = report.make([view]).text
        without_data = re.sub(
            r'(<script type="application/gzip\+base64"[^>]*>)[A-Za-z0-9+/=]*(</script>)', "", text
        )
        assert "hacked" in without_data  # the title, which is escaped
        assert re.findall(r"<script|<img|<svg|onerror=\S*>", without_data) == ["<script"]
        title = re.search(r"<title>(.*)</title>", without_data)
        assert title is not None
        assert "<" not in title[1]
        assert "&lt;script&gt;" in title[1]

    @pytest.mark.slow
    def test_and_its_data_are_the_strings(self, view: RecordingView) -> None:
        text = report.make([view]).text
        part = re.search(r'data-resource="1/table/kernels" data-part="0">([^<]*)<', text)
        assert part is not None
        table = json.loads(gzip.decompress(b64decode(part[1])))
        assert any(SCRIPT in column for column in table["data"])


@pytest.mark.slow
def test_perfetto_gets_them_as_strings(view: RecordingView) -> None:
    names = {event.get("name") for event in json.loads(b"".join(perfetto.chunks(view)))["traceEvents"]}
    assert SCRIPT in names


def test_the_page_for_perfetto_has_the_name_as_text() -> None:
    made = perfetto_page.page(CLOSE + SCRIPT + QUOTES)
    assert re.findall(r"<img|<svg|<script>window", made) == []
    assert "&lt;script&gt;window.hacked=1" in made


def test_a_run_is_known_by_an_id_whatever_its_file_is_called(tmp_path: Path) -> None:
    path = hostile().write(tmp_path, f"{QUOTES}{BIDI}.json")
    library = Library([path], cache=False)
    (run,) = library.runs()["runs"]
    assert re.fullmatch(r"[0-9a-z]+", run["id"])
    assert QUOTES in run["name"]
    assert b"hacked" in to_json(library.runs())
