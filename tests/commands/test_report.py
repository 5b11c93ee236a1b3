from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.present.web import static_files
from tests.builders import Recording


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(Recording().step(1, 0, 100).launch(10, "add_kernel", 30, 60).write(tmp_path))


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "static"
    folder.mkdir()
    for name in ("index.html", "app.js", "app.css"):
        (folder / name).write_text("", encoding="utf-8")
    monkeypatch.setattr(static_files, "_folder", lambda: folder)


@pytest.mark.slow
@pytest.mark.usefixtures("page")
def test_a_report_is_written_once(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.html"
    assert main(["report", path, "-o", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"wrote {out}: 0.0 MB\n"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["report", path, "-o", str(out)]) == 2
    assert "will not overwrite without --force" in capsys.readouterr().err
    assert main(["report", path, path, "-o", str(out), "--force", "--budget", "30 MB"]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("page")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["-o", "x.txt"], 2, "end the name in .html"),
        (["-o", "x.html", "--budget", "much"], 2, "a size is a number and kB, MB or GB"),
        (["-o", "x.html", "--budget", "0"], 2, "a size is a number and kB, MB or GB"),
        (["-o", "x.html", "--steps", "last"], 2, "a step or a range of them"),
        (["-o", "absent/x.html"], 2, "absent/x.html: cannot be written: No such file or directory"),
        ([], 2, "required: -o"),
    ],
)
def test_wrong_calls(
    arguments: list[str], code: int, says: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", path, *arguments]) == code
    assert says in capsys.readouterr().err


def test_without_a_page_it_says_how_to_get_one(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(static_files, "_folder", lambda: tmp_path / "nothing")
    assert main(["report", path, "-o", str(tmp_path / "out.html")]) == 4
    assert "run `pip install --force-reinstall --no-deps .` in the source tree" in capsys.readouterr().err
