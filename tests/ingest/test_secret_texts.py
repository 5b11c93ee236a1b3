"""Recordings of others may hold secrets: no table, page, report or export shows them."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from pathlib import Path

import pytest

from foretrace import cache
from foretrace.commands import main
from foretrace.commands.agent.roots import Roots
from foretrace.commands.agent.tools import Tools
from foretrace.diagnose.case import Case
from foretrace.ingest import kineto, kineto_native, kineto_python, open_trace
from foretrace.ingest.secret_texts import mask_secrets
from foretrace.ingest.source import open_source
from foretrace.present.agent.answer import shown
from foretrace.present.export import perfetto, report
from foretrace.present.web import static_files
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.run_files import place_of
from foretrace.secret_formats import LEFT_OUT
from tests.builders import Recording
from tests.capture.planted import ISSUED
from tests.corpus import CORPUS, needs_corpus
from tests.ingest.comparison import READERS

URL = "postgres://admin:correct-horse@db/x"
SECRETS = (ISSUED["github"], ISSUED["jwt"], ISSUED["openai"], "correct-horse", "hunter2")
KERNEL = "void at::native::vectorized_elementwise_kernel<4, sk_LearnFunctor2D>"


def recording(folder: Path) -> Path:
    """A secret in a region, an operator's argument, a thread's name, a Python frame and the header."""
    made = Recording(env={"DB_PASSWORD": "hunter2", "NOTE": ISSUED["openai"]}, host="a")
    for step in range(3):
        at = 1_000.0 * step
        made.step(step, at, at + 900)
        made.annotation(f"push {ISSUED['github']}", at + 10, at + 800)
        made.annotation(f"connect {URL}", at + 11, at + 700)
        made.python(f"/a/b.py(3): fetch_{ISSUED['jwt']}", at + 12, at + 690)
        made.op("aten::TokenEmbedding", at + 20, at + 100, **{"Concrete Inputs": [ISSUED["github"], ""]})
        made.launch(at + 30, KERNEL, at + 200, at + 600)
    return made.write(folder)


@pytest.mark.parametrize("reader", READERS)
def test_secrets_are_masked_as_a_recording_is_read(reader: str, tmp_path: Path) -> None:
    trace = open_trace(recording(tmp_path), cache=False, reader=reader)
    names = set(trace.spans["name"].cast(str))
    assert {
        f"push {LEFT_OUT}",
        f"connect postgres://{LEFT_OUT}@db/x",
        KERNEL,
        "aten::TokenEmbedding",
    } <= names
    everything = json.dumps(
        [dict(trace.meta), *(trace.table(name).write_json() for name in ("spans", "ops", "stacks", "args"))]
    )
    assert [secret for secret in SECRETS if secret in everything] == []
    assert trace.meta["header"]["env"] == {"DB_PASSWORD": LEFT_OUT, "NOTE": LEFT_OUT}
    assert trace.meta["masked_texts"] >= 4


def test_a_recording_without_secrets_says_so(tmp_path: Path) -> None:
    path = Recording().step(1, 0, 100).op("aten::add", 5, 20).write(tmp_path)
    assert open_trace(path, cache=False).meta["masked_texts"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["show", "sections"], ["show", "stacks"], ["show", "operators"], ["summary"], ["diagnose"],
     ["sql", "select name from spans"], ["sql", "select * from args"]],
    ids=str,
)  # fmt: skip
def test_no_command_prints_them(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(recording(tmp_path))
    arguments = ["sql", path, command[1]] if command[0] == "sql" else [*command, path]
    main([*arguments, "--format", "json"])
    captured = capsys.readouterr()
    assert [secret for secret in SECRETS if secret in captured.out + captured.err] == []


@pytest.mark.slow
def test_no_page_report_or_export_holds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    static = tmp_path / "static"
    static.mkdir()
    for name in (static_files.HTML, static_files.SCRIPT, static_files.STYLE):
        (static / name).write_text("x", encoding="utf-8")
    monkeypatch.setattr(static_files, "_folder", lambda: static)
    view = RecordingView(Case(open_trace(recording(tmp_path), cache=False)), run_id="1")
    text = report.make([view]).text
    parts = re.findall(r'data-resource="([^"]*)"[^>]*>([^<]*)<', text)
    shown = b"".join(gzip.decompress(b64decode(part)) for _, part in parts) + text.encode()
    exported = b"".join(perfetto.chunks(view))
    assert b"connect postgres://" in shown, "the region is there, without who logs in"
    json.loads(exported)
    for secret in SECRETS:
        assert secret.encode() not in shown
        assert secret.encode() not in exported


@pytest.mark.slow
def test_a_folder_that_is_named_by_a_token_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cache, "MIN_SPANS", 1)
    monkeypatch.setenv("FORETRACE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / ISSUED["github"]
    folder.mkdir()
    path = recording(folder)
    for form in ("json", "agent"):
        main(["diagnose", str(path), "--format", form])
    main(["show", "sections", str(path), "--format", "json"])
    main(["cache"])
    printed = capsys.readouterr()
    assert ISSUED["github"] not in printed.out + printed.err
    (entry,) = (tmp_path / "cache").glob("*/entry.json")
    assert LEFT_OUT in json.loads(entry.read_text())[1]["source"]
    assert place_of(path, path)[0] == LEFT_OUT
    answer = Tools(Roots.of([tmp_path])).diagnose(str(path))
    assert ISSUED["github"] not in shown(answer).text


@needs_corpus
def test_no_name_in_recordings_of_others_is_taken_for_a_secret() -> None:
    """Kernels, operators, frames and shapes; what their headers hold is another matter."""
    looked_at = 0
    for path in sorted(CORPUS.glob("peers/**/*.json.gz")):
        source = open_source(path)
        if path.stat().st_size > 400_000 or not kineto.accepts(source.head):
            continue
        columns = (
            kineto_native.scan(source, None)
            if not kineto_native.missing
            else kineto_python.scan(source.chunks())
        )
        before = [*columns.names], [*columns.texts]
        mask_secrets(columns)
        assert (columns.names, columns.texts) == before, path.name
        looked_at += 1
    assert looked_at >= 10
