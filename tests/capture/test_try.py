"""`foretrace try` on real programs, each variant in a process of its own."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from foretrace.capture.trial_options import TrialOptions
from foretrace.commands import main
from foretrace.trial import candidates, ledger, process, recording, report
from foretrace.trial.process import Limits
from foretrace.trial.sweep import Settings, Sweep
from tests.capture.programs import SOURCES
from tests.diagnose.loops import H200, loop
from tests.diagnose.rules.host.test_anomaly_mode import anomalies
from tests.trial.test_sweep import outcome

# Short blocks: what is tested is what is said, not how exact the times are.
QUICK = TrialOptions(output="", settle_s=0.05, blocks=6, block_s=0.05)

MODEL = """
import torch
torch.set_num_threads(1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
    def forward(self, x):
        return self.second(self.first(x))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
"""
TRAIN = """
x, y = torch.randn(16, 8), torch.randn(16, 8)
for step in range(1_000_000):
    optimizer.zero_grad()
    net(x).backward(y)
    optimizer.step()
"""
STARVED = """
import time, torch
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, place):
        time.sleep(0.01)
        return torch.ones(8) * (place % 7)
torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(Slow(), batch_size=2):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    torch.save(net.state_dict(), "last.pt")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of compiling processes
    return tmp_path


def tried(
    folder: Path, code: str, *names: str, **settings: Any
) -> tuple[report.Report, dict[str, report.Row]]:
    """A program with these changes, each in its own process."""
    (folder / "program.py").write_text(code)
    proposals = candidates.propose(None, None, numerics=True, also=names)
    chosen = Settings(QUICK, Limits(90), base_every=0, **settings)
    (folder / "out").mkdir()
    command = [sys.executable, "program.py"]
    swept = Sweep(command, proposals, chosen, folder / "out", say=lambda _: None).run()
    made = report.make("program.py", proposals, swept, seed=0)
    return made, {row.change: row for row in made.rows}


def test_a_starved_loader_is_fed_by_workers(here: Path) -> None:
    """Items take 10 ms each: four workers make four in that time, and the losses stay the same.

    On a busy machine the steps may scatter too much to tell, and the answer is "inconclusive": it is tried again then.
    """
    for _ in range(3):
        made, rows = tried(here, STARVED, "workers=4+fused-optimizer")
        (row,) = rows.values()
        if row.verdict != "inconclusive":
            break
        shutil.rmtree(here / "out")
    assert row.status == "measured", row.error
    assert row.verdict == "faster"
    assert row.speedup is not None
    assert row.speedup.point > 1.1
    assert "alive after the steps" in row.proof
    assert "SGD took" in row.proof
    assert row.results is not None
    assert row.results.verdict == "identical"
    # What the program saves goes to the scratch folder, and is told.
    assert not (here / "last.pt").exists()
    assert any("last.pt" in note for note in made.notes)


def test_a_compiled_model_is_proved_by_its_graphs(here: Path) -> None:
    """The layers need no kernel of their own, so that no C++ is compiled."""
    _, rows = tried(here, MODEL + TRAIN, "compile")
    row = rows["compile"]
    assert row.status == "measured", row.error
    assert row.proof == "1 compiled graph, 0 graph breaks, of Net"
    assert row.results is not None
    assert row.results.verdict in ("identical", "as precision")
    assert row.start_extra_s is not None  # compiling is told apart


def test_dropout_is_not_compared_and_a_crash_under_compile_is_a_row(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a C++ compiler torch.compile fails; what comes after it is tried all the same."""
    monkeypatch.setenv("CXX", "/nowhere/g++")
    code = MODEL.replace("self.second(self.first(x))", "self.second(torch.dropout(self.first(x), 0.5, True))")
    made, rows = tried(here, code + TRAIN, "compile", "bf16-autocast")
    assert list(rows) == ["bf16-autocast", "compile"]
    assert rows["compile"].status == "failed"
    assert "InvalidCxxCompiler" in rows["compile"].error
    row = rows["bf16-autocast"]
    assert row.status == "measured", row.error
    assert row.results is not None
    assert row.results.verdict == "not comparable"
    assert "dropout" in row.results.says
    assert made.base.runs == 2


def test_a_program_without_steps_is_told_what_to_do(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "program.py").write_text("import torch\nprint(torch.ones(2).sum())\n")
    code = main(["try", "--only", "compile", "-o", "out", "--", sys.executable, "program.py"])
    assert code == 4
    streams = capsys.readouterr()
    assert "call foretrace.step()" in streams.err
    assert streams.out == ""


def test_a_dry_run_starts_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try", "--dry-run", "--", "/nowhere/python", "program.py"]) == 0
    kept = capsys.readouterr().out
    assert "torch.backends.cudnn.benchmark = True" in kept
    assert "compile" not in kept
    assert main(["try", "--dry-run", "--numerics", "--", "/nowhere/python", "program.py"]) == 0
    assert "model.compile()" in capsys.readouterr().out
    assert list(here.iterdir()) == []


def test_the_command_from_a_run_with_predictions_to_the_ledger(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With processes that are only pretended: what a recording suggests is tried, printed and kept."""
    (here / "run").mkdir()
    loop(here / "run", 1_800, anomalies)
    monkeypatch.setattr(recording, "record", lambda *_, **__: here / "run")
    monkeypatch.setattr(
        process, "run", lambda command, options, **_: outcome(options.changes, device=H200["name"])
    )
    assert (
        main(
            ["try", "-o", "out", "--format", "json", "--also", "fused-optimizer", "--", "python", "train.py"]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert [change["change"] for change in document["changes"]] == ["anomaly-off", "fused-optimizer"]
    assert [kept.rule for kept in ledger.read(ledger.DEFAULT).records] == ["anomaly-mode"]
