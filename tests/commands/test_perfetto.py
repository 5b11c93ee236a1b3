from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.present.export import perfetto
from tests.builders import Recording
from tests.compare.recorded import run_folder
from tests.diagnose.kernels import ADD, Op, recorded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Recording().step(1, 0, 100).launch(10, "add_kernel", 30, 60).write(tmp_path)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_run_has_its_findings_beside_its_events(tmp_path: Path) -> None:
    """2.7 of 3 ms a step are a product in fp32: the track says what changing that is worth, by the unprofiled step."""
    square = [[4_096, 4_096], [4_096, 4_096]]
    product = Op("aten::mm", "ampere_sgemm_128x128_tn", 2_700, shapes=square, dtypes=["float", "float"])
    made = recorded([product, Op("aten::add", ADD, 300)])
    run = run_folder(tmp_path / "run", made, [3.0, 3.01, 2.99, 3.0, 3.0])
    out = tmp_path / "out.json"
    assert main(["perfetto", "--no-cache", str(run), "-o", str(out)]) == 0
    events = json.loads(out.read_bytes())["traceEvents"]
    names = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    track = next(tid for tid, name in names.items() if name == "Finding 1: no-tensor-cores")
    slices = [each for each in events if each["pid"] == perfetto.PROCESS and each["tid"] == track]
    products = [each for each in slices if each["ph"] == "X"]
    assert {each["name"] for each in products} == {product.kernel}
    told = products[0]["args"]
    assert told["worth"].startswith("gain, × ")
    assert told["at"] == "aten::mm"
    assert {"says", "fix", "rule", "finding"} <= told.keys()
