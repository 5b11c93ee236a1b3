"""The waits for DataLoaders in unprofiled steps: made-up programs under `foretrace run`, whose waits are known."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from foretrace.capture import loader_waits

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

SOURCES = Path(__file__).parents[2] / "src"
QUICK = ("--settle-s", "0.2", "--time-s", "1", "--warm-s", "0.05", "--quiet")
# A batch takes so many seconds to make, a step so many besides.
PROGRAM = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_num_threads(1)
class Slow(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index):
        if {fails} and index == 100: raise KeyError("no such item")
        time.sleep({item_s})
        return {{"x": torch.ones(16), "more": [torch.zeros(2, dtype=torch.int64)]}}
def main():
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(DataLoader(Slow(), batch_size=2, **{loader})):
        model(batch["x"]).square().mean().backward()
        optimizer.step()
        time.sleep({step_s})
        if step == {steps}: break
    print("done")
if __name__ == "__main__":
    main()
"""


def program(
    folder: Path, *, item_s: float, step_s: float, fails: bool = False, steps: int = 400, **loader: Any
) -> Path:
    path = folder / "program.py"
    path.write_text(PROGRAM.format(item_s=item_s, step_s=step_s, fails=fails, steps=steps, loader=loader))
    return path


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORETRACE")}
    environment = {**kept, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=240,
        check=False,
    )


def loader_of(folder: Path, script: Path, *, batch_s: float = math.inf) -> dict[str, Any]:
    """What a Run says of the loader; recorded once more where a busy machine took much longer than `batch_s` for a batch."""
    quick = (*QUICK, "--stop-after-capture")
    for _ in range(3):
        shutil.rmtree(folder / "run", ignore_errors=True)
        done = ran(folder, "-m", "foretrace", "run", "-o", "run", *quick, "--", sys.executable, str(script))
        assert (done.returncode, done.stderr) == (0, "")
        facts: dict[str, Any] = json.loads((folder / "run" / "rank0" / "rank.json").read_text())["loader"]
        if math.isinf(batch_s) or facts["made"]["mean_ns"] < 1.2e9 * batch_s:
            break
    return facts


def test_bursts_of_workers_that_are_too_slow(tmp_path: Path) -> None:
    """Two workers need 80 ms a batch, so one comes every 40 ms; 10 ms of that is the step."""
    loader = loader_of(
        tmp_path,
        program(tmp_path, item_s=0.04, step_s=0.01, num_workers=2, persistent_workers=True),
        batch_s=0.08,
    )
    assert (loader["workers"], loader["batch_size"], loader["prefetch_factor"]) == (2, 2, 2)
    assert (loader["persistent_workers"], loader["pin_memory"]) == (True, False)
    assert loader["batch_bytes"] == 2 * (16 * 4 + 2 * 8)
    assert loader["steps"] >= 20
    assert loader["made"]["mean_ns"] >= 80e6  # a busy machine sleeps longer, never shorter
    assert loader["made"]["mean_cpu_ns"] < 0.5 * loader["made"]["mean_ns"]  # it sleeps
    assert loader["step_ns"] == pytest.approx(loader["made"]["mean_ns"] / 2, rel=0.3)
    assert 0.3 * loader["step_ns"] < loader["mean_ns"] <= loader["step_ns"] - 10e6
    assert 0 < loader["waiting_steps"] <= loader["steps"]
    assert loader["max_ns"] >= loader["p90_ns"] >= loader["median_ns"]
    assert sum(loader["waits_ns"]) / len(loader["waits_ns"]) == pytest.approx(loader["mean_ns"], rel=0.1)


def test_a_slow_loader_in_the_main_process(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, program(tmp_path, item_s=0.01, step_s=0.01, num_workers=0), batch_s=0.02)
    assert (loader["workers"], loader["prefetch_factor"]) == (0, None)
    assert loader["waiting_steps"] == loader["steps"]
    assert loader["median_ns"] >= 20e6  # a busy machine sleeps longer, never shorter
    assert loader["made"]["mean_ns"] == pytest.approx(loader["mean_ns"], rel=0.1)
    assert loader["made"]["batches"] == pytest.approx(loader["steps"], abs=2)
    times = json.loads((tmp_path / "run" / "rank0" / "rank.json").read_text())["unprofiled"]
    own_ns = loader["step_ns"] - loader["mean_ns"]
    assert times["host_ns"] == pytest.approx(own_ns, rel=0.3)  # without the 20 ms


def test_workers_that_have_nothing_to_do_are_not_waited_for(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, program(tmp_path, item_s=0, step_s=0.08, num_workers=1, steps=60))
    assert loader["workers"] == 1
    assert loader["median_ns"] < 0.1 * loader["step_ns"]


def test_spawned_workers_are_waited_for_all_the_same(tmp_path: Path) -> None:
    """What they need for a batch is not known."""
    script = program(tmp_path, item_s=0.02, step_s=0.005, num_workers=1, multiprocessing_context="spawn")
    loader = loader_of(tmp_path, script)
    assert loader["made"] is None
    assert loader["mean_ns"] > 0.4 * loader["step_ns"]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_item_that_fails_does_so_as_without(tmp_path: Path, workers: int) -> None:
    """The traceback, a worker's too, has no frame of ours."""
    script = program(tmp_path, item_s=0, step_s=0, fails=True, num_workers=workers)
    plain = ran(tmp_path, str(script))
    done = ran(tmp_path, "-m", "foretrace", "run", "-o", "run", *QUICK, "--", sys.executable, str(script))
    assert "no such item" in plain.stderr
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.fixture
def waits() -> Iterator[loader_waits.LoaderWaits]:
    made = loader_waits.LoaderWaits()
    yield made
    made.end()
    loader_waits.remove()


def test_hooks_go_when_nobody_needs_them(waits: loader_waits.LoaderWaits) -> None:
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch

    owners = (dataloader._BaseDataLoaderIter, fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    before = [dict(owner.__dict__) for owner in owners]
    waits.begin()
    assert [dict(owner.__dict__) for owner in owners] != before
    waits.end()
    assert [dict(owner.__dict__) for owner in owners] == before


def test_waits_are_uneven_until_their_mean_is_known(waits: loader_waits.LoaderWaits) -> None:
    """Every tenth step of about 20 ms waits half of the time."""
    waits.begin()
    assert not waits.uneven
    for step in range(20):
        waits._in_step = 10_000_000 * (step % 10 == 0)
        waits.step()
    waits._began_ns = waits._last_ns - 20 * 20_000_000
    assert waits.uneven  # 3 ms of scatter over the root of 20 steps: 0.7 ms
    for step in range(480):
        waits._in_step = 10_000_000 * (step % 10 == 0)
        waits.step()
    waits._began_ns = waits._last_ns - 500 * 20_000_000
    assert not waits.uneven  # over the root of 500: 0.13 ms


def test_a_loader_of_another_make_is_left_alone(
    waits: loader_waits.LoaderWaits, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch

    monkeypatch.delattr(fetch, "_IterableDatasetFetcher")
    before = dataloader._BaseDataLoaderIter.__next__
    waits.begin()
    waits.step()
    assert waits.facts() is None
    assert dataloader._BaseDataLoaderIter.__next__ is before


def test_calls_of_other_threads_hold_nobody_up(waits: loader_waits.LoaderWaits) -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = DataLoader(TensorDataset(torch.ones(4)))
    waits.begin()
    reader = threading.Thread(target=lambda: list(data))
    reader.start()
    reader.join()
    waits.step()
    assert waits.facts() is None
    assert len(list(data)) == 4
    waits.step()
    facts = waits.facts()
    assert facts is not None
    assert (facts["steps"], facts["calls"], facts["workers"], facts["batch_bytes"]) == (2, 4, 0, 4)


def test_waits_as_numbers() -> None:
    """Four steps of ten wait 90 ms."""
    facts = loader_waits.spread([0, 90, 0, 90, 0, 0, 90, 0, 90, 0], 100)
    assert (facts["waiting_steps"], facts["waiting_mean_ns"], facts["mean_ns"]) == (4, 90, 36)
    assert (facts["median_ns"], facts["p90_ns"], facts["max_ns"]) == (0, 90, 90)
    assert facts["waits_ns"] == [0] * 6 + [90] * 4


def test_many_waits_are_kept_as_a_hundred() -> None:
    facts = loader_waits.spread(list(range(1000)), 1)
    assert len(facts["waits_ns"]) == 100
    assert facts["waits_ns"][0] == pytest.approx(4.5, abs=0.5)
    assert facts["waits_ns"][-1] == pytest.approx(994.5, abs=0.5)
