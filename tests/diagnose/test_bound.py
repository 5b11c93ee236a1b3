"""What a step waits for most, on recordings whose fault is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import foretrace
from foretrace.diagnose.bound import bound
from foretrace.diagnose.case import Case
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.kernels import ADD, Op, device_bound
from tests.diagnose.loops import launches, loop


def test_kernels_back_to_back_follow_the_gpu(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [Op("aten::add", ADD, 500, [[8]], ["float"])])
    assert bound(Case(trace, step_ns=500_000)) == "gpu"


def test_small_kernels_follow_the_host(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert bound(Case(trace, step_ns=1_000_000)) == "host"


def test_a_step_that_waits_for_its_batch_follows_the_input(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 800)
        launches(recording, at + 800, 20)

    assert bound(Case(loop(tmp_path, 1_000, body), step_ns=1_000_000)) == "input"


@needs_corpus
@pytest.mark.parametrize(
    ("name", "expected"),
    [("naive_attention", "gpu"), ("decode_launch_bound", "host"), ("slow_dataloader", "input"), ("pageable_h2d", "copy"),
     ("host_stall", "host"), ("fp32_gemm", "gpu")],
)  # fmt: skip
@pytest.mark.parametrize("form", ["lite", "rich"])
def test_the_corpus_is_bound_by_what_is_wrong_with_it(name: str, expected: str, form: str) -> None:
    folder = CORPUS / "h200"
    step_ms = json.loads((folder / f"{name}.truth.json").read_text())["slow"]["step_ms"]
    trace = foretrace.open(folder / f"{name}.slow.{form}.json.gz")
    assert bound(Case(trace, step_ns=step_ms * 1e6)) == expected
