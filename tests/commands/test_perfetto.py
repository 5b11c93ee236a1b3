from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from foretrace.commands import main
from tests.builders import Recording


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Recording().step(1, 0, 100).launch(10, "add_kernel", 30, 60).write(tmp_path)


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_a_file_is_written_once(
    name: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / name
    assert main(["perfetto", str(path), "-o", str(out)]) == 0
    assert capsys.readouterr().err == f"wrote {out}: open it at https://ui.perfetto.dev\n"
    data = out.read_bytes()
    events = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)["traceEvents"]
    assert {"add_kernel", "Step 1"} <= {event["name"] for event in events}
    assert main(["perfetto", str(path), "-o", str(out)]) == 2
    assert "will not overwrite without --force" in capsys.readouterr().err
    assert main(["perfetto", str(path), "-o", str(out), "--force"]) == 0


@pytest.mark.parametrize(
    ("output", "says"),
    [("x.txt", "end the name in .json or .json.gz"), ("absent/x.json", "cannot be written: No such file")],
)
def test_wrong_calls(output: str, says: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perfetto", str(path), "-o", output]) == 2
    assert says in capsys.readouterr().err


def test_the_recording_itself_is_never_overwritten(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = path.read_bytes()
    assert main(["perfetto", str(path), "-o", str(path), "--force"]) == 2
    assert "is the recording itself" in capsys.readouterr().err
    assert path.read_bytes() == before
